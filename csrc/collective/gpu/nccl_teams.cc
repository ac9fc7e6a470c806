#include "collective/gpu/nccl_teams.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/errors.h"

namespace rr {

// The first member asks NCCL for a unique id and pushes it to the others, with the version of its library.
class NcclTeams::Meeting {
 public:
  Meeting(const Team& team, const NcclLibrary& library) : library_(library) {
    hello_.version = library.version();
    sent_.resize(team.members.size());
  }

  // True once this rank knows the id and has passed it on.
  bool advance(const Team& team, const std::string& where) {
    return team.me == 0 ? invite(team, where) : accept(team, where);
  }
  const NcclUniqueId& id() const { return hello_.id; }

 private:
  struct Hello {
    int32_t version = 0;
    NcclUniqueId id = {};
  };

  bool invite(const Team& team, const std::string& where) {
    if (!has_id_) {
      const NcclResult code = library_.GetUniqueId(&hello_.id);
      if (code != NcclResult::kSuccess) {
        throw InternalError(library_.name() + ", " + where +
                            ": ncclGetUniqueId failed: " + library_.error(code, nullptr) +
                            "; NCCL_DEBUG=WARN says more, NCCL_SOCKET_IFNAME names a network interface");
      }
      has_id_ = true;
    }
    bool all = true;
    for (size_t i = 1; i < team.members.size(); ++i) {
      size_t& sent = sent_[i];
      Link& link = *team.links[static_cast<size_t>(team.members[i])];
      sent += link.push(reinterpret_cast<const std::byte*>(&hello_) + sent, sizeof hello_ - sent);
      all &= sent == sizeof hello_;
    }
    return all;
  }

  bool accept(const Team& team, const std::string& where) {
    Link& link = *team.links[static_cast<size_t>(team.members.front())];
    received_ += link.pull(reinterpret_cast<std::byte*>(&theirs_) + received_, sizeof theirs_ - received_);
    if (received_ != sizeof theirs_) return false;
    if (theirs_.version != library_.version()) {
      throw UnavailableError(library_.name() + " of " + library_.path() + ", " + where + ": rank " +
                             std::to_string(team.members.front()) + " of the group has another version (code " +
                             std::to_string(theirs_.version) + ", here " + std::to_string(library_.version()) +
                             "); install one version for all ranks, or set RINGREDUCE_GPU_PATH=ipc or staged");
    }
    hello_ = theirs_;
    return true;
  }

  const NcclLibrary& library_;
  Hello hello_;
  Hello theirs_;
  bool has_id_ = false;
  std::vector<size_t> sent_;  // bytes, by member
  size_t received_ = 0;
};

NcclTeams::NcclTeams(std::shared_ptr<const NcclLibrary> library, Device& device, const Log& log, std::string where)
    : library_(std::move(library)),
      device_(device),
      work_stream_(device.add_work_stream()),
      scratch_(device),
      log_(log),
      where_(std::move(where)) {}

NcclTeams::~NcclTeams() { close(); }

NcclCommunicator* NcclTeams::communicator(const Team& team) {
  Entry& entry = entries_[team.members];
  if (entry.ready) return entry.communicator.get();
  if (entry.communicator == nullptr) entry.communicator = shrunk(team.members);
  if (entry.communicator == nullptr) {
    if (entry.meeting == nullptr) entry.meeting = std::make_unique<Meeting>(team, *library_);
    if (!entry.meeting->advance(team, where_)) return nullptr;
    entry.communicator =
        std::make_unique<NcclCommunicator>(library_, entry.meeting->id(), team.me, team.size(), where_);
  }
  if (!entry.communicator->settled()) return nullptr;
  entry.meeting.reset();
  entry.ready = true;
  return entry.communicator.get();
}

// From the communicator of a larger team, where there is one. All members find the same: whoever is in the smaller team
// was in the larger one.
std::unique_ptr<NcclCommunicator> NcclTeams::shrunk(const std::vector<int>& members) {
  if (library_->CommShrink == nullptr) return nullptr;
  for (auto& [larger, entry] : entries_) {
    if (!entry.ready || !std::includes(larger.begin(), larger.end(), members.begin(), members.end())) continue;
    std::vector<int> excluded;
    for (size_t i = 0; i < larger.size(); ++i) {
      if (!std::binary_search(members.begin(), members.end(), larger[i])) excluded.push_back(static_cast<int>(i));
    }
    return std::make_unique<NcclCommunicator>(*entry.communicator, std::move(excluded));
  }
  return nullptr;
}

void NcclTeams::abort() {
  for (auto& [members, entry] : entries_) {
    if (entry.communicator != nullptr) note(entry.communicator->abort());
  }
  entries_.clear();
}

void NcclTeams::close(double drain_s) {
  for (auto& [members, entry] : entries_) {
    if (entry.communicator != nullptr) {
      note(entry.ready ? entry.communicator->close(drain_s) : entry.communicator->abort());
    }
  }
  entries_.clear();
  scratch_.clear();
  if (!std::exchange(keeps_work_stream_, true)) device_.remove_work_stream(work_stream_);
}

void NcclTeams::note(const std::string& text) {
  if (text.empty()) return;
  keeps_work_stream_ = true;
  log_.warning("NCCL, " + text);
}

}  // namespace rr
