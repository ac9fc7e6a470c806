#include "cuda/cuda_holds.h"

#include <algorithm>
#include <utility>

namespace rr {
namespace {

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

bool CudaHolds::may_free() {
  const std::lock_guard lock(mutex_);
  return none_out();
}

void CudaHolds::later(std::function<void()> free) {
  const std::lock_guard lock(mutex_);
  later_.push_back(std::move(free));
}

void CudaHolds::collect() {
  const std::lock_guard lock(mutex_);
  if (later_.empty() || !none_out()) return;
  for (const auto& free : std::exchange(later_, {})) free();
}

void CudaHolds::collect_regardless() {
  const std::lock_guard lock(mutex_);
  for (const auto& free : std::exchange(later_, {})) free();
}

bool CudaHolds::collect_all() {
  const std::lock_guard lock(mutex_);
  if (has_captured_) return false;
  none_out();
  for (const Held& held : out_) __atomic_store_n(held.word, held.value, __ATOMIC_RELEASE);
  out_.clear();
  for (const auto& free : std::exchange(later_, {})) free();
  return true;
}

}  // namespace rr
