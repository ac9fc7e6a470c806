// A group's first fatal cause, in shared memory: written once by whoever finds it, raised on every rank ever after.
#pragma once

#include <exception>
#include <string>

#include "base/errors.h"
#include "negotiation/segment/control_segment.h"

namespace rr {

enum class FatalKind : uint32_t { kPeerLost, kTimeout, kShutdown, kInternal, kMismatch };

// How the text of a kPeerLost begins behind the bracket that says where; the rank follows.
inline constexpr char kLostRank[] = "lost rank ";

// Records the cause unless there is one already, and rings every bell. True if this call recorded it.
bool record_failure(const ControlSegment& control, FatalKind kind, const std::string& text);

inline bool has_failed(const ControlSegment& control) {
  return control.header().failed.load(std::memory_order_acquire) != 0;
}

// The kind of an error that is not one operation's. kInternal for std::bad_alloc and other strangers.
FatalKind kind_of(const std::exception& error);

// What a rank raises of a failure that this one or another rank has put into words. place: where the rank is that
// raises it, "[ringreduce rank 2/4 on host, shm, allreduce 'loss' #12]".
std::string told_at(const std::string& place, FatalKind kind, const std::string& text);

// Throws the recorded cause. Precondition: has_failed().
[[noreturn]] void throw_failure(const ControlSegment& control, const std::string& place);

// Precondition of both: has_failed().
std::string failure_text(const ControlSegment& control);
FatalKind failure_kind(const ControlSegment& control);  // to be read after the text

}  // namespace rr
