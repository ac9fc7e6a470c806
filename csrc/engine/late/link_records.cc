#include "engine/late/link_records.h"

namespace rr {
namespace {
constexpr int64_t kLinkRecordNs = 250'000'000;
}  // namespace

void LinkRecords::add(int64_t now_ns) {
  const uint32_t timeline = recorder_.timeline();
  if (timeline == 0 || !hosts_.several()) return;
  const bool is_new = timeline != timeline_;
  if (!is_new && now_ns - last_ns_ < kLinkRecordNs) return;
  std::vector<SlowLinks::Link> links = links_from(hosts_.mine, control_, hosts_);
  for (size_t i = 0; i < links.size() && !is_new; ++i) {
    Record record;
    record.type = RecordType::kLink;
    record.group = group_.number;
    record.peer = static_cast<int16_t>(group_.ranks[static_cast<size_t>(hosts_.leader(links[i].to))]);
    record.called_ns = last_ns_;
    record.ended_ns = now_ns;
    record.nbytes = links[i].nbytes - last_[i].nbytes;
    record.number = links[i].busy_ns - last_[i].busy_ns;
    if (record.nbytes != 0 || record.number != 0) recorder_.add(timeline, record);
  }
  timeline_ = timeline;
  last_ns_ = now_ns;
  last_ = std::move(links);
}

}  // namespace rr
