// What a group has to reach its members: where they are, the bells on which they sleep, links to them, and on the
// leader of one of several hosts the relay to the other leaders.
#pragma once

#include <memory>
#include <vector>

#include "engine/group/group_parts.h"
#include "negotiation/segment/group_segment.h"
#include "relay/host_relay.h"
#include "transport/link.h"

namespace rr {

class Context;

// rank: in the group.
Hosts hosts_of(const Context& context, const std::vector<int>& world_ranks, int rank);
// By group rank.
Bells bells_of(const Context& context, const std::vector<int>& world_ranks);
// By group rank; null for this one. id: of the group. channel: one of its kChannels.
std::vector<std::unique_ptr<Link>> links_of(Context& context, const ControlSegment& control,
                                            const std::vector<int>& world_ranks, const Hosts& hosts, int rank, int id,
                                            int channel, const Bells& bells);
// null where this rank leads no host, or there is one host.
std::unique_ptr<HostRelay> relay_of(const GroupParts& parts);

}  // namespace rr
