#include "group/ledger.h"

#include <algorithm>
#include <cstring>

#include "base/errors.h"

namespace rr {

namespace {
bool can_do_without_joined(Kind kind) { return kind == Kind::kAllreduce || kind == Kind::kBarrier; }
}  // namespace

Ledger::Ledger(const Board& board, int rank, const std::vector<int>& world_ranks, const Hosts& hosts, Bells bells,
               Algo forced, size_t fusion_threshold, std::function<void()> give_up, std::string cuda_road)
    : board_(board),
      rank_(rank),
      world_ranks_(world_ranks),
      hosts_(hosts),
      bells_(std::move(bells)),
      forced_(forced),
      threshold_(fusion_threshold),
      give_up_(std::move(give_up)),
      cuda_road_(std::move(cuda_road)),
      names_(board),
      noted_(hosts.several() && hosts.is_here(rank) ? board.cell_count() : 0) {}

void Ledger::write_cell(Ticket ticket, const Signature& signature, const void* payload, size_t nbytes) {
  CellHead& head = board_.head(ticket.cell, rank_);
  head.digest.store(digest(signature), std::memory_order_relaxed);
  if (nbytes != 0) std::memcpy(board_.payload(ticket.cell, rank_), payload, nbytes);
  // Rewriting equal bytes would take the lines away from the readers for nothing.
  Signature& stated = board_.signature(ticket.cell, rank_);
  if (std::memcmp(&stated, &signature, sizeof signature) != 0) std::memcpy(&stated, &signature, sizeof signature);
  head.tag.store(ticket.tag, std::memory_order_release);
}

Ticket Ledger::state_unnamed(uint64_t counter, const Signature& signature, const void* payload, size_t nbytes) {
  const Ticket ticket = {counter % kUnnamedCells, counter + 1};
  write_cell(ticket, signature, payload, nbytes);
  announce_statement(ticket);
  return ticket;
}

Ticket Ledger::state_named(const std::string& name, const Signature& signature, const void* payload, size_t nbytes,
                           bool logged, bool& log_full) {
  return locked([&] {
    const size_t slot = names_.slot_of(name);
    if (slot == Names::kNone) return Ticket{};
    const uint64_t generation = names_.next_generation(slot, rank_);
    const Ticket ticket = {Names::cell(slot, generation), generation};
    // In the name of a rank elsewhere: its own host has looked.
    if (hosts_.is_here(rank_) && !(has_note_room(ticket.cell) && has_been_read(ticket))) return Ticket{};
    write_cell(ticket, signature, payload, nbytes);
    announce_statement(ticket);
    RankMask participants;
    log_full = logged && hosts_.mine == 0 && complete(ticket, &participants) && !append_locked(ticket, participants);
    return ticket;
  });
}

bool Ledger::complete(Ticket ticket, RankMask* participants) const {
  for (int r = 0; r < board_.size(); ++r) {
    const auto& tag = board_.head(ticket.cell, r).tag;
    if (tag.load(std::memory_order_acquire) != ticket.tag) {
      if (board_.header().joined_count.load(std::memory_order_acquire) == 0) return false;
      if (board_.line(r).joined.load(std::memory_order_acquire) == 0) return false;
      // It stated nothing after joining, so a second look tells for good whether it did before.
      if (tag.load(std::memory_order_acquire) != ticket.tag) continue;
    }
    if (participants != nullptr) participants->set(r);
  }
  return true;
}

bool Ledger::feasible(Ticket ticket, const RankMask& participants) const {
  const int first = first_of(participants);
  const uint64_t one = board_.head(ticket.cell, first).digest.load(std::memory_order_relaxed);
  bool everybody = true;
  for (int r = 0; r < board_.size(); ++r) {
    if (!participants.test(r)) {
      everybody = false;
    } else if (board_.head(ticket.cell, r).digest.load(std::memory_order_relaxed) != one) {
      return false;
    }
  }
  const Signature& stated = board_.signature(ticket.cell, first);
  if (!everybody && !can_do_without_joined(stated.kind)) return false;
  return stated.place == Place::kHost || cuda_road_ == "auto" ||
         select_road(cuda_road_, device_team(ticket, participants)).algorithm != Algo::kAuto;
}

// A function of the cells: whether mappings have been refused meanwhile is left out.
DeviceTeam Ledger::device_team(Ticket ticket, const RankMask& participants) const {
  DeviceTeam team;
  std::vector<uint64_t> gpus;
  uint8_t all_can = 0xFF;
  for (int r = 0; r < board_.size(); ++r) {
    if (!participants.test(r)) continue;
    const Signature& stated = board_.signature(ticket.cell, r);
    ++team.ranks;
    all_can = static_cast<uint8_t>(all_can & stated.can);
    team.mpi_knows &= stated.kind != Kind::kReduce && stated.kind != Kind::kReduceScatter;
    if (std::find(gpus.begin(), gpus.end(), stated.src.uid) == gpus.end()) gpus.push_back(stated.src.uid);
  }
  team.gpus = gpus.size();
  team.is_whole_group = team.ranks == static_cast<size_t>(board_.size());
  team.several_hosts = hosts_.several();
  team.exported = (all_can & kCanExport) != 0;
  team.nccl = (all_can & kCanNccl) != 0;
  team.nccl_knows = (all_can & kNcclKnows) != 0;
  team.mpi = (all_can & kCanMpi) != 0;
  team.one_a_host = hosts_.count() == board_.size();
  return team;
}

Road Ledger::road_of(const Entry& entry) const {
  DeviceTeam all = device_team({entry.member[0].cell, entry.member[0].tag}, entry.participants);
  for (uint32_t i = 1; i < entry.members; ++i) {
    const DeviceTeam one = device_team({entry.member[i].cell, entry.member[i].tag}, entry.participants);
    all.exported &= one.exported;
    all.nccl &= one.nccl;
    all.nccl_knows &= one.nccl_knows;
    all.mpi &= one.mpi;
  }
  // A forced road whose mapping is refused fails when it is taken.
  all.is_mappable = cuda_road_ != "auto" || board_.header().unmappable.load(std::memory_order_relaxed) == 0;
  return select_road(cuda_road_, all);
}

std::string Ledger::mismatch(Ticket ticket, const RankMask& participants) const {
  std::vector<Signature> statements;
  std::vector<int> ranks;
  for (int r = 0; r < board_.size(); ++r) {
    if (!participants.test(r)) continue;
    statements.push_back(board_.signature(ticket.cell, r));
    ranks.push_back(world_rank(r));
  }
  const std::string text = describe_mismatch(statements, ranks);
  const Kind kind = statements.front().kind;
  if (!text.empty()) return text;
  if (statements.size() == static_cast<size_t>(board_.size()) || can_do_without_joined(kind)) {
    return statements.front().place == Place::kHost
               ? ""
               : "the forced road cannot be taken: " +
                     select_road(cuda_road_, device_team(ticket, participants)).reason;
  }
  std::string what = name(kind);
  what[0] = static_cast<char>(what[0] - 'a' + 'A');
  return what + " is not supported with Join at this time.";
}

std::vector<int> Ledger::missing(Ticket ticket) const {
  std::vector<int> ranks;
  if (ticket.tag == 0) return ranks;  // a message between two ranks, which is not in the ledger
  for (int r = 0; r < board_.size(); ++r) {
    if (board_.head(ticket.cell, r).tag.load(std::memory_order_acquire) == ticket.tag) continue;
    if (board_.line(r).joined.load(std::memory_order_acquire) == 0) ranks.push_back(r);
  }
  return ranks;
}

int Ledger::first_of(const RankMask& participants) const {
  int r = 0;
  while (!participants.test(r)) ++r;
  return r;
}

bool Ledger::registered(Ticket ticket, const RankMask& participants) const {
  if (hosts_.several()) return false;
  const Signature& one = board_.signature(ticket.cell, first_of(participants));
  if (one.place == Place::kDevice) return false;
  for (int r = 0; r < board_.size(); ++r) {
    if (!participants.test(r)) continue;
    const Signature& other = board_.signature(ticket.cell, r);
    if (other.src.uid == 0 || other.src.uid != one.src.uid) return false;
    if (one.kind == Kind::kAllreduce && (other.dst.uid == 0 || other.dst.uid != one.dst.uid)) return false;
  }
  return true;
}

bool Ledger::append(Ticket ticket) {
  RankMask participants;
  if (hosts_.mine != 0 || !complete(ticket, &participants)) return true;
  if (hosts_.several() && is_overwritten(ticket)) return true;
  return locked([&] { return append_locked(ticket, participants); });
}

// Whether a rank has gone on to another operation in the same cell. Then this one is over: in the log, or refused by
// all that have stated it. The first host's leader may still know it as incomplete, and once all have joined it would
// look complete, with those for participants who have not gone on.
bool Ledger::is_overwritten(Ticket ticket) const {
  for (int r = 0; r < board_.size(); ++r) {
    if (board_.head(ticket.cell, r).tag.load(std::memory_order_acquire) > ticket.tag) return true;
  }
  return false;
}

// Null when a rank still has to consume the entry that the next position would overwrite.
Entry* Ledger::open_entry() {
  const uint64_t position = board_.header().log_tail.load(std::memory_order_relaxed);
  for (const int r : hosts_.here()) {
    if (board_.line(r).cursor.load(std::memory_order_acquire) + kLogEntries <= position) return nullptr;
  }
  Entry& entry = board_.entry(position);
  entry.closed.store(0, std::memory_order_relaxed);
  entry.members = entry.algorithm = entry.registered = 0;
  entry.nbytes = 0;
  entry.participants = RankMask();
  entry.rounds.store(0, std::memory_order_relaxed);
  entry.completed.store(0, std::memory_order_relaxed);
  for (int r = 0; r < board_.size(); ++r) board_.claims(position)[r].next.store(0, std::memory_order_relaxed);
  return &entry;
}

bool Ledger::fusible(const Entry& entry, const Signature& one, const RankMask& participants, bool registered) const {
  if (entry.members == kEntryMembers || one.kind != Kind::kAllreduce) return false;
  const Signature& first = board_.signature(entry.member[0].cell, first_of(entry.participants));
  return first.kind == one.kind && first.dtype == one.dtype && first.op == one.op && first.prescale == one.prescale &&
         first.postscale == one.postscale && first.wire == one.wire && first.place == one.place &&
         (entry.registered != 0) == registered && entry.participants == participants && first.tensors == 1 &&
         one.tensors == 1 && entry.nbytes + one.nbytes <= threshold_;
}

bool Ledger::append_locked(Ticket ticket, const RankMask& participants) {
  if (board_.append_mark(ticket.cell).load(std::memory_order_relaxed) == ticket.tag) return true;
  const Signature& one = board_.signature(ticket.cell, first_of(participants));
  if (!feasible(ticket, participants)) {
    // Nobody executes it; the participants, some of whom may have stated something that never enters the log, find out
    // from the cells.
    board_.append_mark(ticket.cell).store(ticket.tag, std::memory_order_release);
    ring_waiters();
    return true;
  }
  const bool is_registered = registered(ticket, participants);
  Header& header = board_.header();
  const uint64_t tail = header.log_tail.load(std::memory_order_relaxed);
  Entry* entry = tail != 0 ? &board_.entry(tail - 1) : nullptr;
  const bool is_open = entry != nullptr && entry->seq.load(std::memory_order_relaxed) == tail &&
                       entry->closed.load(std::memory_order_relaxed) == 0;
  bool opened = false;
  if (!is_open || !fusible(*entry, one, participants, is_registered)) {
    if (is_open) close_locked(*entry);
    entry = open_entry();
    if (entry == nullptr) return false;
    entry->registered = is_registered;
    entry->participants = participants;
    if (!is_anyone_here(participants)) entry->rounds.store(1, std::memory_order_relaxed);  // none of this host's stage
    opened = true;
  }
  board_.append_mark(ticket.cell).store(ticket.tag, std::memory_order_release);
  entry->member[entry->members++] = {ticket.cell, ticket.tag};
  entry->nbytes += one.nbytes;
  if (opened) {
    entry->seq.store(tail + 1, std::memory_order_release);
    header.log_tail.store(tail + 1, std::memory_order_release);
  }
  const bool may_grow =
      one.kind == Kind::kAllreduce && one.tensors == 1 && entry->nbytes < threshold_ && entry->members < kEntryMembers;
  if (!may_grow) close_locked(*entry);
  RankMask async_ranks;
  for (int r = 0; r < board_.size(); ++r) {
    if (!participants.test(r) || board_.signature(ticket.cell, r).is_async != 0) async_ranks.set(r);
  }
  if (opened || !may_grow) ring_engines(async_ranks);
  ring_waiters();
  return true;
}

void Ledger::close_locked(Entry& entry) const {
  if (entry.closed.load(std::memory_order_relaxed) != 0) return;
  const Signature& one = board_.signature(entry.member[0].cell, first_of(entry.participants));
  const Reduction reduction = reduction_of(one, board_.size());
  const bool is_allreduce = one.kind == Kind::kAllreduce;
  const bool is_registered = entry.registered != 0;
  const Algo algo = one.place == Place::kDevice ? road_of(entry).algorithm
                    : hosts_.several()          ? select_across_hosts(forced_, is_allreduce ? &reduction : nullptr)
                    : is_allreduce              ? select_allreduce(forced_, reduction, is_registered)
                                                : select_movement(forced_, one.kind == Kind::kBroadcast, is_registered);
  entry.algorithm = static_cast<uint32_t>(algo);
  entry.closed.store(1, std::memory_order_release);
}

void Ledger::close(Entry& entry) {
  locked([&] { close_locked(entry); });
  ring_waiters();
}

void Ledger::ring_waiters() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int r = 0; r < board_.size(); ++r) {
    Bell& bell = *bells_.wait[static_cast<size_t>(r)];
    if (r != rank_ && bell.sleepers.load(std::memory_order_relaxed) != 0) wake_all(bell);
  }
}

void Ledger::ring_all() const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (Bell* bell : bells_.wait) wake_all(*bell);
  for (Bell* bell : bells_.engine) wake_all(*bell);
}

void Ledger::ring_engines(const RankMask& mask) const {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  for (int r = 0; r < board_.size(); ++r) {
    Bell& bell = *bells_.engine[static_cast<size_t>(r)];
    if (mask.test(r) && bell.sleepers.load(std::memory_order_relaxed) != 0) wake_all(bell);
  }
}

void Ledger::note_consumed_named(Ticket ticket) const {
  const size_t slot = (ticket.cell - kUnnamedCells) / 2;
  announce(ticket, true);  // before the slot may get another name
  board_.head(Names::consumed_cell(slot), rank_).consumed.store(ticket.tag, std::memory_order_release);
}

bool Ledger::is_quick(const Signature& signature, bool is_named) const {
  if (signature.tensors > 1 || signature.place == Place::kDevice) return false;
  if (signature.kind == Kind::kBarrier) return true;
  if (signature.kind != Kind::kAllreduce && signature.kind != Kind::kBroadcast) return false;
  return signature.nbytes <= (is_named ? board_.inline_nbytes() : board_.header().eager_nbytes.load());
}

std::string Ledger::name_of(Ticket ticket) const {
  if (ticket.cell < kUnnamedCells) return "unnamed operation " + std::to_string(ticket.tag - 1);
  return "'" + stored_name(ticket) + "'";
}

}  // namespace rr
