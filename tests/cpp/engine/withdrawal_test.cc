// Calls that an exception ends: their memory is the caller's again, and the other ranks hear of it.
#include <thread>

#include "base/clock.h"
#include "doctest/doctest.h"
#include "support/loopback_links.h"

namespace rr::test {
namespace {

// Calls the sum, until the exception of an interrupt comes out, and gives it up as a synchronous call does.
void interrupt_sum(Rank& rank, Group& group, const Sum& sum) {
  try {
    group.wait(*sum.operation, -1, stop);
  } catch (const Stop&) {
    group.withdraw(*sum.operation, rank.context.interrupt());
    return;
  }
  throw std::runtime_error("the wait was not interrupted");
}

void expect_untouched(const Floats& data, float wanted) {
  for (const float value : data) expect(value == wanted, "the array is left alone");
}

TEST_CASE("withdrawal: what not all ranks have called is withdrawn, and the others hear who did that") {
  const Environment environment{};
  for (const std::string name : {"", "loss"}) {
    std::atomic<bool> is_withdrawn{false};
    CAPTURE(name);
    CHECK_NOTHROW(run_ranks(3, [&](Rank& rank) {
      for (int turn = 0; turn < 3; ++turn) {
        Sum sum;
        if (rank.rank == 0) {
          sum = start_sum(rank, rank.world, 5000, turn, name, false);
          interrupt_sum(rank, rank.world, sum);
          std::fill(sum.data->begin(), sum.data->end(), 7.0f);
          is_withdrawn = true;
        } else {
          if (rank.rank == 2) wait_for([&] { return is_withdrawn.load(); });  // rank 1 may have begun before
          const auto call = [&] { sum_now(rank, rank.world, 5000, turn, name); };
          const std::string text = raised<MismatchError>(call);
          expect_contains(text, "rank 0 has withdrawn this operation: an exception");
          expect_contains(text, "allreduce");
        }
        barrier(rank.world);
        for (int i = 0; i < 300; ++i) sum_now(rank, rank.world, 1, i);  // all request slots are used again
        for (int i = 0; i < 6; ++i) sum_now(rank, rank.world, 5000, i, i % 2 == 0 ? "" : name);
        if (rank.rank == 0) expect_untouched(*sum.data, 7.0f);
        is_withdrawn = false;
        barrier(rank.world);
      }
    }));
  }
}

TEST_CASE("withdrawal: a name is free again once all ranks have heard of it") {
  const Environment environment{};
  std::atomic<bool> is_withdrawn{false};
  CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) {
    if (rank.rank == 0) {
      interrupt_sum(rank, rank.world, start_sum(rank, rank.world, 5000, 1, "loss", false));
      const auto again = [&] { start_sum(rank, rank.world, 5000, 1, "loss"); };
      expect_contains(raised<InvalidArgumentError>(again), "an exception ended its call, and not all ranks");
      is_withdrawn = true;
    } else {
      wait_for([&] { return is_withdrawn.load(); });
      raised<MismatchError>([&] { sum_now(rank, rank.world, 5000, 1, "loss"); });
    }
    barrier(rank.world);
    sum_now(rank, rank.world, 5000, 1, "loss");
  }));
}

TEST_CASE("withdrawal: what all ranks have called is finished") {
  const Environment environment{};
  std::atomic<bool> is_complete{false};
  CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) {
    const Sum sum = start_sum(rank, rank.world, 300000, 1, "", rank.rank == 1);
    if (rank.rank == 0) {
      wait_for([&] { return rank.world.is_under_way(*sum.operation); });
      rank.world.withdraw(*sum.operation, nullptr);
      check_sum(sum, rank.world);
      is_complete = true;
    } else {
      finish_sum(rank.world, sum);
    }
    barrier(rank.world);
  }));
}

TEST_CASE("withdrawal: a quick operation goes on with its copy, and leaves the array alone") {
  const Environment environment{};
  std::atomic<bool> is_withdrawn{false};
  CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) {
    Sum sum;
    if (rank.rank == 0) {
      sum = start_sum(rank, rank.world, 3, 1, "small", false);
      interrupt_sum(rank, rank.world, sum);
      std::fill(sum.data->begin(), sum.data->end(), 7.0f);
      is_withdrawn = true;
    } else {
      wait_for([&] { return is_withdrawn.load(); });
      sum_now(rank, rank.world, 3, 1, "small");
    }
    barrier(rank.world);
    rank.world.housekeep();
    if (rank.rank == 0) expect_untouched(*sum.data, 7.0f);
  }));
}

TEST_CASE("withdrawal: a message that is sent goes on from a copy, and a receive that nothing has come for is gone") {
  const Environment environment{};
  std::atomic<bool> is_withdrawn{false};
  CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) {
    constexpr size_t kCount = 1 << 20;  // more than a link holds
    const auto data = std::make_shared<Floats>(kCount, 1.0f);
    Floats reply(kCount);
    if (rank.rank == 0) {
      const OperationPtr early = rank.world.receive(view(reply, DType::kFloat32), 1, 0, nullptr);
      const OperationPtr late = rank.world.receive(view(reply, DType::kFloat32), kAnyPeer, 0, nullptr);
      const OperationPtr sent = rank.world.send(view(*data, DType::kFloat32), 1, 0, data);
      for (const OperationPtr& operation : {early, late, sent}) rank.world.withdraw(*operation, nullptr);
      std::fill(data->begin(), data->end(), 7.0f);
      std::fill(reply.begin(), reply.end(), 7.0f);
      is_withdrawn = true;
      Floats received(kCount);
      rank.world.wait(*rank.world.receive(view(received, DType::kFloat32), 1, 0, nullptr), -1, nullptr);
      expect_untouched(received, 2.0f);
      expect_untouched(reply, 7.0f);
    } else {
      wait_for([&] { return is_withdrawn.load(); });
      rank.world.wait(*rank.world.receive(view(*data, DType::kFloat32), 0, 0, data), -1, nullptr);
      expect_untouched(*data, 1.0f);
      std::fill(reply.begin(), reply.end(), 2.0f);
      rank.world.wait(*rank.world.send(view(reply, DType::kFloat32), 0, 0, nullptr), -1, nullptr);
    }
    barrier(rank.world);
  }));
}

TEST_CASE("withdrawal between hosts: the group fails on all ranks, and says why") {
  const Environment environment{};
  for (const std::string name : {"", "loss"}) {
    CAPTURE(name);
    std::atomic<bool> is_withdrawn{false};
    CHECK_NOTHROW(run_hosts({0, 0, 1, 1}, [&](Rank& rank) {
      barrier(rank.world);
      if (rank.rank == 1) {
        const Sum sum = start_sum(rank, rank.world, 5000, 1, name, false);
        interrupt_sum(rank, rank.world, sum);
        std::fill(sum.data->begin(), sum.data->end(), 7.0f);
        is_withdrawn = true;
        expect_contains(raised<MismatchError>([&] { sum_now(rank, rank.world, 5000, 1); }), "ended this rank's call");
        expect_untouched(*sum.data, 7.0f);
      } else {
        wait_for([&] { return is_withdrawn.load(); });
        const std::string text = raised<MismatchError>([&] { sum_now(rank, rank.world, 5000, 1, name); });
        expect_contains(text, "rank 1/4");
        expect_contains(text, "an exception, such as KeyboardInterrupt, ended this rank's call");
      }
    }));
  }
}

}  // namespace
}  // namespace rr::test
