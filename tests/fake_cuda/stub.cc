// Stands in until the kernels are there.
#include "cuda/tables.h"
#include "cuda_host.h"

namespace rr {

bool run_on_host(const char*, unsigned, unsigned, void* const*) { return false; }

const std::vector<const char*>& kernel_names() {
  static const std::vector<const char*> none;
  return none;
}

}  // namespace rr
