// The links of a rank to ranks of other hosts, with what the job tells of them.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/errors.h"
#include "base/stats.h"
#include "negotiation/segment/shown.h"
#include "transport/link.h"

namespace rr {

class RemoteLink;

// Samples which links are busy: they have bytes that the network does not take yet.
class RemoteLinks {
 public:
  // To be called about twenty times a second, at random moments: a job's steps must not keep time with them.
  void sample();

 private:
  friend class RemoteLink;
  void add(RemoteLink* link);
  void remove(RemoteLink* link);

  std::mutex mutex_;  // guards all below, and that a link stays while it is looked at
  std::vector<RemoteLink*> links_;
  int64_t sampled_ns_ = 0;
};

// Counts what leaves the host. A peer that has left on purpose is no error of the link: what still needs that rank is
// told so by the watchdog, and all else goes on. The watchdog asks too whether bytes are missing that the peer had
// sent.
class RemoteLink final : public Link {
 public:
  RemoteLink(std::unique_ptr<Link> link, RemoteLinks& all, std::atomic<uint64_t>& sent, LinkScore& score,
             std::function<bool()> has_peer_left)
      : link_(std::move(link)), all_(all), sent_(sent), score_(score), has_peer_left_(std::move(has_peer_left)) {
    all_.add(this);
  }
  ~RemoteLink() override { all_.remove(this); }
  RemoteLink(const RemoteLink&) = delete;
  RemoteLink& operator=(const RemoteLink&) = delete;

  size_t push(const void* src, size_t nbytes) override {
    std::string why;
    const size_t pushed = unless_left([&] { return link_->push(src, nbytes); }, why);
    add(sent_, pushed);
    add(score_.nbytes, pushed);
    if (pushed != 0) was_pushed_.store(true, std::memory_order_relaxed);
    is_full_.store(pushed < nbytes, std::memory_order_relaxed);
    return pushed;
  }
  size_t pull(void* dst, size_t nbytes) override {
    return unless_left([&] { return link_->pull(dst, nbytes); }, why_cut_);
  }
  size_t fold(void* dst, size_t nbytes, const Reduction& reduction, const Kernels& kernels) override {
    return unless_left([&] { return link_->fold(dst, nbytes, reduction, kernels); }, why_cut_);
  }
  bool has_ended() const override { return link_->has_ended(); }
  std::string why_cut() const override { return why_cut_; }
  bool has_unsent() const override { return link_->has_unsent(); }
  void note_arrivals(bool wanted) override { link_->note_arrivals(wanted); }
  int64_t arrived_ns() const override { return link_->arrived_ns(); }

 private:
  friend class RemoteLinks;
  void sample(int64_t dt_ns);  // dt_ns: for which the sample stands
  template <class Move>
  size_t unless_left(Move move, std::string& why) {
    try {
      return move();
    } catch (const PeerLostError& error) {
      if (!has_peer_left_()) throw;
      why = error.what();
      return 0;
    }
  }

  std::unique_ptr<Link> link_;
  RemoteLinks& all_;
  std::atomic<uint64_t>& sent_;
  LinkScore& score_;
  std::atomic<bool> was_pushed_{false};  // since the last sample
  std::atomic<bool> is_full_{false};     // it took less than it was offered last
  const std::function<bool()> has_peer_left_;
  std::string why_cut_;
};

}  // namespace rr
