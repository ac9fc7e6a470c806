// A value in shared memory that one thread writes and others read without a lock. What is read while it is written is
// refused, never torn. Memory of zeros is a value of zeros.
//
// After H.-J. Boehm, "Can seqlocks get along with programming language memory models?" (MSPC 2012), figure 6.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>

namespace rr {

template <class T>
class Seqlocked {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % sizeof(uint64_t) == 0);

 public:
  // By one thread at a time. A writer that is killed in the middle leaves no value.
  void write(const T& value) {
    uint64_t words[kWords];
    std::memcpy(words, &value, sizeof value);
    const uint64_t before = sequence_.load(std::memory_order_relaxed);
    sequence_.store(before + 1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    for (size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_relaxed);
    sequence_.store(before + 2, std::memory_order_release);
  }
  // Nothing: it is being written.
  std::optional<T> read() const {
    uint64_t words[kWords];
    const uint64_t before = sequence_.load(std::memory_order_acquire);
    for (size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_acquire);
    if (before % 2 != 0 || sequence_.load(std::memory_order_relaxed) != before) return std::nullopt;
    T value;
    std::memcpy(&value, words, sizeof value);
    return value;
  }

 private:
  static constexpr size_t kWords = sizeof(T) / sizeof(uint64_t);
  std::atomic<uint64_t> sequence_;
  std::atomic<uint64_t> words_[kWords];
};

}  // namespace rr
