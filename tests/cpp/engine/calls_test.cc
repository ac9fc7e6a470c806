// Calls of kernels: the table of process sets, and collectives by way of C structs, on ranks that are threads.
#include "framework/calls.h"

#include <cstring>

#include "doctest/doctest.h"
#include "support/ranks.h"

namespace rr::test {
namespace {

// The calls of one rank, as a kernel in another shared object sees them.
struct Kernel {
  Calls calls;
  RrTable table = table_of(calls);
  explicit Kernel(Rank& rank) {
    calls.start({rank.rank, rank.size, rank.rank, rank.size});
    holder = std::make_shared<int>(0);
    keep_context = std::shared_ptr<Context>(holder, &rank.context);
    keep_world = std::shared_ptr<Group>(holder, &rank.world);
    calls.enter(0, rank.world.ranks(), keep_context, keep_world);
  }
  std::shared_ptr<int> holder;  // what the weak references refer to
  std::shared_ptr<Context> keep_context;
  std::shared_ptr<Group> keep_world;

  struct Release {
    const RrTable* table;
    void operator()(RrOutcome* outcome) const { table->release(outcome); }
  };
  using Outcome = std::unique_ptr<RrOutcome, Release>;
  Outcome run(const std::vector<RrCall>& list) { return {table.run(table.state, list.data(), list.size()), {&table}}; }
  int64_t ask(RrQuestion question, int process_set) {
    const Outcome outcome = {table.ask(table.state, question, process_set), {&table}};
    expect(table.error(outcome.get()) == 0, table.text(outcome.get()));
    return table.answer(outcome.get());
  }
};

RrCall plain(Kind kind) {
  RrCall call = {};
  call.kind = static_cast<int32_t>(kind);
  call.op = static_cast<int32_t>(ReduceOp::kSum);
  call.root_rank = call.splits_count = -1;
  call.prescale = call.postscale = 1;
  call.name = "";
  return call;
}

void expect_error(Kernel& kernel, const RrCall& call, ErrorCode code, const std::string& text) {
  const auto outcome = kernel.run({call});
  expect(kernel.table.error(outcome.get()) == static_cast<int32_t>(code), text);
  expect_contains(kernel.table.text(outcome.get()), text);
}

}  // namespace

TEST_CASE("kernels reduce tensors of several types in one call") {
  run_ranks(3, [](Rank& rank) {
    Kernel kernel(rank);
    expect(kernel.table.version == kRrTableVersion && kernel.table.nbytes == sizeof(RrTable), "version");
    std::vector<float> floats = {1.5F + static_cast<float>(rank.rank), 2, 3};
    const std::vector<int64_t> source = {10 * (rank.rank + 1)};
    std::vector<int64_t> sums = {0};
    const int64_t shape[] = {3, 1};
    const RrTensor in[] = {{floats.data(), shape, 2, static_cast<int32_t>(DType::kFloat32)},
                           {const_cast<int64_t*>(source.data()), nullptr, 0, static_cast<int32_t>(DType::kInt64)}};
    const RrTensor out[] = {in[0], {sums.data(), nullptr, 0, in[1].dtype}};
    RrCall call = plain(Kind::kAllreduce);
    call.name = "both";
    call.srcs = in;
    call.dsts = out;
    call.srcs_count = call.dsts_count = 2;
    for (int time = 0; time < 2; ++time) {
      floats = {1.5F + static_cast<float>(rank.rank), 2, 3};
      const auto outcome = kernel.run({call});
      expect(kernel.table.error(outcome.get()) == 0, kernel.table.text(outcome.get()));
      expect(floats == std::vector<float>{7.5F, 6, 9}, "floats in place");
      expect(sums[0] == 60, "integers beside their source");
    }
  });
}

TEST_CASE("kernels gather rows, several tensors at once, and take the memory over") {
  run_ranks(3, [](Rank& rank) {
    Kernel kernel(rank);
    std::vector<int32_t> rows(static_cast<size_t>(2 * rank.rank), 100 + rank.rank);  // none on rank 0
    const int64_t shape[] = {rank.rank, 2};
    const RrTensor in = {rows.data(), shape, 2, static_cast<int32_t>(DType::kInt32)};
    RrCall gather = plain(Kind::kAllgather);
    gather.srcs = &in;
    gather.srcs_count = 1;
    const int64_t others[] = {2 * rank.rank};  // the same memory, as twice as many rows of one element
    const RrTensor flat = {rows.data(), others, 1, static_cast<int32_t>(DType::kInt32)};
    RrCall elements = gather;
    elements.srcs = &flat;
    const auto outcome = kernel.run({gather, elements});
    expect(kernel.table.error(outcome.get()) == 0, kernel.table.text(outcome.get()));
    for (size_t call = 0; call < 2; ++call) {
      size_t length = 0;
      size_t nbytes = 0;
      const uint64_t* counts = kernel.table.counts(outcome.get(), call, &length);
      const uint64_t of_rank_1 = call == 0 ? 1 : 2;
      expect(length == 3 && counts[0] == 0 && counts[1] == of_rank_1 && counts[2] == 2 * of_rank_1,
             "rows of each rank");
      void* output = kernel.table.take_output(outcome.get(), call, &nbytes);
      std::vector<int32_t> got(nbytes / 4);
      std::memcpy(got.data(), output, nbytes);
      expect(reinterpret_cast<uintptr_t>(output) % 64 == 0, "alignment of frameworks");
      kernel.table.free_output(output);
      expect(got == std::vector<int32_t>{101, 101, 102, 102, 102, 102}, "rows in rank order");
    }
  });
}

TEST_CASE("kernels of a process set name ranks of the world") {
  run_ranks(3, [](Rank& rank) {
    Kernel kernel(rank);
    expect(kernel.ask(kRrRank, 0) == rank.rank && kernel.ask(kRrSize, 0) == 3, "place");
    expect(kernel.ask(kRrLocalRank, 0) == rank.rank && kernel.ask(kRrLocalSize, 0) == 3, "place on the host");
    kernel.calls.enter(7, {1, 2}, {}, {});
    expect(kernel.ask(kRrIncluded, 7) == 0 && kernel.ask(kRrSize, 7) == 2, "a set of others");
    RrCall barrier = plain(Kind::kBarrier);
    barrier.process_set = 7;
    expect_error(kernel, barrier, ErrorCode::kInvalidArgumentError,
                 "InvalidArgumentError: Barrier: Rank " + std::to_string(rank.rank) + " is not a member");
    kernel.calls.leave(7);
    expect_error(kernel, barrier, ErrorCode::kInvalidArgumentError, "has not been registered");

    std::vector<uint16_t> word = {static_cast<uint16_t>(rank.rank + 40)};
    const RrTensor tensor = {word.data(), nullptr, 0, static_cast<int32_t>(DType::kUInt16)};
    RrCall broadcast = plain(Kind::kBroadcast);
    broadcast.srcs = broadcast.dsts = &tensor;
    broadcast.srcs_count = broadcast.dsts_count = 1;
    broadcast.root_rank = 5;
    expect_error(kernel, broadcast, ErrorCode::kInvalidArgumentError, "invalid root rank 5");
    broadcast.root_rank = 2;
    kernel.run({broadcast});
    expect(word[0] == 42, "the root's");
    expect(kernel.ask(kRrJoin, 0) >= 0, "join");
  });
}

TEST_CASE("a kernel's root is a rank of the world, wherever it stands in the process set") {
  const Fd fd = create_memfd("set", ControlSegment::nbytes(2, 64));
  run_ranks(3, [&](Rank& rank) {
    if (rank.rank != 1) {
      Kernel kernel(rank);
      const std::shared_ptr<Group> set = rank.context.add_group(fd.get(), {0, 2}, 1, nullptr);
      kernel.calls.enter(1, {0, 2}, kernel.keep_context, set);
      for (const int root : {0, 2}) {
        std::vector<int32_t> word = {rank.rank + 40};
        const RrTensor tensor = {word.data(), nullptr, 0, static_cast<int32_t>(DType::kInt32)};
        RrCall broadcast = plain(Kind::kBroadcast);
        broadcast.process_set = 1;
        broadcast.srcs = broadcast.dsts = &tensor;
        broadcast.srcs_count = broadcast.dsts_count = 1;
        broadcast.root_rank = root;
        const auto outcome = kernel.run({broadcast});
        expect(kernel.table.error(outcome.get()) == 0, kernel.table.text(outcome.get()));
        expect(word[0] == root + 40, "the root's");
      }
    }
    barrier(rank.world);
  });
}

TEST_CASE("a kernel's errors have their class in front, and end with the job") {
  run_ranks(2, [](Rank& rank) {
    Kernel kernel(rank);
    std::vector<float> values(static_cast<size_t>(5000 + rank.rank));
    const int64_t shape[] = {5000 + rank.rank};
    const RrTensor tensor = {values.data(), shape, 1, static_cast<int32_t>(DType::kFloat32)};
    RrCall call = plain(Kind::kAllreduce);
    call.srcs = call.dsts = &tensor;
    call.srcs_count = call.dsts_count = 1;
    expect_error(kernel, call, ErrorCode::kMismatchError, "MismatchError: Mismatched ALLREDUCE tensor shapes");
    call.kind = 99;
    expect_error(kernel, call, ErrorCode::kInvalidArgumentError, "99");
    expect(kernel.calls.drain(0), "nobody is inside");

    kernel.calls.end("no job any more");
    expect_error(kernel, plain(Kind::kBarrier), ErrorCode::kNotInitializedError,
                 "NotInitializedError: no job any more");
    kernel.calls.forget_after_fork("a child");
    expect_error(kernel, plain(Kind::kBarrier), ErrorCode::kNotInitializedError, "a child");
    kernel.calls.enter(0, rank.world.ranks(), kernel.keep_context, kernel.keep_world);
    kernel.keep_context.reset();
    kernel.keep_world.reset();
    kernel.holder.reset();
    expect_error(kernel, plain(Kind::kBarrier), ErrorCode::kShutdownError, "has ended");
  });
}

// What a signal's handler does within a call of its own thread: an Interrupt, which takes no argument.
struct InHandler {
  Calls* calls = nullptr;
  std::atomic<bool> has_come{false};
  bool is_drained = false;
};
InHandler in_handler;

TEST_CASE(
    "a handler within a kernel's call does not wait for that call, and its operations are kept when the job ends") {
  in_handler.has_come = false;
  run_ranks(2, [](Rank& rank) {
    Kernel kernel(rank);
    if (rank.rank == 0) {
      in_handler.calls = &kernel.calls;
      const auto end_of_job = [] {
        in_handler.is_drained = in_handler.calls->drain(0);
        in_handler.calls->end("no job any more");
        in_handler.has_come = true;
        throw Interrupted("a signal");
      };
      Call barrier_call;
      size_t kept = 0;
      try {
        kernel.calls.run({barrier_call}, end_of_job);
      } catch (const InterruptedCall& call) {
        kept = call.operations.size();
        expect_contains(call.what(), "Interrupted: rank 0/2 waited for other ranks in barrier when a signal came");
      }
      expect(kept == 1, "the operation is kept");
      expect(in_handler.is_drained, "this thread's own call is not waited for");
      return;
    }
    wait_for([] { return in_handler.has_come.load(); });
    barrier(rank.world);
  });
}

TEST_CASE("while a kernel waits others could call, unless Python's thread that calls it has seen that none can") {
  for (const bool alone : {false, true}) {
    CAPTURE(alone);
    static std::atomic<int> others;
    others = -1;
    CHECK_NOTHROW(run_ranks(2, [alone](Rank& rank) {
      Kernel kernel(rank);
      if (rank.rank == 0) {
        rank.context.calling_threads().set_has_others([] {
          others = Calls::could_others_call() ? 1 : 0;
          return true;
        });
        Calls::set_alone(alone);
        const auto outcome = kernel.run({plain(Kind::kBarrier)});
        Calls::set_alone(false);
        expect(kernel.table.error(outcome.get()) == 0, kernel.table.text(outcome.get()));
        expect(!Calls::could_others_call(), "not in a kernel");
        const Calls::InKernel of_jax(Calls::Framework::kJax);
        expect(!Calls::could_others_call(), "Python has had no other threads");
        return;
      }
      wait_for([] { return others.load() >= 0; });
      barrier(rank.world);
    }));
    CHECK(others.load() == (alone ? 0 : 1));
  }
}

}  // namespace rr::test
