#include "planner/two_level_allreduce.h"

#include <algorithm>
#include <cstring>

namespace rr {
namespace {

// Of what a rank reduces for each host. Rather than less, fewer ranks of a host take part: messages cost more than
// bytes (4 hosts of 4 ranks on 2 cores, 16 KiB: 0.7 of the time, 32 KiB 0.8).
constexpr size_t kLeastSliceNbytes = 8 << 10;
// A host may send so much to the others in one step, rather than 2(h-1)/h of a tensor in two. It takes 0.4 ms at 1
// Gbit/s, a step 0.1 to 0.2. Of two hosts each sends a tensor once in any case, so one step will do (links of 3 GB/s,
// 64 to 512 KiB: 0.85 to 0.95 of the time).
constexpr size_t kGatheredNbytes = 48 << 10;

// What is reduced as one between hosts.
struct PlannedPiece {
  const std::byte* src;
  std::byte* dst;
  size_t count;
  std::vector<Range> owned;   // by rank of this host: what it reduces between hosts
  std::byte* sums = nullptr;  // where what this one reduces between hosts comes from
};

}  // namespace

std::unique_ptr<Algorithm> TwoLevelAllreduce::gather_here(std::byte* elements, const std::vector<Range>& owned,
                                                          size_t item) {
  std::vector<WithinHost::Block> blocks;
  for (const Range& range : owned) blocks.push_back({elements + range.begin * item, range.count() * item});
  return here_.allgather(blocks[static_cast<size_t>(here_.me())].dst, blocks);
}

Schedule::Id TwoLevelAllreduce::two_levels(const std::vector<Piece>& tensors, const Reduction& reduction, Codec codec,
                                           Way way, HostSum sum, Schedule::Id ready) {
  const bool is_float = sum == HostSum::kFloat;
  const size_t item = itemsize(reduction.dtype);
  const size_t align = is_float ? kCodecBlock : alignment(codec, item);
  const size_t host_count = hosts_.members.size();
  // A message has as many bytes on the link, whatever the codec.
  const size_t shrink = codec == Codec::kNone ? 1 : kCodecBlock * item / codec_nbytes(codec, kCodecBlock);
  const size_t ranks_here = hosts_.here().size();
  const size_t me = static_cast<size_t>(here_.me());
  std::vector<PlannedPiece> pieces;
  size_t sum_count = 0;
  for (const Piece& tensor : tensors) {
    const size_t nbytes = tensor.count * item;
    const size_t slices = std::clamp<size_t>(nbytes / (host_count * kLeastSliceNbytes), 1, slices_);
    const size_t messages = slices * host_count;
    const size_t piece_nbytes = messages * message_nbytes(nbytes / messages, shrink);
    for (const Range& range : cut(tensor.count, item, piece_nbytes, align)) {
      const size_t n = range.count();
      pieces.push_back({tensor.src + range.begin * item, tensor.dst + range.begin * item, n,
                        slices_of(n, slices, ranks_here, align)});
      sum_count += pieces.back().owned[me].count();
    }
  }
  // Elements are multiplied before a codec narrows them, as on hosts with several ranks: they may be too large for it.
  const bool scales_here = reduction.prescale != 1.0 && (!is_flat_ || codec != Codec::kNone);
  const bool reduces_here = is_float || ranks_here > 1 || scales_here;
  std::byte* floats = is_float ? schedule_.memory(sum_count * sizeof(float)) : nullptr;
  for (PlannedPiece& piece : pieces) {
    piece.sums = is_float ? floats : piece.dst + piece.owned[me].begin * item;
    if (is_float) floats += piece.owned[me].count() * sizeof(float);
  }
  // What has to be reduced here before the first piece can come back, and a little more.
  const size_t under_way = pieces_under_way(way == Way::kRing, hosts_.count()) + 2;
  HostPipeline here(
      schedule_, pieces.size(), under_way,
      [&](size_t k) -> std::unique_ptr<Algorithm> {
        const PlannedPiece& piece = pieces[k];
        if (!reduces_here) return nullptr;
        return here_.reduce_scatter({{piece.src, piece.dst, piece.count}}, piece.owned, piece.sums, reduction, sum);
      },
      [&](size_t k) -> std::unique_ptr<Algorithm> {
        return ranks_here > 1 ? gather_here(pieces[k].dst, pieces[k].owned, item) : nullptr;
      });
  for (const Schedule::Id reduced : here.reduced()) {
    if (reduced != Schedule::kNone) schedule_.wait_for(reduced, ready);
  }
  Ids there(pieces.size(), Schedule::kNone);
  if (me < slices_) {
    LinkedReduction between;
    between.reduction = reduction;
    if (scales_here) between.reduction.prescale = 1.0;
    if (is_float) between.reduction.dtype = DType::kFloat32;
    for (const PlannedPiece& piece : pieces) {
      const Range& mine = piece.owned[me];
      between.pieces.push_back(
          {reduces_here ? piece.sums : piece.src + mine.begin * item, piece.dst + mine.begin * item, mine.count()});
    }
    between.ready = reduces_here ? here.reduced() : Ids(pieces.size(), ready);
    between.codec = is_float ? float_codec(reduction) : codec;
    if (is_float) between.result = Codec::kFp16;
    const Team leads = same_place(team_, hosts_, here_.me());
    const size_t nbytes = total_count(tensors) * item;
    const bool is_gathered = (host_count == 2 ? nbytes < kRingNbytes : (host_count - 1) * nbytes <= kGatheredNbytes) &&
                             between.codec == Codec::kNone && !is_float;
    there = way == Way::kRing ? ring(schedule_, leads, between)
            : is_gathered     ? gathered(schedule_, leads, between)
                              : pairwise(schedule_, leads, between);
  }
  here.share_after(there);
  const Ids& shared = here.shared();
  there.insert(there.end(), shared.begin(), shared.end());
  return schedule_.joint(there);
}

Schedule::Id TwoLevelAllreduce::reduce(const std::vector<Piece>& tensors, const Reduction& reduction, Codec codec,
                                       Way way, Schedule::Id ready) {
  const HostSum sum = host_sum(hosts_, reduction);
  if (sum != HostSum::kNone) return two_levels(tensors, reduction, codec, way, sum, ready);
  // Both ways fold all ranks in their order.
  const size_t item = itemsize(reduction.dtype);
  const size_t ranks = static_cast<size_t>(team_.size());
  if ((ranks - 1) * total_count(tensors) * item <= kGatheredNbytes) {
    return schedule_.joint(gathered(schedule_, team_, {tensors, Ids(tensors.size(), ready), reduction}));
  }
  LinkedReduction job;
  job.reduction = reduction;
  for (const Piece& tensor : tensors) {
    const size_t piece_nbytes = ranks * message_nbytes(tensor.count * item / ranks);
    for (const Range& range : cut(tensor.count, item, piece_nbytes, alignment(Codec::kNone, item))) {
      job.pieces.push_back({tensor.src + range.begin * item, tensor.dst + range.begin * item, range.count()});
    }
  }
  job.ready = Ids(job.pieces.size(), ready);
  return schedule_.joint(pairwise(schedule_, team_, job));
}

// Each tensor begins with a block of its own, if there are blocks, so that its bits do not depend on its neighbours.
Schedule::Id TwoLevelAllreduce::packed(const std::vector<Piece>& tensors, const Reduction& reduction) {
  if (tensors.size() == 1) return reduce(tensors, reduction, Codec::kNone, Way::kPairwise);
  const size_t item = itemsize(reduction.dtype);
  const bool is_float = host_sum(hosts_, reduction) == HostSum::kFloat;
  const bool has_blocks = is_float && float_codec(reduction) != Codec::kNone;
  const auto padded = [&](const Piece& tensor) { return round_up(tensor.count, has_blocks ? kCodecBlock : 1); };
  size_t count = 0;
  for (const Piece& tensor : tensors) count += padded(tensor);
  std::byte* const whole = schedule_.memory(count * item);
  Ids in;
  std::byte* at = whole;
  for (const Piece& tensor : tensors) {
    in.push_back(schedule_.copy(tensor.src, at, tensor.count * item, {}));
    std::memset(at + tensor.count * item, 0, (padded(tensor) - tensor.count) * item);
    at += padded(tensor) * item;
  }
  const Schedule::Id there =
      reduce({{whole, whole, count}}, reduction, Codec::kNone, Way::kPairwise, schedule_.joint(in));
  Ids out;
  at = whole;
  for (const Piece& tensor : tensors) {
    out.push_back(schedule_.copy(at, tensor.dst, tensor.count * item, there));
    at += padded(tensor) * item;
  }
  return schedule_.joint(out);
}

// Long tensors, and those that a codec takes by blocks, as they are; the others packed into one. So neither the way
// that a tensor takes nor its place in it, by which a ring adds up, depends on what shares the bucket: that is a matter
// of timing.
Schedule::Id TwoLevelAllreduce::allreduce(const std::vector<Piece>& tensors, const Reduction& reduction, Codec codec) {
  std::vector<Piece> ringing;
  std::vector<Piece> straight;
  std::vector<Piece> small;
  for (const Piece& tensor : tensors) {
    const bool is_long = tensor.count * itemsize(reduction.dtype) >= kRingNbytes;
    const bool rings = is_long && foldable_in_place(reduction) && codec == Codec::kNone;
    (rings ? ringing : is_long || codec != Codec::kNone ? straight : small).push_back(tensor);
  }
  Ids there;
  if (!ringing.empty()) there.push_back(reduce(ringing, reduction, codec, Way::kRing));
  if (!straight.empty()) there.push_back(reduce(straight, reduction, codec, Way::kPairwise));
  if (!small.empty()) there.push_back(packed(small, reduction));
  return schedule_.joint(there);
}

}  // namespace rr
