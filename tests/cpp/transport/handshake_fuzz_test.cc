// Handshakes with random peers: random bytes, and valid messages of which some bytes are missing, changed or of another
// handshake. Nobody gets in but who has sent every byte as it should be. RR_TEST_ROUNDS=N sets the number of
// handshakes.
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include "doctest/doctest.h"
#include "support/ranks.h"
#include "support/tcp_ranks.h"
#include "transport/tcp/session/attempt.h"

namespace rr::test {
namespace {

using Bytes = std::vector<std::byte>;

template <class T>
Bytes bytes_of(const T& message) {
  Bytes bytes(sizeof message);
  std::memcpy(bytes.data(), &message, sizeof message);
  return bytes;
}

enum class Change { kNone, kRandom, kTruncated, kChanged, kReplayed };

struct Fuzz {
  explicit Fuzz(unsigned seed) : random(seed) {}

  size_t below(size_t end) { return std::uniform_int_distribution<size_t>(0, end - 1)(random); }

  Bytes some_bytes(size_t nbytes) {
    Bytes bytes(nbytes);
    for (std::byte& one : bytes) one = static_cast<std::byte>(below(256));
    return bytes;
  }

  // What is sent for a valid message. other: a valid one of another handshake.
  Bytes changed(Change change, const Bytes& valid, const Bytes& other) {
    Bytes bytes = valid;
    switch (change) {
      case Change::kNone:
        break;
      case Change::kRandom:
        return some_bytes(below(2 * valid.size()));
      case Change::kTruncated:
        bytes.resize(below(valid.size()));
        break;
      case Change::kChanged:
        for (size_t times = 1 + below(4); times > 0; --times) bytes[below(bytes.size())] ^= std::byte{1} << below(8);
        break;
      case Change::kReplayed:
        return other;
    }
    return bytes;
  }

  std::mt19937 random;
};

// An attempt and its peer's end of the connection.
struct Peer {
  Peer(const Handshakes& handshakes, int rank, bool is_dialled, int peer) {
    int ends[2];
    check_sys(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), "socketpair");
    end = Fd(ends[1]);
    OwnedFd socket{Fd(ends[0])};
    attempt = is_dialled ? std::make_unique<Attempt>(handshakes, std::move(socket), rank, peer, 3)
                         : std::make_unique<Attempt>(handshakes, std::move(socket), rank);
  }

  Attempt::Outcome step() {
    if (outcome == Attempt::Outcome::kPending)
      outcome = attempt->step([](const Attempt&) { return Attempt::Choice::kCounts; });
    return outcome;
  }
  // In pieces; false: the attempt has ended.
  bool send(Fuzz& fuzz, const Bytes& bytes) {
    for (size_t sent = 0; sent < bytes.size() && outcome == Attempt::Outcome::kPending;) {
      const size_t piece = fuzz.below(4) == 0 ? 1 + fuzz.below(bytes.size() - sent) : bytes.size() - sent;
      check_sys(::send(end.get(), bytes.data() + sent, piece, MSG_NOSIGNAL), "send");
      sent += piece;
      step();
    }
    return outcome == Attempt::Outcome::kPending;
  }
  template <class T>
  bool receive(T& message) const {
    return ::recv(end.get(), &message, sizeof message, MSG_DONTWAIT) == static_cast<ssize_t>(sizeof message);
  }
  size_t unread() const {
    std::byte bytes[2 * sizeof(Challenge)];
    const ssize_t n = ::recv(end.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    return n > 0 ? static_cast<size_t>(n) : 0;
  }
  void close() {
    end.reset();
    step();
  }

  Fd end;
  std::unique_ptr<Attempt> attempt;
  Attempt::Outcome outcome = Attempt::Outcome::kPending;
};

Change some_change(Fuzz& fuzz) { return static_cast<Change>(fuzz.below(5)); }

// What a server makes of a client. True: all was valid.
bool try_server(Fuzz& fuzz, const Handshakes& server, const Handshakes& client, Peer& peer) {
  const Change first = fuzz.below(3) == 0 ? some_change(fuzz) : Change::kNone;
  const Change second = some_change(fuzz);
  const Hello hello = client.hello(0, 3);
  const Hello other = client.hello(0, 3);
  // A HELLO that was heard before is a valid one; what it lacks is the PROOF to the new CHALLENGE.
  const Bytes said = fuzz.changed(first, bytes_of(hello), bytes_of(other));
  const bool is_hello_valid = said == bytes_of(hello);
  Challenge challenge;
  std::string why;
  if (peer.send(fuzz, said) && peer.receive(challenge)) {
    const auto proof = client.prove(hello, challenge, why);
    const auto old = client.prove(other, server.answer(other, Verdict::kWelcome), why);
    const Bytes valid = proof ? bytes_of(*proof) : fuzz.some_bytes(sizeof(Bytes32));
    const Bytes answer = fuzz.changed(second, valid, bytes_of(*old));
    peer.send(fuzz, answer);
    if (is_hello_valid && proof && answer == bytes_of(*proof)) return true;
  }
  return false;
}

// What a client makes of a server.
bool try_client(Fuzz& fuzz, const Handshakes& server, const Handshakes& client, Peer& peer) {
  const Change change = some_change(fuzz);
  peer.step();
  Hello hello;
  REQUIRE(peer.receive(hello));
  REQUIRE(server.judge(hello) == Verdict::kWelcome);
  const Bytes valid = bytes_of(server.answer(hello, Verdict::kWelcome));
  const Hello other = client.hello(0, 3);
  const Bytes said = fuzz.changed(change, valid, bytes_of(server.answer(other, Verdict::kWelcome)));
  Bytes32 proof;
  if (!peer.send(fuzz, said) || !peer.receive(proof)) return false;
  const bool is_ready = fuzz.below(2) == 0;
  peer.send(fuzz, {is_ready ? kReady : static_cast<std::byte>(fuzz.below(static_cast<size_t>(kReady)))});
  return is_ready && said == valid;
}

TEST_CASE("handshake fuzz: nobody gets in but who has said every byte as it should be") {
  const unsigned used = seed(19);
  CAPTURE(used);
  Fuzz fuzz(used);
  const Handshakes server(key_of(7), 0, 2);
  const Handshakes client(key_of(7), 1, 2);
  const int count = rounds(100'000);
  int let_in = 0;
  for (int round = 0; round < count; ++round) {
    const bool is_client = round % 2 == 0;
    Peer peer(is_client ? client : server, is_client ? 1 : 0, is_client, 0);
    const bool is_valid = is_client ? try_client(fuzz, server, client, peer) : try_server(fuzz, server, client, peer);
    const bool is_open = peer.outcome == Attempt::Outcome::kOpen;
    if (is_open) ++let_in;
    if (!is_open) {
      // A server has said nothing more than its CHALLENGE, which is unread where it ended the attempt by it.
      const size_t unread = peer.unread();
      if (unread != 0 && (is_client || unread != sizeof(Challenge))) FAIL("round " << round << ": unread " << unread);
      peer.close();
    }
    if (is_open != is_valid) FAIL("round " << round << ": let in " << is_open << ", valid " << is_valid);
    if (peer.outcome == Attempt::Outcome::kPending) FAIL("round " << round << ": the attempt outlives its connection");
  }
  CHECK(let_in > count / 40);
}

}  // namespace
}  // namespace rr::test
