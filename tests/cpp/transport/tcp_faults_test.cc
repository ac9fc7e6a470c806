// Two ranks over proxies that change or cut what goes through: what arrives is right, or there is an error.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>

#include "base/clock.h"
#include "doctest/doctest.h"
#include "support/faulty_proxy.h"
#include "support/ranks.h"
#include "transport/network.h"

namespace rr::test {
namespace {

constexpr size_t kNbytes = 100'000;  // each way

std::vector<std::byte> pattern(int rank) {
  std::vector<std::byte> bytes(kNbytes);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 13 + i / 256 + 1000 * rank);
  return bytes;
}

struct Ended {
  std::string error;  // "" where all has arrived
  bool has_struck = false;
  bool is_right = true;  // of all that has arrived
};

// Both ranks send kNbytes to each other. Each knows the other at a proxy's address.
Ended exchange_over(const Fault& fault, Encrypt encrypt) {
  std::vector<Fd> listeners(2);
  std::vector<TcpAddress> own(2);
  for (size_t r = 0; r < 2; ++r) std::tie(listeners[r], own[r]) = listening();
  FaultyProxy to_low(own[0], fault);
  FaultyProxy to_high(own[1], fault);
  std::vector<std::shared_ptr<TcpNetwork>> networks;
  std::vector<std::unique_ptr<Link>> links;
  for (int r = 0; r < 2; ++r) {
    const auto me = static_cast<size_t>(r);
    std::vector<TcpAddress> addresses = {r == 0 ? own[0] : to_low.address(), r == 1 ? own[1] : to_high.address()};
    TcpOptions options = {r, std::move(listeners[me]), addresses, key_of(7)};
    options.encrypt = encrypt;
    networks.push_back(TcpNetwork::create(std::move(options)));
    links.push_back(networks.back()->link(1 - r, 0));
  }
  const std::vector<std::byte> sent[2] = {pattern(0), pattern(1)};
  std::vector<std::byte> got[2] = {std::vector<std::byte>(kNbytes), std::vector<std::byte>(kNbytes)};
  size_t pushed[2] = {};
  size_t pulled[2] = {};
  Ended ended;
  const int64_t until_ns = now_ns() + 120'000'000'000;
  try {
    while (pulled[0] + pulled[1] < 2 * kNbytes) {
      bool has_moved = false;
      for (size_t r = 0; r < 2; ++r) {
        const size_t out = links[r]->push(sent[r].data() + pushed[r], kNbytes - pushed[r]);
        const size_t in = links[r]->pull(got[r].data() + pulled[r], kNbytes - pulled[r]);
        pushed[r] += out;
        pulled[r] += in;
        has_moved |= out + in != 0;
      }
      if (!has_moved) std::this_thread::sleep_for(std::chrono::microseconds(20));
      if (now_ns() > until_ns) throw std::runtime_error("no end after 120 s");
    }
  } catch (const InternalError& error) {
    ended.error = error.what();
  }
  for (size_t r = 0; r < 2; ++r) ended.is_right &= std::memcmp(got[r].data(), sent[1 - r].data(), pulled[r]) == 0;
  ended.has_struck = to_low.has_struck() || to_high.has_struck();
  return ended;
}

TEST_CASE("tcp: a bit that changes on the way is never taken for data") {
  std::mt19937 random(11);
  const char* const rounds = std::getenv("RR_TEST_ROUNDS");
  const int count = rounds == nullptr ? 60 : std::atoi(rounds);
  int errors = 0;
  for (int i = 0; i < count; ++i) {
    Fault fault = {Fault::Kind::kFlip, i % 2 == 0, 0, std::byte{1} << random() % 8};
    const bool is_in_handshake = i % 10 == 0;
    fault.at = is_in_handshake ? random() % 104 : 200 + random() % kNbytes;
    const Ended ended = exchange_over(fault, i % 4 < 2 ? Encrypt::kOff : Encrypt::kOn);
    REQUIRE(ended.is_right);
    if (ended.error.empty()) continue;
    ++errors;
    const char* const expected = is_in_handshake ? "no connection to" : "is not as the peer has made it";
    REQUIRE_MESSAGE(ended.error.find(expected) != std::string::npos, ended.error);
  }
  CHECK(errors >= count / 3);  // in most rounds, one of the two proxies passes the connection that counts
}

TEST_CASE("tcp: a connection that is cut is a lost peer, and one that was cut in the handshake is made again") {
  for (const bool is_to_server : {false, true}) {
    const Ended early = exchange_over({Fault::Kind::kCut, is_to_server, 40}, Encrypt::kOff);
    CHECK(early.error == "");
    CHECK(early.is_right);
    const Ended late = exchange_over({Fault::Kind::kCut, is_to_server, 50'000}, Encrypt::kOff);
    CHECK_MESSAGE(late.error.find("lost rank") != std::string::npos, late.error);
    CHECK(late.is_right);
  }
}

}  // namespace
}  // namespace rr::test
