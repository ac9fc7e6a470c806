// Watchdog: ranks whose calls without a name are on different kinds of memory.
//
// Those on GPU memory get names of the queue's, so they are a sequence apart from those on host memory: where one rank
// calls with a GPU tensor and another with a CPU tensor, each waits in its own sequence for the other, and nothing that
// either has announced tells why. But ranks make such calls in one order. So when a rank is blocked in one on host
// memory that another rank has not called, and that one has called one on GPU memory which this rank has not, they
// differ.

#include "base/errors.h"
#include "engine/context.h"
#include "engine/gpu/device_queue.h"
#include "engine/group/wait/watchdog.h"

namespace rr {
namespace {
// Ranks that only make two calls in different orders, and go on, are wrong but need not be told.
constexpr double kPatienceS = 5.0;
}  // namespace

// Final, like the timeout that it would come to.
void Watchdog::fail_if_other_memory(const Operation& operation) const {
  const double age_s = static_cast<double>(now_ns() - operation.submitted_ns) * 1e-9;
  if (!operation.name.empty() || operation.ticket.tag == 0 || age_s < kPatienceS) return;
  if (parts_.submitted.lock()->calls.has_many_callers()) return;  // another thread may call next what is missing
  const auto has_called = [&](const std::string& name) {
    return parts_.context.gpu().device() != nullptr && parts_.context.gpu().queue().has(parts_.from.id, name);
  };
  for (const int r : parts_.negotiation.requests().missing(operation.ticket)) {
    for (const std::string& name : parts_.negotiation.announced_alone(r, kAutomaticPrefix)) {
      if (!is_automatic_name(name) || has_called(name)) continue;
      const std::string me = "rank " + std::to_string(parts_.context.rank());
      const std::string peer = "rank " + std::to_string(parts_.from.world_ranks[static_cast<size_t>(r)]);
      const bool has_tensor = operation.kind != Kind::kBarrier;
      record_failure(parts_.control(), FatalKind::kMismatch,
                     "Mismatched CPU/GPU device selection: " + me + " waits in " + rr::name(operation.kind) +
                         (has_tensor ? " with a CPU tensor for " : " for ") + peer + ", and " + peer + " in '" + name +
                         "', a call without a name, with a GPU tensor for " + me +
                         ". Call with tensors in the same kind of memory, and in the same order, on all ranks. " +
                         parts_.from.where(operation));
      return;
    }
  }
}

}  // namespace rr
