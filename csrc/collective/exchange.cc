// allgather, gather, broadcast, scatter and alltoall on one host: who stages what where in a slot, and who takes it.
// A slot has room for `blocks` chunks; round k carries chunk k of each block.

#include "collective/staged.h"
#include "data/stream.h"

namespace rr {
namespace {

// All blocks that a member sends lie in one tensor, and all that it takes; its own come straight from the first.
constexpr size_t kTensor = 0;
constexpr size_t kOwn = 1;
constexpr size_t kLargestBlock = 128 << 10;  // bytes; copying more takes longer than the others poll before they sleep

// No more of a slot than the largest block needs.
size_t block_nbytes(const Stage& stage, const ExchangeJob& job) {
  const size_t most =
      std::min(kLargestBlock, stage.slot_nbytes / static_cast<size_t>(job.blocks) / kCacheLine * kCacheLine);
  return std::min(most, std::max(kCacheLine, round_up(job.largest_nbytes, kCacheLine)));
}

class Exchange final : public Staged {
 public:
  Exchange(Team team, ExchangeJob job, size_t rounds, size_t block)
      : Staged(std::move(team), rounds, block * static_cast<size_t>(job.blocks), false),
        job_(std::move(job)),
        block_nbytes_(block) {
    size_t total = 0;
    for (const ExchangeJob::Incoming& in : job_.incoming) total += in.nbytes;
    streams_ = total >= kStreamedNbytes;
  }

 private:
  void put(size_t round) override {
    for (size_t block = 0; block < job_.outgoing.size(); ++block) {
      if (static_cast<int>(block) == job_.own_block) continue;  // see take
      const Range bytes = chunk({0, job_.outgoing[block].nbytes}, block_nbytes_, round);
      if (bytes.empty()) continue;
      copy_in(slot(team_.me, round) + block * block_nbytes_, job_.outgoing[block].src + bytes.begin, bytes.count(),
              kTensor);
    }
  }

  void take(size_t round) override {
    for (const ExchangeJob::Incoming& in : job_.incoming) {
      const Range bytes = chunk({0, in.nbytes}, block_nbytes_, round);
      if (bytes.empty()) continue;
      const bool is_own = in.member == team_.me;
      const std::byte* src = is_own ? job_.outgoing[static_cast<size_t>(in.block)].src + bytes.begin
                                    : slot(in.member, round) + static_cast<size_t>(in.block) * block_nbytes_;
      std::byte* const dst = in.dst + bytes.begin;
      if (dst == src) continue;
      if (is_own) {
        copy_own(dst, src, bytes.count(), kOwn, streams_);
      } else {
        copy_out(dst, src, bytes.count(), kTensor, streams_);
      }
    }
  }

  bool is_source(int member) const override { return job_.sources[static_cast<size_t>(member)]; }

  ExchangeJob job_;
  size_t block_nbytes_;
  bool streams_ = false;
};

}  // namespace

size_t rounds_of(const ExchangeJob& job, const Stage& stage) {
  return divide_up(job.largest_nbytes, block_nbytes(stage, job));
}

std::unique_ptr<Algorithm> exchange(Team team, ExchangeJob job) {
  const size_t rounds = rounds_of(job, team.stage);
  const size_t block = block_nbytes(team.stage, job);
  return std::make_unique<Exchange>(std::move(team), std::move(job), rounds, block);
}

}  // namespace rr
