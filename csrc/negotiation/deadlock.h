// What happens when all ranks wait for operations that can never be complete: their requests are withdrawn.
//
// On one host that is found and done in one step under the group's lock. On several the first host finds it; then each
// host holds its ranks where they are (freeze) until all have agreed (relay/relay_deadlock.cc).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "negotiation/names.h"
#include "negotiation/requests.h"

namespace rr {

class Deadlock {
 public:
  Deadlock(const GroupSegment& segment, const Names& names, const Requests& requests)
      : segment_(segment), names_(names), requests_(requests), control_(segment.control), hosts_(segment.hosts) {}

  // Tells the others that this rank's only thread waits for an operation and can announce nothing else.
  void block(Ticket ticket, uint64_t unnamed_counter);
  // Another thread of this rank has appeared, which may announce what is missing. False: not while is_frozen().
  bool lift_block();
  // Returns what is_withdrawn() says at that moment; a verdict comes before it or not at all. Null while is_frozen(),
  // unless at_once.
  std::optional<bool> unblock(bool at_once);
  bool is_frozen() const { return control_.header().frozen.load(std::memory_order_acquire) != 0; }
  // True after a verdict that this rank's blocked operation can never complete; its request is withdrawn.
  bool is_withdrawn() const;
  // What a rank is blocked on; tag 0: it is not, as far as this host knows.
  Ticket blocked_on(int rank) const;
  // On one host: if every rank is blocked (or has joined) and none of their operations is complete, withdraws them all.
  void detect();

  // The same on several hosts: what the first host has found. It holds its ranks while it asks the others. Null if not
  // all ranks are stuck.
  struct Stuck {
    std::string text;
    uint64_t unnamed = 0;          // every rank's counter continues there
    std::vector<uint64_t> epochs;  // of the ranks' blocks
  };
  std::optional<Stuck> freeze_if_stuck();
  // Holds the ranks of this host; false if one of them has moved since.
  bool freeze(const std::vector<uint64_t>& epochs);
  void thaw();
  void withdraw(const std::string& text, uint64_t unnamed);

  struct Verdict {
    std::string text;
    uint64_t unnamed = 0;  // every rank's counter continues there
  };
  Verdict verdict() const;  // the last one

 private:
  std::string describe_stuck() const;
  void withdraw_blocked(const std::string& text, uint64_t unnamed);
  void withdraw_unnamed_of(int rank);

  const GroupSegment& segment_;
  const Names& names_;
  const Requests& requests_;
  const ControlSegment& control_;
  const Hosts& hosts_;
};

}  // namespace rr
