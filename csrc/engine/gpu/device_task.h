// What the queue's thread does for messages and copies: it has the work streams copy, and hands messages in pinned host
// memory to the group.
#pragma once

#include "engine/gpu/device_operation.h"

namespace rr {

// Issues the copy that is wanted next, or looks after it; true when it is done. Work streams are the executor's.
bool copy_on(Context& context, DeviceOperation& operation);
// Gives the message to the group, as one of its staging memory.
OperationPtr begin_message(DeviceOperation& operation);

}  // namespace rr
