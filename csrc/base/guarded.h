// Data together with the lock that guards them: whoever reaches the data holds the lock.
#pragma once

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
    explicit Access(Guarded& guarded) : guarded_(guarded), lock_(guarded.mutex_), data_(&guarded.data_) {}
    T& operator*() const { return *data_; }
    T* operator->() const { return data_; }
    // For who waits meanwhile: no data until lock(). No reference into them may be kept.
    void unlock() {
      lock_.unlock();
      data_ = nullptr;
    }
    void lock() {
      lock_.lock();
      data_ = &guarded_.data_;
    }

   private:
    Guarded& guarded_;
    std::unique_lock<std::mutex> lock_;
    T* data_;
  };
  Access lock() { return Access(*this); }

 private:
  std::mutex mutex_;
  T data_;
};

}  // namespace rr
