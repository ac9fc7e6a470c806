// The two sizes that depend on the machine: the staging chunk and the largest eager message. Measured once per topology
// (under 100 ms), kept in the user's cache, agreed through the control segment: rank 0 decides, every rank obeys.
//
// Neither changes results: staging folds in rank order whatever the chunk, and so do the request slots.
#pragma once

#include "negotiation/segment/control_segment.h"

namespace rr {

class Context;

// For Context's constructor. Collective over the world.
void tune(Context& context);

}  // namespace rr
