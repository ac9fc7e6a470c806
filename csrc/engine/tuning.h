// The two sizes that depend on the machine: the staging chunk and the largest eager message. Agreed through the board.
#pragma once

#include "group/board.h"

namespace rr {

class Context;

void tune(Context& context, const Board& board, int rank);
void copy_tuning(const Board& from, const Board& to);

}  // namespace rr
