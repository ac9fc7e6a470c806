// Data movement over links: blocks go straight from who has them to who takes them, or from member to member, each one
// as far as it has arrived.
//
// Cost of a block that passes m links, each of which carries nothing else: m alpha + S beta, for S much larger than a
// record of the network.

#include "collective/linked.h"
#include "collective/pull.h"

namespace rr {
namespace {

class Forward final : public Piecewise {
 public:
  Forward(Team team, std::vector<LinkedBlock> blocks, std::vector<LinkedPiece> pieces, size_t most_nbytes)
      : team_(std::move(team)), blocks_(std::move(blocks)), pieces_(std::move(pieces)), most_nbytes_(most_nbytes) {
    for (size_t i = 0; i < blocks_.size(); ++i) {
      const LinkedBlock& block = blocks_[i];
      arrived_.push_back(block.from < 0 ? block.nbytes : 0);
      if (block.nbytes == 0) continue;
      if (block.from >= 0) way(in_, block.from).blocks.push_back(i);
      for (const int member : block.to) way(out_, member).blocks.push_back(i);
    }
    count_finished();
  }

  void allow(size_t) override {}  // what is sent is there, or arrives
  size_t finished() const override { return finished_; }

  Step step() override {
    size_t moved = 0;
    for (Way& way : in_) moved += receive(way);
    for (Way& way : out_) moved += send(way);
    count_finished();
    const auto is_through = [](const Way& way) { return way.is_through(); };
    if (std::all_of(in_.begin(), in_.end(), is_through) && std::all_of(out_.begin(), out_.end(), is_through)) {
      return Step::kDone;
    }
    return moved != 0 ? Step::kProgress : Step::kIdle;
  }

  bool needs(int rank) const override {
    const auto waits = [&](const Way& way) {
      return !way.is_through() && team_.members[static_cast<size_t>(way.member)] == rank;
    };
    return std::any_of(in_.begin(), in_.end(), waits) || std::any_of(out_.begin(), out_.end(), waits);
  }

 private:
  // One direction of a link, and the blocks that pass it, in their order.
  struct Way {
    int member;
    Link* link;
    std::vector<size_t> blocks;
    size_t next = 0;    // of blocks
    size_t offset = 0;  // bytes of it that are through

    bool is_through() const { return next == blocks.size(); }
    void pass(size_t nbytes, size_t whole) {
      offset += nbytes;
      if (offset != whole) return;
      ++next;
      offset = 0;
    }
  };

  Way& way(std::vector<Way>& ways, int member) {
    for (Way& known : ways) {
      if (known.member == member) return known;
    }
    ways.push_back({member, team_.links[static_cast<size_t>(team_.members[static_cast<size_t>(member)])], {}});
    return ways.back();
  }

  size_t receive(Way& way) {
    if (way.is_through()) return 0;
    const size_t i = way.blocks[way.next];
    const size_t n = way.link->pull(blocks_[i].dst + way.offset, blocks_[i].nbytes - way.offset);
    arrived_[i] += n;
    way.pass(n, blocks_[i].nbytes);
    return n;
  }

  // At most one push each call, so that all ways get their turn.
  size_t send(Way& way) {
    if (way.is_through()) return 0;
    const size_t i = way.blocks[way.next];
    const size_t there = std::min(arrived_[i] - way.offset, most_nbytes_);
    const size_t n = there == 0 ? 0 : way.link->push(blocks_[i].src + way.offset, there);
    way.pass(n, blocks_[i].nbytes);
    return n;
  }

  void count_finished() {
    while (finished_ < pieces_.size() && arrived_[pieces_[finished_].block] >= pieces_[finished_].nbytes) ++finished_;
  }

  Team team_;
  std::vector<LinkedBlock> blocks_;
  std::vector<size_t> arrived_;  // bytes, by block
  std::vector<LinkedPiece> pieces_;
  const size_t most_nbytes_;
  std::vector<Way> in_;
  std::vector<Way> out_;
  size_t finished_ = 0;
};

}  // namespace

std::unique_ptr<Piecewise> forward(Team team, std::vector<LinkedBlock> blocks, std::vector<LinkedPiece> pieces,
                                   size_t most_nbytes) {
  return std::make_unique<Forward>(std::move(team), std::move(blocks), std::move(pieces), most_nbytes);
}

std::unique_ptr<Algorithm> tree_broadcast(Team team, int root, std::byte* data, size_t nbytes) {
  LinkedBlock block = {data, data, nbytes, tree_parent(team.size(), root, team.me), {}};
  for (int k = 0;; ++k) {
    const int child = tree_child(team.size(), root, team.me, k);
    if (child < 0) break;
    block.to.push_back(child);
  }
  return forward(std::move(team), {block});
}

std::unique_ptr<Algorithm> mesh(Team team, const ExchangeJob& job) {
  PullJob own;
  own.reduction.dtype = DType::kUInt8;
  std::vector<LinkedBlock> blocks;
  for (int member = 0; member < team.size(); ++member) {
    if (member == team.me || job.outgoing.empty()) continue;
    if (!job.takers.empty() && !job.takers[static_cast<size_t>(member)]) continue;
    const ExchangeJob::Outgoing& block = job.outgoing[job.blocks > 1 ? static_cast<size_t>(member) : 0];
    blocks.push_back({block.src, nullptr, block.nbytes, -1, {member}});
  }
  for (const ExchangeJob::Incoming& block : job.incoming) {
    if (block.member != team.me) {
      blocks.push_back({block.dst, block.dst, block.nbytes, block.member, {}});
    } else {
      own.parts.push_back({{job.outgoing[static_cast<size_t>(block.block)].src}, block.dst, block.nbytes});
    }
  }
  const Kernels& kernels = *team.kernels;
  std::vector<std::unique_ptr<Algorithm>> parts;
  parts.push_back(forward(std::move(team), std::move(blocks)));
  if (!own.parts.empty()) parts.push_back(local(kernels, std::move(own)));
  return sequence(std::move(parts));
}

}  // namespace rr
