// Collectives on memory of GPUs over several hosts.
#include "doctest/doctest.h"
#include "gpu/gpu_checks.h"
#include "support/sanitizer.h"

namespace rr::test {
namespace {

// Sanitizers slow the copies of fake GPUs and links down thirty times.
const size_t kLong = is_sanitized() ? 2200007 : 4500007;
const size_t kLayoutsTried = is_sanitized() ? 2 : 6;
const uint64_t kTries = is_sanitized() ? 2 : 40;

TEST_CASE("GPUs on two hosts") {
  for (size_t layout = 0; layout < kLayoutsTried; ++layout) {
    const std::vector<int>& host_of = kLayouts[kLayouts.size() - 1 - layout];
    CAPTURE(host_of.size());
    const Environment environment{};
    CHECK_NOTHROW(run_hosts(host_of, on_gpu(shared_gpu(3), [](GpuRank& rank) {
                              for (const size_t count : {size_t{0}, size_t{5}, size_t{3001}}) {
                                const int root = static_cast<int>(count) % rank.rank.size;
                                check_one_to_many(rank, count, root);
                                check_gathers(rank, count, root);
                                check_alltoall(rank, count);
                                check_reduces(rank, count, root);
                              }
                              for (const size_t count : {size_t{7}, size_t{100003}}) {
                                for (const bool in_place : {false, true}) {
                                  check_allreduce(rank, {DType::kInt32, ReduceOp::kSum, count, 1.0, 1.0}, in_place, "");
                                }
                                check_allreduce(rank, {DType::kBFloat16, ReduceOp::kMax, count, 1.0, 1.0}, true, "b");
                              }
                              expect(rank.rank.context.stats().cuda_staged > 0, "staged");
                              barrier(rank.world);
                            })));
  }
}

// Long tensors beside short ones, of 4 bytes an element: two pieces of 8 MiB or more, and one.
void check_long(GpuRank& rank) {
  const size_t counts[] = {100, kLong, 3, 300000};
  std::vector<GpuTensor> tensors;
  std::vector<GpuTensor> outputs;
  Request request = request_of(Kind::kAllreduce);
  for (const size_t count : counts) {
    tensors.emplace_back(rank.gpu, DType::kInt32, std::vector<uint64_t>{count}, given(rank.rank.rank, count));
    outputs.emplace_back(rank.gpu, DType::kInt32, std::vector<uint64_t>{count});
    request.srcs.push_back(tensors.back().view());
    request.dsts.push_back(count > 1000000 ? request.srcs.back() : outputs.back().view());
  }
  run(rank, request);
  for (size_t k = 0; k < std::size(counts); ++k) {
    const Bytes got = counts[k] > 1000000 ? tensors[k].get() : outputs[k].get();
    expect(got == sums(rank.rank.size, counts[k]), "sum of " + std::to_string(counts[k]));
  }
  barrier(rank.world);
}

TEST_CASE("GPUs on two hosts: a long tensor goes in pieces, beside short ones") {
  const Environment environment{{"RINGREDUCE_CHUNK", "65536"}};
  CHECK_NOTHROW(run_hosts({0, 0, 1}, on_gpu(own_gpus(3), check_long), 64, 65536));
}

TEST_CASE("GPUs on two hosts: those of a host reduce a long tensor before it leaves the host") {
  const Environment environment{{"RINGREDUCE_CHUNK", "65536"}};
  for (const bool maps : {true, false}) {
    CAPTURE(maps);
    const auto gpus = [maps](int rank) {
      FakeOptions options = own_gpus(5)(rank);
      options.imports = maps || rank != 3;
      return options;
    };
    const auto body = [maps](GpuRank& rank) {
      check_long(rank);
      const Stats& stats = rank.rank.context.stats();
      expect(stats.cuda_ipc == 1, "two levels");
      expect(rank.gpu.launches() > 0 || !maps, "folded on the GPU");
      // Scaled averages, whose factors belong to one level each.
      const size_t count = 300001;
      Bytes mine(count * sizeof(float));
      for (size_t i = 0; i < count; ++i) rr_test::put(mine, i, static_cast<float>(rank.rank.rank + 1 + i % 7));
      const GpuTensor tensor(rank.gpu, DType::kFloat32, {count}, mine);
      Request request = request_of(Kind::kAllreduce);
      request.op = ReduceOp::kAverage;
      request.prescale = 0.5;
      request.postscale = 8.0;
      request.srcs = request.dsts = {tensor.view()};
      run(rank, request);
      const Bytes got = tensor.get();
      for (size_t i = 0; i < count; ++i) {
        // Four ranks: (1 + 2 + 3 + 4 + 4 (i mod 7)) / 4 * 0.5 * 8, exact in any order.
        const float want = static_cast<float>(10 + 4 * (i % 7));
        if (rr_test::load<float>(&got[i * sizeof(float)]) == want) continue;
        expect(false, "average, element " + std::to_string(i));
      }
      barrier(rank.world);
    };
    CHECK_NOTHROW(run_hosts({0, 1, 0, 1}, on_gpu(gpus, body), 64, 65536));
  }
}

// Its bits would depend on the neighbour, which shares its bucket or not.
TEST_CASE("GPUs on two hosts: a long tensor takes its way whatever memory its neighbour in the bucket has") {
  const Environment environment{{"RINGREDUCE_CHUNK", "65536"}};
  const auto body = [](GpuRank& rank) {
    const Stats& stats = rank.rank.context.stats();
    const size_t count = 300001;
    for (uint64_t tries = 1; tries <= kTries && stats.fused_operations == 0; ++tries) {
      std::vector<GpuTensor> tensors;
      std::vector<OperationPtr> operations;
      const bool is_last = rank.rank.rank == 3;  // its leader sends both at once, most likely
      for (int i = 0; i < 2; ++i) {
        tensors.emplace_back(rank.gpu, DType::kInt32, std::vector<uint64_t>{count}, given(rank.rank.rank, count));
      }
      if (is_last) barrier(rank.world);
      for (const bool can_be_mapped : {true, false}) {
        const std::string name = can_be_mapped ? "mapped" : "not mapped";
        Request request = request_of(Kind::kAllreduce);
        request.srcs = request.dsts = {tensors[can_be_mapped ? 0 : 1].view()};
        request.name = &name;
        request.is_async = true;
        rank.gpu.set_exports(can_be_mapped);
        operations.push_back(rank.world.submit(request, nullptr));
      }
      if (!is_last) barrier(rank.world);
      for (const OperationPtr& operation : operations) rank.world.wait(*operation, -1, nullptr);
      for (const GpuTensor& tensor : tensors) expect(tensor.get() == sums(rank.rank.size, count), "the sum");
      expect(stats.cuda_ipc == tries, "that whose memory can be mapped, in two levels");
    }
    expect(is_sanitized() || stats.fused_operations != 0, "they share a bucket");
    barrier(rank.world);
  };
  CHECK_NOTHROW(run_hosts({0, 1, 0, 1}, on_gpu(own_gpus(5), body), 64, 65536));
}

}  // namespace
}  // namespace rr::test
