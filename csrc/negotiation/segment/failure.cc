#include "negotiation/segment/failure.h"

#include "base/clock.h"
#include "base/errors.h"
#include "base/text.h"

namespace rr {

bool record_failure(const ControlSegment& control, FatalKind kind, const std::string& text) {
  Header& header = control.header();
  uint32_t none = 0;
  if (!header.failed.compare_exchange_strong(none, 1)) return false;
  header.failure_kind = static_cast<uint32_t>(kind);
  write_text(header.failure_text, text);
  header.failed.store(2, std::memory_order_release);
  for (int rank = 0; rank < control.size(); ++rank) {
    wake_all(control.wait_bell(rank));
    wake_all(control.engine_bell(rank));
  }
  return true;
}

FatalKind kind_of(const std::exception& error) {
  if (dynamic_cast<const PeerLostError*>(&error) != nullptr) return FatalKind::kPeerLost;
  if (dynamic_cast<const TimeoutError*>(&error) != nullptr) return FatalKind::kTimeout;
  if (dynamic_cast<const ShutdownError*>(&error) != nullptr) return FatalKind::kShutdown;
  return FatalKind::kInternal;
}

std::string failure_text(const ControlSegment& control) {
  // The writer may die between 1 and 2; 100 ms is far more than a copy of 8 KiB takes.
  const Deadline deadline = Deadline::after_s(0.1);
  while (control.header().failed.load(std::memory_order_acquire) != 2 && !deadline.passed()) relax(true);
  if (control.header().failed.load(std::memory_order_acquire) != 2)
    return "the group failed while its first error was being written";
  return control.header().failure_text;
}

FatalKind failure_kind(const ControlSegment& control) { return static_cast<FatalKind>(control.header().failure_kind); }

// Who leaves on purpose, and a deadlock, are told in sentences that name the operations. A lost rank is lost to all,
// whoever has found it.
std::string told_at(const std::string& place, FatalKind kind, const std::string& text) {
  if (kind == FatalKind::kShutdown || kind == FatalKind::kMismatch || text.rfind(place, 0) == 0) return text;
  const size_t lost = text.find("] " + std::string(kLostRank));
  if (kind == FatalKind::kPeerLost && text.rfind("[ringreduce rank", 0) == 0 && lost != std::string::npos)
    return place + text.substr(lost + 1);
  return place + " the group has failed: " + text;
}

void throw_failure(const ControlSegment& control, const std::string& place) {
  const std::string recorded = failure_text(control);
  const FatalKind kind = failure_kind(control);
  const std::string text = told_at(place, kind, recorded);
  switch (kind) {
    case FatalKind::kPeerLost:
      throw PeerLostError(text);
    case FatalKind::kTimeout:
      throw TimeoutError(text);
    case FatalKind::kShutdown:
      throw ShutdownError(text);
    case FatalKind::kMismatch:
      throw MismatchError(text);
    case FatalKind::kInternal:
      break;
  }
  throw InternalError(text);
}

}  // namespace rr
