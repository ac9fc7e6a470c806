// Collectives of every kind on fake GPUs. Results are computed apart from the code under test, and compared bit for
// bit.
#pragma once

#include "fakes/fake_gpu_ranks.h"

namespace rr::test {

struct Case {
  DType dtype;
  ReduceOp op;
  size_t count;
  double prescale;
  double postscale;
};

// What a rank contributes, and what all must have in the end.
Bytes input(const Case& c, int rank, uint64_t salt = 0);
Bytes wanted(const Case& c, int size, uint64_t salt = 0);
void check_same(DType dtype, const Bytes& got, const Bytes& want, const std::string& what);

void check_allreduce(GpuRank& rank, const Case& c, bool in_place, const std::string& name);
// Tensors that are submitted one after the other share a bucket; a group has tensors of several types.
// together: nobody waits for one, which would close its bucket, before all are submitted.
void check_buckets(GpuRank& rank, bool together = false);

// Bytes that depend on the rank and on the place: `count` numbers of 4 bytes from number `first` on.
Bytes given(int rank, size_t count, size_t first = 0);
Bytes sums(int size, size_t count, size_t first = 0);  // of what all ranks are given
void append(Bytes& bytes, const Bytes& more);

void check_one_to_many(GpuRank& rank, size_t count, int root);
void check_gathers(GpuRank& rank, size_t count, int root);
void check_alltoall(GpuRank& rank, size_t count);
void check_reduces(GpuRank& rank, size_t count, int root);
void check_all(GpuRank& rank);  // every kind of collective

}  // namespace rr::test
