#include "collective/schedule/schedule.h"

#include <algorithm>

namespace rr {

Schedule::Id Schedule::add(Item item, const After& after) {
  const bool does_nothing = item.count == 0 && item.kind != Kind::kOnHost && item.kind != Kind::kJoint;
  if (does_nothing) return joint(after);
  const Id id = static_cast<Id>(items_.size());
  items_.push_back(item);
  wait_for(id, after);
  return id;
}

void Schedule::wait_for(Id item, const After& after) {
  for (const Id earlier : after) {
    if (earlier != kNone) edges_.emplace_back(earlier, item);
  }
}

uint32_t Schedule::index_of(const Reduction& reduction) {
  const auto is_same = [&](const Reduction& other) {
    return other.dtype == reduction.dtype && other.op == reduction.op && other.prescale == reduction.prescale &&
           other.postscale == reduction.postscale && other.divisor == reduction.divisor;
  };
  const auto found = std::find_if(reductions_.begin(), reductions_.end(), is_same);
  const auto index = static_cast<uint32_t>(found - reductions_.begin());
  if (found == reductions_.end()) reductions_.push_back(reduction);
  return index;
}

Schedule::Id Schedule::send(int rank, const std::byte* src, size_t nbytes, const After& after) {
  return add({Kind::kSend, Codec::kNone, 0, rank, src, nullptr, nbytes}, after);
}

Schedule::Id Schedule::receive(int rank, std::byte* dst, size_t nbytes, const After& after) {
  return add({Kind::kReceive, Codec::kNone, 0, rank, nullptr, dst, nbytes}, after);
}

Schedule::Id Schedule::fold(int rank, std::byte* dst, size_t nbytes, const Reduction& reduction, const After& after) {
  return add({Kind::kFold, Codec::kNone, index_of(reduction), rank, nullptr, dst, nbytes}, after);
}

Schedule::Id Schedule::reduce(const std::vector<const std::byte*>& srcs, std::byte* dst, size_t count,
                              const Reduction& reduction, const After& after) {
  const size_t first = operands_.size();
  operands_.insert(operands_.end(), srcs.begin(), srcs.end());
  return add({Kind::kReduce, Codec::kNone, index_of(reduction), -1, nullptr, dst, count, first, srcs.size()}, after);
}

Schedule::Id Schedule::copy(const std::byte* src, std::byte* dst, size_t nbytes, const After& after) {
  return add({Kind::kCopy, Codec::kNone, 0, -1, src, dst, src == dst ? 0 : nbytes}, after);
}

Schedule::Id Schedule::encode(Codec codec, const std::byte* src, std::byte* dst, size_t count, const After& after) {
  return add({Kind::kEncode, codec, 0, -1, src, dst, count}, after);
}

Schedule::Id Schedule::decode(Codec codec, const std::byte* src, std::byte* dst, size_t count, const After& after) {
  return add({Kind::kDecode, codec, 0, -1, src, dst, count}, after);
}

Schedule::Id Schedule::round_trip(Codec codec, std::byte* data, size_t count, const After& after) {
  return add({Kind::kRoundTrip, codec, 0, -1, data, data, count}, after);
}

Schedule::Id Schedule::on_host(std::unique_ptr<Algorithm> algorithm, const After& after) {
  algorithms_.push_back(std::move(algorithm));
  return add({Kind::kOnHost, Codec::kNone, 0, -1, nullptr, nullptr, 0, algorithms_.size() - 1}, after);
}

Schedule::Id Schedule::joint(const After& after) {
  Id only = kNone;
  for (const Id id : after) {
    if (id == kNone || id == only) continue;
    if (only != kNone) return add({}, after);
    only = id;
  }
  return only;
}

std::byte* Schedule::memory(size_t nbytes) {
  memory_.push_back(take_scratch(nbytes));
  return memory_.back().get();
}

}  // namespace rr
