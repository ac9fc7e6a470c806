// Connections of the TCP transport: which of two counts, who opens one, whose end is noticed. What every link does is
// in link_test.cc; with RR_TEST_NETWORK=tcp the tests of groups on several hosts run over TCP.
#include "transport/tcp/tcp_network.h"

#include <cstring>
#include <thread>

#include "base/clock.h"
#include "doctest/doctest.h"
#include "support/ranks.h"
#include "support/tcp_ranks.h"

namespace rr::test {
namespace {

// Both ends look until a byte has gone each way; false if that takes too long.
bool exchange(Link& one, Link& other) {
  const int64_t until_ns = now_ns() + 60'000'000'000;
  std::byte byte{42};
  for (Link* const from : {&one, &other}) {
    Link& to = from == &one ? other : one;
    while (from->push(&byte, 1) == 0) {
      to.pull(nullptr, 0);
      std::byte nothing;
      if (to.pull(&nothing, 1) != 0 || now_ns() > until_ns) return false;
      std::this_thread::yield();
    }
    std::byte got{0};
    while (to.pull(&got, 1) == 0) {
      if (now_ns() > until_ns) return false;
      std::this_thread::yield();
    }
    if (got != byte) return false;
  }
  return true;
}

TEST_CASE("tcp: both ranks dial at once, again and again") {
  TcpRanks ranks(2);
  for (int channel = 0; channel < 200; ++channel) {
    const auto low = ranks.networks[0]->link(1, channel);
    const auto high = ranks.networks[1]->link(0, channel);
    std::byte nothing;
    std::thread beside([&] { low->pull(&nothing, 1); });
    std::byte nothing_else;
    high->pull(&nothing_else, 1);
    beside.join();
    REQUIRE(exchange(*low, *high));
  }
}

TEST_CASE("tcp: only one of the two looks at first, the lower or the higher rank") {
  TcpRanks ranks(2);
  for (int channel = 0; channel < 20; ++channel) {
    const auto low = ranks.networks[0]->link(1, channel);
    const auto high = ranks.networks[1]->link(0, channel);
    Link& first = channel % 2 == 0 ? *low : *high;
    const std::byte byte{1};
    wait_for([&] { return first.push(&byte, 1) == 1; });
    std::byte got;
    Link& second = channel % 2 == 0 ? *high : *low;
    wait_for([&] { return second.pull(&got, 1) == 1; });
  }
}

TEST_CASE("tcp: what was pushed before a link went arrives") {
  TcpRanks ranks(2);
  auto from = ranks.networks[0]->link(1, 3);
  const auto to = ranks.networks[1]->link(0, 3);
  REQUIRE(exchange(*from, *to));
  const std::byte unread[100] = {};
  REQUIRE(to->push(unread, sizeof unread) == sizeof unread);
  std::vector<std::byte> sent(8 << 20, std::byte{9});
  const size_t pushed = from->push(sent.data(), sent.size());  // as much as the kernel takes
  from.reset();
  std::vector<std::byte> got(pushed);
  size_t have = 0;
  wait_for([&] { return (have += to->pull(got.data() + have, got.size() - have)) == pushed; });
  CHECK(got == std::vector<std::byte>(pushed, std::byte{9}));
}

TEST_CASE("tcp: who needs bytes of a connection that has ended is told") {
  TcpRanks ranks(2);
  auto gone = ranks.networks[0]->link(1, 3);
  const auto left = ranks.networks[1]->link(0, 3);
  REQUIRE(exchange(*gone, *left));
  CHECK_FALSE(left->has_ended());
  gone.reset();
  const std::string text = raised<PeerLostError>([&] {
    std::byte byte;
    wait_for([&] { return left->pull(&byte, 1) != 0; });
  });
  CHECK(text == "TCP, rank 1, peer 0, channel 3: lost rank 0: the peer has closed the connection");
  CHECK(left->has_ended());
}

TEST_CASE("tcp: a rank at whose address nobody listens") {
  TcpRanks ranks(2);
  auto [unused, address] = listening();
  unused.reset();
  auto [socket, own] = listening();
  TcpOptions options = {0, std::move(socket), {own, address}, key_of(7)};
  options.data_lost_after_ms = 1000;
  const auto alone = TcpNetwork::create(std::move(options));
  const auto link = alone->link(1, 0);
  const std::string text = raised<PeerLostError>([&] {
    std::byte byte;
    wait_for([&] { return link->pull(&byte, 1) != 0; });
  });
  expect_contains(text, "lost rank 1: no connection to " + address.text() + ": connect: Connection refused");
  expect_contains(text, "; has that rank ended? If not, may this host reach that port? RINGREDUCE_PORTS");
}

TEST_CASE("tcp: ranks of another job are told so, and of no use") {
  TcpRanks ranks(2);
  auto [socket, own] = listening();
  const auto other = TcpNetwork::create({0, std::move(socket), {own, ranks.addresses[1]}, key_of(8)});
  const auto link = other->link(1, 0);
  const std::string text = raised<PeerLostError>([&] {
    std::byte byte;
    wait_for([&] { return link->pull(&byte, 1) != 0; });
  });
  CHECK(text.find("it does not have this job's secret") != std::string::npos);
  const auto low = ranks.networks[0]->link(1, 0);
  const auto high = ranks.networks[1]->link(0, 0);
  CHECK(exchange(*low, *high));
}

TEST_CASE("tcp: more ranks than unproven connections come to one of them at once") {
  constexpr int kRanks = 100;
  TcpRanks ranks(kRanks);
  std::atomic<int> rings{0};
  for (int r = 1; r < kRanks; ++r) ranks.networks[static_cast<size_t>(r)]->monitor({0});
  ranks.networks[0]->start([&] { ++rings; });
  std::vector<std::unique_ptr<Link>> links;
  for (int r = 1; r < kRanks; ++r) links.push_back(ranks.networks[static_cast<size_t>(r)]->link(0, 0));
  const std::byte byte{1};
  for (const auto& link : links) {
    wait_for([&] { return link->push(&byte, 1) == 1; });
  }
  for (int r = 0; r < kRanks; ++r) CHECK(ranks.networks[static_cast<size_t>(r)]->newly_lost().empty());
}

// --- packet filters

// Two ranks of which rank 0 is refused when it dials rank 1, which dials rank 0.
struct OneWay {
  OneWay() {
    auto [socket, own] = listening();
    auto [other, address] = listening();
    auto [unused, refused] = listening();
    unused.reset();
    TcpOptions options = {0, std::move(socket), {own, refused}, key_of(7)};
    options.data_lost_after_ms = 1000;
    zero = TcpNetwork::create(std::move(options));
    one = TcpNetwork::create({1, std::move(other), {own, address}, key_of(7)});
  }
  std::shared_ptr<TcpNetwork> zero, one;
};

TEST_CASE("tcp: a rank that is refused takes the other's connection") {
  OneWay ranks;
  std::atomic<int> rings{0};
  ranks.zero->start([&] { ++rings; });
  const auto low = ranks.zero->link(1, 0);
  const auto high = ranks.one->link(0, 0);
  std::byte byte{1};
  CHECK(low->push(&byte, 1) == 0);
  int rings_before = 0;
  SUBCASE("while it dials") {}
  SUBCASE("and after it has given up") {
    wait_for([&] { return rings > 0; });
    CHECK(low->push(&byte, 1) == 0);
    rings_before = 1;
  }
  wait_for([&] { return high->push(&byte, 1) == 1; });
  wait_for([&] { return rings > rings_before; });  // it is open here as well
  wait_for([&] { return low->pull(&byte, 1) == 1; });
  const int64_t until_ns = now_ns() + 2'500'000'000;  // who has found the end of a connection says so after 2 s
  CHECK_NOTHROW(wait_for([&] { return low->pull(&byte, 1) == 1 || now_ns() > until_ns; }));
}

TEST_CASE("tcp: a leader that is refused has not lost the other, which dials") {
  OneWay ranks;
  std::atomic<int> rings{0};
  ranks.zero->start([&] { ++rings; });
  ranks.zero->monitor({1});
  ranks.one->monitor({0});
  wait_for([&] { return rings > 0; });
  CHECK(ranks.zero->newly_lost().empty());
}

TEST_CASE("tcp: a rank that goes without a farewell is lost, and one that takes leave is not") {
  TcpRanks ranks(4);
  TcpNetwork& network = *ranks.networks[0];
  std::atomic<int> rings{0};
  network.start([&] { ++rings; });
  network.monitor({1});
  ranks.networks[1]->monitor({0});
  wait_for([&] { return rings >= 1; });
  Fd killed = connected(ranks.addresses[0], 2, 0, 0x7fffffff, 4).first;
  auto [leaving, session] = connected(ranks.addresses[0], 3, 0, 0x7fffffff, 4);
  wait_for([&] { return rings >= 3; });
  CHECK(network.newly_lost().empty());
  ranks.networks[1]->leave();
  const std::byte farewell{'!'};
  REQUIRE(RecordWriter(session).send(leaving.get(), &farewell, 1));
  leaving.reset();
  killed.reset();
  std::vector<LostRank> lost;
  wait_for([&] {
    for (LostRank& one : network.newly_lost()) lost.push_back(std::move(one));
    return !lost.empty();
  });
  CHECK(lost.size() == 1);
  CHECK(lost[0].world_rank == 2);
  CHECK(lost[0].why.find("its process has ended without shutdown()") == 0);
}

}  // namespace
}  // namespace rr::test
