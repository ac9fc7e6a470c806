// The links between the leaders of a group's hosts, and what waits in them.
#pragma once

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "negotiation/segment/control_segment.h"
#include "relay/frames.h"
#include "transport/link.h"

namespace rr {

// A point that all hosts pass together. A leader says when its host has come to the point. What the host's ranks
// announce from then on waits until all hosts have come there.
enum class Phase { kNone, kJoinEnds, kVerdict };

struct LeaderConnection {  // to and from another host's leader
  std::unique_ptr<Link> link;
  FrameWriter out;
  FrameReader in;
  bool is_drained = false;      // the link had nothing more when it was read last
  bool is_broken = false;       // the link has thrown when it was given something last
  Phase phase = Phase::kNone;   // the point that its leader says it has come to
  uint64_t decisions = 0;       // how many its leader had taken up, or made, when it sent what is read now
  uint64_t decisions_told = 0;  // the last count of its own that this leader has sent there
  // Ranks of that host that left while `phase` holds, and how: the ranks here are told afterwards.
  std::vector<std::pair<int, Attendance>> left_after;
};

class LeaderLinks {
 public:
  // links: by host; null for this one.
  explicit LeaderLinks(std::vector<std::unique_ptr<Link>> links) : connections_(links.size()) {
    for (size_t host = 0; host < links.size(); ++host) connections_[host].link = std::move(links[host]);
  }

  int count() const { return static_cast<int>(connections_.size()); }
  bool is_here(int host) const { return (*this)[host].link == nullptr; }
  LeaderConnection& operator[](int host) { return connections_[static_cast<size_t>(host)]; }
  const LeaderConnection& operator[](int host) const { return connections_[static_cast<size_t>(host)]; }

  // fill(writer) puts a frame's fields.
  template <class Fill>
  void send_to(int host, FrameType type, int rank, Fill fill) {
    is_urgent_ = true;
    put_to(host, type, rank, fill);
  }
  // A frame that is of no use to the others before the ranks here have announced more. It waits for what will follow,
  // up to kPatienceNs, so that a link carries them as one (4 hosts of 4 ranks on 2 cores, 8 B: 0.7 of the time).
  template <class Fill>
  void send_patiently(FrameType type, int rank, Fill fill) {
    if (!is_urgent_ && patient_since_ns_ == 0) patient_since_ns_ = now_ns();
    for (int host = 0; host < count(); ++host) {
      if (!is_here(host)) put_to(host, type, rank, fill);
    }
  }
  template <class Fill>
  void send(FrameType type, int rank, Fill fill) {
    send_each(type, rank, [&](FrameWriter& out, int /*host*/) { fill(out); });
  }
  // Other fields to each host: fill(writer, host).
  template <class Fill>
  void send_each(FrameType type, int rank, Fill fill) {
    for (int host = 0; host < count(); ++host) {
      if (!is_here(host)) send_to(host, type, rank, [&](FrameWriter& out) { fill(out, host); });
    }
  }

  // Of another host than the first: how many decisions it has taken up. Told to the others before anything that its
  // ranks did after a decision, or that depends on one; the first host knows.
  uint64_t decisions() const { return decisions_; }
  void set_decisions(uint64_t count) { decisions_ = count; }
  void tell_decisions(int rank) {
    for (int host = 1; host < count(); ++host) {
      LeaderConnection& connection = (*this)[host];
      if (connection.link == nullptr || connection.decisions_told == decisions_) continue;
      connection.decisions_told = decisions_;
      send_to(host, FrameType::kDecided, rank, [&](FrameWriter& out) { out.put(decisions_); });
    }
  }
  uint64_t decisions_untold() const {
    uint64_t least = decisions_;
    for (int host = 1; host < count(); ++host) {
      if (!is_here(host)) least = std::min(least, (*this)[host].decisions_told);
    }
    return decisions_ - least;
  }

  // work(host) for each other host. What fails for one keeps none of the others from theirs: the first error is thrown
  // at the end.
  template <class Work>
  void for_each(Work work) {
    std::exception_ptr first;
    for (int host = 0; host < count(); ++host) {
      if (is_here(host)) continue;
      try {
        work(host);
      } catch (...) {
        if (first == nullptr) first = std::current_exception();
      }
    }
    if (first != nullptr) std::rethrow_exception(first);
  }

  // Sends what the links take, unless all of it can wait; true when something moved.
  bool move() {
    if (!is_urgent_ && now_ns() - patient_since_ns_ < kPatienceNs) return false;
    bool moved = false;
    for_each([&](int host) {
      LeaderConnection& connection = (*this)[host];
      connection.is_broken = true;  // unless the link takes it
      moved |= connection.out.drain(
          [&](const std::byte* bytes, size_t nbytes) { return connection.link->push(bytes, nbytes); });
      connection.is_broken = false;
    });
    is_urgent_ = any_of([](const LeaderConnection& connection) { return !connection.out.empty(); });
    patient_since_ns_ = 0;
    return moved;
  }

  // Whether something waits that is not urgent, and nothing that is.
  bool are_patient() const { return !is_urgent_ && patient_since_ns_ != 0; }

  template <class Is>
  bool any_of(Is is) const {
    for (const LeaderConnection& connection : connections_) {
      if (connection.link != nullptr && is(connection)) return true;
    }
    return false;
  }

 private:
  template <class Fill>
  void put_to(int host, FrameType type, int rank, Fill fill) {
    FrameWriter& out = (*this)[host].out;
    out.begin(type, rank);
    fill(out);
    out.end();
  }

  static constexpr int64_t kPatienceNs = 500'000;

  std::vector<LeaderConnection> connections_;  // by host
  bool is_urgent_ = false;                     // some of what waits in them
  int64_t patient_since_ns_ = 0;               // what was first put there that is not; 0: nothing
  uint64_t decisions_ = 0;
};

}  // namespace rr
