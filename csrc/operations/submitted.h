// What this rank's threads have submitted to a group, behind one lock.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "base/guarded.h"
#include "operations/call_record.h"
#include "operations/pending_operations.h"

namespace rr {

struct Submitted {
  Submitted(const Resources& from, Negotiation& negotiation, std::vector<std::unique_ptr<Link>> message_links,
            PendingCounts& counts)
      : pending(from, negotiation, std::move(message_links), counts) {}
  CallRecord calls;
  PendingOperations pending;
};

}  // namespace rr
