// What operations on two levels have in common: within a host ranks work through their staging area, and between hosts
// over links, in pieces.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "collective/linked.h"
#include "negotiation/segment/hosts.h"

namespace rr {

// What a rank does on its host in an operation of several pieces, in an order that lets what is reduced here go out
// while what has come from other hosts is shared. Every rank of a host has the same order.
class HostPipeline {
 public:
  // Makes the k-th piece's algorithm of either stage; null: none.
  using Make = std::function<std::unique_ptr<Algorithm>(size_t k)>;
  // under_way: pieces that may be reduced here before the first has come back.
  HostPipeline(Schedule& schedule, size_t pieces, size_t under_way, const Make& reduce, const Make& share);

  // By piece: after which it may go to other hosts. kNone where nothing is reduced here.
  const Ids& reduced() const { return reduced_; }
  // By piece: after which it has been shared here. kNone where nothing is.
  const Ids& shared() const { return shared_; }
  // there: by piece, after which it has come from other hosts.
  void share_after(const Ids& there);

 private:
  Schedule& schedule_;
  Ids reduced_;
  Ids shared_;
};

// From so many bytes on hosts go by a ring, below straight: no receiver is sent more at once than its link takes.
inline constexpr size_t kRingNbytes = 1 << 20;
// The same where each of the ranks keeps or gives a part: a ring of many hosts is not for messages that take less time
// than they wait for (32 KiB: 26 us at 10 Gbit/s).
bool takes_ring(size_t nbytes, const Hosts& hosts);
bool are_even(const Hosts& hosts);       // all have as many ranks
bool are_flat(const Hosts& hosts);       // all have one
size_t least_ranks(const Hosts& hosts);  // that a host has

struct HostPlace {
  int host = 0;
  size_t place = 0;  // among the ranks of the host
};
HostPlace place_of(const Hosts& hosts, int rank);

// By place, what each of a host's `ranks` ranks has of `count` elements, where the first `slices` have some.
std::vector<Range> slices_of(size_t count, size_t slices, size_t ranks, size_t align);

// What the sum of a host's inputs is, between the two levels.
enum class HostSum {
  kSameType,  // of the operation's dtype; one of bfloat16 is rounded to it. Where hosts have one rank, its input.
  kFloat,     // float32, for float16: it may be too large or too small for that where the result, which a factor may
              // follow, is not. The result travels as float16.
  kNone,      // there is none: integers that are divided or scaled in the end
};
HostSum host_sum(const Hosts& hosts, const Reduction& reduction);
// How a host's sum travels where it is kFloat.
Codec float_codec(const Reduction& reduction);

// What goes over a link as one, of so many bytes in all. A codec makes them fewer by the factor `shrink`.
size_t message_nbytes(size_t nbytes, size_t shrink = 1);
// The number of such messages, 1 or more.
size_t messages_of(size_t nbytes);

// What the ranks of one host do in an operation, one thing after the other. All of them ask for the same in the same
// order. rounds: of the stage, counted up.
class WithinHost {
 public:
  WithinHost(const Team& team, const Hosts& hosts, size_t& rounds)
      : team_(team.narrowed(hosts.here())), rounds_(rounds) {}

  int size() const { return team_.size(); }
  int me() const { return team_.me; }  // this rank's place among the ranks of its host
  // dst: what this rank owns of the sum, a HostSum of this kind. Each piece's own dst is not looked at.
  std::unique_ptr<Algorithm> reduce_scatter(std::vector<Piece> pieces, std::vector<Range> owned, std::byte* dst,
                                            const Reduction& reduction, HostSum sum);
  std::unique_ptr<Algorithm> exchange(ExchangeJob job);
  // Each rank gives its block, which may be where it belongs already, and takes all of them. blocks: by place.
  struct Block {
    std::byte* dst;
    size_t nbytes;
  };
  std::unique_ptr<Algorithm> allgather(const std::byte* mine, const std::vector<Block>& blocks);
  // One rank takes the block of each, in the order of their places. nbytes: by place. dst: at that rank.
  std::unique_ptr<Algorithm> gather(const std::byte* mine, const std::vector<size_t>& nbytes, size_t root,
                                    std::byte* dst);

 private:
  const Team team_;
  size_t& rounds_;
};

// The ranks that have this one's place on their hosts, in the order of the hosts, as a team.
Team same_place(const Team& team, const Hosts& hosts, int place);

}  // namespace rr
