// All-reduce over hosts, on two levels: the ranks of a host reduce-scatter through their staging area, each slice is
// reduced over one rank a host, and the slices are gathered again, as a pipeline of pieces. Each byte crosses the
// network 2(h-1)/h times, and as many ranks of a host take part as every host has.
//
// Source of the two levels with several leaders: Bayatpour, Chakraborty, Subramoni, Lu and Panda, "Scalable reduction
// collectives with data partitioning-based multi-leader design", SC 2017.
#pragma once

#include <memory>
#include <vector>

#include "collective/hierarchical.h"
#include "collective/pull.h"
#include "collective/staged.h"
#include "negotiation/segment/hosts.h"

namespace rr {

using Parts = std::vector<std::unique_ptr<Algorithm>>;
using Memory = std::vector<std::unique_ptr<std::byte[]>>;  // that parts work in

std::byte* allocate(Memory& memory, size_t nbytes);
// Copies of bytes: one source each.
std::unique_ptr<Algorithm> copies(const Team& team, std::vector<PullJob::Part> parts);

// From so many bytes on hosts reduce by a ring, below in pairs: no receiver is sent more at once than its link takes.
inline constexpr size_t kRingNbytes = 1 << 20;

// Of one entry of the log. hosts: where the members of the team are. rounds: of the stage, counted as algorithms get
// them.
class TwoLevelAllreduce {
 public:
  TwoLevelAllreduce(const Team& team, const Hosts& hosts, size_t& rounds)
      : team_(team), hosts_(hosts), rounds_(rounds), slices_(hosts.here().size()) {
    for (const auto& members : hosts.members) {
      slices_ = std::min(slices_, members.size());
      is_flat_ = is_flat_ && members.size() == 1;
    }
  }

  std::unique_ptr<Algorithm> allreduce(const std::vector<Piece>& tensors, const Reduction& reduction, Codec codec);

 private:
  enum class Way { kRing, kPairwise };
  std::unique_ptr<Algorithm> allreduce_one(const Piece& tensor, const Reduction& reduction, Codec codec, Way way);
  std::unique_ptr<Algorithm> two_levels(const Piece& tensor, const Reduction& reduction, Codec codec, Way way);
  std::unique_ptr<Algorithm> packed(const std::vector<Piece>& tensors, const Reduction& reduction);
  std::unique_ptr<Algorithm> widened(const Piece& tensor, const Reduction& reduction, Way way);
  std::unique_ptr<Algorithm> gathered(const Piece& tensor, const Reduction& reduction);
  HostPart reduce_here(size_t piece, const Piece& elements, std::vector<Range> owned, Reduction reduction);
  HostPart gather_here(size_t piece, std::byte* elements, const std::vector<Range>& owned, size_t item);

  const Team& team_;
  const Hosts& hosts_;
  size_t& rounds_;
  size_t slices_;        // ranks of each host that take part between hosts
  bool is_flat_ = true;  // one rank a host
};

}  // namespace rr
