// A group's first fatal cause, in shared memory: written once by whoever finds it, raised on every rank ever after.
#pragma once

#include <exception>
#include <string>

#include "base/errors.h"
#include "negotiation/segment/control_segment.h"

namespace rr {

enum class FatalKind : uint32_t { kPeerLost, kTimeout, kShutdown, kInternal, kMismatch };

// Records the cause unless there is one already, and rings every bell. True if this call recorded it.
bool record_failure(const ControlSegment& control, FatalKind kind, const std::string& text);

inline bool has_failed(const ControlSegment& control) {
  return control.header().failed.load(std::memory_order_acquire) != 0;
}

// The kind of an error that is not one operation's. kInternal for std::bad_alloc and other strangers.
FatalKind kind_of(const std::exception& error);

// Throws the recorded cause. Precondition: has_failed().
[[noreturn]] void throw_failure(const ControlSegment& control);

std::string failure_text(const ControlSegment& control);

}  // namespace rr
