// What differs between the versions that are built of the fake NCCL.
#include "communicator.h"
#include "process.h"

using rr::NcclConfig;
using rr::NcclResult;
using rr::NcclUniqueId;

EXPORT NcclResult ncclGetVersion(int* version) {
  *version = FAKE_NCCL_VERSION;
  return NcclResult::kSuccess;
}

#ifndef FAKE_NCCL_OLD
EXPORT NcclResult ncclCommInitRankConfig(ncclComm** made, int size, NcclUniqueId id, int rank, NcclConfig* config) {
  return fake_nccl::begin(made, size, id, rank, *config);
}
#endif
