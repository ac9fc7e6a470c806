#include "planner/two_level_reduce_scatter.h"

#include <algorithm>

#include "collective/linked.h"

namespace rr {

bool scatters_on_two_levels(const Hosts& hosts, const Reduction& reduction) {
  return host_sum(hosts, reduction) != HostSum::kNone;
}

void two_level_reduce_scatter(Schedule& schedule, const Team& team, const Hosts& hosts, size_t& rounds,
                              const Piece& tensor, const std::vector<Range>& kept, const Reduction& reduction) {
  const HostSum sum = host_sum(hosts, reduction);
  const bool is_float = sum == HostSum::kFloat;
  const bool rings = foldable_in_place(reduction) && takes_ring(tensor.count * itemsize(reduction.dtype), hosts);
  const size_t item = itemsize(reduction.dtype);
  const size_t sum_item = is_float ? sizeof(float) : item;
  const Codec codec = is_float ? float_codec(reduction) : Codec::kNone;
  const size_t align = alignment(codec, sum_item);
  WithinHost here(team, hosts, rounds);
  const size_t me = static_cast<size_t>(here.me());
  const size_t slices = least_ranks(hosts);
  size_t most = 0;
  for (const Range& range : kept) most = std::max(most, range.count());
  const size_t pieces = messages_of(codec == Codec::kNone ? most * sum_item : codec_nbytes(codec, most));
  const auto part = [&](int rank, size_t k) {
    const Range& range = kept[static_cast<size_t>(rank)];
    const Range cut = segment(range.count(), static_cast<int>(pieces), static_cast<int>(k), align);
    return Range{range.begin + cut.begin, range.begin + cut.end};
  };
  // Whose parts the rank of a place adds up between hosts: those of the ranks of a host with its place, counted round.
  const auto for_each_of = [&](size_t place, size_t host, const auto& body) {
    const std::vector<int>& ranks = hosts.members[host];
    for (size_t at = place; place < slices && at < ranks.size(); at += slices) body(ranks[at]);
  };
  size_t count = 0;
  for (size_t host = 0; host < hosts.members.size(); ++host) {
    for_each_of(me, host, [&](int rank) { count += kept[static_cast<size_t>(rank)].count(); });
  }
  std::byte* sums = schedule.memory(count * sum_item);
  // What comes of them between hosts; in place, if they are of the same type.
  std::byte* reduced = is_float ? schedule.memory(count * item) : sums;

  // One rank a host sums nothing here: its part is put together, and scaled with the sum.
  Reduction within = bare(reduction);
  LinkedReduction between;
  between.reduction = reduction;
  if (!are_flat(hosts)) std::swap(within.prescale, between.reduction.prescale);
  if (is_float) between.reduction.dtype = DType::kFloat32;
  between.codec = codec;
  if (is_float) between.result = Codec::kFp16;
  const auto reduce = [&](size_t k) {
    std::vector<Piece> inputs;
    std::vector<Range> owned;
    std::vector<Range> by_host;  // of what this rank owns
    size_t end = 0;
    for (size_t place = 0; place < hosts.here().size(); ++place) {
      const size_t begin = end;
      for (size_t host = 0; host < hosts.members.size(); ++host) {
        const size_t begin_of_host = end;
        for_each_of(place, host, [&](int rank) {
          const Range range = part(rank, k);
          inputs.push_back({tensor.src + range.begin * item, nullptr, range.count()});
          end += range.count();
        });
        if (place == me) by_host.push_back({begin_of_host - begin, end - begin});
      }
      owned.push_back({begin, end});
    }
    const size_t sum_count = owned[me].count();
    std::byte* const into = sums;
    between.pieces.push_back({sums, reduced, sum_count});
    between.kept.push_back(std::move(by_host));
    sums += sum_count * sum_item;
    reduced += sum_count * item;
    return here.reduce_scatter(std::move(inputs), std::move(owned), into, within, sum);
  };
  // What this rank has of a piece for its host's ranks, the first of which it is itself.
  const int own_rank = team.rank();
  const size_t mine = static_cast<size_t>(hosts.mine);
  const auto result_at = [&](size_t k) { return between.pieces[k].dst + between.kept[k][mine].begin * item; };
  const auto dst_of = [&](size_t k) {
    return tensor.dst + (part(own_rank, k).begin - kept[static_cast<size_t>(own_rank)].begin) * item;
  };
  const auto share = [&](size_t k) -> std::unique_ptr<Algorithm> {
    const std::vector<int>& ranks = hosts.here();
    if (ranks.size() <= slices) return nullptr;
    ExchangeJob job;
    job.blocks = static_cast<int>(divide_up(ranks.size(), slices)) - 1;
    for (size_t at = 0; at < ranks.size(); ++at) job.sources.push_back(at + slices < ranks.size() && at < slices);
    const std::byte* at_block = me < slices ? result_at(k) : nullptr;
    for (size_t at = me % slices; at < ranks.size(); at += slices) {
      const size_t nbytes = part(ranks[at], k).count() * item;
      if (at >= slices && me < slices) job.outgoing.push_back({at_block, nbytes});
      if (at >= slices && at == me) {
        job.incoming.push_back(
            {static_cast<int>(me % slices), static_cast<int>(me / slices) - 1, dst_of(k), nbytes, 0});
      }
      if (at_block != nullptr) at_block += nbytes;
    }
    for (size_t at = slices; at < ranks.size(); ++at) {
      job.largest_nbytes = std::max(job.largest_nbytes, part(ranks[at], k).count() * item);
    }
    return here.exchange(std::move(job));
  };
  HostPipeline pipeline(schedule, pieces, pieces, reduce, share);  // all is read first: dst may lie within src
  if (me >= slices) return pipeline.share_after(Ids(pieces, Schedule::kNone));
  between.ready = pipeline.reduced();
  const Team leads = same_place(team, hosts, here.me());
  const Ids there = rings ? ring(schedule, leads, between) : pairwise(schedule, leads, between);
  for (size_t k = 0; k < pieces; ++k) {
    schedule.copy(result_at(k), dst_of(k), part(own_rank, k).count() * item, {there[k], between.ready.back()});
  }
  pipeline.share_after(there);
}

}  // namespace rr
