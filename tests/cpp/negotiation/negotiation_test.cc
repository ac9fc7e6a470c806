// The negotiation through the engine: order, names, windows, limits, mismatches and verdicts, each made to happen on
// purpose.
#include <atomic>
#include <chrono>
#include <limits>

#include "doctest/doctest.h"
#include "support/ranks.h"

namespace rr::test {
namespace {

TEST_CASE("named operations may be submitted and waited for in any order") {
  const Environment environment{};
  CHECK_NOTHROW(run_ranks(3, [](Rank& rank) {
    std::vector<Sum> sums(6);
    for (int i = 0; i < 6; ++i) {
      const size_t at = static_cast<size_t>((rank.rank * 2 + i) % 6);
      sums[at] = start_sum(rank, rank.world, 1 + at * 1000, static_cast<int>(at), "tensor " + std::to_string(at));
    }
    for (size_t i = 0; i < 6; ++i) finish_sum(rank.world, sums[(i * 5 + static_cast<size_t>(rank.rank)) % 6]);
  }));
}

TEST_CASE("sizes around the limits of a request slot and of an eager buffer, named and unnamed") {
  const Environment environment{};
  CHECK_NOTHROW(run_ranks(3, [](Rank& rank) {
    const size_t inline_count = kInlineNbytes / sizeof(float);
    const size_t eager_count = rank.world.control().header().eager_nbytes / sizeof(float);
    for (int turn = 0; turn < 40; ++turn) {
      for (const size_t limit : {inline_count, eager_count}) {
        for (const size_t count : {limit - 1, limit, limit + 1}) {
          sum_now(rank, rank.world, count, turn);
          sum_now(rank, rank.world, count, turn + 1, "name");
        }
      }
    }
  }));
}

TEST_CASE("hundreds of unnamed asynchronous operations in flight: a rank that is ahead waits for the window") {
  const Environment environment{};
  for (const size_t count : {size_t{1}, size_t{500}, size_t{4000}}) {  // in the request slot, eager, in the log
    CAPTURE(count);
    CHECK_NOTHROW(run_ranks(2, [count](Rank& rank) {
      std::vector<Sum> sums;
      if (rank.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      for (int i = 0; i < 700; ++i) sums.push_back(start_sum(rank, rank.world, count, i));
      for (const Sum& sum : sums) finish_sum(rank.world, sum);
    }));
  }
}

// Otherwise it would look for itself, a tenth of a second later. Where the engine of rank 1 makes the room before rank
// 0 waits for it, as it does when threads come to run late, the turn does not count.
TEST_CASE("a rank that waits for room in the window is rung by the one that makes room") {
  const Environment environment{};
  constexpr int kEager = static_cast<int>(kEagerCount);
  constexpr int kCounted = 10;
  std::atomic<int> counted{0};  // written by rank 1, between two barriers
  int rung = 0;
  CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) {
    for (int turn = 0; counted.load() < kCounted; ++turn) {
      expect(turn < 20 * kCounted, "rank 0 waits for room before rank 1's engine makes it");
      std::vector<Sum> sums;
      const auto start = [&] { sums.push_back(start_sum(rank, rank.world, 500, turn)); };
      const ControlSegment& control = rank.world.control();
      if (rank.rank == 0) {
        for (int i = 0; i <= kEager; ++i) start();
      } else {
        const auto& consumed = control.line(rank.rank).watermark;
        const uint64_t consumed_before = consumed.load();
        start();
        const Bell& bell = control.wait_bell(0);
        const auto is_waiting = [&] { return control.header().room_waiters.load() != 0 && bell.sleepers.load() != 0; };
        wait_for([&] { return is_waiting() || consumed.load() != consumed_before; });
        if (consumed.load() == consumed_before) {
          const uint32_t before = bell.seq.load();
          expect(rank.world.done(*sums.front().operation), "all have called it");
          rung += bell.seq.load() != before ? 1 : 0;
          counted.fetch_add(1);
        }
        while (static_cast<int>(sums.size()) <= kEager) start();
      }
      for (const Sum& sum : sums) finish_sum(rank.world, sum);
      expect(control.header().room_waiters.load() == 0 || rank.rank == 1, "nobody waits any more");
      barrier(rank.world);
    }
  }));
  CHECK(rung > kCounted / 2);
}

// Under the address sanitizer: who finishes an operation that nobody else holds must not look at it afterwards.
TEST_CASE("unnamed operations whose handles were dropped end by themselves, and in join()") {
  const Environment environment{};
  CHECK_NOTHROW(run_ranks(2, [](Rank& rank) {
    for (int turn = 0; turn < 2; ++turn) {
      const ControlSegment& control = rank.world.control();
      const uint64_t before = control.line(rank.rank).watermark.load();
      std::vector<std::shared_ptr<Floats>> data;
      for (int i = 0; i < 20; ++i) data.push_back(start_sum(rank, rank.world, 8, i).data);
      if (turn == 0) wait_for([&] { return control.line(rank.rank).watermark.load() == before + 20; });
      rank.world.join(nullptr);
      for (size_t i = 0; i < 20; ++i) {
        for (size_t k = 0; k < 8; ++k) expect((*data[i])[k] == 3 * static_cast<float>(i + k), "the sum of both");
      }
    }
  }));
}

TEST_CASE("tensors that differ in their last dimensions, of six, do not agree") {
  const Environment environment{};
  CHECK_NOTHROW(run_ranks(2, [](Rank& rank) {
    std::vector<uint64_t> dims(6, 1);
    if (rank.rank == 0) dims[4] = 2;
    if (rank.rank == 1) dims[5] = 1000004;  // 2 * 1000003 + 1 == 1 * 1000003 + 1000004
    Floats data(rank.rank == 0 ? 2 : 1000004);
    Request request;
    request.kind = Kind::kAllreduce;
    TensorView tensor = view(data, DType::kFloat32);
    tensor.set_shape(dims.size(), [&](size_t i) { return dims[i]; });
    request.srcs = request.dsts = {tensor};
    const OperationPtr operation = rank.world.submit(request, nullptr);
    expect_contains(raised<MismatchError>([&] { rank.world.wait(*operation, -1, nullptr); }), "tensor shapes");
    sum_now(rank, rank.world, 4, 1);
  }));
}

TEST_CASE("requests agree whose bytes are as many, or where ranks may have other numbers of rows") {
  Signature one = signature_of_sum(4);
  Signature other = one;
  other.nbytes += sizeof(float);  // the dimensions that are not shown make it so
  CHECK(digest(one) == digest(signature_of_sum(4)));
  CHECK(digest(one) != digest(other));
  one.kind = other.kind = Kind::kAllgather;
  CHECK(digest(one) == digest(other));
}

TEST_CASE("the quick all-reduce, which copies bytes, leaves an output of another dtype to submit()") {
  const Environment environment{};
  CHECK_NOTHROW(run_ranks(1, [](Rank& rank) {
    std::vector<int32_t> other(4);
    Floats own(4, 1);
    const Reduction reduction = {DType::kFloat32, ReduceOp::kSum, 1.0, 1.0, rank.size};
    const bool is_quick =
        rank.world.allreduce_quick(view(own, DType::kFloat32), view(other, DType::kInt32), reduction, nullptr);
    expect(!is_quick, "it does not take it");
  }));
}

TEST_CASE("wait() for longer than a clock can count waits") {
  const Environment environment{};
  for (const double timeout_s : {1e10, std::numeric_limits<double>::infinity()}) {
    std::atomic<bool> has_returned{false};
    CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) {
      const Bell& bell = rank.world.control().wait_bell(0);
      if (rank.rank == 1) wait_for([&] { return has_returned || bell.sleepers.load() != 0; });
      const Sum sum = start_sum(rank, rank.world, 5000, 1);
      const bool has_ended = rank.world.wait(*sum.operation, timeout_s, nullptr);
      has_returned = true;
      expect(has_ended, "it waited until the end");
      check_sum(sum, rank.world);
    }));
  }
}

TEST_CASE("more batches than the log holds: nothing is lost, named or not") {
  const Environment environment{{"RINGREDUCE_FUSION_THRESHOLD", "0"}};
  for (const bool named : {false, true}) {
    CAPTURE(named);
    CHECK_NOTHROW(run_ranks(
        2,
        [named](Rank& rank) {
          for (int turn = 0; turn < 3; ++turn) {
            std::vector<Sum> sums;
            for (int i = 0; i < 200; ++i) {
              sums.push_back(start_sum(rank, rank.world, 3000, i, named ? "tensor " + std::to_string(i) : ""));
            }
            for (const Sum& sum : sums) finish_sum(rank.world, sum);
          }
        },
        256));
  }
}

TEST_CASE("small tensors share batches, and a threshold bounds the batches") {
  for (const char* threshold : {"0", "20000", "134217728"}) {
    CAPTURE(threshold);
    const Environment environment{{"RINGREDUCE_FUSION_THRESHOLD", threshold}};
    CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) {
      std::vector<Sum> sums;
      for (int i = 0; i < 50; ++i) sums.push_back(start_sum(rank, rank.world, 1000, i, "tensor " + std::to_string(i)));
      barrier(rank.world);
      for (const Sum& sum : sums) finish_sum(rank.world, sum);
      const uint64_t batches = rank.context.stats().buckets;
      if (std::string(threshold) == "0") expect(batches == 50, "one batch each, got " + std::to_string(batches));
      if (std::string(threshold) == "20000") expect(batches >= 10, "at most 5 each, got " + std::to_string(batches));
    }));
  }
}

TEST_CASE("a busy name is refused, an idle one is not") {
  const Environment environment{};
  CHECK_NOTHROW(run_ranks(2, [](Rank& rank) {
    for (const size_t count : {size_t{1}, size_t{5000}}) {
      Sum sum = start_sum(rank, rank.world, count, 1, "name");
      expect_contains(raised<InvalidArgumentError>([&] { start_sum(rank, rank.world, count, 2, "name"); }),
                      "same name");
      finish_sum(rank.world, sum);
      sum_now(rank, rank.world, count, 3, "name");
      // Polled done, or dropped when done, gives the name back too.
      sum = start_sum(rank, rank.world, count, 4, "name");
      wait_for([&] { return rank.world.poll(*sum.operation); });
      check_sum(sum, rank.world);
      sum = start_sum(rank, rank.world, count, 5, "name");
      barrier(rank.world);
      wait_for([&] { return rank.world.done(*sum.operation); });
      sum.operation.reset();
      barrier(rank.world);
      const auto until = Deadline::after_s(10);  // the thread that executed it lets go a little later
      for (bool again = true; again;) {
        try {
          sum_now(rank, rank.world, count, 6, "name");
          again = false;
        } catch (const InvalidArgumentError&) {
          if (until.passed()) throw;
        }
      }
    }
  }));
}

TEST_CASE("any number of distinct names in a table of sixteen; one more waits while all are in flight") {
  const Environment environment{};
  const int names = rounds(20000);
  CHECK_NOTHROW(run_ranks(
      2,
      [names](Rank& rank) {
        for (int i = 0; i < names; ++i) sum_now(rank, rank.world, 1, i, "step " + std::to_string(i));
        barrier(rank.world);  // nobody still reads the last one
        std::vector<Sum> sums;
        for (int i = 0; i < 16; ++i)
          sums.push_back(start_sum(rank, rank.world, 1, i, std::string(300, 'x') + std::to_string(i)));
        // Goes on once all ranks have consumed one, which needs nobody to wait for it.
        const Sum one_more = start_sum(rank, rank.world, 1, 0, "one more");
        for (const Sum& sum : sums) finish_sum(rank.world, sum);
        finish_sum(rank.world, one_more);
      },
      16));
}

TEST_CASE("requests that differ name the ranks of the world, in a group of some of them too") {
  const Environment environment{};
  const Fd fd = create_memfd("high", ControlSegment::nbytes(2, 64));
  CHECK_NOTHROW(run_ranks(3, [&](Rank& rank) {
    if (rank.rank > 0) {
      Group& group = *rank.context.add_group(fd.get(), {1, 2}, 1, nullptr);
      const size_t count = static_cast<size_t>(rank.rank);
      expect_contains(raised<MismatchError>([&] { sum_now(rank, group, count, 0); }), "(rank 1 and rank 2)");
      const std::string name = rank.rank == 1 ? "a" : "b";
      const std::string text = raised<MismatchError>([&] { sum_now(rank, group, 1, 0, name); });
      expect_contains(text, "rank 1 waits in allreduce 'a' for rank 2");
      expect_contains(text, "rank 2 waits in allreduce 'b' for rank 1");
    }
    barrier(rank.world);
  }));
}

TEST_CASE("a rank that is blocked in one thread is not blocked once another thread calls") {
  const Environment environment{};
  std::atomic<bool> has_called{false};  // rank 0's other thread; before that both ranks may be found to be stuck
  CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) {
    const ControlSegment& control = rank.world.control();
    if (rank.rank == 0) {
      std::exception_ptr error;
      std::thread first([&] {
        try {
          sum_now(rank, rank.world, 1, 0, "first");
        } catch (...) {
          error = std::current_exception();
        }
      });
      try {
        wait_for([&] { return control.line(0).blocked_on.load() != 0; });
        const Sum other = start_sum(rank, rank.world, 1, 1, "other");
        has_called.store(true);
        // Rank 1 has said that it is blocked, and has looked at the others since.
        wait_for([&] { return control.line(1).blocked_on.load() != 0; });
        for (int looks = 0; looks < 4; ++looks) {
          const int64_t before = control.line(1).seen_ns.load();
          wait_for([&] { return control.line(1).seen_ns.load() != before; });
        }
        sum_now(rank, rank.world, 1, 2, "second");
        finish_sum(rank.world, other);
      } catch (...) {
        rank.context.shutdown();
        first.join();
        throw;
      }
      first.join();
      if (error) std::rethrow_exception(error);
    } else {
      wait_for([&] { return has_called.load(); });
      const Sum other = start_sum(rank, rank.world, 1, 1, "other");
      sum_now(rank, rank.world, 1, 2, "second");
      sum_now(rank, rank.world, 1, 0, "first");
      finish_sum(rank.world, other);
    }
    barrier(rank.world);
  }));
}

TEST_CASE("a rank whose only waiting thread has submitted nothing is not blocked: another thread may submit more") {
  const Environment environment{};
  CHECK_NOTHROW(run_ranks(2, [](Rank& rank) {
    // Rank 0 begins with "a", rank 1 with "b"; who waits for it is another thread, and has looked at the others often.
    const std::string names[] = {"a", "b"};
    const Sum mine = start_sum(rank, rank.world, 1, 1, names[rank.rank]);
    std::exception_ptr error;
    std::atomic<bool> is_broken{false};
    std::thread waiter([&] {
      try {
        finish_sum(rank.world, mine);
      } catch (...) {
        error = std::current_exception();
        is_broken = true;
      }
    });
    for (int looks = 0; looks < 6; ++looks) {
      const int64_t before = rank.world.control().line(rank.rank).seen_ns.load();
      wait_for([&] { return is_broken || rank.world.control().line(rank.rank).seen_ns.load() != before; });
    }
    if (!is_broken) sum_now(rank, rank.world, 1, 1, names[1 - rank.rank]);
    waiter.join();
    if (error) std::rethrow_exception(error);
    barrier(rank.world);
  }));
}

// Rank 0 waits in "a" and rank 1 in "b", on threads of their own, and both have looked around often; then each calls
// what the other waits for. Two verdicts' worth of looks.
void call_what_the_other_waits_for(Rank& rank, Group& group, std::atomic<int>& waiting) {
  const std::string names[] = {"a", "b"};
  const RankLine& line = group.control().line(rank.rank);
  std::exception_ptr error;
  std::atomic<bool> is_broken{false};
  std::thread waiter([&] {
    try {
      waiting.fetch_add(1);
      sum_now(rank, group, 1, 1, names[rank.rank]);
    } catch (...) {
      error = std::current_exception();
      is_broken = true;
    }
  });
  wait_for([&] { return waiting.load() % 2 == 0; });
  for (int looks = 0; looks < 8; ++looks) {
    const int64_t before = line.seen_ns.load();
    wait_for([&] { return is_broken || line.seen_ns.load() != before; });
  }
  const bool is_blocked = line.blocked_on.load() != 0;
  if (!is_broken) sum_now(rank, group, 1, 1, names[1 - rank.rank]);
  waiter.join();
  if (error) std::rethrow_exception(error);
  expect(!is_blocked, "the wait of one of several threads proves nothing");
  barrier(group);
}

TEST_CASE("a rank whose process has a thread that has not called yet is not blocked") {
  const Environment environment{};
  std::atomic<int> waiting{0};
  CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) {
    rank.context.calling_threads().set_has_others([] { return true; });
    call_what_the_other_waits_for(rank, rank.world, waiting);
  }));
}

TEST_CASE("a rank of several threads is not blocked in a group in which one of them has called") {
  const Environment environment{};
  const Fd fd = create_memfd("set", ControlSegment::nbytes(2, 64));
  std::atomic<int> waiting{0};
  CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) {
    barrier(rank.world);
    std::thread([&] { barrier(rank.world); }).join();
    const std::shared_ptr<Group> set = rank.context.add_group(fd.get(), {0, 1}, 1, nullptr);
    call_what_the_other_waits_for(rank, *set, waiting);
  }));
}

TEST_CASE("a wait in one group is taken back when another thread calls in another one") {
  const Environment environment{};
  const Fd fd = create_memfd("set", ControlSegment::nbytes(1, 64));
  std::atomic<bool> is_taken_back{false};
  CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) {
    barrier(rank.world);
    if (rank.rank == 1) {
      wait_for([&] { return is_taken_back.load(); });
      return sum_now(rank, rank.world, 1, 0, "loss");
    }
    const std::shared_ptr<Group> alone = rank.context.add_group(fd.get(), {0}, 1, nullptr);
    const RankLine& line = rank.world.control().line(0);
    const Sum mine = start_sum(rank, rank.world, 1, 0, "loss");
    std::thread other([&] {
      wait_for([&] { return line.blocked_on.load() != 0; });
      barrier(*alone);
      wait_for([&] { return line.blocked_on.load() == 0; });
      is_taken_back = true;
    });
    finish_sum(rank.world, mine);
    other.join();
  }));
}

TEST_CASE("requests that differ raise on every rank, whatever path each side took, and harm nothing") {
  const Environment environment{};
  CHECK_NOTHROW(run_ranks(3, [](Rank& rank) {
    const size_t sizes[] = {1, 100, 1500, 5000};  // inline, eager, logged, logged
    for (int turn = 0; turn < 64; ++turn) {
      const size_t usual = sizes[turn % 4];
      const size_t odd = sizes[turn / 4 % 4] + 1;
      const std::string name = turn % 3 == 0 ? "" : "name";
      Sum before = start_sum(rank, rank.world, 2000, turn, "before");
      Sum sum = start_sum(rank, rank.world, rank.rank == turn % 3 ? odd : usual, turn, name, turn % 2 == 0);
      Sum after = start_sum(rank, rank.world, 2000, turn, "after");
      const Floats untouched = *sum.data;
      expect_contains(raised<MismatchError>([&] { rank.world.wait(*sum.operation, -1, nullptr); }), "Mismatched");
      expect(*sum.data == untouched, "no data moves in an operation that does not match");
      finish_sum(rank.world, after);
      finish_sum(rank.world, before);
      sum_now(rank, rank.world, usual, turn);
      sum_now(rank, rank.world, usual, turn, "name");
    }
  }));
}

TEST_CASE("wire codecs that differ raise on every rank, and operations that differ in theirs share no bucket") {
  const Environment environment{{"RINGREDUCE_FUSION_LINGER_US", "1000000"}};
  CHECK_NOTHROW(run_ranks(2, [](Rank& rank) {
    const auto start = [&](Floats& data, Codec codec) {
      Request request;
      request.kind = Kind::kAllreduce;
      request.codec = codec;
      request.is_async = true;
      request.srcs = request.dsts = {view(data, DType::kFloat32)};
      return rank.world.submit(request, nullptr);
    };
    for (const size_t count : {size_t{4}, size_t{1000}, size_t{50000}}) {
      Floats data(count, 1.0f);
      const OperationPtr operation = start(data, rank.rank == 0 ? Codec::kInt8 : Codec::kBf16);
      expect_contains(raised<MismatchError>([&] { rank.world.wait(*operation, -1, nullptr); }),
                      "One rank sent wire int8, but another rank sent wire bf16. (rank 0 and rank 1)");
      expect(data == Floats(count, 1.0f), "no data moves in an operation that does not match");
    }
    const uint64_t buckets = rank.context.stats().buckets;
    std::vector<Floats> data;
    for (int i = 0; i < 4; ++i) data.emplace_back(50000, static_cast<float>(i + 1 + rank.rank));
    std::vector<OperationPtr> operations;
    for (Floats& one : data) operations.push_back(start(one, &one < &data[2] ? Codec::kNone : Codec::kFp16));
    barrier(rank.world);
    for (const OperationPtr& operation : operations) rank.world.wait(*operation, -1, nullptr);
    for (int i = 0; i < 4; ++i) {
      expect(data[static_cast<size_t>(i)] == Floats(50000, 2.0f * static_cast<float>(i) + 3), "the sum");
    }
    expect(rank.context.stats().buckets == buckets + 2, "one bucket for each codec");
  }));
}

TEST_CASE("different kinds under one name raise on every rank") {
  const Environment environment{};
  CHECK_NOTHROW(run_ranks(2, [](Rank& rank) {
    for (const size_t count : {size_t{4}, size_t{4000}}) {
      Floats data(count), more(count);
      const std::string name = "name";
      Request request;
      request.kind = rank.rank == 0 ? Kind::kAllgather : Kind::kAllreduce;
      request.name = &name;
      request.srcs = {view(data, DType::kFloat32)};
      if (rank.rank != 0) request.dsts = {view(more, DType::kFloat32)};
      const OperationPtr operation = rank.world.submit(request, nullptr);
      expect_contains(raised<MismatchError>([&] { rank.world.wait(*operation, -1, nullptr); }),
                      "Mismatched operations");
      sum_now(rank, rank.world, count, 1, name);
    }
  }));
}

TEST_CASE("all ranks blocked in operations that cannot complete: MismatchError everywhere, then on as usual") {
  const Environment environment{};
  for (const size_t count : {size_t{1}, size_t{5000}}) {
    for (const int size : {2, 4}) {
      CAPTURE(count);
      CAPTURE(size);
      CHECK_NOTHROW(run_ranks(size, [count](Rank& rank) {
        for (int turn = 0; turn < 3; ++turn) {
          // An unnamed operation that only rank 0 has made is void too; a named one waits for its peers.
          Sum ahead, named = start_sum(rank, rank.world, count, turn, rank.rank == 0 ? "late 0" : "late 1");
          const Sum complete = start_sum(rank, rank.world, count, turn);  // and what everybody has made is not void
          if (rank.rank == 0) ahead = start_sum(rank, rank.world, count, turn);
          const std::string text =
              raised<MismatchError>([&] { sum_now(rank, rank.world, count, turn, rank.rank == 0 ? "a" : "b"); });
          expect_contains(text, "'a'");
          expect_contains(text, "'b'");
          if (rank.rank == 0) raised<MismatchError>([&] { rank.world.wait(*ahead.operation, -1, nullptr); });
          Sum other = start_sum(rank, rank.world, count, turn, rank.rank == 0 ? "late 1" : "late 0");
          finish_sum(rank.world, named);
          finish_sum(rank.world, other);
          for (int i = 0; i < 300; ++i) sum_now(rank, rank.world, 1, i);
          finish_sum(rank.world, complete);
          sum_now(rank, rank.world, count, turn);
          sum_now(rank, rank.world, count, turn, "a");
          sum_now(rank, rank.world, count, turn, "b");
        }
      }));
    }
  }
}

}  // namespace
}  // namespace rr::test
