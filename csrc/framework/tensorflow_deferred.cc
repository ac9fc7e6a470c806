#include "framework/tensorflow_deferred.h"

#include <dlfcn.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <typeinfo>
#include <utility>

#include "base/never_destroyed.h"

namespace rr {
namespace {

// What TF_AsyncOpKernelDoneCallback is behind the C API. TensorFlow destroys the one that it hands over when the
// kernel's function returns, so we keep a copy: the only place where we know more of TensorFlow than its C API says.
using Done = std::function<void()>;

constexpr std::chrono::seconds kIdle{5};  // a thread without work ends after this

std::string&
problem() {  // of finishing later; "" = there is none. No global, because load() runs before those are made
  static auto& text = never_destroyed<std::string>("it has not been loaded");
  return text;
}

// Threads for work that blocks: another one whenever all are busy.
class Threads {
 public:
  void run(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    queue_.push_back(std::move(work));
    if (queue_.size() > idle_) {
      try {
        std::thread([this] { serve(); }).detach();
      } catch (const std::system_error& error) {
        queue_.pop_back();
        throw KernelError(TF_RESOURCE_EXHAUSTED, std::string("Error: no thread to wait on: ") + error.what());
      }
    }
    arrived_.notify_one();
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      const bool has_work = arrived_.wait_for(lock, kIdle, [this] { return !queue_.empty(); });
      --idle_;
      if (!has_work) return;
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      work();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<std::function<void()>> queue_;
  size_t idle_ = 0;
};

Threads& threads() {
  static auto& instance = never_destroyed<Threads>();
  return instance;
}

}  // namespace

// By its mangled name a function of TensorFlow's that takes the callback tells whether it is our standard library's.
void check_later(void* library) {
  const std::string taker =
      std::string("_ZN10tensorflow6Device12ComputeAsyncEPNS_13AsyncOpKernelEPNS_15OpKernelContextE") +
      typeid(Done).name();
  problem() = ::dlsym(library, taker.c_str()) != nullptr ? "" : "it has no " + taker;
}

Node in_iteration(const Node& node, TF_OpKernelContext* context) {
  Node named = node;
  const uint64_t frame = tf.TF_GetFrameId(context);  // of the loops around, and their iterations
  const int64_t iteration = tf.TF_GetIterId(context);
  if (frame != 0 || iteration != 0) named.name += "@" + std::to_string(frame) + "." + std::to_string(iteration);
  return named;
}

void run_later(std::function<void()> work, TF_AsyncOpKernelDoneCallback* done) {
  if (!problem().empty()) {
    throw KernelError(TF_UNIMPLEMENTED,
                      "UnavailableError: collectives in graphs of tf.compat.v1 do not work with this build of "
                      "TensorFlow (" +
                          problem() + "); call them eagerly or in a tf.function");
  }
  threads().run([work = std::move(work), later = *reinterpret_cast<Done*>(done)]() mutable {
    work();
    tf.TF_RunAsyncOpKernelDoneCallback(reinterpret_cast<TF_AsyncOpKernelDoneCallback*>(&later));
  });
}

}  // namespace rr
