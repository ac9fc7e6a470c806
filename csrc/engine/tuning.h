// The two sizes that depend on the machine: the staging chunk and the largest eager message. Measured once per topology
// (under 100 ms), kept in the user's cache, agreed through the control segment: rank 0 decides, every rank obeys.
//
// Neither changes results: staging folds in rank order whatever the chunk, and so do the request slots.
#pragma once

#include "negotiation/control_segment.h"

namespace rr {

class Context;

// Collective over the world, before any other operation.
void tune(Context& context);
void copy_tuning(const ControlSegment& from, const ControlSegment& to);

}  // namespace rr
