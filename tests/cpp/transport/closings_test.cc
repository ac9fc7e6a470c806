// Connections that are dropped before all that was sent on them has arrived.
#include "transport/tcp/closings.h"

#include <sys/socket.h>

#include <vector>

#include "doctest/doctest.h"
#include "support/ranks.h"
#include "support/tcp_ranks.h"

namespace rr::test {
namespace {

constexpr int kLostMs = 600'000;

// Sends until the peer's machine and this one have no room.
void fill(int fd) {
  const std::vector<std::byte> block(1 << 16);
  while (::send(fd, block.data(), block.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) continue;
}

TEST_CASE("closings: two sides that drop a connection which is full both ways do not wait for each other") {
  auto [one, other] = connected_pair();
  fill(one.get());
  fill(other.get());
  Closings of_one(kLostMs), of_other(kLostMs);
  of_one.add(std::move(one));
  of_other.add(std::move(other));
  CHECK(!of_one.empty());
  CHECK(!of_other.empty());
  wait_for([&] {
    of_one.look();
    of_other.look();
    return of_one.empty() && of_other.empty();
  });
}

TEST_CASE("closings: what was sent before arrives") {
  auto [one, other] = connected_pair();
  fill(one.get());
  CHECK(::send(other.get(), "end", 3, MSG_NOSIGNAL) == 3);  // unread at the side that drops the connection
  Closings of_one(kLostMs);
  of_one.add(std::move(one));
  size_t nbytes = 0;
  std::vector<std::byte> block(1 << 16);
  ssize_t n = 0;
  while ((n = ::recv(other.get(), block.data(), block.size(), MSG_DONTWAIT)) != 0) {
    if (n > 0) nbytes += static_cast<size_t>(n);
    if (n < 0 && errno != EAGAIN) break;
    of_one.look();
  }
  CHECK(n == 0);  // an end, and no reset
  CHECK(nbytes > 0);
}

}  // namespace
}  // namespace rr::test
