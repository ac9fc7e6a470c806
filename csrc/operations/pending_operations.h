// The operations of a group that this rank has announced, until they have ended, and how they end.
//
// A quick operation ends from the request slots, here; an operation of the log when its entry has been executed; a
// message when its bytes have moved. A name is busy until its operation has been waited for or polled, or has ended
// with nobody holding its handle.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "operations/named_operations.h"
#include "operations/point_to_point.h"
#include "operations/unnamed_window.h"
#include "planner/resources.h"

namespace rr {

// Read without a lock.
struct PendingCounts {
  std::atomic<uint32_t> operations{0};  // of the log, and messages
  std::atomic<uint32_t> messages{0};
};

class PendingOperations {
 public:
  PendingOperations(const Resources& from, Negotiation& negotiation, std::vector<std::unique_ptr<Link>> message_links,
                    PendingCounts& counts);

  // --- announcing
  // False, and nothing announced, when there is no room. log_full: the log has to be tried again. Throws
  // InvalidArgumentError when the name is busy.
  bool announce_named(const OperationPtr& operation, const void* payload, size_t nbytes, bool& log_full);
  // There is room in the window.
  void announce_unnamed(const OperationPtr& operation, const void* payload, size_t nbytes, bool eager);
  UnnamedWindow& unnamed() { return unnamed_; }
  void send(const OperationPtr& operation, int peer, int tag);
  void receive(const OperationPtr& operation, int peer, int tag);  // peer: also kAnyPeer
  const PointToPoint& messages() const { return messages_; }
  NamedOperations& named() { return named_; }

  // --- looking
  const std::unordered_map<uint64_t, OperationPtr>& logged() const { return logged_; }  // by request slot
  std::vector<OperationPtr> oldest_first() const;                                       // but for messages
  // The oldest operation that `rank`, of the group, has not announced; null: none.
  OperationPtr waiting_for(int rank) const;
  // Whether something of the log needs no rank's call any more.
  bool is_any_under_way() const;

  // --- ending
  // For who waits for all of them: ends quick operations that are complete, and lets the others run.
  void push_unnamed();
  void push_named();
  // Ends a quick operation if every rank has announced it.
  bool try_finish_quick(Operation& operation);
  // Ends an operation of the log whose requests do not agree: it never enters the log, as all its ranks see. No effect
  // on others.
  void settle(Operation& operation);
  void succeed(Operation& operation);
  void fail(Operation& operation, std::exception_ptr error);
  // Of the log, and over. No effect on others.
  void remove_logged(const Operation& operation);
  // Moves messages; true when bytes moved. finished: whether one has ended.
  bool progress_messages(bool& finished);
  void fail_all(const std::function<std::exception_ptr(const Operation&)>& error_of);
  // A deadlock verdict: what this rank has announced without a number of its own that all ranks share is void, and the
  // unnamed operations go on where the rank that was ahead had come to.
  void withdraw();
  // The same of a rank that has joined, if a verdict has withdrawn something that it announced before.
  void withdraw_if_void();
  // The caller of an operation is gone: its memory is neither read nor written any more. For one of the log: it has
  // been withdrawn there. False of a message that has begun to arrive.
  void discard(Operation& operation);
  bool discard_message(Operation& operation);

 private:
  void add_logged(const OperationPtr& operation);
  void free_name(const std::string& name);
  void push(Operation& operation);
  bool is_settled(const Operation& operation, RankMask& participants) const;
  void refuse(Operation& operation, const RankMask& participants);
  void consume(Operation& operation);

  const Resources& from_;
  Negotiation& negotiation_;
  PendingCounts& counts_;
  UnnamedWindow unnamed_;
  PointToPoint messages_;
  NamedOperations named_;
  std::unordered_map<uint64_t, OperationPtr> logged_;
};

}  // namespace rr
