// Data movement over links: blocks go straight from who has them to who takes them, or from member to member, each part
// once it has arrived.
//
// Cost of a block of parts of P bytes that passes m links, each of which carries nothing else: m alpha + (S + (m-1) P)
// beta.

#include "collective/linked.h"

namespace rr {
namespace {
constexpr size_t kPartNbytes = 64 << 10;  // of what goes down a tree
}  // namespace

Ids forward(Schedule& schedule, const Team& team, const LinkedBlock& block) {
  const auto rank = [&](int member) { return team.members[static_cast<size_t>(member)]; };
  Ids there;
  size_t begin = 0;
  for (const size_t end : block.ends.empty() ? std::vector<size_t>{block.nbytes} : block.ends) {
    there.push_back(block.from < 0 ? Schedule::kNone
                                   : schedule.receive(rank(block.from), block.dst + begin, end - begin, {}));
    for (const int member : block.to) schedule.send(rank(member), block.src + begin, end - begin, there.back());
    begin = end;
  }
  return there;
}

void tree_broadcast(Schedule& schedule, const Team& team, int root, std::byte* data, size_t nbytes) {
  LinkedBlock block = {data, data, nbytes, tree_parent(team.size(), root, team.me), {}};
  for (int k = 0; tree_child(team.size(), root, team.me, k) >= 0; ++k) {
    block.to.push_back(tree_child(team.size(), root, team.me, k));
  }
  for (size_t end = kPartNbytes; end < nbytes; end += kPartNbytes) block.ends.push_back(end);
  block.ends.push_back(nbytes);
  forward(schedule, team, block);
}

void mesh(Schedule& schedule, const Team& team, const ExchangeJob& job) {
  for (int member = 0; member < team.size(); ++member) {
    if (member == team.me || job.outgoing.empty()) continue;
    if (!job.takers.empty() && !job.takers[static_cast<size_t>(member)]) continue;
    const ExchangeJob::Outgoing& block = job.outgoing[job.blocks > 1 ? static_cast<size_t>(member) : 0];
    forward(schedule, team, {block.src, nullptr, block.nbytes, -1, {member}});
  }
  for (const ExchangeJob::Incoming& block : job.incoming) {
    if (block.member != team.me) {
      forward(schedule, team, {nullptr, block.dst, block.nbytes, block.member, {}});
    } else {
      schedule.copy(job.outgoing[static_cast<size_t>(block.block)].src, block.dst, block.nbytes, {});
    }
  }
}

}  // namespace rr
