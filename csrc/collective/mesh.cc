// Data movement over links: every member pushes its blocks straight to those who take them, to all at once. What each
// sends and takes is an ExchangeJob, as on one host; each byte that a member takes crosses one link.
//
// Cost: alpha (N-1) + beta times what a rank sends or takes, whichever is more.

#include <cstring>

#include "collective/linked.h"

namespace rr {
namespace {

class Mesh final : public Algorithm {
 public:
  Mesh(Team team, ExchangeJob job) : team_(std::move(team)), job_(std::move(job)) {
    for (int member = 0; member < team_.size(); ++member) {
      if (member == team_.me || job_.outgoing.empty()) continue;
      const bool takes = job_.takers.empty() || job_.takers[static_cast<size_t>(member)];
      if (!takes) continue;
      const ExchangeJob::Outgoing& block = job_.outgoing[job_.lanes > 1 ? static_cast<size_t>(member) : 0];
      outgoing_.push_back({member, block.src, block.nbytes, 0});
    }
    for (const ExchangeJob::Incoming& block : job_.incoming) {
      if (block.member != team_.me) {
        incoming_.push_back({block.member, block.dst, block.nbytes, 0});
        continue;
      }
      const std::byte* const own = job_.outgoing[static_cast<size_t>(block.lane)].src;
      if (block.nbytes != 0 && own != block.dst) std::memcpy(block.dst, own, block.nbytes);
    }
  }

  Step step() override {
    size_t moved = 0;
    bool done = true;
    for (Out& out : outgoing_) {
      if (out.moved < out.nbytes) {
        const size_t n = link(out.member).push(out.src + out.moved, out.nbytes - out.moved);
        out.moved += n;
        moved += n;
      }
      done = done && out.moved == out.nbytes;
    }
    for (In& in : incoming_) {
      if (in.moved < in.nbytes) {
        const size_t n = link(in.member).pull(in.dst + in.moved, in.nbytes - in.moved);
        in.moved += n;
        moved += n;
      }
      done = done && in.moved == in.nbytes;
    }
    if (done) return Step::kDone;
    return moved != 0 ? Step::kProgress : Step::kIdle;
  }

  bool needs(int rank) const override {
    const auto waits = [&](const auto& block) {
      return block.moved < block.nbytes && team_.members[static_cast<size_t>(block.member)] == rank;
    };
    return std::any_of(outgoing_.begin(), outgoing_.end(), waits) ||
           std::any_of(incoming_.begin(), incoming_.end(), waits);
  }

 private:
  struct Out {
    int member;
    const std::byte* src;
    size_t nbytes;
    size_t moved;
  };
  struct In {
    int member;
    std::byte* dst;
    size_t nbytes;
    size_t moved;
  };

  Link& link(int member) const { return *team_.links[static_cast<size_t>(team_.members[static_cast<size_t>(member)])]; }

  Team team_;
  ExchangeJob job_;
  std::vector<Out> outgoing_;
  std::vector<In> incoming_;
};

}  // namespace

std::unique_ptr<Algorithm> mesh(Team team, ExchangeJob job) {
  return std::make_unique<Mesh>(std::move(team), std::move(job));
}

}  // namespace rr
