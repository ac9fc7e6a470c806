// What every algorithm looks like to the engine: a resumable object that never blocks, and the job it works on.
#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "collective/plan.h"
#include "data/reduction.h"
#include "gpu/device.h"
#include "os/bell.h"
#include "transport/link.h"
#include "transport/stage.h"
#include "transport/stage_writer.h"

namespace rr {

enum class Step {
  kIdle,      // nothing can be done before a peer moves
  kProgress,  // something was done
  kIssued,    // the host has nothing more to do: kIdle, until the GPU has done what it has been told, and then kDone
  kDone,      // this rank's part is complete
};

class Algorithm {
 public:
  virtual ~Algorithm() = default;
  virtual Step step() = 0;
  // Whether this rank cannot finish unless group rank `rank` still does something.
  virtual bool needs(int rank) const = 0;
  // After kDone: why the operation has failed, on all its ranks alike; "": it has not.
  virtual std::string failure() const { return {}; }
};

// One after the other.
std::unique_ptr<Algorithm> sequence(std::vector<std::unique_ptr<Algorithm>> parts);

// Something that this rank does by itself, in one step.
std::unique_ptr<Algorithm> once(std::function<void()> action);

// One tensor of a bucket on this rank. dst may equal src.
struct Piece {
  const std::byte* src = nullptr;
  std::byte* dst = nullptr;
  size_t count = 0;  // elements
};

// The ranks that take part (all of them, unless some have joined) and what they share.
struct Team {
  std::vector<int> members;  // group ranks, ascending
  int me = 0;                // this rank's index in members
  Stage stage;
  std::vector<int> sharing;  // group ranks on this host, joined or not: they share the stage
  std::vector<Bell*> bells;  // by group rank
  std::vector<Link*> links;  // by group rank; null for this rank
  const Kernels* kernels = nullptr;
  StageWriter* writer = nullptr;                  // this rank's, into the stage
  std::atomic<uint64_t>* bytes_copied = nullptr;  // statistics: bytes moved into or out of staging by this rank
  uint64_t first_round = 0;                       // rounds of the stage used before this job (Stage)
  Device* device = nullptr;  // the operands are in its memory, and the stage is pinned; null: in host memory

  int size() const { return static_cast<int>(members.size()); }
  int rank() const { return members[static_cast<size_t>(me)]; }
  // The same of some of the members, this rank among them.
  Team narrowed(const std::vector<int>& ranks) const {
    Team some = *this;
    some.members = ranks;
    some.me = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank()) - ranks.begin());
    return some;
  }
  void ring_others() const {
    std::atomic_thread_fence(std::memory_order_seq_cst);
    for (size_t i = 0; i < bells.size(); ++i) {
      if (static_cast<int>(i) != rank()) wake_sleepers(*bells[i]);
    }
  }
};

inline size_t total_count(const std::vector<Piece>& pieces) {
  size_t count = 0;
  for (const Piece& piece : pieces) count += piece.count;
  return count;
}

// Calls fn(piece, offset_in_piece, n, position) for the parts of the pieces, laid end to end, that fall into [range).
template <class Fn>
void for_each_part(const std::vector<Piece>& pieces, Range range, Fn fn) {
  size_t begin = 0;
  for (const Piece& piece : pieces) {
    if (begin >= range.end) break;
    const size_t lo = std::max(range.begin, begin);
    const size_t hi = std::min(range.end, begin + piece.count);
    if (lo < hi) fn(piece, lo - begin, hi - lo, lo);
    begin += piece.count;
  }
}

}  // namespace rr
