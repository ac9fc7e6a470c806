// A link that delays, as a network does: bytes stay in order, but what comes over one link may overtake what was sent
// before it over another. Nothing waits in here: until its time a byte has not come.
//
// Delays are random, from a seed, or a test holds a link and releases it by hand. Each rank's end of a link has a
// generator of its own, so that what is drawn for it does not depend on the others. The thread that looks at a link may
// be stopped too, as one that gets no core.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "transport/link.h"

namespace rr::test {

// What a test does by hand to one rank's end of a link, at any time.
struct ByHand {
  std::atomic<bool> held{false};     // nothing more is handed out
  std::atomic<bool> stops{false};    // whoever looks whether something has come is stopped
  std::atomic<bool> stopped{false};  // somebody is
};

struct DelayOptions {
  bool random = true;
  bool pauses = false;  // of the thread that looks at the link
  ByHand* by_hand = nullptr;
  std::function<int64_t()> clock = now_ns;
};

class DelayedLink final : public Link {
 public:
  // Bytes that this end takes from the link before their time.
  static constexpr size_t kAhead = 4096;

  DelayedLink(std::unique_ptr<Link> link, std::mt19937 random, DelayOptions options)
      : link_(std::move(link)), random_(random), options_(std::move(options)) {}

  // Sometimes a part only, and then nothing for a while, as if the link were full.
  size_t push(const void* src, size_t nbytes) override {
    if (!options_.random || nbytes == 0) return link_->push(src, nbytes);
    const int64_t now = options_.clock();
    if (now < full_until_ns_) return 0;
    if (one_in(8)) nbytes = 1 + random_() % nbytes;
    const size_t pushed = link_->push(src, nbytes);
    if (pushed != 0 && one_in(8)) full_until_ns_ = now + delay_ns();
    return pushed;
  }

  size_t pull(void* dst, size_t nbytes) override {
    if (nbytes == 0) return 0;  // an empty tensor has no address
    const size_t n = std::min(nbytes, arrived());
    std::memcpy(dst, bytes_.data(), n);
    drop(n);
    return n;
  }

  size_t fold(void* dst, size_t nbytes, const Reduction& reduction, const Kernels& kernels) override {
    const size_t item = itemsize(reduction.dtype);
    const size_t n = std::min(nbytes, arrived()) / item * item;
    if (n == 0) return 0;
    const void* inputs[2] = {dst, bytes_.data()};
    kernels.reduce(reduction, inputs, 2, &dst, 1, n / item);
    drop(n);
    return n;
  }

 private:
  struct Burst {
    size_t nbytes;
    int64_t ready_ns;
  };

  bool one_in(unsigned n) { return random_() % n == 0; }

  // Mostly 0, sometimes 50 us to 2 ms, now and then 10 ms.
  int64_t delay_ns() {
    const unsigned which = random_() % 100;
    if (which < 80) return 0;
    return which == 99 ? 10'000'000 : 50'000 + static_cast<int64_t>(random_() % 1'950'000);
  }

  // The bytes whose time has come.
  size_t arrived() {
    pause();
    const int64_t now = options_.clock();
    const size_t before = bytes_.size();
    bytes_.resize(std::max(before, kAhead));
    const size_t come = before < kAhead ? link_->pull(bytes_.data() + before, kAhead - before) : 0;
    bytes_.resize(before + come);
    if (come != 0) {
      // A message may be cut anywhere, its end be late.
      const size_t first = options_.random && one_in(4) ? 1 + random_() % come : come;
      add_burst(first, now);
      if (first != come) add_burst(come - first, now);
    }
    if (options_.by_hand != nullptr && options_.by_hand->held.load()) return 0;
    size_t nbytes = 0;
    for (const Burst& burst : bursts_) {
      if (burst.ready_ns > now) break;
      nbytes += burst.nbytes;
    }
    return nbytes;
  }

  void add_burst(size_t nbytes, int64_t now) {
    const int64_t before = bursts_.empty() ? 0 : bursts_.back().ready_ns;
    bursts_.push_back({nbytes, std::max(before, now + (options_.random ? delay_ns() : 0))});
  }

  void drop(size_t nbytes) {
    bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(nbytes));
    while (nbytes != 0) {
      const size_t n = std::min(nbytes, bursts_.front().nbytes);
      bursts_.front().nbytes -= n;
      nbytes -= n;
      if (bursts_.front().nbytes == 0) bursts_.pop_front();
    }
  }

  // A thread that gets no core for 1 to 5 ms, ten times a second or so.
  void pause() {
    if (options_.by_hand != nullptr && options_.by_hand->stops.load()) {
      options_.by_hand->stopped.store(true);
      const Deadline deadline = Deadline::after_s(60);  // the test has failed
      while (options_.by_hand->stops.load() && !deadline.passed()) std::this_thread::yield();
      options_.by_hand->stopped.store(false);
    }
    if (!options_.pauses) return;
    const int64_t now = options_.clock();
    const bool begins = pauses_at_ns_ != 0 && now >= pauses_at_ns_;
    if (begins) std::this_thread::sleep_for(std::chrono::microseconds(1000 + random_() % 4000));
    if (begins || pauses_at_ns_ == 0) pauses_at_ns_ = now + static_cast<int64_t>(random_() % 200'000'000);
  }

  std::unique_ptr<Link> link_;
  std::mt19937 random_;
  DelayOptions options_;
  std::vector<std::byte> bytes_;  // come, not handed out
  std::deque<Burst> bursts_;      // what bytes_ consists of
  int64_t full_until_ns_ = 0;
  int64_t pauses_at_ns_ = 0;
};

// What delays the links of a test, one by one.
class Delays {
 public:
  Delays() = default;  // only by hand
  explicit Delays(unsigned seed) : seed_(seed), is_random_(true) {}

  // Of rank at's end of its link to a peer.
  ByHand& by_hand(int at, int peer, int channel) {
    const std::lock_guard lock(mutex_);
    auto& end = by_hand_[{at, peer, channel}];
    if (end == nullptr) end = std::make_unique<ByHand>();
    return *end;
  }

  // at: the rank whose end it is. pauses: the thread that looks at it is stopped now and then.
  std::unique_ptr<Link> delay(std::unique_ptr<Link> link, int at, int peer, int channel, bool pauses) {
    std::seed_seq seeds = {seed_, static_cast<unsigned>(at), static_cast<unsigned>(peer),
                           static_cast<unsigned>(channel)};
    DelayOptions options;
    options.random = is_random_;
    options.pauses = is_random_ && pauses;
    options.by_hand = &by_hand(at, peer, channel);
    return std::make_unique<DelayedLink>(std::move(link), std::mt19937(seeds), std::move(options));
  }

 private:
  unsigned seed_ = 0;
  bool is_random_ = false;
  std::mutex mutex_;
  std::map<std::tuple<int, int, int>, std::unique_ptr<ByHand>> by_hand_;
};

}  // namespace rr::test
