#include "fakes/fake_mpi.h"

namespace rr {

FakeMpi::~FakeMpi() = default;

}  // namespace rr
