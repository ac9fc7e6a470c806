#include "planner/two_level_reduce_scatter.h"

#include <algorithm>

#include "collective/linked.h"

namespace rr {

bool scatters_on_two_levels(const Hosts& hosts, const Reduction& reduction) {
  return are_even(hosts) && host_sum(hosts, reduction) != HostSum::kNone;
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
  size_t most = 0;
  for (const Range& range : kept) most = std::max(most, range.count());
  const size_t pieces = messages_of(codec == Codec::kNone ? most * sum_item : codec_nbytes(codec, most));
  const auto part = [&](size_t host, int place, size_t k) {
    const Range& range = kept[static_cast<size_t>(hosts.members[host][static_cast<size_t>(place)])];
    const Range cut = segment(range.count(), static_cast<int>(pieces), static_cast<int>(k), align);
    return Range{range.begin + cut.begin, range.begin + cut.end};
  };
  size_t count = 0;  // of this rank between hosts
  for (const auto& members : hosts.members) {
    count += kept[static_cast<size_t>(members[static_cast<size_t>(here.me())])].count();
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
  for (size_t k = 0; k < pieces; ++k) {
    std::vector<Piece> inputs;
    std::vector<Range> owned;
    size_t end = 0;
    for (int place = 0; place < here.size(); ++place) {
      owned.push_back({end, end});
      if (place == here.me()) between.kept.emplace_back();
      for (size_t host = 0; host < hosts.members.size(); ++host) {
        const Range range = part(host, place, k);
        inputs.push_back({tensor.src + range.begin * item, nullptr, range.count()});
        end += range.count();
        if (place == here.me())
          between.kept.back().push_back({end - range.count() - owned.back().begin, end - owned.back().begin});
      }
      owned.back().end = end;
    }
    const size_t sum_count = owned[static_cast<size_t>(here.me())].count();
    between.ready.push_back(
        schedule.on_host(here.reduce_scatter(std::move(inputs), std::move(owned), sums, within, sum), {}));
    between.pieces.push_back({sums, reduced, sum_count});
    sums += sum_count * sum_item;
    reduced += sum_count * item;
  }
  const Team leads = same_place(team, hosts, here.me());
  const Ids there = rings ? ring(schedule, leads, between) : pairwise(schedule, leads, between);
  const Range& mine = kept[static_cast<size_t>(team.rank())];
  for (size_t k = 0; k < pieces; ++k) {
    const Range own = part(static_cast<size_t>(hosts.mine), here.me(), k);
    const Range& in_sums = between.kept[k][static_cast<size_t>(hosts.mine)];
    schedule.copy(between.pieces[k].dst + in_sums.begin * item, tensor.dst + (own.begin - mine.begin) * item,
                  own.count() * item, {there[k], between.ready.back()});  // dst may lie within src
  }
}

}  // namespace rr
