#include "os/segments.h"

#include <algorithm>
#include <functional>

namespace rr {

Segment::Segment(int fd, uint64_t uid, int region, int regions, size_t nbytes)
    : mapping_(fd, OnFork::kInherit), uid_(uid), region_(region), regions_(regions), nbytes_(nbytes) {
  if (uid == 0 || region < 0 || region >= regions || static_cast<size_t>(regions) * nbytes > mapping_.nbytes()) {
    throw InvalidArgumentError("registered memory: " + std::to_string(regions) + " regions of " +
                               std::to_string(nbytes) + " bytes do not fit a file of " +
                               std::to_string(mapping_.nbytes()));
  }
  mapping_.populate(static_cast<size_t>(region) * nbytes, nbytes);
}

void SegmentRegistry::add(const Segment* segment) {
  const std::lock_guard lock(mutex_);
  segments_.push_back(segment);
}

void SegmentRegistry::remove(const Segment* segment) {
  const std::lock_guard lock(mutex_);
  segments_.erase(std::remove(segments_.begin(), segments_.end(), segment), segments_.end());
}

MemoryRef SegmentRegistry::find(const void* data, size_t nbytes) const {
  const auto* at = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  for (const Segment* segment : segments_) {
    // Pointers into different mappings have no order but std::less's.
    const std::less_equal<const std::byte*> not_above;
    if (not_above(segment->own(), at) && not_above(at + nbytes, segment->own() + segment->nbytes())) {
      return {segment->uid(), static_cast<uint32_t>(segment->region()), 0, static_cast<uint64_t>(at - segment->own())};
    }
  }
  return {};
}

std::byte* SegmentRegistry::address(const MemoryRef& ref) const {
  const std::lock_guard lock(mutex_);
  for (const Segment* segment : segments_) {
    if (segment->uid() == ref.uid && ref.region < static_cast<uint32_t>(segment->regions())) {
      return segment->at(static_cast<int>(ref.region)) + ref.offset;
    }
  }
  return nullptr;
}

}  // namespace rr
