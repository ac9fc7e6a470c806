// What the leaders of hosts learn of each other: who is lost and why, who is stalled, who has left.
#include "transport/tcp/heartbeats.h"

#include <linux/filter.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <future>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "doctest/doctest.h"
#include "support/ranks.h"
#include "support/tcp_ranks.h"

namespace rr::test {
namespace {

Session session_of_low() { return {key_of(1), key_of(2), 3, 4, true}; }
Session session_of_high() { return {key_of(2), key_of(1), 4, 3, true}; }

// No packet comes in by this socket any more, as if the network dropped them.
void drop_what_comes(int fd) {
  sock_filter nothing = {BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog program = {1, &nothing};
  check_sys(::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), "setsockopt(SO_ATTACH_FILTER)");
}

// Bytes that the peer's kernel has not acknowledged.
int unacknowledged(int fd) {
  int nbytes = 0;
  check_sys(::ioctl(fd, SIOCOUTQ, &nbytes), "ioctl");
  return nbytes;
}

// A leader's heartbeats, driven by the test.
struct Leader {
  explicit Leader(int rank, int lost_after_ms = 60'000, int stalled_after_ms = 60'000)
      : heartbeats(rank, lost_after_ms, events, stalled_after_ms) {}

  // So often at most that all but a few signs are acknowledged, as they are at the pace of a job.
  void turn() {
    epoll_event happened[16];
    const size_t count = events.wait(happened, 10);
    for (size_t i = 0; i < count; ++i) {
      if (heartbeats.has(happened[i].data.fd)) heartbeats.look(happened[i].data.fd, news);
    }
    if (now_ns() - sent_ns < pause_ns) return;
    sent_ns = now_ns();
    heartbeats.send(news);
  }

  Epoll events;
  Heartbeats heartbeats;
  Heartbeats::News news;
  int64_t sent_ns = 0;
  int64_t pause_ns = 25'000'000;
};

int connect_leaders(Leader& one, int rank, Leader& other, int other_rank) {
  auto [first, second] = connected_pair();
  const int fd = second.get();
  one.heartbeats.add(other_rank, std::move(first), session_of_low());
  other.heartbeats.add(rank, std::move(second), session_of_high());
  return fd;
}

TEST_CASE("heartbeats: a peer whose packets come, and which gets none, is told apart from one that is silent") {
  Leader low(0, 3000), high(1, 3000);
  // At the pace of a job one sign at a time is sent again. Of several that wait the kernel may send the first alone,
  // which does not count for it as something that has come from the peer.
  low.pause_ns = high.pause_ns = int64_t{Heartbeats::kPauseMs} * 1'000'000;
  const int fd = connect_leaders(low, 0, high, 1);
  drop_what_comes(fd);  // from low to high
  const int64_t until_ns = now_ns() + 60'000'000'000;
  while ((low.news.lost.empty() || high.news.lost.empty()) && now_ns() < until_ns) {
    low.turn();
    high.turn();
  }
  REQUIRE(low.news.lost.size() == 1);
  REQUIRE(high.news.lost.size() == 1);
  const std::string& sender = low.news.lost[0].why;
  const std::string& receiver = high.news.lost[0].why;
  CAPTURE(sender);
  CAPTURE(receiver);
  CHECK(low.news.lost[0].world_rank == 1);
  CHECK(sender.find("its host no longer gets what rank 0 sends: for 3.0 s it has acknowledged nothing") == 0);
  CHECK(sender.find("one direction, from rank 0 to it") != std::string::npos);
  CHECK(high.news.lost[0].world_rank == 0);
  CHECK(receiver.find("no sign of life from its host: nothing has arrived from it for ") == 0);
  CHECK(low.news.warnings.empty());
  CHECK(high.news.warnings.empty());
}

TEST_CASE("heartbeats: a host that has vanished is silent on both sides") {
  Leader low(0, 800), high(1, 800);
  const int fd = connect_leaders(low, 0, high, 1);
  int other = 0;
  while (!low.heartbeats.has(other)) ++other;
  drop_what_comes(fd);
  drop_what_comes(other);
  const int64_t until_ns = now_ns() + 60'000'000'000;
  while ((low.news.lost.empty() || high.news.lost.empty()) && now_ns() < until_ns) {
    low.turn();
    high.turn();
  }
  for (Leader* const leader : {&low, &high}) {
    REQUIRE(leader->news.lost.size() == 1);
    CHECK(leader->news.lost[0].why.find("no sign of life from its host: nothing has arrived from it for ") == 0);
    CHECK(leader->news.warnings.empty());
  }
}

// Nothing more is sent before the kernel may send a sign again: of one packet it does so at even pauses.
TEST_CASE("heartbeats: one sign is on its way at most") {
  Leader low(0);
  auto [first, second] = connected_pair();
  const int fd = first.get();
  low.heartbeats.add(1, std::move(first), session_of_low());
  drop_what_comes(second.get());
  for (int i = 0; i < 10; ++i) {
    low.heartbeats.send(low.news);
    CHECK(unacknowledged(fd) == 1 + static_cast<int>(kRecordOverheadNbytes));
  }
  const int nothing = 0;
  check_sys(::setsockopt(second.get(), SOL_SOCKET, SO_DETACH_FILTER, &nothing, sizeof nothing), "setsockopt");
  std::vector<std::byte> signs(2 * (1 + kRecordOverheadNbytes));
  wait_for([&] {
    low.heartbeats.send(low.news);
    return ::recv(second.get(), signs.data(), signs.size(), MSG_DONTWAIT | MSG_PEEK) ==
           static_cast<ssize_t>(signs.size());
  });
}

// The network was gone, and the peer's kernel acknowledges again: its process may have given signs that are still to
// come.
TEST_CASE(
    "heartbeats: a peer is not stalled as soon as its host acknowledges again, but when it has done so for a while") {
  Leader low(0, 60'000, 900);
  auto [first, second] = connected_pair();
  const int fd = first.get();
  low.heartbeats.add(1, std::move(first), session_of_low());
  low.heartbeats.send(low.news);
  wait_for([&] { return unacknowledged(fd) == 0; });
  drop_what_comes(second.get());
  const int64_t gone_ns = now_ns();
  while (now_ns() - gone_ns < 1'200'000'000) low.turn();  // longer than a stalled process gives no sign
  CHECK(low.news.warnings.empty());
  const int nothing = 0;
  check_sys(::setsockopt(second.get(), SOL_SOCKET, SO_DETACH_FILTER, &nothing, sizeof nothing), "setsockopt");
  int64_t looked_ns = now_ns();
  wait_for([&] {
    if (unacknowledged(fd) == 0) return true;
    looked_ns = now_ns();
    low.turn();
    return false;
  });
  low.heartbeats.send(low.news);
  if (now_ns() - looked_ns < 200'000'000) CHECK(low.news.warnings.empty());  // less than the while
  wait_for([&] {
    low.turn();
    return !low.news.warnings.empty();
  });
  CHECK(low.news.warnings[0].find("rank 1 is stalled: ") == 0);
}

TEST_CASE("heartbeats: what is not acknowledged is sent again at even pauses, as far as the kernel knows how") {
  constexpr int kTcpRtoMaxMs = 44;  // TCP_RTO_MAX_MS of Linux 6.15
  Leader low(0), high(1);
  connect_leaders(low, 0, high, 1);
  int fd = 0;
  while (!low.heartbeats.has(fd)) ++fd;
  int is_linear = 0, longest_pause_ms = 0;
  socklen_t nbytes = sizeof is_linear;
  check_sys(::getsockopt(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, &is_linear, &nbytes), "getsockopt");
  CHECK(is_linear == 1);
  if (::getsockopt(fd, IPPROTO_TCP, kTcpRtoMaxMs, &longest_pause_ms, &nbytes) == 0) CHECK(longest_pause_ms == 1000);
}

TEST_CASE("heartbeats: a rank that is stalled is named once, by the lowest leader, and when it is back") {
  Leader low(0, 60'000, 300), high(2, 60'000, 300);
  connect_leaders(low, 0, high, 2);
  auto [low_end, at_low] = connected_pair();
  auto [high_end, at_high] = connected_pair();
  low.heartbeats.add(1, std::move(low_end), session_of_low());
  high.heartbeats.add(1, std::move(high_end), session_of_low());
  const auto both = [&] {
    low.turn();
    high.turn();
  };
  wait_for([&] {
    both();
    return !low.news.warnings.empty();
  });
  const int64_t named_ns = now_ns();
  while (now_ns() - named_ns < 600'000'000) both();  // twice as long again
  REQUIRE(low.news.warnings.size() == 1);
  CAPTURE(low.news.warnings[0]);
  CHECK(low.news.warnings[0].find("rank 1 is stalled: its process has given no sign of life for ") == 0);
  const std::byte sign{'.'};
  for (OwnedFd* const end : {&at_low, &at_high}) CHECK(RecordWriter(session_of_high()).send(end->get(), &sign, 1));
  wait_for([&] {
    both();
    return low.news.warnings.size() == 2;
  });
  CHECK(low.news.warnings[1].find("rank 1 is back, after ") == 0);
  CHECK(high.news.warnings.empty());
  CHECK(low.news.lost.empty());
  CHECK(high.news.lost.empty());
}

TEST_CASE("heartbeats: a farewell waits for room") {
  Leader leaving(0);
  auto [first, second] = connected_pair();
  const int fd = first.get();
  const int room = 4096;
  check_sys(::setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room), "setsockopt");
  check_sys(::setsockopt(second.get(), SOL_SOCKET, SO_RCVBUF, &room, sizeof room), "setsockopt");
  leaving.heartbeats.add(1, std::move(first), session_of_low());
  const std::vector<std::byte> filling(1000);
  size_t sent = 0;
  pollfd writable = {fd, POLLOUT, 0};
  while (::poll(&writable, 1, 100) == 1) {  // nobody reads: the kernel has no more room at last
    const ssize_t n = ::send(fd, filling.data(), filling.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n > 0) sent += static_cast<size_t>(n);
  }
  while (::send(fd, filling.data(), 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1) ++sent;
  leaving.heartbeats.say_farewell();
  CHECK_FALSE(leaving.heartbeats.has_said_farewell());
  size_t come = 0;
  bool has_ended = false;
  wait_for([&] {
    leaving.turn();
    std::byte bytes[4096];
    const ssize_t n = ::recv(second.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (n > 0) come += static_cast<size_t>(n);
    has_ended = n == 0;
    return has_ended;
  });
  CHECK(leaving.heartbeats.has_said_farewell());
  // A farewell of which the kernel has taken a part is said again behind it.
  const size_t nbytes = 1 + kRecordOverheadNbytes;
  CHECK((come == sent + nbytes || come == sent + 2 * nbytes));
  CHECK(leaving.news.lost.empty());
}

TEST_CASE("heartbeats: a farewell that is not the peer's ends the connection with an error") {
  Leader leader(0);
  auto [first, second] = connected_pair();
  leader.heartbeats.add(1, std::move(first), session_of_low());
  const std::byte farewell{'!'};
  CHECK(RecordWriter({key_of(5), key_of(6), 4, 3, true}).send(second.get(), &farewell, 1));
  wait_for([&] {
    leader.turn();
    return !leader.news.lost.empty();
  });
  CHECK(leader.news.lost[0].why.find("TCP, heartbeats of rank 1: record 0 of this connection is not as") == 0);
}

TEST_CASE("heartbeats: a leader has said farewell once all that it expects have connected, or will not") {
  Leader low(0), high(1);
  for (const int peer : {1, 2}) low.heartbeats.expect(peer);
  low.heartbeats.say_farewell();
  CHECK(!low.heartbeats.has_said_farewell());
  connect_leaders(low, 0, high, 1);
  CHECK(!low.heartbeats.has_said_farewell());
  low.heartbeats.forget(2);
  CHECK(low.heartbeats.has_said_farewell());
}

TEST_CASE("heartbeats: a leader that leaves is not lost for one that connects later") {
  std::vector<Fd> sockets(3);
  std::vector<TcpAddress> addresses(3);
  for (size_t r = 0; r < 3; ++r) std::tie(sockets[r], addresses[r]) = listening();
  auto leaving = TcpNetwork::create({0, std::move(sockets[0]), addresses, key_of(7)});
  leaving->monitor({1});
  leaving->leave();
  auto ending = std::async(std::launch::async, [&] { leaving.reset(); });
  const auto late = TcpNetwork::create({1, std::move(sockets[1]), addresses, key_of(7)});
  late->monitor({0});
  ending.get();
  // What rank 0 has sent last came to rank 1 before anything of rank 2, which begins only now.
  const auto marker = TcpNetwork::create({2, std::move(sockets[2]), addresses, key_of(7)});
  const auto from = marker->link(1, 0);
  const auto to = late->link(2, 0);
  std::byte byte{1};
  wait_for([&] { return from->push(&byte, 1) == 1; });
  wait_for([&] { return to->pull(&byte, 1) == 1; });
  CHECK(late->newly_lost().empty());
}

}  // namespace
}  // namespace rr::test
