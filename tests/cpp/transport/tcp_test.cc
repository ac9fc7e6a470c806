// The TCP transport's own: who is let in, which of two connections counts, whose end is noticed. What every link does
// is in link_test.cc; with RR_TEST_NETWORK=tcp the tests of groups on several hosts run over it.
#include "transport/tcp/tcp_network.h"

#include <linux/filter.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <thread>

#include "base/clock.h"
#include "doctest/doctest.h"
#include "support/ranks.h"
#include "support/tcp_ranks.h"
#include "transport/tcp/session/handshake.h"

namespace rr::test {
namespace {

// --- the handshake, without sockets

struct Exchange {
  Handshakes client{key_of(7), 1, 4};
  Handshakes server{key_of(7), 2, 4};
  Hello hello = client.hello(2, 5);
  Challenge challenge = server.answer(hello, server.judge(hello));
  std::string why;
  std::optional<Bytes32> proof = client.prove(hello, challenge, why);
};

TEST_CASE("handshake: ranks with the job's key let each other in") {
  const Exchange e;
  CHECK(e.challenge.verdict == Verdict::kWelcome);
  REQUIRE(e.proof);
  CHECK(e.server.is_proven(e.hello, e.challenge, *e.proof));
}

TEST_CASE("handshake: another key is refused by either side") {
  const Exchange e;
  const Handshakes stranger(key_of(8), 1, 4);
  const Hello hello = stranger.hello(2, 5);
  CHECK(e.server.judge(hello) == Verdict::kOtherJob);
  const Challenge nothing = e.server.answer(hello, Verdict::kOtherJob);
  CHECK(nothing.proof == Bytes32{});  // a stranger gets nothing made with the key
  CHECK(nothing.nonce == Bytes32{});
  std::string why;
  CHECK_FALSE(stranger.prove(hello, e.server.answer(hello, Verdict::kWelcome), why));
  CHECK(why == "it does not have this job's secret");
  // Who has seen the job's tag can begin, and cannot go on.
  Hello copied = hello;
  std::memcpy(copied.job_tag, e.hello.job_tag, sizeof copied.job_tag);
  const Challenge challenge = e.server.answer(copied, e.server.judge(copied));
  CHECK(challenge.verdict == Verdict::kWelcome);
  CHECK_FALSE(e.server.is_proven(copied, challenge, Bytes32{}));
  CHECK_FALSE(e.server.is_proven(copied, challenge, challenge.proof));  // the server's own words sent back
}

TEST_CASE("handshake: a changed byte in any message is noticed") {
  const Exchange e;
  REQUIRE(e.proof);
  for (size_t at = 0; at < sizeof(Hello); ++at) {
    for (const unsigned bit : {1U, 128U}) {
      Hello hello = e.hello;
      reinterpret_cast<unsigned char*>(&hello)[at] ^= bit;
      std::string why;
      // The client compares with what it has sent.
      const Challenge challenge = e.server.answer(hello, e.server.judge(hello));
      CHECK_FALSE(e.client.prove(e.hello, challenge, why));
    }
  }
  for (size_t at = 0; at < sizeof(Challenge); ++at) {
    for (const unsigned bit : {1U, 128U}) {
      Challenge challenge = e.challenge;
      reinterpret_cast<unsigned char*>(&challenge)[at] ^= bit;
      std::string why;
      CHECK_FALSE(e.client.prove(e.hello, challenge, why));
    }
  }
  for (size_t at = 0; at < sizeof(Bytes32); ++at) {
    Bytes32 proof = *e.proof;
    proof[at] ^= std::byte{1};
    CHECK_FALSE(e.server.is_proven(e.hello, e.challenge, proof));
  }
}

TEST_CASE("handshake: what was heard before opens nothing later") {
  const Exchange e;
  REQUIRE(e.proof);
  const Challenge later = e.server.answer(e.hello, Verdict::kWelcome);
  CHECK(later.nonce != e.challenge.nonce);
  CHECK_FALSE(e.server.is_proven(e.hello, later, *e.proof));
  std::string why;
  CHECK_FALSE(e.client.prove(e.client.hello(2, 5), e.challenge, why));
}

TEST_CASE("handshake: a rank that is taken for another one says so") {
  const Exchange e;
  for (const auto& [from, to, size] : {std::tuple{1, 3, 4}, {1, 2, 5}, {7, 2, 4}}) {
    Hello hello = Handshakes(key_of(7), from, size).hello(to, 5);
    CHECK(e.server.judge(hello) == Verdict::kOtherRank);
  }
  Hello own = Handshakes(key_of(7), 2, 4).hello(2, 5);
  CHECK(e.server.judge(own) == Verdict::kOtherRank);
  std::string why;
  CHECK_FALSE(e.client.prove(e.hello, e.server.answer(e.hello, Verdict::kOtherRank), why));
  CHECK(why == text_of(Verdict::kOtherRank));
}

// --- connections

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
  CHECK(text.find("lost rank 1: no connection to " + address.text() + ": connect: Connection refused") !=
        std::string::npos);
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

// What comes on the socket is dropped, from now on.
void drop_what_comes(int fd) {
  sock_filter nothing = {BPF_RET | BPF_K, 0, 0, 0};
  const sock_fprog program = {1, &nothing};
  check_sys(::setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program), "setsockopt(SO_ATTACH_FILTER)");
}

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

Fd unconnected() { return Fd(static_cast<int>(check_sys(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket"))); }

bool has_ended(const Fd& connected) {
  std::byte nothing;
  return ::recv(connected.get(), &nothing, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN;
}

TEST_CASE("tcp: strangers take an eighth of the descriptors at most") {
  rlimit usual = {};
  check_sys(::getrlimit(RLIMIT_NOFILE, &usual), "getrlimit");
  auto [socket, own] = listening();
  const rlimit tight{512, usual.rlim_max};
  check_sys(::setrlimit(RLIMIT_NOFILE, &tight), "setrlimit");
  TcpOptions options = {0, std::move(socket), std::vector<TcpAddress>(100, own), key_of(7)};
  options.data_lost_after_ms = 600'000;  // nobody ends because its time is up
  const auto network = TcpNetwork::create(std::move(options));
  check_sys(::setrlimit(RLIMIT_NOFILE, &usual), "setrlimit");
  std::vector<Fd> strangers;
  const auto ended = [&] { return std::count_if(strangers.begin(), strangers.end(), has_ended); };
  for (int i = 0; i < 100; ++i) {
    strangers.push_back(unconnected());
    check_sys(::connect(strangers.back().get(), own.get(), own.nbytes), "connect");
  }
  CHECK_NOTHROW(wait_for([&] { return ended() == 100 - 512 / 8; }));
}

// A rank that waits for a connection to another whose kernel answers and nobody else does; and one that calls it when
// the process has no descriptor left.
class WithoutDescriptors {
 public:
  WithoutDescriptors() {
    check_sys(::getrlimit(RLIMIT_NOFILE, &usual_), "getrlimit");
    auto [socket, own] = listening();
    auto [silent, address] = listening();
    silent_ = std::move(silent);
    TcpOptions options = {0, std::move(socket), {own, address}, key_of(7)};
    options.data_lost_after_ms = 1000;
    network_ = TcpNetwork::create(std::move(options));
    link_ = network_->link(1, 0);
    wait_for([&] {
      push();
      const int fd = ::accept4(silent_.get(), nullptr, nullptr, SOCK_CLOEXEC);
      if (fd >= 0) called_ = Fd(fd);
      return fd >= 0;
    });
    caller_ = unconnected();
    const rlimit tight{256, usual_.rlim_max};
    check_sys(::setrlimit(RLIMIT_NOFILE, &tight), "setrlimit");
    for (int fd; (fd = ::dup(caller_.get())) >= 0;) others_.emplace_back(fd);
    check_sys(::connect(caller_.get(), own.get(), own.nbytes), "connect");
  }
  ~WithoutDescriptors() { ::setrlimit(RLIMIT_NOFILE, &usual_); }
  WithoutDescriptors(const WithoutDescriptors&) = delete;
  WithoutDescriptors& operator=(const WithoutDescriptors&) = delete;

  void push() {
    const std::byte byte{};
    link_->push(&byte, 1);
  }
  void push_for(int64_t ns) {
    const int64_t until_ns = now_ns() + ns;
    wait_for([&] {
      push();
      return now_ns() > until_ns;
    });
  }
  void free_one() { others_.pop_back(); }

 private:
  rlimit usual_ = {};
  Fd silent_;
  Fd called_;
  Fd caller_;
  std::vector<Fd> others_;
  std::shared_ptr<TcpNetwork> network_;
  std::unique_ptr<Link> link_;
};

TEST_CASE("tcp: a rank that has no descriptor for the others' connections says so") {
  WithoutDescriptors rank;
  const std::string text = raised<PeerLostError>([&] { rank.push_for(60'000'000'000); });
  CHECK(text.find("lost rank 1: rank 0 cannot accept its connection: Too many open files (errno 24)") !=
        std::string::npos);
  CHECK(text.find("ulimit -n") != std::string::npos);
}

TEST_CASE("tcp: a rank that had no descriptor for a while loses nobody") {
  WithoutDescriptors rank;
  CHECK_NOTHROW(rank.push_for(600'000'000));
  rank.free_one();  // the caller gets it, and Linux has none when the queue is looked at once more
  CHECK_NOTHROW(rank.push_for(4'000'000'000));
}

TEST_CASE("tcp: a stranger who says nothing gives way where no descriptor is left") {
  rlimit usual = {};
  check_sys(::getrlimit(RLIMIT_NOFILE, &usual), "getrlimit");
  auto [socket, own] = listening();
  const TcpAddress to = own;
  TcpOptions options = {0, std::move(socket), {own, own}, key_of(7)};
  options.data_lost_after_ms = 600'000;  // nobody ends because its time is up
  const auto network = TcpNetwork::create(std::move(options));
  const auto call = [&](const Fd& fd) { check_sys(::connect(fd.get(), to.get(), to.nbytes), "connect"); };
  const Fd first = unconnected();
  const Fd second = unconnected();
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), std::filesystem::directory_iterator());
  };
  const auto before = descriptors();
  call(first);
  wait_for([&] { return descriptors() > before; });  // it has been accepted
  const rlimit tight{256, usual.rlim_max};
  check_sys(::setrlimit(RLIMIT_NOFILE, &tight), "setrlimit");
  std::vector<Fd> others;
  for (int fd; (fd = ::dup(first.get())) >= 0;) others.emplace_back(fd);
  call(second);
  CHECK_NOTHROW(wait_for([&] { return has_ended(first); }));
  CHECK_FALSE(has_ended(second));
  check_sys(::setrlimit(RLIMIT_NOFILE, &usual), "setrlimit");
}

// --- the end of a rank

TEST_CASE("tcp: who has seen the job's tag and has not the key gets no further") {
  TcpRanks ranks(2);
  Fd socket(static_cast<int>(check_sys(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket")));
  check_sys(::connect(socket.get(), ranks.addresses[0].get(), ranks.addresses[0].nbytes), "connect");
  const Hello hello = Handshakes(key_of(7), 1, 2).hello(0, 0);  // as it was heard
  check_sys(::send(socket.get(), &hello, sizeof hello, MSG_NOSIGNAL), "send");
  Challenge challenge;
  REQUIRE(::recv(socket.get(), &challenge, sizeof challenge, MSG_WAITALL) == sizeof challenge);
  const Bytes32 guess = key_of(9);
  check_sys(::send(socket.get(), guess.data(), guess.size(), MSG_NOSIGNAL), "send");
  std::byte nothing;
  CHECK(::recv(socket.get(), &nothing, 1, 0) <= 0);  // it is closed, and no READY came
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
