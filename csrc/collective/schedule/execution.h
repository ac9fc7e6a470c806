// Executes a schedule: an item may begin when all that it waits for is done. Messages of one direction of a link go one
// after the other; what this rank does with others of its host likewise; the rest, in the order in which it may begin.
#pragma once

#include <memory>

#include "collective/schedule/schedule.h"

namespace rr {

std::unique_ptr<Algorithm> execute(const Team& team, Schedule schedule);

}  // namespace rr
