// Group: joining.

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
    Locked submitted = submitted_.lock();
    record_thread(submitted);
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
    const Locked submitted = submitted_.lock();
    if (!has_joined_.load()) {
      joined_epoch_ = negotiation_.join(submitted->pending.unnamed().next());
      has_drained_ = false;
      has_joined_.store(true);
    }
  }
  const auto finished = [&] {
    throw_if_failed();
    throw_if_removed();
    context_.throw_if_shut_down();
    if (!has_drained_) {
      const Locked submitted = submitted_.lock();
      PendingOperations& pending = submitted->pending;
      pending.push_unnamed();
      pending.push_named();
      if (pending.has_named() || !pending.unnamed().is_empty() || !pending.logged().empty()) return false;
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
  const Locked submitted = submitted_.lock();
  has_joined_.store(false);
  submitted->pending.unnamed().restart(result.unnamed);
  return result.last_joined;
}

void Group::throw_if_removed() const {
  if (is_removed_.load()) throw ShutdownError(here() + "] the process set was removed");
}

// The submitted operations are locked. Throws where this rank has said that nothing more comes.
void Group::throw_if_closed(Kind kind) const {
  throw_if_removed();
  if (joining_.load(std::memory_order_relaxed) == 0 && !has_joined_.load()) return;
  throw InvalidArgumentError("rank " + std::to_string(rank_) + "/" + std::to_string(size()) + ": " + name(kind) +
                             " after join(), which says that this rank has no more data. " +
                             (joining_.load() == 0 ? "That join() was interrupted: call join() again first"
                                                   : "Call join() when all threads have got their results"));
}

}  // namespace rr
