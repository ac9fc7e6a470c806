#include "transport/tcp/readable.h"

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "doctest/doctest.h"
#include "os/mapping.h"
#include "os/owned_fd.h"
#include "transport/tcp/tcp_link.h"

namespace rr::test {
namespace {

std::array<OwnedFd, 2> connected() {
  std::array<int, 2> ends = {};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) == 0);
  return {OwnedFd::from([&] { return ends[0]; }), OwnedFd::from([&] { return ends[1]; })};
}

struct Connection {
  OwnedFd here;
  OwnedFd peer;
  Readable::Flag* flag = nullptr;

  explicit Connection(Readable& readable) {
    std::array<OwnedFd, 2> ends = connected();
    here = std::move(ends[0]);
    peer = std::move(ends[1]);
    flag = &readable.add(here.get());
  }
  void send() const { REQUIRE(::write(peer.get(), "x", 1) == 1); }
  ssize_t read() const {
    std::array<char, 16> bytes = {};
    return ::read(here.get(), bytes.data(), bytes.size());
  }
};

// There is a look only a microsecond after the last one.
void let_look_again() {
  const int64_t until_ns = now_ns() + 2000;
  while (now_ns() < until_ns) continue;
}

bool is_ever_taken(Connection& one) {
  for (int i = 0; i < 2; ++i) {
    if (one.flag->take()) return true;
    let_look_again();
  }
  return one.flag->take();
}

std::vector<Connection> connections(Readable& readable, size_t count) {
  std::vector<Connection> all;
  for (size_t i = 0; i < count; ++i) all.emplace_back(readable);
  return all;
}

TEST_CASE("readable: of many connections, those are read on which something has come, once each time") {
  Readable readable;
  std::vector<Connection> all = connections(readable, 20);
  for (Connection& one : all) CHECK(one.flag->take());  // what came before it was added is not known
  for (Connection& one : all) CHECK_FALSE(is_ever_taken(one));
  for (int turn = 0; turn < 3; ++turn) {
    all[7].send();
    all[19].send();
    for (size_t i = 0; i < all.size(); ++i) CHECK(is_ever_taken(all[i]) == (i == 7 || i == 19));
    CHECK(all[7].read() == 1);
    CHECK(all[19].read() == 1);
    CHECK_FALSE(is_ever_taken(all[7]));
  }
  all[3].flag->put_back();
  CHECK(all[3].flag->take());
}

TEST_CASE("readable: bytes and the end that come together are both read") {
  Readable readable;
  std::vector<Connection> all = connections(readable, 20);
  for (Connection& one : all) one.flag->take();
  all[4].send();
  all[4].peer = OwnedFd();
  REQUIRE(is_ever_taken(all[4]));
  CHECK(all[4].read() == 1);
  REQUIRE(all[4].flag->take());
  CHECK(all[4].read() == 0);
  CHECK_FALSE(is_ever_taken(all[5]));
}

TEST_CASE("readable: the flag of a connection that has gone serves another one from the beginning") {
  Readable readable;
  std::vector<Connection> all = connections(readable, 20);
  all[4].peer = OwnedFd();
  REQUIRE(is_ever_taken(all[4]));
  Readable::Flag* const flag = all[4].flag;
  readable.remove(all[4].here.get(), *flag);
  Connection next(readable);
  CHECK(next.flag == flag);
  CHECK(next.flag->take());
  CHECK_FALSE(is_ever_taken(next));
  next.send();
  CHECK(is_ever_taken(next));
}

TEST_CASE("readable: each of a few connections is read again and again, also once there have been many") {
  Readable readable;
  std::vector<Connection> few = connections(readable, 2);
  for (Connection& one : few) {
    for (int turn = 0; turn < 3; ++turn) CHECK(is_ever_taken(one));
  }
  {
    std::vector<Connection> many = connections(readable, 20);
    for (Connection& one : few) one.flag->take();
    few[0].send();
    CHECK(is_ever_taken(few[0]));
    CHECK_FALSE(is_ever_taken(few[1]));
    for (Connection& one : many) readable.remove(one.here.get(), *one.flag);
  }
  CHECK(is_ever_taken(few[1]));
}

TEST_CASE("readable: a connection that the kernel cannot watch is read each time") {
  Readable readable;
  std::vector<Connection> all = connections(readable, 20);
  const OwnedFd file(create_memfd("file", 4096));  // no epoll takes one
  Readable::Flag& flag = readable.add(file.get());
  for (int turn = 0; turn < 3; ++turn) CHECK(flag.take());
}

TEST_CASE("readable: a link reads to the end what it cannot take at once, also where nothing more comes") {
  constexpr size_t kNbytes = 6 * kRecordNbytes;  // it takes four records at once
  Readable readable;
  const std::vector<Connection> many = connections(readable, 20);
  std::array<OwnedFd, 2> ends = connected();
  std::array<std::unique_ptr<Link>, 2> links;
  for (size_t i = 0; i < 2; ++i) {
    const int room = 1 << 20;
    REQUIRE(::setsockopt(ends[i].get(), SOL_SOCKET, SO_SNDBUF, &room, sizeof room) == 0);
    const auto connection = std::make_shared<TcpConnection>(static_cast<int>(1 - i), 0);
    Readable::Flag& flag = readable.add(ends[i].get());
    connection->open(std::move(ends[i]), Session(), &flag);
    links[i] = tcp_link(connection, static_cast<int>(i), [] {}, [] {});
  }
  std::vector<std::byte> sent(kNbytes);
  for (size_t i = 0; i < kNbytes; ++i) sent[i] = static_cast<std::byte>(i / 1000);
  std::vector<std::byte> got(kNbytes);
  REQUIRE(links[1]->pull(got.data(), kNbytes) == 0);  // from here on only what comes raises the flag
  REQUIRE(links[0]->push(sent.data(), kNbytes) == kNbytes);
  size_t pulled = 0;
  for (int turn = 0; turn < 10 && pulled < kNbytes; ++turn) {
    pulled += links[1]->pull(got.data() + pulled, kNbytes - pulled);
    let_look_again();
  }
  CHECK(pulled == kNbytes);
  CHECK(got == sent);
}

}  // namespace
}  // namespace rr::test
