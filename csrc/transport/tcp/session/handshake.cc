#include "transport/tcp/session/handshake.h"

#include <cstddef>
#include <cstring>
#include <utility>

#include "base/errors.h"
#include "transport/network.h"
#include "transport/tcp/heartbeats.h"

namespace rr {
namespace {

constexpr char kMagic[4] = {'R', 'R', 'T', '1'};
constexpr uint16_t kVersion = 3;

constexpr ByteView view(const char* text) { return {text, std::char_traits<char>::length(text)}; }

}  // namespace

const char* text_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::kWelcome:
      return "welcome";
    case Verdict::kOtherVersion:
      return "it runs another version of ringreduce";
    case Verdict::kOtherJob:
      return "it belongs to another job";
    case Verdict::kOtherRank:
      return "it is another rank than this one takes it for";
  }
  return "it gives no reason that this version knows";
}

Handshakes::Handshakes(const Bytes32& key, int rank, int size, std::vector<bool> encrypts)
    : key_(key),
      job_tag_(hmac_sha256(key, {view("job tag")})),
      rank_(rank),
      size_(size),
      encrypts_(std::move(encrypts)) {}

Hello Handshakes::hello(int peer, int channel) const {
  Hello hello = {};
  std::memcpy(hello.magic, kMagic, sizeof kMagic);
  hello.version = kVersion;
  hello.wants_encryption = encrypts(static_cast<uint32_t>(peer)) ? 1 : 0;
  std::memcpy(hello.job_tag, job_tag_.data(), sizeof hello.job_tag);
  hello.from = static_cast<uint32_t>(rank_);
  hello.to = static_cast<uint32_t>(peer);
  hello.channel = static_cast<uint32_t>(channel);
  hello.size = static_cast<uint32_t>(size_);
  hello.nonce = random_bytes();
  return hello;
}

Verdict Handshakes::judge(const Hello& hello) const {
  if (std::memcmp(hello.magic, kMagic, sizeof kMagic) != 0 || hello.version != kVersion) return Verdict::kOtherVersion;
  if (std::memcmp(hello.job_tag, job_tag_.data(), sizeof hello.job_tag) != 0) return Verdict::kOtherJob;
  const auto size = static_cast<uint32_t>(size_);
  const bool is_for_me = hello.size == size && hello.to == static_cast<uint32_t>(rank_) && hello.from < size &&
                         hello.from != hello.to && hello.channel <= INT32_MAX;
  return is_for_me ? Verdict::kWelcome : Verdict::kOtherRank;
}

Challenge Handshakes::answer(const Hello& hello, Verdict verdict) const {
  Challenge challenge = {};
  std::memcpy(challenge.magic, kMagic, sizeof kMagic);
  challenge.version = kVersion;
  challenge.verdict = verdict;
  // A stranger gets nothing made with the key.
  if (verdict == Verdict::kOtherVersion || verdict == Verdict::kOtherJob) return challenge;
  challenge.wants_encryption = encrypts(hello.from) ? 1 : 0;
  challenge.nonce = random_bytes();
  challenge.proof = server_proof(hello, challenge);
  return challenge;
}

std::optional<Bytes32> Handshakes::prove(const Hello& hello, const Challenge& challenge, std::string& why) const {
  if (std::memcmp(challenge.magic, kMagic, sizeof kMagic) != 0) {
    why = "what listens there is not ringreduce";
    return {};
  }
  if (challenge.version != kVersion || challenge.verdict == Verdict::kOtherVersion) {
    why = text_of(Verdict::kOtherVersion);
    return {};
  }
  if (challenge.verdict == Verdict::kOtherJob || !is_same(challenge.proof, server_proof(hello, challenge))) {
    why = "it does not have this job's secret";
    return {};
  }
  if (challenge.verdict != Verdict::kWelcome) {
    why = text_of(challenge.verdict);
    return {};
  }
  return client_proof(hello, challenge);
}

bool Handshakes::is_proven(const Hello& hello, const Challenge& challenge, const Bytes32& proof) const {
  return challenge.verdict == Verdict::kWelcome && is_same(proof, client_proof(hello, challenge));
}

Session Handshakes::session(const Hello& hello, const Challenge& challenge, bool is_client) const {
  const auto made = [&](const char* what) {
    const std::byte first_block{1};
    return hmac_sha256(key_, {view(what), {&hello, sizeof hello}, {&challenge, sizeof challenge}, {&first_block, 1}});
  };
  const Bytes32 seeds = made("checksums");
  Session session = {made("client to server"), made("server to client")};
  std::memcpy(&session.send_seed, seeds.data(), sizeof session.send_seed);
  std::memcpy(&session.receive_seed, seeds.data() + sizeof session.send_seed, sizeof session.receive_seed);
  if (!is_client) {
    std::swap(session.send_key, session.receive_key);
    std::swap(session.send_seed, session.receive_seed);
  }
  const int channel = static_cast<int>(hello.channel);
  session.is_encrypted = hello.wants_encryption != 0 || challenge.wants_encryption != 0 || carries_control(channel) ||
                         channel == Heartbeats::kChannel;
  return session;
}

Bytes32 Handshakes::server_proof(const Hello& hello, const Challenge& challenge) const {
  return hmac_sha256(key_, {view("server"), {&hello, sizeof hello}, {&challenge, offsetof(Challenge, proof)}});
}

Bytes32 Handshakes::client_proof(const Hello& hello, const Challenge& challenge) const {
  return hmac_sha256(key_, {view("client"), {&hello, sizeof hello}, {&challenge, sizeof challenge}});
}

}  // namespace rr
