// A peer's host that says nothing any more, while a connection is made and later; and a peer that only does not read.
#include <linux/filter.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "doctest/doctest.h"
#include "support/ranks.h"
#include "support/tcp_ranks.h"
#include "transport/tcp/session/handshake.h"
#include "transport/tcp/tcp_network.h"

namespace rr::test {
namespace {

// What comes on the socket is dropped, from now on.
void drop_what_comes(int fd) {
  sock_filter nothing = {BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog program = {1, &nothing};
  check_sys(::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), "setsockopt(SO_ATTACH_FILTER)");
}

TEST_CASE("tcp: a leader whose host vanishes within the handshake is lost") {
  auto [gone, address] = listening();
  auto [socket, own] = listening();
  TcpOptions options = {1, std::move(socket), {address, own}, key_of(7)};
  options.lost_after_ms = 1000;
  const auto network = TcpNetwork::create(std::move(options));
  const Handshakes handshakes(key_of(7), 0, 2);
  network->monitor({0});
  Fd accepted;
  wait_for([&] { return bool(accepted = Fd(::accept4(gone.get(), nullptr, nullptr, SOCK_CLOEXEC))); });
  Hello hello;
  REQUIRE(::recv(accepted.get(), &hello, sizeof hello, MSG_WAITALL) == sizeof hello);
  drop_what_comes(gone.get());
  SUBCASE("after the HELLO") {}
  SUBCASE("after the PROOF") {
    const Challenge challenge = handshakes.answer(hello, handshakes.judge(hello));
    check_sys(::send(accepted.get(), &challenge, sizeof challenge, MSG_NOSIGNAL), "send");
    Bytes32 proof;
    REQUIRE(::recv(accepted.get(), proof.data(), proof.size(), MSG_WAITALL) == static_cast<ssize_t>(proof.size()));
  }
  drop_what_comes(accepted.get());
  std::vector<LostRank> lost;
  wait_for([&] { return !(lost = network->newly_lost()).empty(); });
  CHECK(lost[0].world_rank == 0);
  CHECK(lost[0].why.find("Connection timed out") != std::string::npos);
}

TEST_CASE("tcp: a connection of data whose packets are dropped is lost") {
  auto [socket, own] = listening();
  auto [silent, address] = listening();
  TcpOptions options = {0, std::move(socket), {own, address}, key_of(7)};
  options.data_lost_after_ms = 2000;
  const auto network = TcpNetwork::create(std::move(options));
  const auto link = network->link(1, 0);
  std::string expected;
  Fd connection;
  const std::vector<std::byte> bytes(1 << 20);
  SUBCASE("before it is there") {
    drop_what_comes(silent.get());
    expected = "no connection to " + address.text();
  }
  SUBCASE("after bytes were sent") {
    connection = connected(own, 1, 0, 0, 2).first;
    wait_for([&] { return link->push(bytes.data(), 1) == 1; });
    drop_what_comes(connection.get());
    expected = "its host has acknowledged nothing on this connection for 2 s";
  }
  const std::string text = raised<PeerLostError>([&] {
    wait_for([&] {
      link->push(bytes.data(), bytes.size());
      return false;
    });
  });
  CHECK(text.find(expected) != std::string::npos);
}

TEST_CASE("tcp: a connection of data whose peer does not read is not lost") {
  auto [socket, own] = listening();
  auto [unused, address] = listening();
  TcpOptions options = {0, std::move(socket), {own, address}, key_of(7)};
  options.data_lost_after_ms = 1000;
  const auto network = TcpNetwork::create(std::move(options));
  const auto link = network->link(1, 0);
  auto [connection, session] = connected(own, 1, 0, 0, 2);
  const std::vector<std::byte> bytes(1 << 20);
  wait_for([&] { return link->push(bytes.data(), bytes.size()) != 0; });
  // Looks are a second apart, and who has found the end of a connection says so after 2 s.
  const int64_t until_ns = now_ns() + 6'000'000'000;
  CHECK_NOTHROW(wait_for([&] { return link->push(bytes.data(), bytes.size()) == 0 && now_ns() > until_ns; }));
}

}  // namespace
}  // namespace rr::test
