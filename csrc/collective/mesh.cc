// Data movement over links: every member pushes its blocks straight to those who take them, to all at once. What each
// sends and takes is an ExchangeJob, as on one host; each byte that a member takes crosses one link.
//
// Cost: alpha (N-1) + beta times what a rank sends or takes, whichever is more.

#include "collective/linked.h"
#include "collective/pull.h"

namespace rr {
namespace {

class Mesh final : public Algorithm {
 public:
  Mesh(Team team, const ExchangeJob& job) : team_(std::move(team)) {
    for (int member = 0; member < team_.size(); ++member) {
      if (member == team_.me || job.outgoing.empty()) continue;
      if (!job.takers.empty() && !job.takers[static_cast<size_t>(member)]) continue;
      const ExchangeJob::Outgoing& block = job.outgoing[job.blocks > 1 ? static_cast<size_t>(member) : 0];
      outgoing_.push_back({member, block.src, block.nbytes});
    }
    for (const ExchangeJob::Incoming& block : job.incoming) {
      if (block.member != team_.me) incoming_.push_back({block.member, block.dst, block.nbytes});
    }
  }

  Step step() override {
    size_t moved = 0;
    const auto push = [](Link& link, const std::byte* from, size_t nbytes) { return link.push(from, nbytes); };
    const auto pull = [](Link& link, std::byte* to, size_t nbytes) { return link.pull(to, nbytes); };
    const bool sent = advance(outgoing_, moved, push);
    const bool taken = advance(incoming_, moved, pull);
    if (sent && taken) return Step::kDone;
    return moved != 0 ? Step::kProgress : Step::kIdle;
  }

  bool needs(int rank) const override {
    const auto waits = [&](const auto& block) {
      return block.left != 0 && team_.members[static_cast<size_t>(block.member)] == rank;
    };
    return std::any_of(outgoing_.begin(), outgoing_.end(), waits) ||
           std::any_of(incoming_.begin(), incoming_.end(), waits);
  }

 private:
  template <class Byte>
  struct Block {
    int member;
    Byte* at;
    size_t left;
  };

  // Moves what can be moved of each block; true when nothing is left of any.
  template <class Byte, class Move>
  bool advance(std::vector<Block<Byte>>& blocks, size_t& moved, Move move) {
    bool done = true;
    for (Block<Byte>& block : blocks) {
      if (block.left == 0) continue;
      Link& link = *team_.links[static_cast<size_t>(team_.members[static_cast<size_t>(block.member)])];
      const size_t n = move(link, block.at, block.left);
      block.at += n;
      block.left -= n;
      moved += n;
      done = done && block.left == 0;
    }
    return done;
  }

  Team team_;
  std::vector<Block<const std::byte>> outgoing_;
  std::vector<Block<std::byte>> incoming_;
};

}  // namespace

std::unique_ptr<Algorithm> mesh(Team team, ExchangeJob job) {
  PullJob own;
  own.reduction.dtype = DType::kUInt8;
  for (const ExchangeJob::Incoming& block : job.incoming) {
    if (block.member != team.me) continue;
    own.parts.push_back({{job.outgoing[static_cast<size_t>(block.block)].src}, block.dst, block.nbytes});
  }
  const Kernels& kernels = *team.kernels;
  std::vector<std::unique_ptr<Algorithm>> parts;
  parts.push_back(std::make_unique<Mesh>(std::move(team), job));
  if (!own.parts.empty()) parts.push_back(local(kernels, std::move(own)));
  return sequence(std::move(parts));
}

}  // namespace rr
