// Several hosts in one process: a control segment for each, and links of shared memory in place of a network. They
// never let one message overtake another, unless a test delays them (delayed_link.h). With RR_TEST_DELAYS=1 all tests
// do, at random; with RR_TEST_NETWORK=tcp the ranks are connected by TCP instead, wherever a test does not hold links.
#pragma once

#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <tuple>

#include "support/delayed_link.h"
#include "support/ranks.h"
#include "support/tcp_ranks.h"

namespace rr::test {

class LoopbackLinks {
 public:
  explicit LoopbackLinks(size_t capacity) : capacity_(capacity) {}

  std::unique_ptr<Link> end(int from, int to, int channel) {
    return shm_link(way(from, to, channel), way(to, from, channel), capacity_, nobody_);
  }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { operator delete[](bytes, std::align_val_t{4096}); }
  };

  std::byte* way(int from, int to, int channel) {
    const std::lock_guard lock(mutex_);
    auto& bytes = ways_[{from, to, channel}];
    if (bytes == nullptr) bytes.reset(new (std::align_val_t{4096}) std::byte[shm_link_nbytes(capacity_)]());
    return bytes.get();
  }

  size_t capacity_;
  std::mutex mutex_;
  std::map<std::tuple<int, int, int>, std::unique_ptr<std::byte[], Free>> ways_;
  Bell nobody_ = {};
};

// The host of each rank: one rank a host, equal numbers, unequal ones, and ranks that are not numbered host by host.
const std::vector<std::vector<int>> kLayouts = {{0, 1},    {0, 1, 2},       {0, 0, 1, 1},
                                                {0, 0, 1}, {1, 0, 1, 0, 0}, {0, 1, 1, 1, 2}};

// Puts something between a rank and its end of a link.
using Wrap = std::function<std::unique_ptr<Link>(std::unique_ptr<Link> end, int rank, int peer, int channel)>;

// Runs body on ranks that are spread over hosts: host_of[r] is the host of rank r. pidfds: by rank, what the others
// watch in its place; empty: nothing.
inline void run_hosts(const std::vector<int>& host_of, const std::function<void(Rank&)>& body, size_t capacity = 64,
                      size_t codec_nbytes = 8192, Delays* delays = nullptr, const Wrap& wrap = nullptr,
                      std::vector<int> pidfds = {}) {
  const int size = static_cast<int>(host_of.size());
  pidfds.resize(static_cast<size_t>(size), -1);
  std::optional<Delays> usual;
  if (delays == nullptr && std::getenv("RR_TEST_DELAYS") != nullptr) delays = &usual.emplace(seed(1));
  std::map<int, Fd> segments;
  for (const int host : host_of) {
    if (segments.count(host) == 0) segments.emplace(host, create_memfd("test", ControlSegment::nbytes(size, capacity)));
  }
  LoopbackLinks loopback(codec_nbytes);
  const char* const kind = std::getenv("RR_TEST_NETWORK");
  std::optional<TcpRanks> tcp;
  if (kind != nullptr && std::string(kind) == "tcp" && delays == nullptr && !wrap) tcp.emplace(size);
  run_threads(size, [&](int r) {
    auto registry = std::make_shared<SegmentRegistry>();
    const int host = host_of[static_cast<size_t>(r)];
    const auto link = [&, delays, r](int peer, int channel) {
      auto end = loopback.end(r, peer, channel);
      if (wrap) end = wrap(std::move(end), r, peer, channel);
      return delays == nullptr ? std::move(end)
                               : delays->delay(std::move(end), r, peer, channel, carries_control(channel));
    };
    Network network = {"loopback", host_of, link, {}};
    if (tcp) network = tcp_network(tcp->networks[static_cast<size_t>(r)], host_of);
    std::vector<int> watched = pidfds;
    watched[static_cast<size_t>(r)] = -1;
    Context context(segments.at(host).get(), r, size, watched, "host" + std::to_string(host), registry, nullptr, tune,
                    -1, network);
    Rank rank = {context, context.world(), r, size, *registry};
    body(rank);
  });
}

// Until the rank's threads have looked around so often: then its host has taken up what had arrived, and the rank knows
// what it may have missed.
inline void look_around(const Rank& rank, int looks = 3) {
  const auto& seen_ns = rank.world.control().line(rank.rank).seen_ns;
  for (int look = 0; look < looks; ++look) {
    const int64_t before = seen_ns.load();
    wait_for([&] { return seen_ns.load() != before; });
  }
}

}  // namespace rr::test
