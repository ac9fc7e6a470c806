#include "planner/two_level_reduce.h"

#include <algorithm>

namespace rr {

bool reduces_along_chain(const Hosts& hosts, const Reduction& reduction, size_t nbytes) {
  return foldable_in_place(reduction) && takes_ring(nbytes, hosts);
}

void two_level_reduce(Schedule& schedule, const Team& team, const Hosts& hosts, size_t& rounds, int root,
                      const Piece& tensor, const Reduction& reduction) {
  WithinHost here(team, hosts, rounds);
  const size_t item = itemsize(reduction.dtype);
  const size_t align = alignment(Codec::kNone, item);
  const HostPlace at_root = place_of(hosts, root);
  const bool is_root_here = at_root.host == hosts.mine;
  const bool is_flat = are_flat(hosts);
  const size_t slices = least_ranks(hosts);
  const size_t me = static_cast<size_t>(here.me());
  const size_t slice_nbytes = tensor.count * item / slices;
  const std::vector<Range> pieces = cut(tensor.count, item, slices * message_nbytes(slice_nbytes), align);
  std::vector<std::vector<Range>> owned(pieces.size());  // by piece and place: what it adds to what comes by its link
  size_t sum_count = 0;
  for (size_t k = 0; k < pieces.size(); ++k) {
    owned[k] = slices_of(pieces[k].count(), slices, hosts.here().size(), align);
    sum_count += owned[k][me].count();
  }
  std::byte* sums = is_flat && is_root_here ? tensor.dst : schedule.memory(sum_count * item);
  LinkedReduction between;
  between.reduction = reduction;
  if (!is_flat) between.reduction.prescale = 1.0;
  for (size_t k = 0; k < pieces.size(); ++k) {
    const size_t count = owned[k][me].count();
    between.pieces.push_back({is_flat ? tensor.src + pieces[k].begin * item : sums, sums, count});
    between.kept.emplace_back(hosts.members.size());
    between.kept.back()[static_cast<size_t>(at_root.host)] = {0, count};
    sums += count * item;
  }
  HostPipeline pipeline(
      schedule, pieces.size(), pieces_under_way(true, hosts.count()) + 2,
      [&](size_t k) -> std::unique_ptr<Algorithm> {
        if (is_flat) return nullptr;
        return here.reduce_scatter({{tensor.src + pieces[k].begin * item, nullptr, pieces[k].count()}}, owned[k],
                                   between.pieces[k].dst, reduction, HostSum::kSameType);
      },
      [&](size_t k) -> std::unique_ptr<Algorithm> {
        if (is_flat || !is_root_here) return nullptr;
        std::vector<size_t> nbytes;
        for (const Range& slice : owned[k]) nbytes.push_back(slice.count() * item);
        return here.gather(between.pieces[k].dst, nbytes, at_root.place, tensor.dst + pieces[k].begin * item);
      });
  between.ready = pipeline.reduced();
  if (me >= slices) return pipeline.share_after(Ids(pieces.size(), Schedule::kNone));
  pipeline.share_after(ring(schedule, same_place(team, hosts, here.me()), between));
}

}  // namespace rr
