// Collectives on memory of GPUs: what is refused, what falls back, and what ends a group.
#include "doctest/doctest.h"
#include "gpu/gpu_checks.h"

namespace rr::test {
namespace {

TEST_CASE("GPUs: memory that cannot be exported is staged, and so is what a GPU may not map") {
  const Environment environment{};
  const auto gpus = [](bool exports, bool imports) {
    return [=](int rank) {
      FakeOptions options = own_gpus(7)(rank);
      options.exports = exports || rank != 1;
      options.imports = imports || rank != 1;
      return options;
    };
  };
  CHECK_NOTHROW(run_ranks(3, on_gpu(gpus(false, true), [](GpuRank& rank) {
                            check_all(rank);
                            // What is empty needs no mapping.
                            const Stats& stats = rank.rank.context.stats();
                            expect(stats.cuda_staged > 3 * stats.cuda_ipc, "what lies in rank 1's memory is staged");
                          })));
  CHECK_NOTHROW(run_ranks(3, on_gpu(gpus(true, false), [](GpuRank& rank) {
                            check_buckets(rank);
                            check_all(rank);
                            const Stats& stats = rank.rank.context.stats();
                            expect(stats.cuda_ipc > 0, "tried at first");
                            // Nor here; how many buckets the empty ones share depends on the time.
                            expect(stats.cuda_staged > 3 * stats.cuda_ipc, "then staged");
                          })));
}

TEST_CASE("GPUs: a forced path that cannot be taken is an error on all ranks, and the group goes on") {
  for (const char* path : {"nccl", "mpi", "ipc"}) {
    CAPTURE(path);
    const Environment environment{{"RINGREDUCE_GPU_PATH", path}};
    const auto no_mapping = [](int rank) {
      FakeOptions options = own_gpus(1)(rank);
      options.imports = false;
      return options;
    };
    CHECK_NOTHROW(run_ranks(2, on_gpu(no_mapping, [&](GpuRank& rank) {
                              const GpuTensor tensor(rank.gpu, DType::kFloat32, {50000});
                              Request request = request_of(Kind::kAllreduce);
                              request.srcs = request.dsts = {tensor.view()};
                              for (const bool named : {false, true}) {
                                const std::string name = "tensor";
                                request.name = named ? &name : nullptr;
                                const std::string text = raised<InternalError>([&] { run(rank, request); });
                                expect_contains(text, std::string("RINGREDUCE_GPU_PATH=") + path);
                                expect_contains(text, path == std::string("ipc") ? "peer access" : "not every rank");
                              }
                              sum_now(rank.rank, rank.world, 5000, 1);
                            })));
  }
}

TEST_CASE("GPUs: the ranks' tensors are in different places") {
  const Environment environment{};
  CHECK_NOTHROW(run_ranks(3, on_gpu(shared_gpu(1), [](GpuRank& rank) {
                            for (const size_t count : {size_t{1}, size_t{5000}}) {
                              Floats host(count, 1);
                              const GpuTensor tensor(rank.gpu, DType::kFloat32, {count});
                              Request request = request_of(Kind::kAllreduce);
                              request.srcs = {rank.rank.rank == 2 ? tensor.view() : view(host, DType::kFloat32)};
                              request.dsts = request.srcs;
                              const std::string name = "odd";
                              request.name = &name;
                              expect_contains(
                                  raised<MismatchError>([&] { run(rank, request); }),
                                  "Mismatched ALLREDUCE CPU/GPU device selection: One rank specified device CPU, but "
                                  "another rank specified device GPU.");
                              request.srcs = {view(host, DType::kFloat32), tensor.view()};
                              request.dsts = request.srcs;
                              expect_contains(raised<InternalError>([&] { run(rank, request); }),
                                              "Tensors in list must be on same device.");
                              sum_now(rank.rank, rank.world, count, 1);
                            }
                          })));
}

TEST_CASE("GPUs: a rank without one is told so") {
  const Environment environment{};
  CHECK_NOTHROW(run_ranks(1, [](Rank& rank) {
    FakeDevice device;
    const GpuTensor tensor(device, DType::kFloat32, {3});
    Request request = request_of(Kind::kAllreduce);
    request.srcs = request.dsts = {tensor.view()};
    expect_contains(raised<UnavailableError>([&] { rank.world.submit(request, nullptr); }), "no GPU");
  }));
}

TEST_CASE("GPUs: a rank that leaves in the middle, and one whose GPU breaks") {
  for (const char* path : {"ipc", "staged"}) {
    CAPTURE(path);
    const Environment environment{{"RINGREDUCE_GPU_PATH", path}};
    const auto manual = [](int rank) {
      FakeOptions options = own_gpus(4)(rank);
      options.manual = rank == 2;
      return options;
    };
    for (const bool breaks : {false, true}) {
      std::atomic<int> waiting{0};
      CHECK_NOTHROW(run_ranks(3, on_gpu(manual, [&](GpuRank& rank) {
                                const auto tensor = std::make_shared<GpuTensor>(rank.gpu, DType::kFloat32,
                                                                                std::vector<uint64_t>{50000});
                                Request request = request_of(Kind::kAllreduce);
                                request.srcs = request.dsts = {tensor->view()};
                                request.is_async = true;
                                request.keep = tensor;
                                const OperationPtr operation = rank.world.submit(request, nullptr);
                                if (rank.rank.rank == 2) {
                                  // Its work streams do nothing, so the operation cannot end.
                                  wait_for([&] { return rank.gpu.is_busy(); });
                                  const auto has_told_others = [&] { return has_left(rank.world.control().line(2)); };
                                  if (!breaks) return leave(rank, has_told_others);
                                  rank.gpu.break_down("an illegal memory access was encountered");
                                }
                                const std::string text = raised<InternalError>([&] {
                                  try {
                                    rank.world.wait(*operation, -1, nullptr);
                                  } catch (const ShutdownError& error) {
                                    throw InternalError(error.what());
                                  }
                                });
                                expect_contains(text, breaks ? "illegal memory access" : "rank 2 called shutdown()");
                                ++waiting;
                              })));
      CHECK(waiting == (breaks ? 3 : 2));
    }
  }
}

}  // namespace
}  // namespace rr::test
