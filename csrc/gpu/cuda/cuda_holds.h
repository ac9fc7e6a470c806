// What must not be freed yet. Unmapping memory of a peer, and some other calls, may wait until the device is idle. A
// caller's stream that holds for a word of ours keeps it busy until our own thread writes that word, so whoever frees
// while a hold is out may wait for itself. What is to be freed is therefore kept until no hold is out.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

namespace rr {

class CudaHolds {
 public:
  // Issues a hold by calling `issue`, unless something is being freed at this moment: then after it. `issue` may block:
  // a stream takes about a thousand launches ahead, and one that is held goes on by our own thread alone, so that
  // thread never waits for this one. is_captured: it will be there with every replay, which nobody tells us of; from
  // then on nothing is freed before the end.
  template <class Issue>
  void hold(uint32_t* word, uint32_t value, bool is_captured, Issue&& issue) {
    const std::lock_guard lock(mutex_);
    issue();
    if (is_captured) {
      has_captured_ = true;
    } else {
      remember(word, value);
    }
  }

  void later(std::function<void()> free);  // calls nothing of this class
  void collect();                          // frees what may be freed now; nothing while a hold is being issued
  void collect_regardless();               // when there is no going on with it
  // At the end: lets holds that are out go, as nobody else will, and frees. False: there are captured ones, whose
  // graphs may be running still, so nothing is freed.
  bool collect_all();
  // Frees if no hold is out, and lets none be issued meanwhile; whether it did. The function calls nothing of this
  // class.
  bool free_now(const std::function<void()>& free);

 private:
  struct Held {
    uint32_t* word;
    uint32_t value;
  };
  void remember(uint32_t* word, uint32_t value);
  bool none_out();

  std::vector<std::function<void()>> taken();

  std::mutex mutex_;
  std::vector<Held> out_;
  size_t swept_ = 64;  // out_ is gone through when it has as many entries
  bool has_captured_ = false;
  std::mutex later_mutex_;
  std::vector<std::function<void()>> later_;
};

}  // namespace rr
