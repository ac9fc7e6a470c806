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
  std::vector<Block> free;  // the oldest first
  ScratchCounts counts;
  size_t most_used_nbytes = 0;  // at a time

  void use(size_t nbytes) {
    counts.used_nbytes += nbytes;
    most_used_nbytes = std::max(most_used_nbytes, counts.used_nbytes);
  }
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

void give_to_system(const Block& block) noexcept { ::operator delete[](block.at, alignment_of(block.nbytes)); }

// The smallest free block of so many bytes; at: null where none fits.
Block take_fitting(Blocks& of, size_t size) {
  const size_t most = std::max(2 * size, kHugePageNbytes);  // a larger one will be wanted for what it was made for
  auto best = of.free.end();
  for (auto block = of.free.begin(); block != of.free.end(); ++block) {
    const bool fits = size <= block->nbytes && block->nbytes <= most;
    if (fits && (best == of.free.end() || block->nbytes < best->nbytes)) best = block;
  }
  if (best == of.free.end()) return {nullptr, 0, 0};
  const Block found = *best;
  of.free.erase(best);
  of.counts.kept_nbytes -= found.nbytes;
  of.use(found.nbytes);
  return found;
}

// The oldest free block, where there are more than are kept or it is too old; at: null where not.
Block take_surplus(int64_t now) noexcept {
  const auto of = blocks().lock();
  if (of->free.empty()) return {nullptr, 0, 0};
  const bool is_old = now - of->free.front().free_since_ns > kKeptNs;
  if (!is_old && of->counts.kept_nbytes <= 2 * of->most_used_nbytes) return {nullptr, 0, 0};
  const Block oldest = of->free.front();
  of->free.erase(of->free.begin());
  of->counts.kept_nbytes -= oldest.nbytes;
  return oldest;
}

// The system's part, which may take long, is not done under the lock.
void give_back_surplus(int64_t now) noexcept {
  for (Block surplus = take_surplus(now); surplus.at != nullptr; surplus = take_surplus(now)) give_to_system(surplus);
}

// What is free goes back to the system where it has no more.
std::byte* allocate_at_any_price(size_t nbytes) {
  try {
    return allocate(nbytes);
  } catch (const std::bad_alloc&) {
    std::vector<Block> all;
    {
      const auto of = blocks().lock();
      all.swap(of->free);
      of->counts.kept_nbytes = 0;
    }
    for (const Block& block : all) give_to_system(block);
    return allocate(nbytes);
  }
}

}  // namespace

HostScratch take_scratch(size_t nbytes) {
  const size_t size = rounded(nbytes);
  give_back_surplus(now_ns());
  Block found = take_fitting(*blocks().lock(), size);
  if (found.at == nullptr) {
    found = {allocate_at_any_price(size), size, 0};
    blocks().lock()->use(size);
  }
  return HostScratch(found.at, GiveBackScratch{found.nbytes});
}

void GiveBackScratch::operator()(std::byte* block) const noexcept {
  const int64_t now = now_ns();
  {
    const auto of = blocks().lock();
    of->counts.used_nbytes -= nbytes;
    try {
      of->free.push_back({block, nbytes, now});
      of->counts.kept_nbytes += nbytes;
    } catch (const std::bad_alloc&) {
      ::operator delete[](block, alignment_of(nbytes));
    }
  }
  give_back_surplus(now);
}

ScratchCounts scratch_counts() { return blocks().lock()->counts; }

}  // namespace rr
