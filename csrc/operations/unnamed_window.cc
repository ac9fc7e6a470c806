#include "operations/unnamed_window.h"

#include <algorithm>
#include <utility>

namespace rr {

UnnamedWindow::UnnamedWindow(const ControlSegment& control, Negotiation& negotiation, int rank,
                             const std::string& staging, Stats& stats)
    : control_(control), negotiation_(negotiation), rank_(rank), stats_(stats), eager_writer_(staging) {}

// A request slot is overwritten 256 unnamed operations later, an eager buffer kEagerCount eager ones later: only when
// every rank has consumed what is there, and the leader of this host has passed it on to the others.
bool UnnamedWindow::has_room(bool eager) {
  const uint64_t overwritten = needs_for_slot();
  if (!negotiation_.notes().has_room(next_ % kUnnamedSlots)) return false;
  if (oldest_ < overwritten || least_watermark(overwritten) < overwritten) return false;
  if (!eager) return true;
  const uint64_t used_by = needs_for_buffer();
  if (used_by != 0 && !negotiation_.notes().is_passed_on((used_by - 1) % kUnnamedSlots)) return false;
  return least_watermark(used_by) >= used_by;
}

// A rank that has joined and consumed all it announced reads no request slot any more.
uint64_t UnnamedWindow::watermark_of(int rank) const {
  const RankLine& line = control_.line(rank);
  const uint64_t mark = line.watermark.load(std::memory_order_acquire);
  const bool reads = line.joined.load(std::memory_order_acquire) == 0 || mark < line.unnamed.load();
  return reads ? mark : UINT64_MAX;
}

std::vector<int> UnnamedWindow::behind(bool eager) const {
  const uint64_t needed = eager ? std::max(needs_for_slot(), needs_for_buffer()) : needs_for_slot();
  std::vector<int> ranks;
  for (int r = 0; r < control_.size(); ++r) {
    if (watermark_of(r) < needed) ranks.push_back(r);
  }
  return ranks;
}

// The least watermark of the ranks, looked up only when the last known one is below `needed`.
uint64_t UnnamedWindow::least_watermark(uint64_t needed) {
  if (least_watermark_ >= needed) return least_watermark_;
  uint64_t least = UINT64_MAX;
  for (int r = 0; r < control_.size(); ++r) least = std::min(least, watermark_of(r));
  if (least != UINT64_MAX) least_watermark_ = least;
  return least;
}

Ticket UnnamedWindow::announce(const Signature& signature, const void* payload, size_t nbytes, bool eager) {
  const uint64_t buffer = eager_used_ % kEagerCount;
  if (eager) {
    ++eager_used_;
    eager_users_[buffer] = next_ + 1;
    eager_writer_.write(control_.eager(rank_, buffer), static_cast<const std::byte*>(payload), nbytes);
    rr::add(stats_.bytes_copied, nbytes);
    payload = &buffer;
    nbytes = sizeof buffer;
  }
  consumed_[next_ % kUnnamedSlots] = false;
  return negotiation_.announce_unnamed(next_++, signature, payload, nbytes);
}

void UnnamedWindow::add(const OperationPtr& operation) {
  const uint64_t slot = operation->ticket.request_slot;
  const bool is_last_of_slot = operation->ticket.tag > oldest_;  // the tag is the number + 1
  if (is_last_of_slot && !consumed_[slot]) operations_[slot] = operation;
}

void UnnamedWindow::consume(Ticket ticket) {
  consumed_[ticket.request_slot] = true;
  operations_[ticket.request_slot].reset();
  const uint64_t before = oldest_;
  while (oldest_ < next_ && consumed_[oldest_ % kUnnamedSlots]) ++oldest_;
  if (oldest_ != before) publish();
}

std::vector<OperationPtr> UnnamedWindow::drain() {
  std::vector<OperationPtr> operations;
  for (OperationPtr& operation : operations_) {
    if (operation != nullptr) operations.push_back(std::exchange(operation, nullptr));
  }
  return operations;
}

void UnnamedWindow::skip_to(uint64_t next) {
  for (size_t skipped = 0; skipped < kUnnamedSlots && next_ < next; ++skipped) consume(Ticket::unnamed(next_++));
  if (next_ < next) restart(next);  // every request slot has been consumed
}

void UnnamedWindow::restart(uint64_t next) {
  next_ = oldest_ = next;
  least_watermark_ = 0;
  publish();
}

void UnnamedWindow::publish() const {
  control_.line(rank_).watermark.store(oldest_, std::memory_order_release);
  negotiation_.segment().ring_room_waiters();
}

}  // namespace rr
