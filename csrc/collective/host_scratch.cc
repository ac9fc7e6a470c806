#include "collective/host_scratch.h"

#include <sys/mman.h>

#include <algorithm>
#include <map>
#include <new>

#include "base/guarded.h"
#include "base/never_destroyed.h"
#include "base/rounding.h"

namespace rr {
namespace {

constexpr size_t kPageNbytes = 4096;
constexpr size_t kHugePageNbytes = size_t{2} << 20;

struct Blocks {
  std::multimap<size_t, std::byte*> free;  // by size
  ScratchCounts counts;
  size_t most_nbytes = 0;  // used at a time, so far
};

Guarded<Blocks>& blocks() {
  static auto& all = never_destroyed<Guarded<Blocks>>();
  return all;
}

// Few sizes, so that blocks fit again.
size_t rounded(size_t nbytes) {
  return nbytes < kHugePageNbytes ? round_up(std::max<size_t>(1, nbytes), kPageNbytes)
                                  : round_up(nbytes, kHugePageNbytes);
}

std::align_val_t alignment_of(size_t nbytes) {
  return std::align_val_t{nbytes < kHugePageNbytes ? kCacheLine : kHugePageNbytes};
}

std::byte* allocate(size_t nbytes) {
  auto* const block = static_cast<std::byte*>(::operator new[](nbytes, alignment_of(nbytes)));
  // Where the system has no huge pages, small ones do.
  if (nbytes >= kHugePageNbytes) ::madvise(block, nbytes, MADV_HUGEPAGE);
  return block;
}

void free_block(size_t nbytes, std::byte* block) noexcept { ::operator delete[](block, alignment_of(nbytes)); }

}  // namespace

HostScratch take_scratch(size_t nbytes) {
  size_t size = rounded(nbytes);
  const auto of = blocks().lock();
  std::byte* block = nullptr;
  if (const auto fits = of->free.lower_bound(size); fits != of->free.end()) {
    size = fits->first;
    block = fits->second;
    of->free.erase(fits);
    of->counts.kept_nbytes -= size;
  } else {
    block = allocate(size);
  }
  of->counts.used_nbytes += size;
  of->most_nbytes = std::max(of->most_nbytes, of->counts.used_nbytes);
  // What is free was too small.
  while (of->counts.used_nbytes + of->counts.kept_nbytes > of->most_nbytes) {
    const auto least = of->free.begin();
    of->counts.kept_nbytes -= least->first;
    free_block(least->first, least->second);
    of->free.erase(least);
  }
  return HostScratch(block, GiveBackScratch{size});
}

void GiveBackScratch::operator()(std::byte* block) const noexcept {
  const auto of = blocks().lock();
  try {
    of->free.emplace(nbytes, block);
    of->counts.kept_nbytes += nbytes;
  } catch (const std::bad_alloc&) {
    free_block(nbytes, block);
  }
  of->counts.used_nbytes -= nbytes;
}

ScratchCounts scratch_counts() { return blocks().lock()->counts; }

}  // namespace rr
