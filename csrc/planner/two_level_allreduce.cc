#include "planner/two_level_allreduce.h"

#include <algorithm>
#include <cstring>

#include "collective/linked.h"

namespace rr {

// Every rank sends all it has to everybody, who fold in rank order. Moves (N-1) S bytes a rank.
std::unique_ptr<Algorithm> TwoLevelAllreduce::gathered(const Piece& tensor, const Reduction& reduction) {
  const size_t nbytes = tensor.count * itemsize(reduction.dtype);
  Memory memory;
  ExchangeJob job;
  job.outgoing.push_back({tensor.src, nbytes});
  std::vector<const std::byte*> srcs;
  for (int member = 0; member < team_.size(); ++member) {
    if (member == team_.me) {
      srcs.push_back(tensor.src);
      continue;
    }
    std::byte* const theirs = allocate(memory, nbytes);
    job.incoming.push_back({member, 0, theirs, nbytes, 0});
    srcs.push_back(theirs);
  }
  Parts parts;
  parts.push_back(mesh(team_, job));
  parts.push_back(local(*team_.kernels, {{{std::move(srcs), tensor.dst, tensor.count, true}}, reduction}));
  return sequence(std::move(parts), std::move(memory));
}

std::unique_ptr<Algorithm> TwoLevelAllreduce::gather_here(std::byte* elements, const std::vector<Range>& owned,
                                                          size_t item) {
  std::vector<WithinHost::Block> blocks;
  for (const Range& range : owned) blocks.push_back({elements + range.begin * item, range.count() * item});
  return here_.allgather(blocks[static_cast<size_t>(here_.me())].dst, blocks);
}

std::unique_ptr<Algorithm> TwoLevelAllreduce::two_levels(const Piece& tensor, const Reduction& reduction, Codec codec,
                                                         Way way, HostSum sum) {
  const bool is_float = sum == HostSum::kFloat;
  const size_t item = itemsize(reduction.dtype);
  const size_t align = is_float ? kCodecBlock : alignment(codec, item);
  const size_t messages = slices_ * hosts_.members.size();
  // A message has as many bytes on the link, whatever the codec.
  const size_t shrink = codec == Codec::kNone ? 1 : kCodecBlock * item / codec_nbytes(codec, kCodecBlock);
  const size_t piece_nbytes = messages * message_nbytes(tensor.count * item / messages, shrink);
  const std::vector<Range> pieces = cut(tensor.count, item, piece_nbytes, align);
  const size_t ranks_here = hosts_.here().size();
  const size_t me = static_cast<size_t>(here_.me());
  // By piece, what each rank of a host reduces between hosts.
  std::vector<std::vector<Range>> owned(pieces.size());
  for (size_t k = 0; k < pieces.size(); ++k) {
    const size_t n = pieces[k].count();
    for (size_t s = 0; s < ranks_here; ++s) {
      owned[k].push_back(s < slices_ ? segment(n, static_cast<int>(slices_), static_cast<int>(s), align) : Range{n, n});
    }
  }
  // Elements are multiplied before a codec narrows them, as on hosts with several ranks: they may be too large for it.
  const bool scales_here = reduction.prescale != 1.0 && (!is_flat_ || codec != Codec::kNone);
  const bool reduces_here = is_float || ranks_here > 1 || scales_here;
  // What has to be reduced here before the first piece can come back, and a little more.
  const size_t lag = pieces_under_way(way == Way::kRing, hosts_.count()) + 2;
  Memory memory;
  // By piece, where what this rank reduces between hosts comes from.
  std::vector<std::byte*> sums;
  size_t sum_count = 0;
  for (const std::vector<Range>& ranges : owned) sum_count += ranges[me].count();
  std::byte* floats = is_float ? allocate(memory, sum_count * sizeof(float)) : nullptr;
  for (size_t k = 0; k < pieces.size(); ++k) {
    sums.push_back(is_float ? floats : tensor.dst + (pieces[k].begin + owned[k][me].begin) * item);
    if (is_float) floats += owned[k][me].count() * sizeof(float);
  }
  std::vector<HostPart> parts;
  for (size_t turn = 0; turn < 2 * pieces.size(); ++turn) {
    const auto [k, is_gather] = pipeline_turn(pieces.size(), lag, turn);
    const size_t begin = pieces[k].begin * item;
    std::byte* const dst = tensor.dst + begin;
    if (is_gather && ranks_here > 1) parts.push_back({k, true, gather_here(dst, owned[k], item)});
    if (!is_gather && reduces_here) {
      parts.push_back(
          {k, false,
           here_.reduce_scatter({{tensor.src + begin, dst, pieces[k].count()}}, owned[k], sums[k], reduction, sum)});
    }
  }
  if (me >= slices_) return hierarchical(std::move(parts), nullptr);
  Reduction between = reduction;
  if (scales_here) between.prescale = 1.0;
  if (is_float) between.dtype = DType::kFloat32;
  std::vector<Piece> mine;
  for (size_t k = 0; k < pieces.size(); ++k) {
    const Range range = owned[k][me];
    const size_t begin = (pieces[k].begin + range.begin) * item;
    mine.push_back({reduces_here ? sums[k] : tensor.src + begin, tensor.dst + begin, range.count()});
  }
  Team leads = same_place(team_, hosts_, here_.me());
  Parts all;
  all.push_back(hierarchical(std::move(parts), way == Way::kRing
                                                   ? ring(std::move(leads), std::move(mine), between, codec)
                                                   : pairwise(std::move(leads), std::move(mine), between,
                                                              is_float ? float_codec(reduction) : codec, {},
                                                              is_float ? Codec::kFp16 : Codec::kNone)));
  return sequence(std::move(all), std::move(memory));
}

std::unique_ptr<Algorithm> TwoLevelAllreduce::allreduce_one(const Piece& tensor, const Reduction& reduction,
                                                            Codec codec, Way way) {
  const HostSum sum = host_sum(hosts_, reduction);
  return sum == HostSum::kNone ? gathered(tensor, reduction) : two_levels(tensor, reduction, codec, way, sum);
}

// Each tensor begins with a block of its own, if there are blocks, so that its bits do not depend on its neighbours.
std::unique_ptr<Algorithm> TwoLevelAllreduce::packed(const std::vector<Piece>& tensors, const Reduction& reduction) {
  if (tensors.size() == 1) return allreduce_one(tensors[0], reduction, Codec::kNone, Way::kPairwise);
  const size_t item = itemsize(reduction.dtype);
  const bool is_float = host_sum(hosts_, reduction) == HostSum::kFloat;
  const bool has_blocks = is_float && float_codec(reduction) != Codec::kNone;
  const auto padded = [&](const Piece& tensor) { return round_up(tensor.count, has_blocks ? kCodecBlock : 1); };
  size_t count = 0;
  for (const Piece& tensor : tensors) count += padded(tensor);
  Memory memory;
  std::byte* const whole = allocate(memory, count * item);
  std::vector<PullJob::Part> in;
  std::vector<PullJob::Part> out;
  std::byte* at = whole;
  for (const Piece& tensor : tensors) {
    in.push_back({{tensor.src}, at, tensor.count * item});
    out.push_back({{at}, tensor.dst, tensor.count * item});
    std::memset(at + tensor.count * item, 0, (padded(tensor) - tensor.count) * item);
    at += padded(tensor) * item;
  }
  Parts parts;
  parts.push_back(copies(team_, std::move(in)));
  parts.push_back(allreduce_one({whole, whole, count}, reduction, Codec::kNone, Way::kPairwise));
  parts.push_back(copies(team_, std::move(out)));
  return sequence(std::move(parts), std::move(memory));
}

// Long tensors, and those that a codec takes by blocks, one by one; the others as one. So neither the way that a tensor
// takes nor its place in it, by which a ring adds up, depends on what shares the bucket: that is a matter of timing.
std::unique_ptr<Algorithm> TwoLevelAllreduce::allreduce(const std::vector<Piece>& tensors, const Reduction& reduction,
                                                        Codec codec) {
  Parts parts;
  std::vector<Piece> small;
  for (const Piece& tensor : tensors) {
    const bool is_long = tensor.count * itemsize(reduction.dtype) >= kRingNbytes;
    const bool rings = is_long && foldable_in_place(reduction) && codec != Codec::kInt8;
    if (is_long || codec != Codec::kNone) {
      parts.push_back(allreduce_one(tensor, reduction, codec, rings ? Way::kRing : Way::kPairwise));
    } else {
      small.push_back(tensor);
    }
  }
  if (!small.empty()) parts.push_back(packed(small, reduction));
  return sequence(std::move(parts));
}

}  // namespace rr
