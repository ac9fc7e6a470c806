// Who comes to a rank's port and is none of the job's ranks, and a rank that has no descriptor for who comes.
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
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

}  // namespace
}  // namespace rr::test
