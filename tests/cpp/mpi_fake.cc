#include "mpi_fake.h"

namespace rr {

FakeMpi::~FakeMpi() = default;

}  // namespace rr
