// The unnamed operations of a group that this rank has announced and not consumed, in the order of their numbers.
//
// Operation c is announced in request slot c mod 256, and long data in one of 16 eager buffers. So this rank may be 256
// unnamed operations ahead of the slowest one (16, if their data are eager), and then waits.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/stats.h"
#include "negotiation/negotiation.h"
#include "planner/operation.h"
#include "transport/stage_writer.h"

namespace rr {

class UnnamedWindow {
 public:
  UnnamedWindow(const ControlSegment& control, Negotiation& negotiation, int rank, const std::string& staging,
                Stats& stats);

  // Whether another operation can be announced. eager: its data take an eager buffer.
  bool has_room(bool eager);
  // The ranks of the group, this one among them, that have not consumed what it would overwrite.
  std::vector<int> behind(bool eager) const;
  // Announces the next operation; there is room. eager: the payload goes into an eager buffer, and the request slot
  // names the buffer.
  Ticket announce(const Signature& signature, const void* payload, size_t nbytes, bool eager);
  // The operation of a ticket, for for_each(). No effect if the operation has been consumed.
  void add(const OperationPtr& operation);
  // The other ranks may overwrite what this rank has read and announced of the operation.
  void consume(Ticket ticket);

  // The number of the next operation.
  uint64_t next() const { return next_; }
  bool is_empty() const { return oldest_ == next_; }
  // The oldest operation; null: none, or its caller waits for it without a table.
  OperationPtr oldest() const { return operations_[oldest_ % kUnnamedSlots]; }
  // fn(ticket, operation) for those not consumed, oldest first; operation: as of oldest(). fn may consume.
  template <class Fn>
  void for_each(Fn fn) const {
    for (uint64_t number = oldest_; number < next_; ++number) {
      const size_t slot = number % kUnnamedSlots;
      if (!consumed_[slot]) fn(Ticket::unnamed(number), OperationPtr(operations_[slot]));
    }
  }
  // Returns the operations that were added, and forgets them; their numbers stay unconsumed.
  std::vector<OperationPtr> drain();

  // The numbers up to `next` are consumed without having been announced: all ranks go on there.
  void skip_to(uint64_t next);
  // All ranks go on with this number, and have consumed everything before. The window is empty.
  void restart(uint64_t next);

 private:
  // The watermarks that the next operation needs of all ranks: of those whose request slot, or eager buffer, it takes.
  uint64_t needs_for_slot() const { return next_ + 1 > kUnnamedSlots ? next_ + 1 - kUnnamedSlots : 0; }
  uint64_t needs_for_buffer() const { return eager_users_[eager_used_ % kEagerCount]; }
  uint64_t watermark_of(int rank) const;
  uint64_t least_watermark(uint64_t needed);
  void publish() const;

  const ControlSegment& control_;
  Negotiation& negotiation_;
  int rank_;
  Stats& stats_;
  uint64_t next_ = 0;
  uint64_t oldest_ = 0;  // not consumed here
  std::array<OperationPtr, kUnnamedSlots> operations_;
  std::array<bool, kUnnamedSlots> consumed_{};
  uint64_t least_watermark_ = 0;  // a lower bound of all ranks' watermarks, as last seen
  EagerWriter eager_writer_;
  uint64_t eager_used_ = 0;                          // eager buffers ever filled
  std::array<uint64_t, kEagerCount> eager_users_{};  // the unnamed operation that filled each, + 1
};

}  // namespace rr
