#include "relay/shown_relay.h"

#include "base/clock.h"

namespace rr {
namespace {
constexpr int64_t kPeriodNs = 1'000'000'000;
}

// Nothing is added to what the link has not taken yet: the job's own frames come first.
void ShownRelay::collect() {
  if (!tells_ || !links_[0].out.empty()) return;
  const int64_t now = now_ns();
  if (now - told_ns_ < kPeriodNs) return;
  told_ns_ = now;
  for (const int rank : hosts_.here()) {
    links_.send_to(0, FrameType::kShown, rank, [&](FrameWriter& out) { out.put(shown_rank(control_, rank)); });
  }
}

void ShownRelay::apply(FrameParser& frame) {
  frame.expect(hosts_.is_first(), "shows a rank to another host than the first");
  control_.rank_elsewhere(frame.head.rank).write({now_ns(), frame.take<ShownRank>()});
}

}  // namespace rr
