#include "relay/status/shown_relay.h"

#include "base/clock.h"

namespace rr {
namespace {
constexpr int64_t kShownPeriodNs = 1'000'000'000;
}

// Nothing is added to what the link has not taken yet: the job's own frames come first.
void ShownRelay::collect() {
  if (!tells_ || !is_answered_ || !links_[0].out.empty()) return;
  const int64_t now = now_ns();
  if (now - told_ns_ < kShownPeriodNs) return;
  told_ns_ = now;
  is_answered_ = false;
  for (const int rank : hosts_.here()) {
    links_.send_to(0, FrameType::kShown, rank, [&](FrameWriter& out) {
      out.put(shown_rank(control_, rank));
      for (int host = 0; host < hosts_.count(); ++host) {
        const LinkScore& score = control_.link_score(rank, host);
        out.put(score.nbytes.load(std::memory_order_relaxed));
        out.put(score.busy_ns.load(std::memory_order_relaxed));
      }
    });
  }
}

void ShownRelay::apply(int host, FrameParser& frame) {
  frame.expect(hosts_.is_first(), "shows a rank to another host than the first");
  const int rank = frame.head.rank;
  control_.rank_elsewhere(rank).write({now_ns(), frame.take<ShownRank>()});
  for (int to = 0; to < hosts_.count(); ++to) {
    LinkScore& score = control_.link_score(rank, to);
    score.nbytes.store(frame.take<uint64_t>(), std::memory_order_relaxed);
    score.busy_ns.store(frame.take<uint64_t>(), std::memory_order_relaxed);
  }
  if (rank != hosts_.members[static_cast<size_t>(host)].back()) return;
  links_.send_to(host, FrameType::kShownTaken, hosts_.leader_here(), [](FrameWriter&) {});
}

void ShownRelay::apply_answer(const FrameParser& frame) {
  frame.expect(!is_answered_, "answers what nobody has shown");
  is_answered_ = true;
}

}  // namespace rr
