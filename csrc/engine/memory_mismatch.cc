// Group: ranks whose calls without a name are on different kinds of memory.
//
// Those on GPU memory get names of the queue's, so they are a sequence apart from those on host memory: where one rank
// calls with a GPU tensor and another with a CPU tensor, each waits in its own sequence for the other, and nothing that
// either has announced tells why. But ranks make such calls in one order. So when a rank is blocked in one on host
// memory that another rank has not called, and that one has called one on GPU memory which this rank has not, they
// differ.

#include "base/errors.h"
#include "engine/context.h"
#include "engine/gpu/device_queue.h"
#include "engine/group.h"

namespace rr {
namespace {
// Ranks that only make two calls in different orders, and go on, are wrong but need not be told.
constexpr double kPatienceS = 5.0;
}  // namespace

void Group::record_caller() { submitted_.lock()->calls.record_caller(); }

// Final, like the timeout that it would come to.
void Group::fail_if_other_memory(const Operation& operation) {
  const double age_s = static_cast<double>(now_ns() - operation.submitted_ns) * 1e-9;
  if (!operation.name.empty() || operation.ticket.tag == 0 || age_s < kPatienceS) return;
  if (submitted_.lock()->calls.has_many_callers()) return;  // another thread may call next what is missing
  const auto has_called = [&](const std::string& name) {
    return context_.device() != nullptr && context_.device_queue().has(*this, name);
  };
  for (const int r : negotiation_.missing(operation.ticket)) {
    for (const std::string& name : negotiation_.announced_alone(r, kAutomaticPrefix)) {
      if (!is_automatic_name(name) || has_called(name)) continue;
      const std::string me = "rank " + std::to_string(context_.rank());
      const std::string peer = "rank " + std::to_string(world_ranks_[static_cast<size_t>(r)]);
      const bool has_tensor = operation.kind != Kind::kBarrier;
      record_failure(control_, FatalKind::kMismatch,
                     "Mismatched CPU/GPU device selection: " + me + " waits in " + rr::name(operation.kind) +
                         (has_tensor ? " with a CPU tensor for " : " for ") + peer + ", and " + peer + " in '" + name +
                         "', a call without a name, with a GPU tensor for " + me +
                         ". Call with tensors in the same kind of memory, and in the same order, on all ranks. " +
                         where(operation));
      return;
    }
  }
}

}  // namespace rr
