// Registered (symmetric) memory of this process: memory files of equal regions, one per rank of the allocation, mapped
// whole by every rank. An address inside the own region of one of them can be named to the peers by a MemoryRef.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "os/mapping.h"

namespace rr {

// Where a buffer lies in registered memory; uid 0 = private.
struct MemoryRef {
  uint64_t uid = 0;
  uint32_t region = 0;
  uint32_t unused = 0;
  uint64_t offset = 0;
};

// One allocation. Plain memory for as long as it exists: it needs no group and survives the death of its peers.
class Segment {
 public:
  Segment(int fd, uint64_t uid, int region, int regions, size_t nbytes);
  uint64_t uid() const { return uid_; }
  int region() const { return region_; }
  size_t nbytes() const { return nbytes_; }
  std::byte* own() const { return at(region_); }
  std::byte* at(int region) const { return mapping_.data() + static_cast<size_t>(region) * nbytes_; }
  int regions() const { return regions_; }

 private:
  Mapping mapping_;
  uint64_t uid_;
  int region_;
  int regions_;
  size_t nbytes_;
};

// The live segments of a process. Thread-safe.
class SegmentRegistry {
 public:
  void add(const Segment* segment);
  void remove(const Segment* segment);
  MemoryRef find(const void* data, size_t nbytes) const;
  // The address here of what a rank named, or null when this process does not map it.
  std::byte* address(const MemoryRef& ref) const;

 private:
  mutable std::mutex mutex_;
  std::vector<const Segment*> segments_;
};

}  // namespace rr
