#include "engine/gpu/rank_device.h"

#include <algorithm>
#include <chrono>
#include <system_error>

#include "base/errors.h"
#include "base/guarded.h"
#include "base/never_destroyed.h"
#include "base/poll.h"
#include "engine/context.h"
#include "engine/gpu/device_queue.h"
#include "os/thread.h"

namespace rr {
namespace {
constexpr double kDrainS = 5.0;  // drain() waits so long
constexpr std::chrono::microseconds kDrainNap{100};
constexpr double kClosingS = 1.0;  // and the end, for mappings that are being closed
}  // namespace

RankDevice::RankDevice(Context& context, std::mutex& executor, const std::shared_ptr<DeviceMessages>& messages)
    : context_(context), executor_(executor), messages_(messages) {}

RankDevice::~RankDevice() {
  if (closing_.valid()) closing_.wait_for(std::chrono::duration<double>(kClosingS));
}

void RankDevice::use(std::shared_ptr<Device> device) {
  const std::lock_guard lock(executor_);
  if (owner_ != nullptr && owner_->ordinal() != device->ordinal()) {
    throw InvalidArgumentError("this rank works on GPU " + std::to_string(owner_->ordinal()) +
                               "; it cannot communicate memory of GPU " + std::to_string(device->ordinal()) +
                               " as well: one rank, one GPU");
  }
  if (owner_ != nullptr) return;
  context_.throw_if_shut_down();
  mappings_ = DeviceMappings::of(device);
  queue_ = std::make_unique<DeviceQueue>(context_, device);
  owner_ = std::move(device);
  device_.store(owner_.get(), std::memory_order_release);
}

std::shared_ptr<const NcclLibrary> RankDevice::nccl() {
  const std::lock_guard lock(nccl_mutex_);
  if (has_looked_for_nccl_) return nccl_;
  has_looked_for_nccl_ = true;
  try {
    nccl_ = nccl_library(context_.settings().nccl_library);
  } catch (const UnavailableError& error) {
    const bool is_wanted = context_.settings().gpu_path == "nccl" || !context_.settings().nccl_library.empty();
    context_.log().write(is_wanted ? LogLevel::kWarning : LogLevel::kInfo, error.what());
  }
  return nccl_;
}

DeviceQueue& RankDevice::queue() const {
  if (device() == nullptr) throw InvalidArgumentError("this rank has no GPU yet");
  return *queue_;
}

bool RankDevice::with_work_streams(const std::function<void(Device&)>& work) {
  const std::unique_lock lock(executor_, std::try_to_lock);
  if (!lock.owns_lock()) return false;
  work(*owner_);
  if (owner_->is_busy()) is_busy_.store(true, std::memory_order_relaxed);
  return true;
}

void RankDevice::keep(std::shared_ptr<void> memory, const Mark& mark) {
  Abandoned item;
  item.marks.push_back(mark);
  item.keeps.push_back(std::move(memory));
  const std::lock_guard lock(executor_);
  abandoned_.push_back(std::move(item));
}

void RankDevice::forget_passed() {
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
}

// A thread that nobody waits for closes them, unpins what messages leave over, and frees what could not be freed when
// it was released: that takes until the GPU is idle. Not beside kernels that wait for a peer, which may itself wait for
// this rank.
void RankDevice::trim_mappings(bool waits_for_peers) {
  if (owner_ == nullptr) return;
  mappings_->trim();
  const bool is_closing = closing_.valid() && closing_.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
  if (is_closing || waits_for_peers) return;
  const auto surplus = std::make_shared<std::vector<Staging>>(queue_->staging().take_surplus());
  if (surplus->empty() && owner_->forgotten() == 0 && !owner_->is_freeing_due()) return;
  try {
    closing_ = start_detached([device = owner_, surplus] {
      surplus->clear();
      device->free_released();
    });
  } catch (const std::system_error&) {
    // There is no thread to be had now; housekeeping comes again.
    queue_->staging().give_back_surplus(std::move(*surplus));
  }
}

void RankDevice::abandon(std::unique_ptr<Algorithm> algorithm, const std::vector<OperationPtr>& operations,
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

void RankDevice::drain() {
  for (Abandoned& item : abandoned_) item.to_the_end = false;
  const auto have_passed = [&] {
    if (device() != nullptr && !abandoned_.empty()) forget_passed();
    return device() == nullptr || abandoned_.empty();
  };
  poll_until(have_passed, Deadline::after_s(kDrainS), kDrainNap);
  if (abandoned_.empty()) return;
  context_.log().warning("the GPU has not come to an end within " + std::to_string(kDrainS) + " s");
  device()->leave();  // whatever is given back from now on would wait for it
  // The GPU may work there for as long as the process lives.
  static auto& left = never_destroyed<Guarded<std::vector<Abandoned>>>();
  const auto all = left.lock();
  for (Abandoned& item : abandoned_) all->push_back(std::move(item));
  abandoned_.clear();
}

}  // namespace rr
