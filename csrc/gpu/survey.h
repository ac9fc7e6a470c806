// Questions to the driver that need no context of a GPU.
#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace rr {

// The GPU whose memory an address is in. Throws UnavailableError without a driver, InvalidArgumentError for memory that
// is no GPU's.
int gpu_of(const std::byte* data);
// (what, text): the driver, or why there is none, then the GPUs that this process sees.
std::vector<std::pair<std::string, std::string>> survey_gpus();

}  // namespace rr
