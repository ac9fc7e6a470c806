// The handshake by which two ranks prove that they know the job's key, without sockets.
#include "transport/tcp/session/handshake.h"

#include <cstddef>
#include <cstring>
#include <optional>
#include <string>
#include <tuple>

#include "doctest/doctest.h"
#include "support/tcp_ranks.h"

namespace rr::test {
namespace {

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

}  // namespace
}  // namespace rr::test
