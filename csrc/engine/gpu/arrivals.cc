#include "engine/gpu/arrivals.h"

#include <mutex>
#include <vector>

#include "base/never_destroyed.h"

namespace rr {

// After the push the queue's thread may be done with the operation and free the arrival: nothing of it is used then.
void Arrival::reached(void* argument) {
  Arrival* const self = static_cast<Arrival*>(argument);
  const std::shared_ptr<Arrivals> box = self->box;
  if (self->is_recurring) {
    DeviceWords::reset(self->word);
    if (box->closed_.load(std::memory_order_seq_cst)) return DeviceWords::write(self->word);
  }
  if (self->count.fetch_add(1, std::memory_order_acq_rel) == 0) {
    Arrival* head = box->head_.load(std::memory_order_relaxed);
    do {
      self->next = head;
    } while (!box->head_.compare_exchange_weak(head, self, std::memory_order_release, std::memory_order_relaxed));
  }
  ring(box->bell_);
}

void Arrivals::leave_behind(std::unique_ptr<Arrival> arrival) {
  struct Left {
    std::mutex mutex;
    std::vector<std::unique_ptr<Arrival>> arrivals;
  };
  static auto& left = never_destroyed<Left>();
  const std::lock_guard lock(left.mutex);
  left.arrivals.push_back(std::move(arrival));
}

}  // namespace rr
