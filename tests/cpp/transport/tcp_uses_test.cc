// Connections that are of no use: to ranks whose link has gone, to what is no rank, and for links that are never made.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <climits>

#include "base/clock.h"
#include "doctest/doctest.h"
#include "support/ranks.h"
#include "support/tcp_ranks.h"
#include "transport/tcp/heartbeats.h"
#include "transport/tcp/opening/attempts.h"
#include "transport/tcp/opening/dialer.h"
#include "transport/tcp/opening/listener.h"

namespace rr::test {
namespace {

// Looks until the link throws.
std::string lost(Link& link) {
  return raised<PeerLostError>([&] {
    std::byte byte;
    wait_for([&] { return link.pull(&byte, 1) != 0; });
  });
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_CASE("tcp: a rank whose link has gone says so to who dials, be it the higher one or the lower") {
  for (const size_t gone : {0, 1}) {
    for (const bool has_others : {false, true}) {
      CAPTURE(gone);
      CAPTURE(has_others);
      TcpRanks ranks(2);
      const int peer = static_cast<int>(1 - gone);
      const auto other = has_others ? ranks.networks[gone]->link(peer, channel_of(1, 1)) : nullptr;
      ranks.networks[gone]->link(peer, channel_of(1, 0)).reset();
      const auto link = ranks.networks[1 - gone]->link(static_cast<int>(gone), channel_of(1, 0));
      const std::string text = lost(*link);
      CHECK_MESSAGE(contains(text, "that rank has no more use for this connection"), text);
    }
  }
}

TEST_CASE("tcp: what ends connections before it has shown that it has the key is not the rank") {
  auto [socket, own] = listening();
  auto [stranger, address] = listening();
  TcpOptions options = {0, std::move(socket), {own, address}, key_of(7)};
  options.unproven_lost_after_ms = 1000;
  const auto network = TcpNetwork::create(std::move(options));
  network->monitor({1});
  const auto link = network->link(1, 0);
  const std::string text = raised<PeerLostError>([&] {
    std::byte byte;
    wait_for([&] {
      Fd(::accept4(stranger.get(), nullptr, nullptr, SOCK_CLOEXEC));
      return link->pull(&byte, 1) != 0;
    });
  });
  CHECK_MESSAGE(contains(text, "no connection to " + address.text()), text);
  CHECK_MESSAGE(contains(text, "does something else listen there"), text);
  std::vector<LostRank> lost;
  wait_for([&] {
    Fd(::accept4(stranger.get(), nullptr, nullptr, SOCK_CLOEXEC));
    return !(lost = network->newly_lost()).empty();
  });
  CHECK(contains(lost[0].why, "does something else listen there"));
}

TEST_CASE("tcp: what takes connections and says nothing is warned of, once, and not lost") {
  auto [socket, own] = listening();
  auto [stopped, address] = listening();  // its kernel answers
  TcpOptions options = {0, std::move(socket), {own, address}, key_of(7)};
  options.data_lost_after_ms = 1000;
  const auto network = TcpNetwork::create(std::move(options));
  std::atomic<int> rings{0};
  network->start([&] { ++rings; });
  const auto links = {network->link(1, 0), network->link(1, 1)};
  std::byte byte;
  for (const auto& link : links) link->pull(&byte, 1);
  wait_for([&] { return rings != 0; });
  const std::vector<std::string> warnings = network->new_warnings();
  REQUIRE(warnings.size() == 1);
  CHECK(warnings[0] == "rank 1's port " + address.text() +
                           " takes connections and says nothing for 1 s: is its process stopped, or does something "
                           "else listen there?");
  const int64_t until_ns = now_ns() + 3'000'000'000;  // who has found the end of a connection says so after 2 s
  CHECK_NOTHROW(wait_for([&] {
    for (const auto& link : links) link->pull(&byte, 1);
    return now_ns() > until_ns;
  }));
  CHECK(network->new_warnings().empty());
}

TEST_CASE("tcp: a connection for which this rank never makes a link is closed once a newer group has links") {
  TcpRanks ranks(2);
  const auto old = ranks.networks[0]->link(1, channel_of(0, 0));
  const auto [useless, session] = connected(ranks.addresses[0], 1, 0, channel_of(1, 0), 2);
  const auto [early, other] = connected(ranks.addresses[0], 1, 0, channel_of(3, 0), 2);
  std::byte ready;
  for (const Fd* const one : {&useless, &early}) REQUIRE(::recv(one->get(), &ready, 1, MSG_WAITALL) == 1);
  const auto newer = ranks.networks[0]->link(1, channel_of(2, 0));
  std::byte nothing;
  CHECK_NOTHROW(wait_for([&] { return ::recv(useless.get(), &nothing, 1, MSG_DONTWAIT) == 0; }));
  CHECK(::recv(early.get(), &nothing, 1, MSG_DONTWAIT) < 0);  // its link may still be made
}

TEST_CASE("connections: of use until their link goes, or a newer group has links and theirs has none") {
  using Use = Connections::Use;
  Connections connections;
  const auto use = [&](int peer, int group, int channel = 0) {
    return connections.use(peer, channel_of(group, channel));
  };
  const auto world = connections.begin_link(1, channel_of(0, 0));
  CHECK(use(1, 5) == Use::kFree);  // to be made
  const auto one = connections.begin_link(1, channel_of(5, 0));
  const auto two = connections.begin_link(2, channel_of(5, 0));
  CHECK(use(1, 4) == Use::kGone);
  CHECK(use(1, 5) == Use::kFree);
  CHECK(use(3, 5) == Use::kFree);  // to be made
  one->open(OwnedFd(), {});
  CHECK(use(1, 5) == Use::kOpen);
  connections.let_go(one);
  CHECK(use(1, 5) == Use::kGone);
  CHECK(use(2, 5) == Use::kFree);
  CHECK((connections.useless() == std::vector<ConnectionPtr>{one}));
  connections.let_go(two);
  CHECK(use(2, 5) == Use::kGone);
  CHECK(use(3, 5) == Use::kGone);
  CHECK(use(1, 0) == Use::kFree);
  CHECK(use(1, 6) == Use::kFree);
  CHECK(connections.use(1, Heartbeats::kChannel) == Use::kFree);
  for (const ConnectionPtr& asked : connections.take().to_drop) connections.drop(*asked);
  CHECK((connections.known(1, channel_of(5, 0)) == nullptr));
  CHECK((connections.known(1, channel_of(0, 0)) == world));
  CHECK(connections.useless().empty());
}

TEST_CASE("dialer: what is known of attempts goes with the connection") {
  const TcpAddress address = listening().second;
  Dialer dialer(0, {address, address}, 3500, 10000, 60000);
  const auto connection = std::make_shared<TcpConnection>(1, 0);
  const auto pause_ns = [&] {
    const int64_t before = now_ns();
    CHECK_FALSE(dialer.failed(connection, {"why", before, false, true}));
    const int64_t until = dialer.next_due_ns();
    dialer.take_due(INT64_MAX);
    return until - before;
  };
  for (const int64_t ms : {50, 100, 200, 400, 400}) CHECK(pause_ns() >= ms * 1'000'000);
  dialer.forget(*connection);
  CHECK(pause_ns() < 400'000'000);
}

TEST_CASE("dialer: a peer that ends each connection although it knows the job is given up") {
  const TcpAddress address = listening().second;
  constexpr int kLimitMs = 100;
  Dialer dialer(0, {address, address}, 60000, kLimitMs, 60000);
  const auto connection = std::make_shared<TcpConnection>(1, 0);
  Dialer::Failure declined{"another connection of these ranks counts", now_ns()};
  declined.has_answer = declined.is_proven = true;
  const int64_t began_ns = now_ns();
  std::optional<std::string> why;
  wait_for([&] {
    why = dialer.failed(connection, declined);
    return why.has_value();
  });
  CHECK(now_ns() - began_ns >= 2 * kLimitMs * int64_t{1'000'000});
  // One that was stopped in between has seen few ends, however long that took.
  dialer.forget(*connection);
  CHECK_FALSE(dialer.failed(connection, declined));
  const int64_t stopped_until_ns = now_ns() + 3 * kLimitMs * int64_t{1'000'000};
  wait_for([&] { return now_ns() > stopped_until_ns; });
  CHECK_FALSE(dialer.failed(connection, declined));
  CHECK(why->find("as if it held another one, which has been lost here") != std::string::npos);
}

TEST_CASE("dialer: a peer that refuses is given up after the limit, and after several attempts") {
  const TcpAddress address = listening().second;
  constexpr int kLimitMs = 100;
  const auto connection = std::make_shared<TcpConnection>(1, 0);
  Dialer dialer(0, {address, address}, 60000, kLimitMs, 60000);
  const int64_t began_ns = now_ns();
  const Dialer::Failure refused{"Connection refused", began_ns};
  // This process was stopped after its first attempt.
  CHECK_FALSE(dialer.failed(connection, refused));
  wait_for([&] { return now_ns() - began_ns > 2 * kLimitMs * int64_t{1'000'000}; });
  CHECK_FALSE(dialer.failed(connection, refused));
  std::optional<std::string> why;
  for (int i = 0; i < 20 && !why; ++i) why = dialer.failed(connection, refused);
  CHECK(why.has_value());
  Dialer patient(0, {address, address}, 60000, 60000, 60000);
  for (int i = 0; i < 20; ++i) CHECK_FALSE(patient.failed(connection, {"Connection refused", now_ns()}));
}

TEST_CASE("dialer: a connection of heartbeats has time for three SYNs, the last after 3 s") {
  const auto [listener, address] = listening();
  const TcpOptions usual;
  const Dialer dialer(0, {address, address}, usual.lost_after_ms, usual.data_lost_after_ms,
                      usual.unproven_lost_after_ms);
  const OwnedFd socket = dialer.dial(TcpConnection(1, Heartbeats::kChannel));
  unsigned timeout_ms = 0;
  socklen_t nbytes = sizeof timeout_ms;
  check_sys(::getsockopt(socket.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, &nbytes), "getsockopt");
  CHECK(timeout_ms > 3000 + 500);
}

TEST_CASE("attempts: a socket that the kernel cannot watch ends nothing else") {
  const Handshakes handshakes(key_of(7), 0, 2);
  Connections connections;
  Epoll events;
  Attempts attempts(handshakes, 0, 2, 1000, connections, events);
  const auto file = [] { return OwnedFd(create_memfd("file", 4096)); };  // no epoll takes one
  CHECK_FALSE(attempts.accepted(file()));
  CHECK(errno == EPERM);
  CHECK_FALSE(attempts.dialled(file(), 1, 0));
  CHECK(errno == EPERM);
  CHECK(attempts.next_late_ns() == INT64_MAX);
}

TEST_CASE("listener: connections that cannot be kept count as refused, until one can be") {
  Epoll events;
  Listener listener(OwnedFd(listening().first), events);
  for (int attempts = 1; attempts <= 3; ++attempts) {
    listener.has_no_room(ENOSPC);
    REQUIRE(listener.refusal());
    CHECK(listener.refusal()->attempts == attempts);
    CHECK(listener.refusal()->error == ENOSPC);
  }
  listener.has_room();
  CHECK_FALSE(listener.refusal());
}

}  // namespace
}  // namespace rr::test
