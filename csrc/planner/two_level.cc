#include "planner/two_level.h"

#include <algorithm>

namespace rr {
namespace {

// What an owner of a piece has of it; between the two, what makes so many pieces of a tensor: the ends of a pipeline
// are idle (4 hosts of 2 ranks, 1 Gbit/s, 16 MiB: 222 ms in 8 pieces, 215 in 32).
constexpr size_t kLeastMessageNbytes = 32 << 10;
constexpr size_t kMostMessageNbytes = 256 << 10;
constexpr size_t kMessages = 32;

}  // namespace

HostPipeline::HostPipeline(Schedule& schedule, size_t pieces, size_t under_way, const Make& reduce, const Make& share)
    : schedule_(schedule), reduced_(pieces, Schedule::kNone), shared_(pieces, Schedule::kNone) {
  for (size_t turn = 0; turn < 2 * pieces; ++turn) {
    const auto [k, is_share] = pipeline_turn(pieces, under_way, turn);
    std::unique_ptr<Algorithm> part = is_share ? share(k) : reduce(k);
    if (part != nullptr) (is_share ? shared_ : reduced_)[k] = schedule.on_host(std::move(part), {});
  }
}

void HostPipeline::share_after(const Ids& there) {
  for (size_t k = 0; k < shared_.size(); ++k) {
    if (shared_[k] != Schedule::kNone) schedule_.wait_for(shared_[k], there[k]);
  }
}

bool takes_ring(size_t nbytes, const Hosts& hosts) {
  size_t ranks = 0;
  for (const auto& members : hosts.members) ranks += members.size();
  return nbytes >= std::max(kRingNbytes, ranks * kLeastMessageNbytes);
}

bool are_even(const Hosts& hosts) {
  const auto is_even = [&](const auto& members) { return members.size() == hosts.here().size(); };
  return std::all_of(hosts.members.begin(), hosts.members.end(), is_even);
}

bool are_flat(const Hosts& hosts) { return are_even(hosts) && hosts.here().size() == 1; }

size_t least_ranks(const Hosts& hosts) {
  size_t least = hosts.here().size();
  for (const auto& members : hosts.members) least = std::min(least, members.size());
  return least;
}

HostPlace place_of(const Hosts& hosts, int rank) {
  for (size_t host = 0; host < hosts.members.size(); ++host) {
    const std::vector<int>& ranks = hosts.members[host];
    const auto at = std::find(ranks.begin(), ranks.end(), rank);
    if (at != ranks.end()) return {static_cast<int>(host), static_cast<size_t>(at - ranks.begin())};
  }
  return {};
}

std::vector<Range> slices_of(size_t count, size_t slices, size_t ranks, size_t align) {
  std::vector<Range> all(ranks, {count, count});
  for (size_t s = 0; s < slices; ++s) all[s] = segment(count, static_cast<int>(slices), static_cast<int>(s), align);
  return all;
}

HostSum host_sum(const Hosts& hosts, const Reduction& reduction) {
  if (are_flat(hosts)) return HostSum::kSameType;
  if (reduction.dtype == DType::kFloat16) {
    const bool selects = reduction.op == ReduceOp::kMin || reduction.op == ReduceOp::kMax;
    return selects && reduction.prescale == 1.0 ? HostSum::kSameType : HostSum::kFloat;
  }
  return reduction.dtype == DType::kBFloat16 || foldable_in_place(reduction) ? HostSum::kSameType : HostSum::kNone;
}

// The elements of a block may be too far apart where they are products.
Codec float_codec(const Reduction& reduction) {
  const bool adds = reduction.op == ReduceOp::kSum || reduction.op == ReduceOp::kAverage;
  return adds ? Codec::kScaledFp16 : Codec::kNone;
}

size_t message_nbytes(size_t nbytes, size_t shrink) {
  return std::clamp(nbytes / kMessages, kLeastMessageNbytes * shrink, kMostMessageNbytes * shrink);
}

size_t messages_of(size_t nbytes) { return std::max<size_t>(1, divide_up(nbytes, message_nbytes(nbytes))); }

std::unique_ptr<Algorithm> WithinHost::reduce_scatter(std::vector<Piece> pieces, std::vector<Range> owned,
                                                      std::byte* dst, const Reduction& reduction, HostSum sum) {
  ReduceJob job;
  job.is_to_float = sum == HostSum::kFloat;
  job.shape = ReduceShape::kReduceScatter;
  job.reduction = bare(reduction);
  job.reduction.prescale = reduction.prescale;
  job.element_count = total_count(pieces);
  job.pieces = std::move(pieces);
  for (Piece& piece : job.pieces) piece.dst = dst;
  job.owned = std::move(owned);
  Team team = team_;
  team.first_round += rounds_;
  rounds_ += rounds_of(job, team.stage);
  return two_shot(std::move(team), std::move(job));
}

std::unique_ptr<Algorithm> WithinHost::exchange(ExchangeJob job) {
  Team team = team_;
  team.first_round += rounds_;
  rounds_ += rounds_of(job, team.stage);
  return rr::exchange(std::move(team), std::move(job));
}

std::unique_ptr<Algorithm> WithinHost::allgather(const std::byte* mine, const std::vector<Block>& blocks) {
  ExchangeJob job;
  job.outgoing.push_back({mine, blocks[static_cast<size_t>(me())].nbytes});
  for (int place = 0; place < size(); ++place) {
    const Block& block = blocks[static_cast<size_t>(place)];
    job.sources.push_back(block.nbytes != 0);
    job.largest_nbytes = std::max(job.largest_nbytes, block.nbytes);
    job.incoming.push_back({place, 0, block.dst, block.nbytes, 0});
  }
  return exchange(std::move(job));
}

std::unique_ptr<Algorithm> WithinHost::gather(const std::byte* mine, const std::vector<size_t>& nbytes, size_t root,
                                              std::byte* dst) {
  ExchangeJob job;
  job.outgoing.push_back({mine, nbytes[static_cast<size_t>(me())]});
  job.takers.assign(nbytes.size(), false);
  job.takers[root] = true;
  for (size_t place = 0; place < nbytes.size(); ++place) {
    job.sources.push_back(nbytes[place] != 0 && place != root);
    job.largest_nbytes = std::max(job.largest_nbytes, nbytes[place]);
    if (static_cast<size_t>(me()) == root) job.incoming.push_back({static_cast<int>(place), 0, dst, nbytes[place], 0});
    if (dst != nullptr) dst += nbytes[place];
  }
  return exchange(std::move(job));
}

Team same_place(const Team& team, const Hosts& hosts, int place) {
  std::vector<int> ranks;
  for (const auto& members : hosts.members) ranks.push_back(members[static_cast<size_t>(place)]);
  return team.narrowed(ranks);
}

}  // namespace rr
