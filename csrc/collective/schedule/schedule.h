// What one rank does in an operation, as items that wait for each other: messages over links, folds, copies, and what
// the ranks of its host do together. Algorithms write it as arithmetic, without I/O; execute() (execution.h) is the one
// loop over links.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "collective/algorithm.h"
#include "collective/host_scratch.h"
#include "data/codec.h"

namespace rr {

class Schedule {
 public:
  using Id = uint32_t;
  static constexpr Id kNone = std::numeric_limits<Id>::max();  // nothing to wait for

  // What an item waits for: all of them. kNone among them means nothing. Refers to a vector, and copies a few.
  class After {
   public:
    After() = default;
    After(Id id) : After(std::initializer_list<Id>{id}) {}                     // NOLINT
    After(std::initializer_list<Id> ids) : begin_(few_), count_(ids.size()) {  // NOLINT
      if (ids.size() > kFew) throw InternalError("a schedule's item waits for too many");
      std::copy(ids.begin(), ids.end(), few_);
    }
    After(const std::vector<Id>& ids) : begin_(ids.data()), count_(ids.size()) {}  // NOLINT
    After(const After&) = delete;
    After& operator=(const After&) = delete;
    const Id* begin() const { return begin_; }
    const Id* end() const { return begin_ + count_; }

   private:
    static constexpr size_t kFew = 4;
    Id few_[kFew] = {};
    const Id* begin_ = nullptr;
    size_t count_ = 0;
  };

  enum class Kind : uint8_t { kSend, kReceive, kFold, kReduce, kCopy, kEncode, kDecode, kRoundTrip, kOnHost, kJoint };
  struct Item {
    Kind kind = Kind::kJoint;
    Codec codec = Codec::kNone;
    uint32_t reduction = 0;  // of reductions()
    int rank = -1;           // whose link
    const std::byte* src = nullptr;
    std::byte* dst = nullptr;
    size_t count = 0;     // bytes of a message or copy, else elements
    size_t operands = 0;  // kReduce: the first of operands(); kOnHost: of algorithms
    size_t operand_count = 0;
  };

  // What moves or computes nothing is no item of its own: it is done when what it waits for is.

  // Messages. Those to one rank go in the order in which they are added, and so do those from one rank.
  Id send(int rank, const std::byte* src, size_t nbytes, const After& after);
  Id receive(int rank, std::byte* dst, size_t nbytes, const After& after);
  // dst = op(dst, incoming), as it arrives.
  Id fold(int rank, std::byte* dst, size_t nbytes, const Reduction& reduction, const After& after);
  // dst = reduction of the sources in their order; dst may be one of them.
  Id reduce(const std::vector<const std::byte*>& srcs, std::byte* dst, size_t count, const Reduction& reduction,
            const After& after);
  Id copy(const std::byte* src, std::byte* dst, size_t nbytes, const After& after);
  // Of float32 elements, to `dst` and back.
  Id encode(Codec codec, const std::byte* src, std::byte* dst, size_t count, const After& after);
  Id decode(Codec codec, const std::byte* src, std::byte* dst, size_t count, const After& after);
  // Rounds the elements in place, as encode() and decode() would.
  Id round_trip(Codec codec, std::byte* data, size_t count, const After& after);
  // What this rank does with others of its host. One is begun when the one that was added before it is done: all ranks
  // of a host add the same in the same order.
  Id on_host(std::unique_ptr<Algorithm> algorithm, const After& after);
  // Done when all of them are.
  Id joint(const After& after);
  // One more thing to wait for.
  void wait_for(Id item, const After& after);

  // Scratch that lives as long as the schedule.
  std::byte* memory(size_t nbytes);

  const std::vector<Item>& items() const { return items_; }
  // What waits for what: (earlier, later).
  const std::vector<std::pair<Id, Id>>& edges() const { return edges_; }
  const std::vector<Reduction>& reductions() const { return reductions_; }
  const std::vector<const std::byte*>& operands() const { return operands_; }
  std::vector<std::unique_ptr<Algorithm>>& algorithms() { return algorithms_; }
  const std::vector<std::unique_ptr<Algorithm>>& algorithms() const { return algorithms_; }

 private:
  Id add(Item item, const After& after);
  uint32_t index_of(const Reduction& reduction);

  std::vector<HostScratch> memory_;  // outlives the algorithms
  std::vector<Item> items_;
  std::vector<std::pair<Id, Id>> edges_;
  std::vector<Reduction> reductions_;
  std::vector<const std::byte*> operands_;
  std::vector<std::unique_ptr<Algorithm>> algorithms_;
};

}  // namespace rr
