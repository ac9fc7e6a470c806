// The name table of a group: which slot a tensor name has. Used under the group's lock.
#pragma once

#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

#include "negotiation/segment/control_segment.h"
#include "negotiation/segment/hosts.h"
#include "negotiation/segment/ticket.h"

namespace rr {

class Names {
 public:
  Names(const ControlSegment& control, const Hosts& hosts)
      : control_(control), hosts_(hosts), local_names_(control.capacity()) {}

  // The slot of a name, new or known. When the table is full, a name gives up its slot that no rank uses any more;
  // kNone if there is none.
  static constexpr size_t kNone = SIZE_MAX;
  size_t slot_of(const std::string& name);
  // The slot of a name that some rank has announced; kNone if there is none. Claims nothing.
  size_t find(const std::string& name);
  bool has_room() const;          // without the lock: a moment's view
  bool is_all_passed_on() const;  // likewise: where it is not, there is no room

  // The latest generation that a rank has announced in a slot; 0: none.
  uint64_t latest(size_t slot, int rank) const;
  // The generation that this rank would announce next in a slot.
  uint64_t next_generation(size_t slot, int rank) const;

  // After a finished join: no rank announces a generation again that some rank has announced.
  void level_generations() const;

  std::string text(size_t slot) const;
  std::string stored_name(Ticket named) const { return text(slot_at(named.request_slot)); }
  // How messages call an operation.
  std::string name_of(Ticket ticket) const;

  static size_t request_slot(size_t slot, uint64_t generation) { return kUnnamedSlots + 2 * slot + generation % 2; }
  static size_t slot_at(uint64_t request_slot) { return (request_slot - kUnnamedSlots) / 2; }
  // The request slot in which a rank says what it has consumed of a name's slot.
  static size_t consumed_slot(size_t slot) { return kUnnamedSlots + 2 * slot; }

 private:
  bool is_idle(size_t slot) const;
  size_t claim_slot();
  size_t find(const std::string& stored, uint64_t hash);
  void remember(const std::string& stored, size_t slot);
  bool holds(size_t slot, uint64_t hash, const std::string& stored) const;

  const ControlSegment& control_;
  const Hosts& hosts_;
  std::unordered_map<std::string, size_t> local_;  // what this rank has looked up; checked against the table on use
  std::vector<std::string> local_names_;           // by slot, so that local_ stays as small as the table
};

}  // namespace rr
