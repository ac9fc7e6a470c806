#include "engine/group/group_links.h"

#include <algorithm>
#include <utility>

#include "engine/context.h"

namespace rr {
namespace {
constexpr double kLateS = 1.0;  // all hosts are shown who has announced an operation that takes longer

}  // namespace

Hosts hosts_of(const Context& context, const std::vector<int>& world_ranks, int rank) {
  std::vector<int> labels;
  for (const int r : world_ranks) labels.push_back(context.host_of(r));
  return Hosts(labels, rank);
}

Bells bells_of(const Context& context, const std::vector<int>& world_ranks) {
  Bells bells;
  for (const int r : world_ranks) {
    bells.wait.push_back(&context.wait_bell(r));
    bells.engine.push_back(&context.engine_bell(r));
  }
  return bells;
}

std::vector<std::unique_ptr<Link>> links_of(Context& context, const ControlSegment& control,
                                            const std::vector<int>& world_ranks, const Hosts& hosts, int rank, int id,
                                            int channel, const Bells& bells) {
  std::vector<std::unique_ptr<Link>> links;
  for (int peer = 0; peer < control.size(); ++peer) {
    if (peer == rank) {
      links.push_back(nullptr);
    } else if (hosts.is_here(peer)) {
      links.push_back(shm_link(control.link_memory(channel, rank, peer), control.link_memory(channel, peer, rank),
                               control.link_capacity(), *bells.wait[static_cast<size_t>(peer)]));
    } else {
      links.push_back(context.remote_link(world_ranks[static_cast<size_t>(peer)], channel_of(id, channel)));
    }
  }
  return links;
}

std::unique_ptr<HostRelay> relay_of(const GroupParts& parts) {
  const Resources& from = parts.from;
  Context& context = parts.context;
  if (!from.hosts.several() || from.hosts.leader_here() != from.rank) return nullptr;
  std::vector<std::unique_ptr<Link>> links;
  for (int host = 0; host < from.hosts.count(); ++host) {
    const int peer = from.world_ranks[static_cast<size_t>(from.hosts.leader(host))];
    links.push_back(host == from.hosts.mine ? nullptr : context.remote_link(peer, control_channel_of(from.id)));
  }
  // Early enough for what is said when an operation has taken too long.
  double late_s = kLateS;
  for (const double limit_s : {context.timeout_s(), context.settings().stall_warning_s}) {
    if (limit_s > 0) late_s = std::min(late_s, limit_s / 4);
  }
  // One group's leaders tell the clocks of all hosts.
  Recorder* const recorder = from.id == 0 ? &context.recorder() : nullptr;
  return std::make_unique<HostRelay>(from.control, from.hosts, parts.negotiation, std::move(links), late_s, recorder,
                                     from.recorded_group, context.do_links_ring());
}

}  // namespace rr
