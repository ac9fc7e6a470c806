// Binomial-tree broadcast over links, pipelined: a rank forwards whatever has arrived. Cost: log2 N alpha + S beta for
// S much larger than a link's buffer. The tree is collective/plan.h.

#include "collective/linked.h"

namespace rr {
namespace {

class TreeBroadcast final : public Algorithm {
 public:
  TreeBroadcast(Team team, int root, std::byte* data, size_t nbytes)
      : team_(std::move(team)), data_(data), nbytes_(nbytes), parent_(tree_parent(team_.size(), root, team_.me)) {
    for (int k = 0;; ++k) {
      const int child = tree_child(team_.size(), root, team_.me, k);
      if (child < 0) break;
      children_.push_back({child, 0});
    }
    arrived_ = parent_ < 0 ? nbytes_ : 0;
  }

  Step step() override {
    size_t moved = 0;
    if (arrived_ < nbytes_) {
      moved = link(parent_).pull(data_ + arrived_, nbytes_ - arrived_);
      arrived_ += moved;
    }
    bool done = arrived_ == nbytes_;
    for (Child& child : children_) {
      const size_t n = child.sent < arrived_ ? link(child.member).push(data_ + child.sent, arrived_ - child.sent) : 0;
      child.sent += n;
      moved += n;
      done = done && child.sent == nbytes_;
    }
    if (done) return Step::kDone;
    return moved != 0 ? Step::kProgress : Step::kIdle;
  }

  bool needs(int rank) const override {
    if (arrived_ < nbytes_ && team_.members[static_cast<size_t>(parent_)] == rank) return true;
    for (const Child& child : children_) {
      if (child.sent < nbytes_ && team_.members[static_cast<size_t>(child.member)] == rank) return true;
    }
    return false;
  }

 private:
  struct Child {
    int member;
    size_t sent;
  };

  Link& link(int member) const { return *team_.links[static_cast<size_t>(team_.members[static_cast<size_t>(member)])]; }

  Team team_;
  std::byte* data_;
  size_t nbytes_;
  int parent_;
  std::vector<Child> children_;
  size_t arrived_ = 0;
};

}  // namespace

std::unique_ptr<Algorithm> tree_broadcast(Team team, int root, std::byte* data, size_t nbytes) {
  return std::make_unique<TreeBroadcast>(std::move(team), root, data, nbytes);
}

}  // namespace rr
