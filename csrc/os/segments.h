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
  // In a forked child: own() becomes plain memory of this process, see Mapping::make_private().
  void make_private(int copy) const { mapping_.make_private(static_cast<size_t>(region_) * nbytes_, nbytes_, copy); }
  void forbid() const { mapping_.forbid(); }

 private:
  Mapping mapping_;
  uint64_t uid_;
  int region_;
  int regions_;
  size_t nbytes_;
};

// The live segments of a process. Thread-safe; add(), remove() and what belongs to fork() need the GIL besides.
//
// A forked child gets a copy of the memory, as of all other memory: the mapping is shared, so the pages themselves
// would be its parent's. before_fork() writes the copy into a memory file, which the child then maps privately.
// Children that are forked one after the other (workers of a DataLoader) map one file, for as long as the content is
// the same; the next operation on the memory lets go of it.
class SegmentRegistry {
 public:
  void add(const Segment* segment);
  void remove(const Segment* segment);
  MemoryRef find(const void* data, size_t nbytes) const;
  // The address here of what a rank named, or null when this process does not map it.
  std::byte* address(const MemoryRef& ref) const;
  // In the parent. Throws where there is no memory for the copies: a child can then only read what it inherits.
  void before_fork();
  void after_fork_in_parent();
  // In the child: the segments become private memory, and are no longer known here. Throws where that fails; what is
  // not private then is inaccessible.
  void after_fork_in_child();

 private:
  struct Entry {
    const Segment* segment;
    std::shared_ptr<const Fd> copy;  // null: none
  };

  mutable std::mutex mutex_;
  mutable std::vector<Entry> entries_;
  bool is_forking_ = false;  // other threads' operations leave the copies alone
};

}  // namespace rr
