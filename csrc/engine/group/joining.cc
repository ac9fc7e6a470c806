#include "engine/group/joining.h"

#include "base/clock.h"
#include "base/errors.h"
#include "engine/context.h"
#include "engine/group/wait/late_operations.h"
#include "negotiation/segment/failure.h"
#include "operations/recording.h"

namespace rr {

// What a rank announces after it has joined would be counted by some ranks and not by others, so it is refused; what
// has come to a GPU's stream is announced first.
int Joining::join(Interrupt interrupt, const std::function<void()>& announce_rest) {
  parts_.context.throw_if_shut_down();
  parts_.throw_if_failed();
  {
    auto submitted = parts_.submitted.lock();
    deadlock_watch_.record_thread(submitted);
    parts_.throw_if_removed();
    if (called_.load() != 0) {
      throw InvalidArgumentError("rank " + std::to_string(parts_.from.rank) + "/" + std::to_string(parts_.from.size()) +
                                 ": join() is under way in another thread; one thread of a rank joins for all");
    }
    called_.store(1);
  }
  struct Leave {
    std::atomic<uint32_t>& called;
    ~Leave() { called.store(0); }
  } leave{called_};
  announce_rest();
  {
    const auto submitted = parts_.submitted.lock();
    if (!has_joined_.load()) {
      epoch_ = parts_.negotiation.joins().join(submitted->pending.unnamed().next());
      has_drained_ = false;
      has_joined_.store(true);
    }
  }
  const auto finished = [&] {
    parts_.throw_if_over();
    drain();
    return has_drained_ && parts_.negotiation.joins().is_finished(epoch_);
  };
  int64_t since_ns = 0;
  {
    const RecordedWait recorded(parts_.from);
    waiter_.wait_until(finished, interrupt, [&] {
      parts_.throw_if_failed();
      check_age(since_ns);
    });
  }
  const JoinResult result = parts_.negotiation.joins().result(epoch_);
  const auto submitted = parts_.submitted.lock();
  has_joined_.store(false);
  submitted->pending.unnamed().restart(result.unnamed);
  return result.last_joined;
}

// Drained means that nothing of this rank is pending and that all ranks have joined as well: until then this rank may
// have to skip entries of the log.
void Joining::drain() {
  if (has_drained_) return;
  {
    const auto submitted = parts_.submitted.lock();
    PendingOperations& pending = submitted->pending;
    pending.withdraw_if_void();
    pending.push_unnamed();
    pending.push_named();
    if (pending.named().is_any_pending() || !pending.unnamed().is_empty() || !pending.logged().empty()) return;
  }
  if (parts_.control().header().joined_count.load() != static_cast<uint32_t>(parts_.from.size())) return;
  has_drained_ = true;
  parts_.negotiation.joins().drained();
}

// A rank may join as long before the others as its data is shorter. Once all have joined, nothing else is waited for
// than what was announced before, which has the time that each operation has. since_ns: when all had joined; 0: not
// yet.
void Joining::check_age(int64_t& since_ns) const {
  const bool have_all_joined =
      parts_.control().header().joined_count.load() == static_cast<uint32_t>(parts_.from.size());
  if (!have_all_joined || parts_.negotiation.joins().is_finished(epoch_)) {
    since_ns = 0;
    return;
  }
  const int64_t now = now_ns();
  if (since_ns == 0) since_ns = now;
  const double timeout_s = parts_.context.timeout_s();
  if (timeout_s <= 0 || parts_.context.wait_loop().running().ran_s(since_ns, now) <= timeout_s) return;
  const std::string unresponsive_ranks = list_of(parts_.members.unresponsive(kUnresponsiveS));
  record_failure(parts_.control(), FatalKind::kTimeout,
                 parts_.from.here() + "] join() did not end within " + parts_.context.timeout_text() +
                     " after all ranks had joined; " +
                     (unresponsive_ranks.empty()
                          ? "another rank's join() was interrupted and not called again, or has operations pending"
                          : "rank(s) " + unresponsive_ranks + " show no sign of life"));
}

void Joining::throw_closed(Kind kind, bool is_called_now) const {
  parts_.throw_if_removed();
  throw InvalidArgumentError("rank " + std::to_string(parts_.from.rank) + "/" + std::to_string(parts_.from.size()) +
                             ": " + name(kind) + " after join(), which says that this rank has no more data. " +
                             (is_called_now ? "Call join() when all threads have got their results"
                                            : "That join() was interrupted: call join() again first"));
}

}  // namespace rr
