#include "collective/host_scratch.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <vector>

#include "base/clock.h"
#include "base/guarded.h"
#include "base/never_destroyed.h"
#include "base/rounding.h"

namespace rr {
namespace {

constexpr size_t kPageNbytes = 4096;
constexpr size_t kHugePageNbytes = size_t{2} << 20;
constexpr int64_t kKeptNs = 60'000'000'000;  // a training whose steps take longer does not notice page faults

struct Block {
  std::byte* at;
  size_t nbytes;
  int64_t free_since_ns;
};

struct Blocks {
  std::vector<Block> free;
  ScratchCounts counts;
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

void give_to_system(const std::vector<Block>& blocks) noexcept {
  for (const Block& block : blocks) ::operator delete[](block.at, alignment_of(block.nbytes));
}

// The free blocks that is_so says, which nobody else has from then on.
template <class Predicate>
std::vector<Block> taken_out(Blocks& of, Predicate is_so) {
  const auto from = std::stable_partition(of.free.begin(), of.free.end(), [&](const Block& b) { return !is_so(b); });
  std::vector<Block> out(from, of.free.end());
  of.free.erase(from, of.free.end());
  for (const Block& block : out) of.counts.kept_nbytes -= block.nbytes;
  return out;
}

}  // namespace

HostScratch take_scratch(size_t nbytes) {
  const size_t size = rounded(nbytes);
  const size_t most = std::max(2 * size, kHugePageNbytes);  // a larger one will be wanted for what it was made for
  const int64_t now = now_ns();
  Block found = {nullptr, size, 0};
  std::vector<Block> unused;
  {
    const auto of = blocks().lock();
    unused = taken_out(*of, [&](const Block& block) { return now - block.free_since_ns > kKeptNs; });
    auto best = of->free.end();
    for (auto block = of->free.begin(); block != of->free.end(); ++block) {
      const bool fits = size <= block->nbytes && block->nbytes <= most;
      if (fits && (best == of->free.end() || block->nbytes < best->nbytes)) best = block;
    }
    if (best != of->free.end()) {
      found = *best;
      of->free.erase(best);
      of->counts.kept_nbytes -= found.nbytes;
    }
    of->counts.used_nbytes += found.nbytes;
  }
  // The system's part, which may take long, is not done under the lock.
  give_to_system(unused);
  HostScratch scratch(found.at, GiveBackScratch{found.nbytes});
  if (found.at != nullptr) return scratch;
  try {
    scratch.reset(allocate(size));
  } catch (const std::bad_alloc&) {
    give_to_system(taken_out(*blocks().lock(), [](const Block&) { return true; }));
    try {
      scratch.reset(allocate(size));
    } catch (const std::bad_alloc&) {
      blocks().lock()->counts.used_nbytes -= size;
      throw;
    }
  }
  return scratch;
}

void GiveBackScratch::operator()(std::byte* block) const noexcept {
  const int64_t now = now_ns();
  const auto of = blocks().lock();
  of->counts.used_nbytes -= nbytes;
  try {
    of->free.push_back({block, nbytes, now});
    of->counts.kept_nbytes += nbytes;
  } catch (const std::bad_alloc&) {
    ::operator delete[](block, alignment_of(nbytes));
  }
}

ScratchCounts scratch_counts() { return blocks().lock()->counts; }

}  // namespace rr
