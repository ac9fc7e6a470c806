// The verdict, on several hosts, that all ranks wait for operations that can never be complete.
//
// A rank that is blocked has announced all it can, and its leader says so after what it announced. So when the first
// host sees all ranks blocked it may have the whole picture, unless one of them has moved since. It asks: each other
// leader holds its ranks where they are if none of them has, and votes. When all have held theirs, every rank was
// blocked at the moment of the question, with no request under way to the first host, so the picture was right and
// stays so.
//
// Between the others requests may still be under way. So each leader, once it knows the verdict, says that nothing
// more comes from its ranks, and withdraws when all have said that. What a leader sends after that waits in the
// leader's connection.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "relay/relay_parts.h"

namespace rr {

class RelayDeadlock {
 public:
  explicit RelayDeadlock(RelayParts& parts) : parts_(parts), epochs_sent_(static_cast<size_t>(parts.control.size())) {}

  // The first host's leader looks whether all ranks wait for what can never be complete, and asks the others.
  void look();
  // Tells the other leaders what a rank here waits for, or that it no longer does. To be called after the rank's notes
  // have been read; epoch: of its block, as it was before them.
  void send_block(int rank, uint64_t epoch);
  // Withdraws once all hosts have come to the verdict; true when it did.
  bool finish();

  // --- what other leaders send
  void apply_block(FrameParser& frame);
  void apply_freeze(FrameParser& frame);
  void apply_vote(FrameParser& frame);
  void apply_verdict(LeaderConnection& connection, FrameParser& frame);

 private:
  void decide(bool stuck);

  RelayParts& parts_;
  std::vector<uint64_t> epochs_sent_;     // by group rank: of the block that the others know of
  std::optional<Deadlock::Stuck> stuck_;  // of the verdict that is asked for or settled
  std::vector<bool> voted_;               // by host, for or against
  bool refused_ = false;
};

}  // namespace rr
