#include "negotiation/negotiation.h"

#include <algorithm>
#include <cstring>

#include "base/errors.h"

namespace rr {

namespace {
bool can_do_without_joined(Kind kind) { return kind == Kind::kAllreduce || kind == Kind::kBarrier; }
}  // namespace

Negotiation::Negotiation(const ControlSegment& control, int rank, const std::vector<int>& world_ranks,
                         const Hosts& hosts, Bells bells, Algo forced, size_t fusion_threshold,
                         std::function<void()> give_up, std::string gpu_path)
    : control_(control),
      rank_(rank),
      world_ranks_(world_ranks),
      hosts_(hosts),
      bells_(std::move(bells)),
      forced_(forced),
      threshold_(fusion_threshold),
      give_up_(std::move(give_up)),
      gpu_path_(std::move(gpu_path)),
      names_(control, hosts),
      note_positions_(hosts.several() ? control.request_slot_count() : 0) {}

void Negotiation::write_request(int rank, Ticket ticket, const Signature& signature, const void* payload,
                                size_t nbytes) {
  RequestSlotHead& head = control_.head(ticket.request_slot, rank);
  head.digest.store(digest(signature), std::memory_order_relaxed);
  if (nbytes != 0) std::memcpy(control_.payload(ticket.request_slot, rank), payload, nbytes);
  // Rewriting equal bytes would take the lines away from the readers for nothing.
  Signature& announced = control_.signature(ticket.request_slot, rank);
  if (std::memcmp(&announced, &signature, sizeof signature) != 0) std::memcpy(&announced, &signature, sizeof signature);
  head.tag.store(ticket.tag, std::memory_order_release);
}

Ticket Negotiation::announce_unnamed(uint64_t counter, const Signature& signature, const void* payload, size_t nbytes) {
  const Ticket ticket = Ticket::unnamed(counter);
  write_request(rank_, ticket, signature, payload, nbytes);
  leave_note(ticket);
  return ticket;
}

Ticket Negotiation::announce_named(const std::string& name, const Signature& signature, const void* payload,
                                   size_t nbytes, bool logged, bool& log_full) {
  return locked([&] {
    const size_t slot = names_.slot_of(name);
    if (slot == Names::kNone) return Ticket{};
    const uint64_t generation = names_.next_generation(slot, rank_);
    const Ticket ticket = {Names::request_slot(slot, generation), generation};
    if (!(has_note_room(ticket.request_slot) && has_been_read(ticket))) return Ticket{};
    write_request(rank_, ticket, signature, payload, nbytes);
    leave_note(ticket);
    RankMask participants;
    log_full = logged && hosts_.mine == 0 && complete(ticket, &participants) && !append_locked(ticket, participants);
    return ticket;
  });
}

bool Negotiation::complete(Ticket ticket, RankMask* participants) const {
  for (int r = 0; r < control_.size(); ++r) {
    const auto& tag = control_.head(ticket.request_slot, r).tag;
    if (tag.load(std::memory_order_acquire) != ticket.tag) {
      if (control_.header().joined_count.load(std::memory_order_acquire) == 0) return false;
      if (control_.line(r).joined.load(std::memory_order_acquire) == 0) return false;
      // It announced nothing after joining, so a second look tells for good whether it did before.
      if (tag.load(std::memory_order_acquire) != ticket.tag) continue;
    }
    if (participants != nullptr) participants->set(r);
  }
  return true;
}

bool Negotiation::is_settled(Ticket ticket, RankMask* participants) const {
  if (!hosts_.several()) return complete(ticket, participants);
  RankMask mask;
  if (!complete(ticket, &mask)) return false;
  if (!feasible(ticket, mask) && !is_refused(ticket) && !logged_of(ticket, mask).empty()) return false;
  if (participants != nullptr) *participants = mask;
  return true;
}

std::vector<int> Negotiation::logged_of(Ticket ticket, const RankMask& participants) const {
  std::vector<int> logged;
  for (int r = 0; r < control_.size(); ++r) {
    if (!participants.test(r)) continue;
    if (!is_quick(control_.signature(ticket.request_slot, r), ticket.is_named())) logged.push_back(r);
  }
  return logged;
}

bool Negotiation::feasible(Ticket ticket, const RankMask& participants) const {
  if (is_refused(ticket)) return false;
  if (hosts_.several() && is_appended(ticket)) return true;
  const int first = participants.first();
  const uint64_t one = control_.head(ticket.request_slot, first).digest.load(std::memory_order_relaxed);
  bool everybody = true;
  for (int r = 0; r < control_.size(); ++r) {
    if (!participants.test(r)) {
      everybody = false;
    } else if (control_.head(ticket.request_slot, r).digest.load(std::memory_order_relaxed) != one) {
      return false;
    }
  }
  const Signature& announced = control_.signature(ticket.request_slot, first);
  if (!everybody && !can_do_without_joined(announced.kind)) return false;
  return announced.place == Place::kHost || gpu_path_ == "auto" ||
         select_gpu_path(gpu_path_, device_team(ticket, participants)).algorithm != Algo::kAuto;
}

// A function of the request slots: whether mappings have been refused meanwhile is left out.
DeviceTeam Negotiation::device_team(Ticket ticket, const RankMask& participants) const {
  DeviceTeam team;
  std::vector<uint64_t> gpus;
  uint8_t all_can = 0xFF;
  for (int r = 0; r < control_.size(); ++r) {
    if (!participants.test(r)) continue;
    const Signature& announced = control_.signature(ticket.request_slot, r);
    ++team.ranks;
    all_can = static_cast<uint8_t>(all_can & announced.can);
    team.mpi_knows &= announced.kind != Kind::kReduce && announced.kind != Kind::kReduceScatter;
    if (std::find(gpus.begin(), gpus.end(), announced.src.uid) == gpus.end()) gpus.push_back(announced.src.uid);
  }
  team.gpus = gpus.size();
  team.is_whole_group = team.ranks == static_cast<size_t>(control_.size());
  team.several_hosts = hosts_.several();
  team.exported = (all_can & kCanExport) != 0;
  team.nccl = (all_can & kCanNccl) != 0;
  team.nccl_knows = (all_can & kNcclKnows) != 0;
  team.mpi = (all_can & kCanMpi) != 0;
  team.one_a_host = hosts_.count() == control_.size();
  return team;
}

GpuPath Negotiation::gpu_path_of(const Entry& entry) const {
  DeviceTeam all = device_team({entry.member[0].request_slot, entry.member[0].tag}, entry.participants);
  for (uint32_t i = 1; i < entry.members; ++i) {
    const DeviceTeam one = device_team({entry.member[i].request_slot, entry.member[i].tag}, entry.participants);
    all.exported &= one.exported;
    all.nccl &= one.nccl;
    all.nccl_knows &= one.nccl_knows;
    all.mpi &= one.mpi;
  }
  // A forced path whose mapping is refused fails when it is taken.
  all.is_mappable = gpu_path_ != "auto" || control_.header().unmappable.load(std::memory_order_relaxed) == 0;
  return select_gpu_path(gpu_path_, all);
}

std::string Negotiation::mismatch(Ticket ticket, const RankMask& participants) const {
  std::vector<Signature> requests;
  std::vector<int> ranks;
  for (int r = 0; r < control_.size(); ++r) {
    if (!participants.test(r)) continue;
    requests.push_back(control_.signature(ticket.request_slot, r));
    ranks.push_back(world_rank(r));
  }
  const std::string text = describe_mismatch(requests, ranks);
  const Kind kind = requests.front().kind;
  if (!text.empty()) return text;
  if (requests.size() == static_cast<size_t>(control_.size()) || can_do_without_joined(kind)) {
    return requests.front().place == Place::kHost
               ? ""
               : "the forced path cannot be taken: " +
                     select_gpu_path(gpu_path_, device_team(ticket, participants)).reason;
  }
  std::string what = name(kind);
  what[0] = static_cast<char>(what[0] - 'a' + 'A');
  return what + " is not supported with Join at this time.";
}

std::vector<int> Negotiation::missing(Ticket ticket) const {
  std::vector<int> ranks;
  if (ticket.tag == 0) return ranks;  // a message between two ranks, which is not negotiated
  for (int r = 0; r < control_.size(); ++r) {
    if (control_.head(ticket.request_slot, r).tag.load(std::memory_order_acquire) == ticket.tag) continue;
    if (control_.line(r).joined.load(std::memory_order_acquire) == 0) ranks.push_back(r);
  }
  return ranks;
}

bool Negotiation::registered(Ticket ticket, const RankMask& participants) const {
  if (hosts_.several()) return false;
  const Signature& one = control_.signature(ticket.request_slot, participants.first());
  if (one.place == Place::kDevice) return false;
  for (int r = 0; r < control_.size(); ++r) {
    if (!participants.test(r)) continue;
    const Signature& other = control_.signature(ticket.request_slot, r);
    if (other.src.uid == 0 || other.src.uid != one.src.uid) return false;
    if (one.kind == Kind::kAllreduce && (other.dst.uid == 0 || other.dst.uid != one.dst.uid)) return false;
  }
  return true;
}

bool Negotiation::append(Ticket ticket) {
  RankMask participants;
  if (hosts_.mine != 0 || !complete(ticket, &participants)) return true;
  if (hosts_.several() && is_overwritten(ticket)) return true;
  return locked([&] { return append_locked(ticket, participants); });
}

// Whether a rank has gone on to another operation in the same request slot. Then this one is over: in the log, or
// refused by all that have announced it. The first host's leader may still know it as incomplete, and once all have
// joined it would look complete, with those for participants who have not gone on.
bool Negotiation::is_overwritten(Ticket ticket) const {
  for (int r = 0; r < control_.size(); ++r) {
    if (control_.head(ticket.request_slot, r).tag.load(std::memory_order_acquire) > ticket.tag) return true;
  }
  return false;
}

// Null when a rank still has to consume the entry that the next position would overwrite.
Entry* Negotiation::open_entry() {
  const uint64_t position = control_.header().log_tail.load(std::memory_order_relaxed);
  for (const int r : hosts_.here()) {
    if (control_.line(r).cursor.load(std::memory_order_acquire) + kLogEntries <= position) return nullptr;
  }
  Entry& entry = control_.entry(position);
  entry.closed.store(0, std::memory_order_relaxed);
  entry.members = entry.algorithm = entry.registered = 0;
  entry.nbytes = 0;
  entry.participants = RankMask();
  entry.rounds.store(0, std::memory_order_relaxed);
  entry.completed.store(0, std::memory_order_relaxed);
  for (int r = 0; r < control_.size(); ++r) control_.claims(position)[r].next.store(0, std::memory_order_relaxed);
  return &entry;
}

bool Negotiation::fusible(const Entry& entry, const Signature& one, const RankMask& participants,
                          bool registered) const {
  if (entry.members == kEntryMembers || one.kind != Kind::kAllreduce) return false;
  const Signature& first = control_.signature(entry.member[0].request_slot, entry.participants.first());
  return first.kind == one.kind && first.dtype == one.dtype && first.op == one.op && first.prescale == one.prescale &&
         first.postscale == one.postscale && first.codec == one.codec && first.place == one.place &&
         (entry.registered != 0) == registered && entry.participants == participants && first.tensors == 1 &&
         one.tensors == 1 && entry.nbytes + one.nbytes <= threshold_;
}

bool Negotiation::append_locked(Ticket ticket, const RankMask& participants) {
  if (is_decided(ticket)) return true;
  const Signature& one = control_.signature(ticket.request_slot, participants.first());
  if (!feasible(ticket, participants)) {
    if (!hosts_.several()) refuse(ticket);  // on several, the first host's leader does it
    return true;
  }
  const bool is_registered = registered(ticket, participants);
  Header& header = control_.header();
  const uint64_t tail = header.log_tail.load(std::memory_order_relaxed);
  Entry* entry = tail != 0 ? &control_.entry(tail - 1) : nullptr;
  const bool is_open = entry != nullptr && entry->seq.load(std::memory_order_relaxed) == tail &&
                       entry->closed.load(std::memory_order_relaxed) == 0;
  bool opened = false;
  if (!is_open || !fusible(*entry, one, participants, is_registered)) {
    if (is_open) close_locked(*entry);
    entry = open_entry();
    if (entry == nullptr) return false;
    entry->registered = is_registered;
    entry->participants = participants;
    if (!participants.has_any_of(hosts_.here()))
      entry->rounds.store(1, std::memory_order_relaxed);  // none of this host's stage
    opened = true;
  }
  control_.append_mark(ticket.request_slot).store(ticket.tag, std::memory_order_release);
  entry->member[entry->members++] = {ticket.request_slot, ticket.tag};
  entry->nbytes += one.nbytes;
  if (opened) {
    entry->seq.store(tail + 1, std::memory_order_release);
    header.log_tail.store(tail + 1, std::memory_order_release);
  }
  const bool may_grow =
      one.kind == Kind::kAllreduce && one.tensors == 1 && entry->nbytes < threshold_ && entry->members < kEntryMembers;
  if (!may_grow) close_locked(*entry);
  RankMask async_ranks;
  for (int r = 0; r < control_.size(); ++r) {
    if (!participants.test(r) || control_.signature(ticket.request_slot, r).is_async != 0) async_ranks.set(r);
  }
  if (opened || !may_grow) ring_engines(async_ranks);
  ring_waiters();
  return true;
}

void Negotiation::close_locked(Entry& entry) const {
  if (entry.closed.load(std::memory_order_relaxed) != 0) return;
  const Signature& one = control_.signature(entry.member[0].request_slot, entry.participants.first());
  const Reduction reduction = reduction_of(one, control_.size());
  const bool is_allreduce = one.kind == Kind::kAllreduce;
  const bool is_registered = entry.registered != 0;
  const Algo algo = one.place == Place::kDevice ? gpu_path_of(entry).algorithm
                    : hosts_.several()          ? select_across_hosts(forced_, is_allreduce ? &reduction : nullptr)
                    : is_allreduce              ? select_allreduce(forced_, reduction, is_registered)
                                                : select_movement(forced_, one.kind == Kind::kBroadcast, is_registered);
  entry.algorithm = static_cast<uint32_t>(algo);
  entry.closed.store(1, std::memory_order_release);
}

void Negotiation::close(Entry& entry) {
  locked([&] { close_locked(entry); });
  ring_waiters();
}

void Negotiation::ring_waiters() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int r = 0; r < control_.size(); ++r) {
    Bell& bell = *bells_.wait[static_cast<size_t>(r)];
    if (r != rank_ && bell.sleepers.load(std::memory_order_relaxed) != 0) wake_all(bell);
  }
}

void Negotiation::ring_all() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (Bell* bell : bells_.wait) wake_all(*bell);
  for (Bell* bell : bells_.engine) wake_all(*bell);
}

void Negotiation::ring_engines(const RankMask& mask) const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int r = 0; r < control_.size(); ++r) {
    Bell& bell = *bells_.engine[static_cast<size_t>(r)];
    if (mask.test(r) && bell.sleepers.load(std::memory_order_relaxed) != 0) wake_all(bell);
  }
}

// Nobody executes it; the participants, some of whom may have announced something that never enters the log, find out
// from the request slots.
void Negotiation::refuse(Ticket ticket) {
  control_.append_mark(ticket.request_slot).store(ticket.tag | kRefused, std::memory_order_release);
  ring_waiters();
}

void Negotiation::publish_consumed_named(Ticket ticket) const {
  const size_t slot = Names::slot_at(ticket.request_slot);
  control_.head(Names::consumed_slot(slot), rank_).consumed.store(ticket.tag, std::memory_order_release);
}

std::string Negotiation::name_of(Ticket ticket) const {
  if (!ticket.is_named()) return "unnamed operation " + std::to_string(ticket.tag - 1);
  return "'" + stored_name(ticket) + "'";
}

}  // namespace rr
