#include "negotiation/requests.h"

#include <algorithm>

namespace rr {

bool can_do_without_joined(Kind kind) { return kind == Kind::kAllreduce || kind == Kind::kBarrier; }

bool Requests::complete(Ticket ticket, RankMask* participants) const {
  bool is_announced = false;
  for (int r = 0; r < control_.size(); ++r) {
    const auto& tag = control_.head(ticket.request_slot, r).tag;
    if (tag.load(std::memory_order_acquire) != ticket.tag) {
      if (control_.header().joined_count.load(std::memory_order_acquire) == 0) return false;
      if (control_.line(r).joined.load(std::memory_order_acquire) == 0) return false;
      // It announced nothing after joining, so a second look tells for good whether it did before.
      if (tag.load(std::memory_order_acquire) != ticket.tag) continue;
    }
    is_announced = true;
    if (participants != nullptr) participants->set(r);
  }
  return is_announced;
}

bool Requests::complete_here(Ticket ticket, RankMask* participants) const {
  for (const int r : hosts_.here()) {
    if (!has_announced(ticket, r)) {
      if (control_.line(r).joined.load(std::memory_order_acquire) == 0) return false;
      if (!has_announced(ticket, r)) continue;  // it announced nothing after joining: the second look is final
    }
    participants->set(r);
  }
  return true;
}

bool Requests::is_settled(Ticket ticket, RankMask* participants) const {
  if (!hosts_.several()) return complete(ticket, participants);
  RankMask own(participants == nullptr ? control_.size() : 0);
  RankMask& mask = participants == nullptr ? own : *participants;
  if (!complete(ticket, &mask)) return false;
  return feasible(ticket, mask) || is_refused(ticket) || logged_of(ticket, mask).empty();
}

std::vector<int> Requests::logged_of(Ticket ticket, const RankMask& participants) const {
  std::vector<int> logged;
  for (int r = 0; r < control_.size(); ++r) {
    if (!participants.test(r)) continue;
    if (!is_quick(control_.signature(ticket.request_slot, r), ticket.is_named())) logged.push_back(r);
  }
  return logged;
}

bool Requests::feasible(Ticket ticket, const RankMask& participants) const {
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
DeviceTeam Requests::device_team(Ticket ticket, const RankMask& participants) const {
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

GpuPath Requests::gpu_path_of(const Entry& entry) const {
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

std::string Requests::mismatch(Ticket ticket, const RankMask& participants) const {
  std::vector<Signature> requests;
  std::vector<int> ranks;
  for (int r = 0; r < control_.size(); ++r) {
    if (!participants.test(r)) continue;
    if (control_.head(ticket.request_slot, r).digest.load(std::memory_order_relaxed) == kWithdrawnDigest) {
      return "rank " + std::to_string(segment_.world_rank(r)) +
             " has withdrawn this operation: an exception, such as KeyboardInterrupt, ended its " +
             name(control_.signature(ticket.request_slot, r).kind) + " before all ranks had called it.";
    }
    requests.push_back(control_.signature(ticket.request_slot, r));
    ranks.push_back(segment_.world_rank(r));
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

std::vector<int> Requests::missing(Ticket ticket) const {
  std::vector<int> ranks;
  if (ticket.tag == 0) return ranks;  // a message between two ranks, which is not negotiated
  for (int r = 0; r < control_.size(); ++r) {
    if (control_.head(ticket.request_slot, r).tag.load(std::memory_order_acquire) == ticket.tag) continue;
    if (control_.line(r).joined.load(std::memory_order_acquire) == 0) ranks.push_back(r);
  }
  return ranks;
}

bool Requests::are_registered(Ticket ticket, const RankMask& participants) const {
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

// Whether a rank has gone on to another operation in the same request slot. Then this one is over: in the log, or
// refused by all that have announced it. The first host's leader may still know it as incomplete, and once all have
// joined it would look complete, with those for participants who have not gone on.
bool Requests::is_overwritten(Ticket ticket) const {
  for (int r = 0; r < control_.size(); ++r) {
    if (control_.head(ticket.request_slot, r).tag.load(std::memory_order_acquire) > ticket.tag) return true;
  }
  return false;
}

}  // namespace rr
