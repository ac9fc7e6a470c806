// Collectives on memory of GPUs, by every path that needs no library: ranks are threads, GPUs are doubles whose memory
// host code cannot read.
#include "doctest/doctest.h"
#include "gpu/gpu_checks.h"
#include "support/sanitizer.h"

namespace rr::test {
namespace {

const std::vector<int> kSizes = is_sanitized() ? std::vector{1, 3} : std::vector{1, 2, 3, 4};

TEST_CASE("GPUs: every kind by both paths, sharing one GPU, two each, and one each") {
  for (const char* path : {"auto", "staged"}) {
    for (const int size : kSizes) {
      for (const int each : {1, 2, 4}) {
        if (each > size && each != 4) continue;
        CAPTURE(path);
        CAPTURE(size);
        CAPTURE(each);
        // Nobody closes a bucket before all tensors are in it, however slow this machine is.
        const Environment environment{{"RINGREDUCE_GPU_PATH", path}, {"RINGREDUCE_FUSION_LINGER_US", "1000000"}};
        std::atomic<uint64_t> launches{0};
        CHECK_NOTHROW(
            run_ranks(size, on_gpu(own_gpus(static_cast<uint64_t>(10 * size + each), each), [&](GpuRank& rank) {
                        check_buckets(rank, true);
                        check_all(rank);
                        const Stats& stats = rank.rank.context.stats();
                        const bool is_staged = std::string(path) == "staged";
                        expect((stats.cuda_staged > 0) == is_staged, "staged");
                        expect((stats.cuda_ipc > 0) != is_staged, "ipc");
                        expect(stats.fused_operations > 0, "buckets were fused");
                        if (!is_staged && rank.rank.rank % each != 0) {
                          expect(rank.gpu.launches() == 0, "only leaders launch");
                        }
                        launches += rank.gpu.launches();
                      })));
        CHECK(launches > 0);
      }
    }
  }
}

TEST_CASE("GPUs: chunks of all sizes, in one round and in many") {
  // 4096 bytes are the least. The tensor has 8 to 30 chunks, for four slots a rank, and in the last case one.
  const std::vector<std::pair<const char*, size_t>> cases = {
      {"1", 30011}, {"4097", 30011}, {"65536", 120011}, {"1048576", 30011}};
  for (const auto& [chunk, count] : cases) {
    for (const char* path : {"ipc", "staged"}) {
      CAPTURE(chunk);
      CAPTURE(path);
      const Environment environment{{"RINGREDUCE_GPU_PATH", path}, {"RINGREDUCE_CHUNK", chunk}};
      CHECK_NOTHROW(run_ranks(3, on_gpu(own_gpus(5, 2), [elements = count](GpuRank& rank) {
                                const Case c = {DType::kFloat32, ReduceOp::kSum, elements, 1.0, 1.0};
                                check_allreduce(rank, c, true, "");
                                check_buckets(rank);
                                check_alltoall(rank, 5000);
                                check_reduces(rank, 9001, 1);
                                barrier(rank.world);
                              })));
    }
  }
}

// The end of an allocation, and the beginning of the one that lies behind it without a gap.
std::vector<std::byte*> neighbours(FakeDevice& gpu, size_t nbytes) {
  constexpr size_t kMost = 256;
  constexpr size_t kWhole = 4096;
  std::vector<std::byte*> all;
  for (size_t i = 0; i < kMost; ++i) {
    std::byte* const latest = gpu.allocate(kWhole);
    for (std::byte* const other : all) {
      if (other + kWhole == latest) return {latest - nbytes, latest};
      if (latest + kWhole == other) return {other - nbytes, other};
    }
    all.push_back(latest);
  }
  throw Error("no allocation lies behind another one");
}

TEST_CASE("GPUs: no copy goes from one allocation into the next, though their tensors are copied together") {
  const Environment environment{{"RINGREDUCE_GPU_PATH", "staged"}};
  constexpr size_t kCount = 256;  // both fit into a chunk
  CHECK_NOTHROW(run_ranks(2, on_gpu(own_gpus(3), [](GpuRank& rank) {
                            Request request = request_of(Kind::kAllreduce);
                            std::vector<const uint32_t*> results;
                            for (std::byte* const memory : neighbours(rank.gpu, kCount * sizeof(uint32_t))) {
                              TensorView tensor;
                              tensor.data = memory;
                              tensor.dtype = DType::kInt32;
                              tensor.place = Place::kDevice;
                              tensor.set_shape(1, [](size_t) { return kCount; });
                              auto* const numbers = reinterpret_cast<uint32_t*>(FakeDevice::host(memory));
                              for (size_t i = 0; i < kCount; ++i) {
                                numbers[i] = static_cast<uint32_t>(rank.rank.rank + 1) * static_cast<uint32_t>(i);
                              }
                              results.push_back(numbers);
                              request.srcs.push_back(tensor);
                            }
                            request.dsts = request.srcs;
                            run(rank, request);
                            for (const uint32_t* const numbers : results) {
                              for (size_t i = 0; i < kCount; ++i) expect(numbers[i] == 3 * i, "the sum");
                            }
                          })));
}

TEST_CASE("GPUs: process sets of their own, at the same time") {
  for (const char* path : {"ipc", "staged"}) {
    CAPTURE(path);
    const Environment environment{{"RINGREDUCE_GPU_PATH", path}};
    const Fd odd = create_memfd("odd", ControlSegment::nbytes(2, 64));
    const Fd even = create_memfd("even", ControlSegment::nbytes(2, 64));
    CHECK_NOTHROW(run_ranks(4, on_gpu(own_gpus(2, 2), [&](GpuRank& rank) {
                              const int me = rank.rank.rank;
                              const std::vector<int> members = me % 2 == 0 ? std::vector<int>{0, 2} : std::vector{1, 3};
                              Group& half = *rank.rank.context.add_group(me % 2 == 0 ? even.get() : odd.get(), members,
                                                                         1 + me % 2, nullptr);
                              for (int turn = 0; turn < 20; ++turn) {
                                const Case c = {DType::kFloat32, ReduceOp::kSum, 5000, 1.0, 1.0};
                                const GpuTensor mine(rank.gpu, c.dtype, {c.count}, input(c, me));
                                const GpuTensor all(rank.gpu, c.dtype, {c.count}, input(c, me));
                                Request request = request_of(Kind::kAllreduce);
                                request.is_async = true;
                                request.srcs = request.dsts = {all.view()};
                                const OperationPtr whole = rank.world.submit(request, nullptr);
                                request.srcs = request.dsts = {mine.view()};
                                half.wait(*half.submit(request, nullptr), -1, nullptr);
                                rank.world.wait(*whole, -1, nullptr);
                                const std::vector<Bytes> both = {input(c, members[0]), input(c, members[1])};
                                const Bytes want = rr_test::oracle({c.dtype, c.op, 1.0, 1.0, 2}, both);
                                check_same(c.dtype, mine.get(), want, "sum over the set");
                                check_same(c.dtype, all.get(), wanted(c, 4), "sum over all");
                              }
                              rank.rank.context.remove_group(&half, nullptr);
                            })));
  }
}

TEST_CASE("GPUs: sums go on without the ranks that have joined") {
  for (const char* path : {"ipc", "staged"}) {
    CAPTURE(path);
    const Environment environment{{"RINGREDUCE_GPU_PATH", path}};
    CHECK_NOTHROW(run_ranks(3, on_gpu(own_gpus(4, 2), [](GpuRank& rank) {
                              const int me = rank.rank.rank;
                              for (int step = 0; step < 4 * (3 - me); ++step) {
                                const Case c = {DType::kFloat32, ReduceOp::kAverage, 4001, 1.0, 1.0};
                                const GpuTensor tensor(rank.gpu, c.dtype, {c.count}, input(c, me));
                                std::vector<Bytes> inputs;
                                for (int r = 0; r < 3; ++r) {
                                  if (step < 4 * (3 - r)) inputs.push_back(input(c, r));
                                }
                                Request request = request_of(Kind::kAllreduce);
                                request.op = c.op;
                                request.srcs = request.dsts = {tensor.view()};
                                run(rank, request);
                                check_same(c.dtype, tensor.get(), rr_test::oracle({c.dtype, c.op, 1.0, 1.0, 3}, inputs),
                                           "those left");
                              }
                              rank.world.join(nullptr);
                              check_allreduce(rank, {DType::kFloat32, ReduceOp::kSum, 4001, 1.0, 1.0}, true, "");
                            })));
  }
}

TEST_CASE("GPUs: an operation on more allocations than may be held goes another way, and leaves no mapping held") {
  const Environment environment{};
  CHECK_NOTHROW(run_ranks(2, on_gpu(own_gpus(6), [](GpuRank& rank) {
                            const Case c = {DType::kInt32, ReduceOp::kSum, 3, 1.0, 1.0};
                            std::vector<GpuTensor> tensors;
                            Request request = request_of(Kind::kAllreduce);
                            for (size_t i = 0; i <= DeviceMappings::kMost; ++i) {
                              tensors.emplace_back(rank.gpu, c.dtype, std::vector<uint64_t>{c.count},
                                                   input(c, rank.rank.rank, i));
                              request.srcs.push_back(tensors.back().view());
                            }
                            request.dsts = request.srcs;
                            run(rank, request);
                            for (size_t i = 0; i < tensors.size(); ++i) {
                              check_same(c.dtype, tensors[i].get(), wanted(c, 2, i), "the sum");
                            }
                            expect(rank.rank.context.stats().cuda_staged > 0, "staged");
                            expect(rank.gpu.imports() <= DeviceMappings::kMost, "no more is mapped");
                            barrier(rank.world);
                          })));
}

TEST_CASE("mappings: each is made once, and the least recently used and the idle are forgotten") {
  FakeDevice owner;
  const auto device = std::make_shared<FakeDevice>();
  CHECK((DeviceMappings::of(device) == DeviceMappings::of(device)));
  DeviceMappings mappings(device, 2);
  std::vector<DeviceExport> exports;
  DeviceExports kept;
  std::vector<std::byte*> memory;
  for (int i = 0; i < 4; ++i) {
    memory.push_back(owner.allocate(100));
    const DeviceOperand operand = device_operand(owner, memory.back() + 8, 16, kept);
    exports.push_back(operand.memory);
    CHECK(operand.offset == 8);
  }
  std::byte* const first = mappings.hold(exports[0]);
  CHECK(mappings.hold(exports[0]) == first);
  for (int i = 1; i < 4; ++i) mappings.hold(exports[static_cast<size_t>(i)]);
  CHECK(mappings.count() == 4);
  mappings.release({exports[1].uid, exports[0].uid});
  CHECK(mappings.count() == 3);  // 0 is still held, 2 and 3 too
  mappings.release({exports[2].uid});
  CHECK(mappings.count() == 2);
  mappings.release({exports[0].uid, exports[3].uid});
  CHECK(mappings.count() == 2);
  CHECK(mappings.hold(exports[0]) == first);
  CHECK(device->imports() == 4);
  mappings.trim();
  CHECK(mappings.count() == 2);
  // What nobody uses makes room before more is mapped, not after.
  mappings.release({exports[0].uid});
  mappings.hold(exports[1]);
  CHECK(mappings.count() == 2);
  mappings.release({exports[1].uid});

  DeviceMappings forgetful(device, 2, 0);
  forgetful.hold(exports[1]);
  forgetful.trim();
  CHECK(forgetful.count() == 1);
  forgetful.release({exports[1].uid});
  forgetful.trim();
  CHECK(forgetful.count() == 0);
}

TEST_CASE("paths: the rule, and why") {
  DeviceTeam team;
  team.ranks = 4;
  team.gpus = 2;
  team.exported = team.nccl = team.mpi = true;
  CHECK(select_gpu_path("auto", team).algorithm == Algo::kIpc);
  CHECK(select_gpu_path("nccl", team).algorithm == Algo::kAuto);
  CHECK(select_gpu_path("nccl", team).reason.find("one rank a GPU") != std::string::npos);
  team.is_mappable = false;
  CHECK(select_gpu_path("auto", team).algorithm == Algo::kMpi);
  team.gpus = 4;
  CHECK(select_gpu_path("auto", team).algorithm == Algo::kNccl);
  team.is_mappable = true;
  CHECK(select_gpu_path("auto", team).algorithm == Algo::kNccl);
  team.is_mappable = team.is_whole_group = false;
  CHECK(select_gpu_path("auto", team).algorithm == Algo::kNccl);
  team.nccl = false;
  CHECK(select_gpu_path("auto", team).algorithm == Algo::kStaged);
  team.several_hosts = team.is_whole_group = team.nccl = true;
  CHECK(select_gpu_path("auto", team).algorithm == Algo::kNccl);
  CHECK(select_gpu_path("ipc", team).algorithm == Algo::kAuto);
  CHECK(select_gpu_path("staged", team).algorithm == Algo::kStaged);
  team.nccl = false;
  CHECK(select_gpu_path("auto", team).algorithm == Algo::kMpi);
  CHECK(select_gpu_path("auto", team).reason.find("not nccl") != std::string::npos);
  team.one_a_host = false;  // it can be forced
  CHECK(select_gpu_path("auto", team).algorithm == Algo::kStaged);
  CHECK(select_gpu_path("auto", team).reason.find("not mpi: some host has several ranks") != std::string::npos);
  CHECK(select_gpu_path("mpi", team).algorithm == Algo::kMpi);
  team.mpi_knows = false;
  CHECK(select_gpu_path("mpi", team).algorithm == Algo::kAuto);
  CHECK(select_gpu_path("mpi", team).reason.find("no reduce and no reduce-scatter") != std::string::npos);
  CHECK(std::string(name(Algo::kStaged)) == "cuda_staged");
}

}  // namespace
}  // namespace rr::test
