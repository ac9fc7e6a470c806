// Operations of groups by the NCCL path, on a fake NCCL and fake GPUs.
#include "doctest/doctest.h"
#include "fakes/fake_gpu_ranks.h"
#include "nccl/nccl_checks.h"

namespace rr::test {
namespace {

Environment by_nccl(const char* path = "auto") {
  return {{"RINGREDUCE_GPU_PATH", path}, {"RINGREDUCE_NCCL_LIBRARY", fake_nccl_library()}};
}

Bytes sum(DType dtype, size_t count, const std::vector<int>& ranks, int size, ReduceOp op = ReduceOp::kSum) {
  std::vector<Bytes> inputs;
  for (const int r : ranks) inputs.push_back(numbers(dtype, count, r));
  return rr_test::oracle({dtype, op, 1, 1, size}, inputs);
}

TEST_CASE("nccl: ranks with GPUs of their own take it by themselves, for what it can do") {
  FakeNccl fake;
  const Environment environment = by_nccl();
  const int size = 3;
  CHECK_NOTHROW(run_ranks(
      size, on_gpu(own_gpus(1), [&](GpuRank& rank) {
        const int me = rank.rank.rank;
        const Stats& stats = rank.rank.context.stats();
        // A bucket of tensors, all in flight.
        std::vector<GpuTensor> tensors;
        std::vector<OperationPtr> operations;
        for (const size_t count : {size_t{10}, size_t{100000}, size_t{0}, size_t{333}}) {
          tensors.emplace_back(rank.gpu, DType::kFloat32, std::vector<uint64_t>{count},
                               numbers(DType::kFloat32, count, me));
          Request request = request_of(Kind::kAllreduce);
          request.srcs = request.dsts = {tensors.back().view()};
          request.is_async = true;
          request.op = ReduceOp::kAverage;
          operations.push_back(rank.world.submit(request, nullptr));
        }
        for (const OperationPtr& operation : operations) rank.world.wait(*operation, -1, nullptr);
        for (const GpuTensor& tensor : tensors) {
          expect(tensor.get() == sum(DType::kFloat32, tensor.view().count, {0, 1, 2}, size, ReduceOp::kAverage),
                 "average");
        }
        // A group of two types; rows that do not divide; blocks of several sizes.
        const GpuTensor halves(rank.gpu, DType::kFloat16, {40}, numbers(DType::kFloat16, 40, me));
        const GpuTensor longs(rank.gpu, DType::kInt64, {7, 3}, numbers(DType::kInt64, 21, me));
        Request group = request_of(Kind::kAllreduce);
        group.srcs = group.dsts = {halves.view(), longs.view()};
        run(rank, group);
        expect(halves.get() == sum(DType::kFloat16, 40, {0, 1, 2}, size), "the group's float16");
        const Bytes sums = sum(DType::kInt64, 21, {0, 1, 2}, size);
        expect(longs.get() == sums, "the group's int64");
        const GpuTensor rows(rank.gpu, DType::kInt64, {7, 3}, numbers(DType::kInt64, 21, me));
        const Range mine = segment(7, size, me);
        const GpuTensor part(rank.gpu, DType::kInt64, {mine.count(), 3});
        Request scatter = request_of(Kind::kReduceScatter);
        scatter.srcs = {rows.view()};
        scatter.dsts = {part.view()};
        run(rank, scatter);
        expect(part.get() == Bytes(sums.begin() + static_cast<long>(mine.begin * 24),
                                   sums.begin() + static_cast<long>(mine.end * 24)),
               "its rows of the sum");
        const size_t count = static_cast<size_t>(me) * 5;
        const GpuTensor own(rank.gpu, DType::kInt16, {count}, block(me, 0, 2 * count));
        Request gather = request_of(Kind::kAllgather);
        gather.srcs = {own.view()};
        const OperationPtr gathered = run(rank, gather);
        Bytes blocks;
        for (int r = 0; r < size; ++r) {
          const Bytes one = block(r, 0, static_cast<size_t>(r) * 10);
          blocks.insert(blocks.end(), one.begin(), one.end());
        }
        expect(get(gathered->output.get(), gathered->output_nbytes) == blocks, "all blocks");
        const uint64_t by_nccl_before = stats.cuda_nccl.load();
        expect(by_nccl_before >= 4 && stats.cuda_ipc.load() == 0 && stats.cuda_staged.load() == 0, "all went by NCCL");
        // The average of integers is not NCCL's to do.
        const GpuTensor whole(rank.gpu, DType::kInt64, {21}, numbers(DType::kInt64, 21, me));
        Request average = request_of(Kind::kAllreduce);
        average.op = ReduceOp::kAverage;
        average.srcs = average.dsts = {whole.view()};
        run(rank, average);
        expect(whole.get() == sum(DType::kInt64, 21, {0, 1, 2}, size, ReduceOp::kAverage), "average of integers");
        expect(stats.cuda_nccl.load() == by_nccl_before && stats.cuda_ipc.load() == 1, "another path");
      })));
  CHECK(fake.counts().made == size);
  check_clean(fake);
}

TEST_CASE("nccl: forced where ranks share a GPU, or cannot: refused, and the group stays usable") {
  FakeNccl fake;
  const Environment environment = by_nccl("nccl");
  CHECK_NOTHROW(run_ranks(2, on_gpu(shared_gpu(1), [](GpuRank& rank) {
                            const GpuTensor tensor(rank.gpu, DType::kFloat32, {50});
                            Request request = request_of(Kind::kAllreduce);
                            request.srcs = request.dsts = {tensor.view()};
                            expect_contains(raised<InternalError>([&] { run(rank, request); }),
                                            "NCCL takes one rank a GPU");
                            sum_now(rank.rank, rank.world, 5000, 1);
                          })));
  CHECK_NOTHROW(run_ranks(2, on_gpu(own_gpus(1), [](GpuRank& rank) {
                            const GpuTensor tensor(rank.gpu, DType::kInt64, {50});
                            Request request = request_of(Kind::kAllreduce);
                            request.op = ReduceOp::kAverage;
                            request.srcs = request.dsts = {tensor.view()};
                            expect_contains(raised<InternalError>([&] { run(rank, request); }),
                                            "RINGREDUCE_GPU_PATH=nccl: it does not compute this operation");
                            sum_now(rank.rank, rank.world, 5000, 1);
                          })));
  check_clean(fake);
}

TEST_CASE("nccl: sums go on without the ranks that have joined, and sets have communicators of their own") {
  FakeNccl fake;
  const Environment environment = by_nccl();
  const Fd fd = create_memfd("set", ControlSegment::nbytes(2, 64));
  CHECK_NOTHROW(
      run_ranks(3, on_gpu(own_gpus(2), [&](GpuRank& rank) {
                  const int me = rank.rank.rank;
                  const auto check = [&](Group& group, const std::vector<int>& ranks, int size) {
                    const GpuTensor tensor(rank.gpu, DType::kFloat32, {4001}, numbers(DType::kFloat32, 4001, me));
                    Request request = request_of(Kind::kAllreduce);
                    request.srcs = request.dsts = {tensor.view()};
                    group.wait(*group.submit(request, nullptr), -1, nullptr);
                    expect(tensor.get() == sum(DType::kFloat32, 4001, ranks, size), "the sum of those who take part");
                  };
                  const std::vector<std::vector<int>> left = {{0, 1, 2}, {0, 1, 2}, {0, 1}, {0, 1}, {0}, {0}};
                  for (int step = 0; step < 2 * (3 - me); ++step) check(rank.world, left[static_cast<size_t>(step)], 3);
                  rank.world.join(nullptr);
                  check(rank.world, {0, 1, 2}, 3);
                  if (me != 1) {
                    Group& set = *rank.rank.context.add_group(fd.get(), {0, 2}, 1, nullptr);
                    check(set, {0, 2}, 2);
                    rank.rank.context.remove_group(&set, nullptr);
                  }
                  check(rank.world, {0, 1, 2}, 3);
                })));
  CHECK(fake.counts().made == 3 + 2 + 1 + 2);
  CHECK(fake.counts().shrunk == 2 + 1);
  check_clean(fake);
}

TEST_CASE("nccl: an operation is issued while the GPU is still at the one before, up to a number") {
  FakeNccl fake;
  const Environment environment = {{"RINGREDUCE_GPU_PATH", "nccl"},
                                   {"RINGREDUCE_NCCL_LIBRARY", fake_nccl_library()},
                                   {"RINGREDUCE_FUSION_THRESHOLD", "0"}};
  const auto manual = [](int rank) {
    FakeOptions options = own_gpus(5)(rank);
    options.manual = true;
    return options;
  };
  const int size = 2;
  const int most = 32;
  const int operations = most + 8;
  const size_t count = 3000;
  std::atomic<int> full{0};  // ranks that have seen as many operations issued as there may be, and no more
  const auto body = [&](GpuRank& rank) {
    const auto input = [&](int r, int i) { return numbers(DType::kFloat32, count, r, static_cast<size_t>(i)); };
    std::vector<GpuTensor> tensors;
    std::vector<OperationPtr> submitted;
    for (int i = 0; i < operations; ++i) {
      tensors.emplace_back(rank.gpu, DType::kFloat32, std::vector<uint64_t>{count}, input(rank.rank.rank, i));
      Request request = request_of(Kind::kAllreduce);
      request.srcs = request.dsts = {tensors.back().view()};
      submitted.push_back(rank.world.submit(request, nullptr));
    }
    const auto progress = [&] { rank.rank.context.try_progress(); };
    wait_for([&] {
      progress();
      return fake.counts().calls >= size * most;
    });
    for (int i = 0; i < 100; ++i) progress();
    expect(fake.counts().calls == size * most, "no more are issued before the GPU has done one");
    ++full;
    wait_for([&] { return full == size; });
    for (int i = 0; i < operations; ++i) {
      Operation& operation = *submitted[static_cast<size_t>(i)];
      wait_for([&] {
        rank.gpu.advance();
        progress();
        return operation.state.load() != State::kPending;
      });
      rank.world.wait(operation, -1, nullptr);
      expect(tensors[static_cast<size_t>(i)].get() ==
                 rr_test::oracle({DType::kFloat32, ReduceOp::kSum, 1, 1, size}, {input(0, i), input(1, i)}),
             "sum " + std::to_string(i));
    }
  };
  CHECK_NOTHROW(run_ranks(size, on_gpu(manual, body)));
  check_clean(fake);
}

TEST_CASE("nccl: on a full GPU an operation that needs memory begins once NCCL's kernels have ended") {
  FakeNccl fake;
  const Environment environment = by_nccl("nccl");
  const auto manual = [](int rank) {
    FakeOptions options = own_gpus(8)(rank);
    options.manual = true;
    return options;
  };
  std::atomic<int> seen{0};
  const auto body = [&](GpuRank& rank) {
    const int me = rank.rank.rank;
    const GpuTensor tensor(rank.gpu, DType::kFloat32, {3000}, numbers(DType::kFloat32, 3000, me));
    const GpuTensor own(rank.gpu, DType::kInt16, {5}, block(me, 0, 10));
    rank.gpu.fill();
    Request reduce = request_of(Kind::kAllreduce);
    reduce.srcs = reduce.dsts = {tensor.view()};
    Request gather = request_of(Kind::kAllgather);
    gather.srcs = {own.view()};
    const OperationPtr reduced = rank.world.submit(reduce, nullptr);
    const OperationPtr gathered = rank.world.submit(gather, nullptr);
    wait_for([&] {
      rank.rank.context.try_progress();
      return fake.counts().calls == 2;
    });
    for (int i = 0; i < 100; ++i) rank.rank.context.try_progress();
    expect(fake.counts().calls == 2, "the all-gather waits for memory");
    ++seen;
    wait_for([&] { return seen == 2; });
    for (const OperationPtr& operation : {reduced, gathered}) {
      wait_for([&] {
        rank.gpu.advance();
        rank.rank.context.try_progress();
        return operation->state.load() != State::kPending;
      });
      rank.world.wait(*operation, -1, nullptr);
    }
    expect(tensor.get() == sum(DType::kFloat32, 3000, {0, 1}, 2), "the sum");
    expect(gathered->counts == std::vector<uint64_t>{5, 5}, "rows of each rank");
    Bytes both = block(0, 0, 10);
    const Bytes second = block(1, 0, 10);
    both.insert(both.end(), second.begin(), second.end());
    expect(get(gathered->output.get(), gathered->output_nbytes) == both, "all blocks");
  };
  CHECK_NOTHROW(run_ranks(2, on_gpu(manual, body)));
  check_clean(fake);
}

TEST_CASE("nccl: a rank that leaves while it is needed, a timeout, and an error that NCCL reports") {
  const std::vector<std::string> cases = {"leaves", "timeout", "error"};
  for (const std::string& one : cases) {
    CAPTURE(one);
    FakeNccl fake;
    const Environment environment = {{"RINGREDUCE_GPU_PATH", "nccl"},
                                     {"RINGREDUCE_NCCL_LIBRARY", fake_nccl_library()},
                                     {"RINGREDUCE_TIMEOUT", one == "timeout" ? "2" : "60"}};
    const auto manual = [&](int rank) {
      FakeOptions options = own_gpus(4)(rank);
      options.manual = rank == 2;  // its GPU does nothing
      return options;
    };
    if (one == "error") fake.fail(1, 1, 3);
    std::atomic<int> told{0};  // of ranks 0 and 1, those that know of the failure
    CHECK_NOTHROW(run_ranks(
        3, on_gpu(manual, [&](GpuRank& rank) {
          const auto tensor = std::make_shared<GpuTensor>(rank.gpu, DType::kFloat32, std::vector<uint64_t>{50000});
          Request request = request_of(Kind::kAllreduce);
          request.srcs = request.dsts = {tensor->view()};
          request.is_async = true;
          request.keep = tensor;
          const OperationPtr operation = rank.world.submit(request, nullptr);
          // Once nobody waits for data any more: a kernel that went on earlier would find it all.
          const auto have_let_go = [&] { return told == 2 && fake.counts().aborted == 3; };
          if (rank.rank.rank == 2) {
            wait_for([&] { return rank.gpu.is_busy() || has_failed(rank.world.control()); });
            if (one == "leaves") return leave(rank, have_let_go);
          }
          std::string text;
          try {
            rank.world.wait(*operation, -1, nullptr);
          } catch (const InternalError& error) {
            text = error.what();
          }
          expect_contains(text, one == "leaves"    ? "rank 2 called shutdown()"
                                : one == "timeout" ? "RINGREDUCE_TIMEOUT=2.0 s"
                                                   : "an operation failed: internal error");
          if (rank.rank.rank == 2) return leave(rank, have_let_go);
          ++told;
          for (size_t work_stream = 0; work_stream < rank.gpu.work_streams(); ++work_stream) {  // NCCL's kernels let go
            const Mark mark = rank.gpu.mark(static_cast<WorkStream>(work_stream));
            wait_for([&] { return rank.gpu.passed(mark); });
          }
        })));
    CHECK(fake.counts().communicators == 0);
    CHECK(fake.counts().misuses == 0);
    CHECK(fake.counts().aborted == 3);
  }
}

}  // namespace
}  // namespace rr::test
