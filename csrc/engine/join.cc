// Group: joining, and taking back what a deadlock verdict made void.

#include <algorithm>

#include "base/errors.h"
#include "engine/context.h"
#include "engine/gpu/device_queue.h"
#include "engine/group.h"

namespace rr {

// What a rank announces after it has joined would be counted by some ranks and not by others, so it is refused; what
// has come to a GPU's stream is announced first. A join() that was interrupted is taken up by the next one.
int Group::join(Interrupt interrupt) {
  context_.throw_if_shut_down();
  throw_if_failed();
  {
    std::unique_lock lock(mutex_);
    record_thread(lock);
    throw_if_removed();
    if (joining_.load() != 0) {
      throw InvalidArgumentError("rank " + std::to_string(rank_) + "/" + std::to_string(size()) +
                                 ": join() is under way in another thread; one thread of a rank joins for all");
    }
    joining_.store(1);
  }
  struct Leave {
    std::atomic<uint32_t>& joining;
    ~Leave() { joining.store(0); }
  } leave{joining_};
  if (context_.device() != nullptr) context_.device_queue().await_announced(*this, interrupt);
  {
    const std::lock_guard lock(mutex_);
    if (!has_joined_.load()) {
      joined_epoch_ = negotiation_.join(unnamed_.next());
      has_drained_ = false;
      has_joined_.store(true);
    }
  }
  const auto finished = [&] {
    throw_if_failed();
    throw_if_removed();
    context_.throw_if_shut_down();
    if (!has_drained_) {
      const std::lock_guard lock(mutex_);
      push_unnamed();
      for (auto& [name, operation] : by_name_) {
        push(*operation);
        if (operation->state == State::kPending) return false;
      }
      if (!unnamed_.is_empty() || !logged_.empty()) return false;
    }
    // Drained means that all ranks have joined as well: until then this rank may have to skip entries of the log.
    if (!has_drained_ && control_.header().joined_count.load() == static_cast<uint32_t>(size())) {
      has_drained_ = true;
      negotiation_.drained();
    }
    return has_drained_ && negotiation_.join_finished(joined_epoch_);
  };
  context_.wait_until(
      finished, [] { return true; }, Deadline::never(), interrupt, crowded_, [this] { throw_if_failed(); });
  const JoinResult result = negotiation_.join_result(joined_epoch_);
  const std::lock_guard lock(mutex_);
  has_joined_.store(false);
  unnamed_.restart(result.unnamed);
  return result.last_joined;
}

void Group::throw_if_removed() const {
  if (is_removed_.load()) throw ShutdownError(here() + "] the process set was removed");
}

// mutex_ held. Throws where this rank has said that nothing more comes.
void Group::throw_if_closed(Kind kind) const {
  throw_if_removed();
  if (joining_.load(std::memory_order_relaxed) == 0 && !has_joined_.load()) return;
  throw InvalidArgumentError("rank " + std::to_string(rank_) + "/" + std::to_string(size()) + ": " + name(kind) +
                             " after join(), which says that this rank has no more data. " +
                             (joining_.load() == 0 ? "That join() was interrupted: call join() again first"
                                                   : "Call join() when all threads have got their results"));
}

// mutex_ held. A deadlock verdict: what this rank has announced without a number of its own that all ranks share is
// void, and the counters go on where the rank that was ahead had come to.
void Group::withdraw() {
  const auto error = std::make_exception_ptr(MismatchError(negotiation_.withdraw_text()));
  unnamed_.for_each([&](Ticket ticket, const OperationPtr& operation) {
    if (operation != nullptr && negotiation_.complete(ticket)) return;
    control_.head(ticket.request_slot, rank_).tag.store(0);
    if (operation == nullptr) return unnamed_.consume(ticket);
    if (!operation->quick && logged_.erase(ticket.request_slot) != 0) pending_.fetch_sub(1);
    fail(*operation, error);
  });
  unnamed_.skip_to(negotiation_.withdraw_unnamed());  // a rank that has gone on since may be further ahead by now
  for (auto named = by_name_.begin(); named != by_name_.end();) {
    Operation& operation = *named->second;
    const bool void_now =
        operation.state == State::kPending && control_.head(operation.ticket.request_slot, rank_).tag.load() == 0;
    if (void_now) {
      operation.error = error;
      operation.keep.reset();
      operation.state.store(State::kFailed, std::memory_order_release);
      if (!operation.quick && logged_.erase(operation.ticket.request_slot) != 0) pending_.fetch_sub(1);
    }
    named = void_now ? by_name_.erase(named) : std::next(named);
  }
}

}  // namespace rr
