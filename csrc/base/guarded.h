// Data together with the lock that guards them: whoever reaches the data holds the lock.
#pragma once

#include <cassert>
#include <mutex>
#include <utility>

namespace rr {

template <class T>
class Guarded {
 public:
  template <class... Args>
  explicit Guarded(Args&&... args) : data_(std::forward<Args>(args)...) {}

  class Access {
   public:
    explicit Access(Guarded& guarded) : lock_(guarded.mutex_), data_(&guarded.data_) {}
    T& operator*() const {
      assert(lock_.owns_lock());
      return *data_;
    }
    T* operator->() const { return &**this; }
    // For who waits meanwhile. No reference into the data may be kept.
    void unlock() { lock_.unlock(); }
    void lock() { lock_.lock(); }

   private:
    std::unique_lock<std::mutex> lock_;
    T* data_;
  };
  Access lock() { return Access(*this); }

 private:
  std::mutex mutex_;
  T data_;
};

}  // namespace rr
