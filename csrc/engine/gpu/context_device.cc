// The GPU of a context: whose it is, and what its work streams may still work on.
#include <algorithm>

#include "base/errors.h"
#include "engine/context.h"
#include "engine/gpu/device_queue.h"

namespace rr {
namespace {
constexpr double kDrainS = 5.0;  // a context's end waits so long for its work streams
}  // namespace

void Context::use_device(std::shared_ptr<Device> device) {
  const std::lock_guard lock(executor_);
  if (device_owner_ != nullptr && device_owner_->ordinal() != device->ordinal()) {
    throw InvalidArgumentError("this rank works on GPU " + std::to_string(device_owner_->ordinal()) +
                               "; it cannot communicate memory of GPU " + std::to_string(device->ordinal()) +
                               " as well: one rank, one GPU");
  }
  if (device_owner_ != nullptr) return;
  throw_if_shut_down();
  mappings_ = DeviceMappings::of(device);
  device_queue_ = std::make_unique<DeviceQueue>(*this, device);
  device_owner_ = std::move(device);
  device_.store(device_owner_.get(), std::memory_order_release);
}

std::shared_ptr<const NcclLibrary> Context::nccl() {
  const std::lock_guard lock(nccl_mutex_);
  if (has_looked_for_nccl_) return nccl_;
  has_looked_for_nccl_ = true;
  try {
    nccl_ = nccl_library(settings_.nccl_library);
  } catch (const UnavailableError& error) {
    const bool is_wanted = settings_.gpu_path == "nccl" || !settings_.nccl_library.empty();
    log_.write(is_wanted ? LogLevel::kWarning : LogLevel::kInfo, error.what());
  }
  return nccl_;
}

DeviceQueue& Context::device_queue() const {
  if (device() == nullptr) throw InvalidArgumentError("this rank has no GPU yet");
  return *device_queue_;
}

bool Context::with_work_streams(const std::function<void(Device&)>& use) {
  const std::unique_lock lock(executor_, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  use(*device_owner_);
  if (device_owner_->is_busy()) device_is_busy_.store(true, std::memory_order_relaxed);
  return true;
}

// Executor lock held.
void Context::watch_device(bool has_work) {
  try {
    for (Abandoned& item : abandoned_) {
      const auto has_passed = [this](const Mark& mark) { return device()->passed(mark); };
      item.marks.erase(std::remove_if(item.marks.begin(), item.marks.end(), has_passed), item.marks.end());
    }
  } catch (const Error&) {
    for (Abandoned& item : abandoned_) item.marks.clear();  // a broken context, as below
  }
  const auto is_over = [](const Abandoned& item) { return item.marks.empty() && !item.to_the_end; };
  abandoned_.erase(std::remove_if(abandoned_.begin(), abandoned_.end(), is_over), abandoned_.end());
  bool is_busy = (has_work && device()->is_busy()) || world_->must_poll_device();
  for (const auto& group : groups_) is_busy |= group->must_poll_device();
  device_is_busy_.store(is_busy, std::memory_order_relaxed);
}

void Context::abandon(std::unique_ptr<Algorithm> algorithm, const std::vector<OperationPtr>& operations,
                      bool to_the_end) {
  if (algorithm == nullptr || device() == nullptr) return;
  Abandoned item;
  item.to_the_end = to_the_end;
  item.algorithm = std::move(algorithm);
  item.operations = operations;
  for (const OperationPtr& operation : operations) item.keeps.push_back(operation->keep);
  try {
    for (size_t work_stream = 0; work_stream < device()->work_streams(); ++work_stream)
      item.marks.push_back(device()->mark(static_cast<WorkStream>(work_stream)));
  } catch (const Error&) {
    item.marks.clear();  // the GPU's context is broken, so nothing runs in it any more
  }
  abandoned_.push_back(std::move(item));
}

// Executor lock held. What work streams still copy to and from goes away next.
void Context::drain_device() {
  for (Abandoned& item : abandoned_) item.to_the_end = false;
  const Deadline deadline = Deadline::after_s(kDrainS);
  while (device() != nullptr && !abandoned_.empty() && !deadline.passed()) {
    watch_device(true);
    relax(true);
  }
  if (!abandoned_.empty()) log_.warning("the GPU has not come to an end within " + std::to_string(kDrainS) + " s");
}

}  // namespace rr
