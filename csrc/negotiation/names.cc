#include "negotiation/names.h"

#include <algorithm>
#include <cstring>

#include "base/hash.h"

namespace rr {
namespace {

uint64_t hash_of(const std::string& text, uint64_t seed) {
  const uint64_t state = hash_of_text(text, seed);
  return state == 0 ? 1 : state;  // 0 marks a free slot
}

uint64_t table_hash(const std::string& stored) { return hash_of(stored, kTextSeed); }

// Names beyond the slot's size are kept as a prefix and two hashes.
std::string stored_form(const std::string& name) {
  if (name.size() <= kNameNbytes) return name;
  return name.substr(0, kNameNbytes - 44) + "#" + std::to_string(hash_of(name, 1)) + "#" +
         std::to_string(hash_of(name, 0x9E3779B97F4A7C15ull));
}

}  // namespace

bool Names::holds(size_t slot, uint64_t hash, const std::string& stored) const {
  const NameSlot& entry = control_.name_slot(slot);
  return control_.name_hashes()[slot].load(std::memory_order_relaxed) == hash && entry.length == stored.size() &&
         std::memcmp(entry.text, stored.data(), stored.size()) == 0;
}

size_t Names::find(const std::string& name) {
  const std::string stored = stored_form(name);
  return find(stored, table_hash(stored));
}

size_t Names::find(const std::string& stored, uint64_t hash) {
  if (const auto known = local_.find(stored); known != local_.end() && holds(known->second, hash, stored)) {
    return known->second;
  }
  for (size_t slot = 0; slot < control_.header().names_used; ++slot) {
    if (!holds(slot, hash, stored)) continue;
    remember(stored, slot);
    return slot;
  }
  return kNone;
}

size_t Names::slot_of(const std::string& name) {
  const std::string stored = stored_form(name);
  const uint64_t hash = table_hash(stored);
  if (const size_t slot = find(stored, hash); slot != kNone) return slot;
  const size_t slot = claim_slot();
  if (slot == kNone) return kNone;
  NameSlot& entry = control_.name_slot(slot);
  entry.length = static_cast<uint32_t>(stored.size());
  std::memcpy(entry.text, stored.data(), stored.size());
  control_.name_hashes()[slot].store(hash, std::memory_order_relaxed);
  remember(stored, slot);
  return slot;
}

void Names::remember(const std::string& stored, size_t slot) {
  local_.erase(local_names_[slot]);
  local_names_[slot] = stored;
  local_[stored] = slot;
}

size_t Names::claim_slot() {
  Header& header = control_.header();
  if (header.names_used < control_.capacity()) return header.names_used++;
  if (!is_all_passed_on()) return kNone;
  for (size_t tried = 0; tried < control_.capacity(); ++tried) {
    const size_t slot = header.name_hand++ % control_.capacity();
    if (!is_idle(slot)) continue;
    NameSlot& entry = control_.name_slot(slot);
    for (int rank = 0; rank < control_.size(); ++rank) entry.base = std::max(entry.base, latest(slot, rank));
    return slot;
  }
  return kNone;
}

// A note goes by its slot, and so does an entry of the first host's log: the slot's name must not change before the
// leader has passed them on. An operation may end before that.
bool Names::is_all_passed_on() const {
  if (hosts_.several() && hosts_.is_first()) {
    const Header& header = control_.header();
    if (header.log_sent.load(std::memory_order_acquire) != header.log_tail.load(std::memory_order_acquire))
      return false;
  }
  for (const int rank : hosts_.here()) {
    const Outbox& outbox = control_.outbox(rank);
    if (outbox.read.load(std::memory_order_acquire) != outbox.written.load(std::memory_order_acquire)) return false;
  }
  return true;
}

bool Names::has_room() const {
  if (!is_all_passed_on()) return false;
  for (size_t slot = 0; slot < control_.capacity(); ++slot) {
    if (is_idle(slot)) return true;
  }
  return false;
}

uint64_t Names::latest(size_t slot, int rank) const {
  const uint64_t even = control_.head(kUnnamedSlots + 2 * slot, rank).tag.load(std::memory_order_acquire);
  const uint64_t odd = control_.head(kUnnamedSlots + 2 * slot + 1, rank).tag.load(std::memory_order_acquire);
  return std::max(even, odd);
}

// Every rank here has consumed what it has announced, and none has still to announce what another rank has. A rank
// elsewhere reads its own host's table, so nobody asks what it has consumed. But in the first host's table the requests
// of all ranks come together: there the name stays until the operation is decided.
bool Names::is_idle(size_t slot) const {
  uint64_t announced = 0;
  for (int rank = 0; rank < control_.size(); ++rank) announced = std::max(announced, latest(slot, rank));
  for (const int rank : hosts_.here()) {
    if (control_.head(consumed_slot(slot), rank).consumed.load(std::memory_order_acquire) < latest(slot, rank))
      return false;
  }
  if (announced <= control_.name_slot(slot).base) return true;
  const bool is_for_all = hosts_.several() && hosts_.is_first();
  const bool is_decided = control_.is_decided(request_slot(slot, announced), announced);
  for (int rank = 0; rank < control_.size(); ++rank) {
    if (!is_for_all && !hosts_.is_here(rank)) continue;
    const bool has_announced = latest(slot, rank) == announced;
    if (!has_announced && control_.line(rank).joined.load(std::memory_order_acquire) == 0) return false;
    if (!is_for_all || !has_announced || is_decided) continue;
    if (!control_.is_quick(control_.signature(request_slot(slot, announced), rank), true)) return false;
  }
  return true;
}

uint64_t Names::next_generation(size_t slot, int rank) const {
  return std::max(latest(slot, rank), control_.name_slot(slot).base) + 1;
}

void Names::level_generations() const {
  for (size_t slot = 0; slot < control_.header().names_used; ++slot) {
    NameSlot& entry = control_.name_slot(slot);
    for (int rank = 0; rank < control_.size(); ++rank) entry.base = std::max(entry.base, latest(slot, rank));
  }
}

std::string Names::text(size_t slot) const {
  const NameSlot& entry = control_.name_slot(slot);
  return std::string(entry.text, entry.length);
}

std::string Names::name_of(Ticket ticket) const {
  if (!ticket.is_named()) return "unnamed operation " + std::to_string(ticket.tag - 1);
  return "'" + stored_name(ticket) + "'";
}

}  // namespace rr
