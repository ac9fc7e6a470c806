#include "planner/two_level_movement.h"

#include <algorithm>
#include <utility>

#include "collective/linked.h"

namespace rr {
namespace {

Range piece_of(size_t nbytes, size_t pieces, size_t k) {
  return segment(nbytes, static_cast<int>(pieces), static_cast<int>(k), kCacheLine);
}

// --- broadcast

// A chain of hosts takes alpha (h-1) + S beta and h-2 times what is passed on at once, a binomial tree log2(h) (alpha +
// S beta). From so many bytes for each host between the first and the last a chain is quicker: with 16 parts a tensor,
// 100 us a message (a rank has to be woken for each) and 10 Gbit/s. (4 hosts of 2 ranks on 2 cores, TCP, 1 Gbit/s, 64
// KiB: 1.5 ms by a chain, 1.0 by a tree.)
constexpr size_t kChainNbytes = 48 << 10;
constexpr size_t kChainParts = 16;
constexpr size_t kLeastPartNbytes = 16 << 10;  // (over Open MPI, the same hosts, 64 KiB: 1.4 ms; by parts of 4 KiB 2.0)

// What a host's link carries: from the host before, or above, to those behind, or below.
LinkedBlock between_hosts(const std::byte* src, std::byte* dst, size_t nbytes, int hosts, int root, int mine,
                          bool is_chain) {
  LinkedBlock block = {src, dst, nbytes, -1, {}};
  if (!is_chain) {
    block.from = tree_parent(hosts, root, mine);
    for (int k = 0; tree_child(hosts, root, mine, k) >= 0; ++k) block.to.push_back(tree_child(hosts, root, mine, k));
    return block;
  }
  if (mine != root) block.from = (mine + hosts - 1) % hosts;
  if ((mine + 1) % hosts != root) block.to.push_back((mine + 1) % hosts);
  return block;
}

// --- allgather

// The places of hosts and ranks that an allgather's blocks come from and go to.
class Blocks {
 public:
  Blocks(const Hosts& hosts, const ExchangeJob& job) : hosts_(hosts), job_(job) {}

  const ExchangeJob::Incoming& of(int rank) const { return job_.incoming[static_cast<size_t>(rank)]; }
  const ExchangeJob::Incoming& of(int host, int place) const {
    return of(hosts_.members[static_cast<size_t>(host)][static_cast<size_t>(place)]);
  }
  size_t nbytes() const {
    size_t all = 0;
    for (const ExchangeJob::Incoming& block : job_.incoming) all += block.nbytes;
    return all;
  }

 private:
  const Hosts& hosts_;
  const ExchangeJob& job_;
};

// The blocks of this host's own ranks.
void share_own(Schedule& schedule, const Team& team, const Hosts& hosts, WithinHost& here, const ExchangeJob& job) {
  const ExchangeJob::Incoming& mine = job.incoming[static_cast<size_t>(team.rank())];
  if (here.size() == 1) {
    schedule.copy(job.outgoing[0].src, mine.dst, mine.nbytes, {});
    return;
  }
  std::vector<WithinHost::Block> blocks;
  for (const int rank : hosts.here()) {
    const ExchangeJob::Incoming& block = job.incoming[static_cast<size_t>(rank)];
    blocks.push_back({block.dst, block.nbytes});
  }
  schedule.on_host(here.allgather(job.outgoing[0].src, blocks), {});
}

// Long blocks, where all hosts have as many ranks: those of one place on its host go round a ring of hosts, so that
// only one flow enters a host for each of its ranks.
void ring_allgather(Schedule& schedule, const Team& team, const Hosts& hosts, WithinHost& here,
                    const ExchangeJob& job) {
  const Blocks blocks(hosts, job);
  const int n = hosts.count();
  const int next = (hosts.mine + 1) % n;
  const int last = (hosts.mine + n - 1) % n;
  const Team places = same_place(team, hosts, here.me());
  share_own(schedule, team, hosts, here, job);
  forward(schedule, places, {job.outgoing[0].src, nullptr, blocks.of(team.rank()).nbytes, -1, {next}});
  for (int distance = 1; distance < n; ++distance) {
    const int host = (hosts.mine + n - distance) % n;
    const ExchangeJob::Incoming& block = blocks.of(host, here.me());
    LinkedBlock linked = {block.dst, block.dst, block.nbytes, last, {}};
    if (host != next) linked.to.push_back(next);
    size_t largest = 0;  // the ranks of this host cut alike; what the links carry does not depend on it
    for (int place = 0; place < here.size(); ++place) largest = std::max(largest, blocks.of(host, place).nbytes);
    const size_t pieces = messages_of(largest);
    for (size_t k = 0; k < pieces; ++k) linked.ends.push_back(piece_of(block.nbytes, pieces, k).end);
    const Ids there = forward(schedule, places, linked);
    for (size_t k = 0; k < pieces && here.size() > 1; ++k) {
      std::vector<WithinHost::Block> shared;
      for (int place = 0; place < here.size(); ++place) {
        const ExchangeJob::Incoming& whole = blocks.of(host, place);
        const Range piece = piece_of(whole.nbytes, pieces, k);
        shared.push_back({whole.dst + piece.begin, piece.count()});
      }
      const std::byte* const mine = shared[static_cast<size_t>(here.me())].dst;
      schedule.on_host(here.allgather(mine, shared), there[k]);
    }
  }
}

// Each block goes to one rank of every other host: to the one of its own rank's place, counted round. Long ones, where
// hosts have unequal numbers of ranks, are shared host by host, so that not all wait for the last.
void straight_allgather(Schedule& schedule, const Team& team, const Hosts& hosts, WithinHost& here,
                        const ExchangeJob& job) {
  const Blocks blocks(hosts, job);
  share_own(schedule, team, hosts, here, job);
  LinkedBlock own = {job.outgoing[0].src, nullptr, blocks.of(team.rank()).nbytes, -1, {}};
  for (int host = 0; host < hosts.count(); ++host) {
    const std::vector<int>& theirs = hosts.members[static_cast<size_t>(host)];
    if (host != hosts.mine) own.to.push_back(theirs[static_cast<size_t>(here.me()) % theirs.size()]);
  }
  forward(schedule, team, own);
  const bool host_by_host = blocks.nbytes() >= kRingNbytes;
  ExchangeJob share;
  Ids there;
  std::vector<int> taken(static_cast<size_t>(here.size()), 0);  // blocks, by place
  const auto share_taken = [&] {
    for (int& number : taken) share.sources.push_back(std::exchange(number, 0) != 0);
    if (here.size() > 1) schedule.on_host(here.exchange(std::exchange(share, {})), std::exchange(there, {}));
  };
  for (int host = 0; host < hosts.count(); ++host) {
    if (host == hosts.mine) continue;
    const std::vector<int>& theirs = hosts.members[static_cast<size_t>(host)];
    for (size_t i = 0; i < theirs.size(); ++i) {
      const ExchangeJob::Incoming& block = blocks.of(theirs[i]);
      const int place = static_cast<int>(i) % here.size();
      const int number = taken[static_cast<size_t>(place)]++;
      share.blocks = std::max(share.blocks, number + 1);
      share.largest_nbytes = std::max(share.largest_nbytes, block.nbytes);
      if (place != here.me()) {
        share.incoming.push_back({place, number, block.dst, block.nbytes, 0});
        continue;
      }
      share.outgoing.push_back({block.dst, block.nbytes});
      there.push_back(forward(schedule, team, {nullptr, block.dst, block.nbytes, theirs[i], {}}).front());
    }
    if (host_by_host) share_taken();
  }
  if (!host_by_host) share_taken();
}

}  // namespace

void two_level_broadcast(Schedule& schedule, const Team& team, const Hosts& hosts, size_t& rounds, int root,
                         const std::byte* src, std::byte* dst, size_t nbytes) {
  WithinHost here(team, hosts, rounds);
  const auto [root_host, place] = place_of(hosts, team.members[static_cast<size_t>(root)]);
  std::vector<int> leads;  // who has the host's link: the root, and on other hosts the rank of its place, counted round
  for (const std::vector<int>& ranks : hosts.members) leads.push_back(ranks[place % ranks.size()]);
  const int lead = static_cast<int>(place % hosts.here().size());
  const std::byte* const from = hosts.mine == root_host ? src : dst;
  const bool leads_here = here.me() == lead;
  const size_t between = static_cast<size_t>(std::max(1, hosts.count() - 2));
  const bool is_chain = nbytes >= between * kChainNbytes;
  const size_t unit =
      std::min(message_nbytes(nbytes), is_chain ? std::max(kLeastPartNbytes, nbytes / kChainParts) : SIZE_MAX);
  const size_t pieces = std::max<size_t>(1, divide_up(nbytes, unit));
  Ids there(pieces, Schedule::kNone);
  if (leads_here) {
    LinkedBlock block = between_hosts(from, dst, nbytes, hosts.count(), root_host, hosts.mine, is_chain);
    for (size_t k = 0; k < pieces; ++k) block.ends.push_back(piece_of(nbytes, pieces, k).end);
    there = forward(schedule, team.narrowed(leads), block);
  }
  Schedule::Id shared = Schedule::kNone;
  for (size_t k = 0; k < pieces && here.size() > 1; ++k) {
    const Range range = piece_of(nbytes, pieces, k);
    ExchangeJob share;
    share.sources.assign(static_cast<size_t>(here.size()), false);
    share.sources[static_cast<size_t>(lead)] = true;
    share.largest_nbytes = range.count();
    if (leads_here) {
      share.outgoing.push_back({from + range.begin, range.count()});
    } else {
      share.incoming.push_back({lead, 0, dst + range.begin, range.count(), 0});
    }
    shared = schedule.on_host(here.exchange(std::move(share)), there[k]);
  }
  if (src != nullptr) schedule.copy(src, dst, nbytes, shared);  // the others do not wait for it
}

void two_level_allgather(Schedule& schedule, const Team& team, const Hosts& hosts, size_t& rounds,
                         const ExchangeJob& job) {
  WithinHost here(team, hosts, rounds);
  const bool rings = are_even(hosts) && takes_ring(Blocks(hosts, job).nbytes(), hosts);
  rings ? ring_allgather(schedule, team, hosts, here, job) : straight_allgather(schedule, team, hosts, here, job);
}

}  // namespace rr
