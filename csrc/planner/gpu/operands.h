// What a rank announces of an operation on GPU memory.
#pragma once

#include "planner/resources.h"

namespace rr {

// Writes into the operation's signature what the ranks choose the path by and, if the operands can be mapped, where
// they are. This rank works on a GPU.
void show_device_operands(const Resources& from, Operation& operation);

}  // namespace rr
