#include "operations/pending_operations.h"

#include <algorithm>

#include "base/errors.h"
#include "negotiation/segment/failure.h"
#include "operations/moved_bytes.h"
#include "operations/quick_result.h"
#include "operations/recording.h"

namespace rr {
namespace {

void end(const Resources& from, Operation& operation, State state, std::exception_ptr error = nullptr) {
  record_end(from, operation, state == State::kFailed);
  operation.keep.reset();
  operation.exports.clear();
  operation.error = std::move(error);
  operation.state.store(state, std::memory_order_release);
}

}  // namespace

PendingOperations::PendingOperations(const Resources& from, Negotiation& negotiation,
                                     std::vector<std::unique_ptr<Link>> message_links, PendingCounts& counts)
    : from_(from),
      negotiation_(negotiation),
      counts_(counts),
      unnamed_(from.control, negotiation, from.rank, from.settings.staging, from.stats),
      messages_(std::move(message_links)) {}

bool PendingOperations::announce_named(const OperationPtr& operation, const void* payload, size_t nbytes,
                                       bool& log_full) {
  free_name(operation->name);
  operation->ticket =
      negotiation_.announce_named(operation->name, operation->signature, payload, nbytes, !operation->quick, log_full);
  if (operation->ticket.tag == 0) return false;
  named_.add(operation);
  add_logged(operation);
  return true;
}

void PendingOperations::announce_unnamed(const OperationPtr& operation, const void* payload, size_t nbytes,
                                         bool eager) {
  operation->ticket = unnamed_.announce(operation->signature, payload, nbytes, eager);
  unnamed_.add(operation);
  add_logged(operation);
}

void PendingOperations::add_logged(const OperationPtr& operation) {
  if (operation->quick) return;
  logged_[operation->ticket.request_slot] = operation;
  counts_.operations.fetch_add(1);
}

void PendingOperations::remove_logged(const Operation& operation) {
  if (!operation.quick && logged_.erase(operation.ticket.request_slot) != 0) counts_.operations.fetch_sub(1);
}

void PendingOperations::send(const OperationPtr& operation, int peer, int tag) {
  messages_.add_send(operation, peer, tag);
  counts_.messages.fetch_add(1);
  counts_.operations.fetch_add(1);
}

void PendingOperations::receive(const OperationPtr& operation, int peer, int tag) {
  if (peer == kAnyPeer) {
    messages_.add_receive_from_anyone(operation, tag);
  } else {
    messages_.add_receive(operation, peer, tag);
  }
  counts_.messages.fetch_add(1);
  counts_.operations.fetch_add(1);
}

void PendingOperations::free_name(const std::string& name) {
  const Operation* const busy = named_.free(name, [this](Operation& operation) {
    if (operation.quick && is_pending(operation)) try_finish_quick(operation);
    if (operation.discard) settle(operation);
  });
  if (busy == nullptr) return;
  throw InvalidArgumentError(
      "Requested to allreduce, allgather, or broadcast a tensor with the same name as another tensor that is currently "
      "being processed.  If you want to request another tensor, use a different tensor name. (" +
      from_.where(*busy) +
      (busy->discard ? "; an exception ended its call, and not all ranks have called it since)" : ")"));
}

std::vector<OperationPtr> PendingOperations::oldest_first() const {
  std::vector<OperationPtr> operations;
  const auto add = [&](const OperationPtr& operation) {
    if (operation != nullptr && is_pending(*operation)) operations.push_back(operation);
  };
  unnamed_.for_each([&](Ticket, const OperationPtr& operation) { add(operation); });
  named_.for_each(add);
  std::sort(operations.begin(), operations.end(),
            [](const OperationPtr& a, const OperationPtr& b) { return a->number < b->number; });
  return operations;
}

OperationPtr PendingOperations::waiting_for(int rank) const {
  for (const OperationPtr& operation : oldest_first()) {
    if (operation->discard) continue;  // nobody waits for it
    const auto missing = negotiation_.requests().missing(operation->ticket);
    if (std::find(missing.begin(), missing.end(), rank) != missing.end()) return operation;
  }
  return nullptr;
}

bool PendingOperations::is_any_under_way() const {
  return std::any_of(logged_.begin(), logged_.end(),
                     [&](const auto& logged) { return negotiation_.requests().complete(logged.second->ticket); });
}

void PendingOperations::push(Operation& operation) {
  if (operation.quick && is_pending(operation)) try_finish_quick(operation);
  if (operation.discard) settle(operation);  // nobody waits for it
  operation.wanted.store(true, std::memory_order_relaxed);
}

void PendingOperations::push_unnamed() {
  unnamed_.for_each([&](Ticket, const OperationPtr& operation) {
    if (operation != nullptr) push(*operation);
  });
}

void PendingOperations::push_named() {
  named_.for_each([&](const OperationPtr& operation) { push(*operation); });
}

// In a group that has failed nobody decides anything more. There a rank whose request differs from the others' raises
// MismatchError, and not the group's failure.
bool PendingOperations::is_settled(const Operation& operation, RankMask& participants) const {
  return has_failed(from_.control) ? negotiation_.requests().complete(operation.ticket, &participants)
                                   : negotiation_.requests().is_settled(operation.ticket, &participants);
}

bool PendingOperations::try_finish_quick(Operation& operation) {
  RankMask participants(from_.size());
  if (!is_settled(operation, participants)) return false;
  if (!negotiation_.requests().feasible(operation.ticket, participants)) {
    refuse(operation, participants);
    return true;
  }
  if (operation.recorded.timeline != 0) record_start(operation, now_ns());
  if (!operation.discard) compute_quick(from_, operation, participants);
  add(from_.stats.one_shot, 1);
  succeed(operation);
  return true;
}

void PendingOperations::settle(Operation& operation) {
  RankMask participants(from_.size());
  if (operation.quick || operation.settled.load(std::memory_order_relaxed) || operation.ticket.tag == 0) return;
  if (operation.state.load(std::memory_order_relaxed) != State::kPending) return;
  if (!is_settled(operation, participants)) return;
  if (negotiation_.requests().feasible(operation.ticket, participants)) {
    // Until it is in the log a rank may still have it withdrawn.
    if (negotiation_.requests().is_appended(operation.ticket)) operation.settled.store(true, std::memory_order_relaxed);
    return;
  }
  operation.settled.store(true, std::memory_order_relaxed);
  remove_logged(operation);
  refuse(operation, participants);
}

void PendingOperations::refuse(Operation& operation, const RankMask& participants) {
  const std::string text =
      negotiation_.requests().mismatch(operation.ticket, participants) + " " + from_.where(operation);
  fail(operation, std::make_exception_ptr(MismatchError(text)));
}

// The peers may reuse what this rank has announced and read.
void PendingOperations::consume(Operation& operation) {
  if (!operation.name.empty()) {
    negotiation_.publish_consumed(operation.ticket);
  } else {
    unnamed_.consume(operation.ticket);
  }
}

void PendingOperations::succeed(Operation& operation) {
  consume(operation);
  count_moved(from_.stats, operation.kind, operation.signature.nbytes, from_.size());
  end(from_, operation, State::kDone);
}

void PendingOperations::fail(Operation& operation, std::exception_ptr error) {
  consume(operation);
  end(from_, operation, State::kFailed, std::move(error));
}

bool PendingOperations::progress_messages(bool& finished) {
  std::vector<PointToPoint::Finished> ended;
  const bool moved = messages_.progress(ended);
  for (auto& [operation, error] : ended) {
    add(from_.stats.bytes_moved, operation->signature.nbytes);
    add(from_.stats.bytes_on_bus, operation->signature.nbytes);  // at the sender and at the receiver
    if (error.empty()) {
      end(from_, *operation, State::kDone);
    } else {
      end(from_, *operation, State::kFailed,
          std::make_exception_ptr(MismatchError(error + " " + from_.where(*operation))));
    }
    counts_.operations.fetch_sub(1);
    counts_.messages.fetch_sub(1);
  }
  finished = !ended.empty();
  return moved;
}

void PendingOperations::fail_all(const std::function<std::exception_ptr(const Operation&)>& error_of) {
  const auto fail_pending = [&](Operation& operation) {
    if (is_pending(operation)) end(from_, operation, State::kFailed, error_of(operation));
  };
  for (auto& [request_slot, operation] : logged_) fail_pending(*operation);
  named_.for_each([&](const OperationPtr& operation) { fail_pending(*operation); });
  for (const OperationPtr& operation : unnamed_.drain()) fail_pending(*operation);
  for (const OperationPtr& operation : messages_.drain()) fail_pending(*operation);
  logged_.clear();
  named_.clear();
  counts_.operations.store(0);
  counts_.messages.store(0);
}

void PendingOperations::discard(Operation& operation) {
  remove_logged(operation);
  operation.discard = true;
  operation.keep.reset();
}

bool PendingOperations::discard_message(Operation& operation) {
  const PointToPoint::Withdrawn how = messages_.withdraw(operation);
  if (how != PointToPoint::Withdrawn::kTakenOut) return how == PointToPoint::Withdrawn::kCopied;
  counts_.operations.fetch_sub(1);
  counts_.messages.fetch_sub(1);
  end(from_, operation, State::kFailed,
      std::make_exception_ptr(MismatchError("its call was ended by an exception. " + from_.where(operation))));
  return true;
}

void PendingOperations::withdraw_if_void() {
  bool is_any = false;
  unnamed_.for_each([&](Ticket ticket, const OperationPtr& /*operation*/) {
    is_any |= from_.control.head(ticket.request_slot, from_.rank).tag.load() == 0;
  });
  if (is_any) withdraw();
}

void PendingOperations::withdraw() {
  const Deadlock::Verdict verdict = negotiation_.deadlock().verdict();
  const auto error = std::make_exception_ptr(MismatchError(verdict.text));
  unnamed_.for_each([&](Ticket ticket, const OperationPtr& operation) {
    if (ticket.tag > verdict.unnamed) return;  // another thread's, who has gone on since
    auto& tag = from_.control.head(ticket.request_slot, from_.rank).tag;
    const bool is_void = tag.load() != ticket.tag;
    if (operation != nullptr && !is_void && negotiation_.requests().complete(ticket)) return;
    tag.store(0);
    if (operation == nullptr) return unnamed_.consume(ticket);
    remove_logged(*operation);
    fail(*operation, error);
  });
  unnamed_.skip_to(verdict.unnamed);  // a rank that has gone on since may be further ahead by now
  named_.remove_if([&](const OperationPtr& operation) {
    const bool is_void =
        is_pending(*operation) && from_.control.head(operation->ticket.request_slot, from_.rank).tag.load() == 0;
    if (is_void) {
      end(from_, *operation, State::kFailed, error);
      remove_logged(*operation);
    }
    return is_void;
  });
}

}  // namespace rr
