// How two ranks prove to each other, on every connection and before anything else, that they know the job's key. The
// key is never sent.
//
//   client (who has dialled)          server (who listens)
//   HELLO       ranks, channel, nonce, whether the client wants the data encrypted ->
//                                     <- CHALLENGE  nonce, whether the server wants it encrypted,
//                                                   HMAC(key, "server", HELLO, CHALLENGE so far)
//   PROOF       HMAC(key, "client", HELLO, CHALLENGE)  ->
//                                     <- READY, or GONE: the server's link has gone.  One byte
//
// Both ranks may dial at once. The higher one decides which connection counts: as a client by its PROOF, as a server by
// its READY. A client uses no connection before its READY: the server may have given the handshake up.
//
// After it each direction of the connection has a key of its own (HKDF-Expand of RFC 5869 with the job's key, both
// messages and the direction), and the data is encrypted when one of the two wants that or the channel carries control.
//
// Each proof covers both nonces, so none can be replayed; the two begin differently, so none can be sent back to who
// made it. A server answers a HELLO of another job, which its tag tells, without a proof, and reads no more of it.
// All messages have a fixed size and little-endian fields. This file does no input and output.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "transport/tcp/session/records.h"

namespace rr {

enum class Verdict : uint8_t {
  kWelcome,
  kOtherVersion,
  kOtherJob,
  kOtherRank,  // the client wants another rank than this one, or says it is one that does not exist
};
const char* text_of(Verdict verdict);

inline constexpr std::byte kReady{'R'};
inline constexpr std::byte kGone{'G'};  // to who has proven that it has the key: strangers learn nothing

struct Hello {
  char magic[4];
  uint16_t version;
  uint8_t wants_encryption;  // 0 or 1
  uint8_t reserved;
  std::byte job_tag[16];
  uint32_t from;
  uint32_t to;
  uint32_t channel;
  uint32_t size;  // ranks of the job
  Bytes32 nonce;
};
static_assert(sizeof(Hello) == 72);

struct Challenge {
  char magic[4];
  uint16_t version;
  Verdict verdict;
  uint8_t wants_encryption;
  Bytes32 nonce;
  Bytes32 proof;
};
static_assert(sizeof(Challenge) == 72);

class Handshakes {
 public:
  // encrypts: by rank, whether this one wants the data of connections with it encrypted; empty: of none.
  Handshakes(const Bytes32& key, int rank, int size, std::vector<bool> encrypts = {});

  Hello hello(int peer, int channel) const;
  // What a server thinks of a HELLO before it knows whether the client has the key.
  Verdict judge(const Hello& hello) const;
  Challenge answer(const Hello& hello, Verdict verdict) const;
  // The client's last message. Empty if the challenge is not from a server that has the key and welcomes us: then
  // `why` says which.
  std::optional<Bytes32> prove(const Hello& hello, const Challenge& challenge, std::string& why) const;
  bool is_proven(const Hello& hello, const Challenge& challenge, const Bytes32& proof) const;
  // Of a connection on which both sides have proven that they have the key.
  Session session(const Hello& hello, const Challenge& challenge, bool is_client) const;

 private:
  bool encrypts(uint32_t peer) const { return peer < encrypts_.size() && encrypts_[peer]; }
  Bytes32 server_proof(const Hello& hello, const Challenge& challenge) const;
  Bytes32 client_proof(const Hello& hello, const Challenge& challenge) const;

  Bytes32 key_;
  Bytes32 job_tag_;  // its first 16 bytes are sent
  int rank_;
  int size_;
  std::vector<bool> encrypts_;
};

}  // namespace rr
