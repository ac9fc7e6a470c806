#include "gpu/cuda/cuda_holds.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/clock.h"

namespace rr {
namespace {

constexpr double kIssueS = 0.1;  // issuing takes microseconds, where it does not block

bool is_over(const uint32_t* word, uint32_t value) {
  return static_cast<int32_t>(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) >= 0;
}

}  // namespace

void CudaHolds::remember(uint32_t* word, uint32_t value) {
  if (is_over(word, value)) return;
  out_.push_back({word, value});
  if (out_.size() < swept_) return;
  none_out();
  swept_ = std::max<size_t>(64, 2 * out_.size());
}

bool CudaHolds::none_out() {
  out_.erase(std::remove_if(out_.begin(), out_.end(), [](const Held& held) { return is_over(held.word, held.value); }),
             out_.end());
  return out_.empty() && !has_captured_;
}

bool CudaHolds::free_now(const std::function<void()>& free) {
  const Deadline deadline = Deadline::after_s(kIssueS);
  std::unique_lock lock(mutex_, std::try_to_lock);
  while (!lock.owns_lock() && !deadline.passed()) {
    std::this_thread::yield();
    (void)lock.try_lock();  // owns_lock() tells
  }
  if (!lock.owns_lock() || !none_out()) return false;
  free();
  return true;
}

void CudaHolds::later(std::function<void()> free) {
  const std::lock_guard lock(later_mutex_);
  later_.push_back(std::move(free));
}

std::vector<std::function<void()>> CudaHolds::taken() {
  const std::lock_guard lock(later_mutex_);
  return std::exchange(later_, {});
}

void CudaHolds::collect() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || !none_out()) return;
  for (const auto& free : taken()) free();
}

void CudaHolds::collect_regardless() {
  for (const auto& free : taken()) free();
}

bool CudaHolds::collect_all() {
  const std::lock_guard lock(mutex_);
  if (has_captured_) return false;
  none_out();
  for (const Held& held : out_) __atomic_store_n(held.word, held.value, __ATOMIC_RELEASE);
  out_.clear();
  for (const auto& free : taken()) free();
  return true;
}

}  // namespace rr
