// All ranks, on several hosts, wait for operations that can never be complete: all are told so, in the same words as on
// one host, and the group goes on.
#include <random>

#include "base/clock.h"
#include "doctest/doctest.h"
#include "support/loopback_links.h"

namespace rr::test {
namespace {

using Run = std::function<void(const std::function<void(Rank&)>&)>;

// What is the same for all ranks.
std::string verdict_of(const std::string& text) { return text.substr(0, text.find(" [ringreduce rank")); }

// Every rank ends in a wait that nobody will answer; what they are told.
std::vector<std::string> get_stuck(int size, const Run& run) {
  std::vector<std::string> texts(static_cast<size_t>(size));
  run([&](Rank& rank) {
    std::string& text = texts[static_cast<size_t>(rank.rank)];
    for (int turn = 0; turn < 3; ++turn) {
      const size_t count = turn == 1 ? 3000 : 2;
      // Unnamed ones that only the ranks from r on state, so that the counters differ; all together in between.
      std::vector<Sum> lonely;
      for (int k = 0; k < 3 * rank.rank; ++k) lonely.push_back(start_sum(rank, rank.world, k % 2 == 0 ? 2 : 3000, k));
      const Sum all = start_sum(rank, rank.world, count, turn, "all");
      const std::string name = rank.rank % 2 == 0 ? "even" : "odd";
      text += verdict_of(raised<MismatchError>([&] { sum_now(rank, rank.world, count, turn, name); })) + "\n";
      for (const Sum& sum : lonely) {
        expect_contains(raised<MismatchError>([&] { finish_sum(rank.world, sum); }), "every rank is blocked");
      }
      finish_sum(rank.world, all);
      for (int k = 0; k < 5; ++k) {
        sum_now(rank, rank.world, k % 2 == 0 ? 5000 : 5, k);
        sum_now(rank, rank.world, k % 2 == 0 ? 5000 : 5, k, k < 3 ? "even" : "odd");
      }
    }
  });
  return texts;
}

TEST_CASE("stuck: all are told the same, on one host and on several") {
  const Environment environment{};
  for (const auto& host_of : kLayouts) {
    CAPTURE(host_of.size());
    const int size = static_cast<int>(host_of.size());
    std::vector<std::string> here(1), across;
    CHECK_NOTHROW(here = get_stuck(size, [&](const auto& body) { run_ranks(size, body); }));
    CHECK_NOTHROW(across = get_stuck(size, [&](const auto& body) { run_hosts(host_of, body); }));
    for (const std::string& text : across) CHECK(text == here[0]);
    CHECK(here[0].find("rank 1 waits in allreduce 'odd' for rank 0") != std::string::npos);
  }
}

TEST_CASE("stuck: of a text that is too long all are told the same beginning") {
  const Environment environment{};
  std::vector<std::string> texts(8);
  CHECK_NOTHROW(run_hosts({0, 1, 0, 1, 0, 1, 0, 1}, [&](Rank& rank) {
    std::string name = "rank " + std::to_string(rank.rank) + " ";
    while (name.size() < 230) name += "\u00e9";
    texts[static_cast<size_t>(rank.rank)] = raised<MismatchError>([&] { sum_now(rank, rank.world, 3, 0, name); });
  }));
  const auto beginning = [](const std::string& text) { return text.substr(0, text.rfind(" [ringreduce")); };
  for (const std::string& text : texts) CHECK(beginning(text) == beginning(texts[0]));
  CHECK(beginning(texts[0]).size() > 1900);
}

TEST_CASE("stuck: unnamed operations beside a named one; then they count alike") {
  const Environment environment{};
  CHECK_NOTHROW(run_hosts({0, 1, 1, 0, 2}, [](Rank& rank) {
    for (int turn = 0; turn < 2 * rank.size; ++turn) {
      const size_t count = turn < rank.size ? 2 : 3000;
      const std::string name = rank.rank == turn % rank.size ? "odd" : "";
      const std::string text = raised<MismatchError>([&] { sum_now(rank, rank.world, count, turn, name); });
      const std::string odd = std::to_string(turn % rank.size);
      expect_contains(text, "rank " + odd + " waits in allreduce 'odd' for rank");
      expect_contains(text, "waits in allreduce unnamed operation");
      sum_now(rank, rank.world, count, turn);
      sum_now(rank, rank.world, count, turn, "odd");
    }
  }));
}

// Looks around when all others have joined as well.
void interrupted_join(Rank& rank) {
  bool is_stopped = false;
  try {
    rank.world.join(stop);
  } catch (const Stop&) {
    is_stopped = true;
  }
  expect(is_stopped, "join() is interrupted");
  const auto size = static_cast<uint32_t>(rank.size);
  wait_for([&] { return rank.world.control().header().joined_count.load() == size; });
  look_around(rank, 2);
}

// Nobody will call them any more: the others' counters go on behind them.
TEST_CASE("stuck: what a rank alone has announced before it joined is void as well") {
  const Environment environment{};
  const auto body = [](Rank& rank) {
    for (int turn = 0; turn < 3; ++turn) {
      if (rank.rank == 2) {
        std::vector<Sum> alone;
        for (const size_t count : {2, 3000, 500}) alone.push_back(start_sum(rank, rank.world, count, turn));
        if (turn == 2) interrupted_join(rank);
        rank.world.join(nullptr);
        for (const Sum& sum : alone) {
          expect_contains(raised<MismatchError>([&] { finish_sum(rank.world, sum); }), "every rank is blocked");
        }
      } else {
        wait_for([&] { return rank.world.control().header().joined_count.load() == 1; });
        const std::string name = rank.rank == 0 ? "a" : "b";
        raised<MismatchError>([&] { sum_now(rank, rank.world, 2, turn, name); });
        const int more = turn == 0 ? 2 * static_cast<int>(kUnnamedSlots) : 0;
        for (int i = 0; i < more; ++i) {
          finish_sum(rank.world, start_sum(rank, rank.world, i % 9 == 0 ? 3000 : 2, i), 1 + 2);
        }
        rank.world.join(nullptr);
      }
      sum_now(rank, rank.world, 2, turn);
      sum_now(rank, rank.world, 3000, turn);
    }
  };
  CHECK_NOTHROW(run_ranks(3, body));
  for (const auto& host_of : {std::vector<int>{0, 1, 2}, {0, 0, 1}, {0, 1, 1}}) CHECK_NOTHROW(run_hosts(host_of, body));
}

TEST_CASE("stuck: those that have not joined are told; then they join") {
  const Environment environment{};
  for (const int joined : {0, 1, 3}) {
    CAPTURE(joined);
    CHECK_NOTHROW(run_hosts({0, 0, 1, 1}, [joined](Rank& rank) {
      if (rank.rank != joined) {
        const std::string name = "of " + std::to_string(rank.rank);
        const std::string text = raised<MismatchError>([&] { sum_now(rank, rank.world, 2000, 1, name); });
        expect_contains(text, "waits in allreduce '" + name + "' for rank");
        finish_sum(rank.world, start_sum(rank, rank.world, 3000, 1), 10 - (joined + 1));
      }
      rank.world.join(nullptr);
      for (const char* name : {"", "of 1", "of 2"}) sum_now(rank, rank.world, 2000, 2, name);
    }));
  }
}

// As a signal's handler that raises does.
struct GivenUp : std::exception {};
thread_local Deadline patience = Deadline::never();
void give_up() {
  if (patience.passed()) throw GivenUp();
}
// False: this rank has given up the wait after so many seconds, and the operation is pending.
bool wait_at_most(Rank& rank, const Sum& sum, double limit_s) {
  patience = Deadline::after_s(limit_s);
  try {
    return rank.world.wait(*sum.operation, -1, give_up);
  } catch (const GivenUp&) {
    return rank.world.poll(*sum.operation) && rank.world.wait(*sum.operation, -1, nullptr);
  }
}

// One rank may give up waiting at any moment, even while the hosts settle a verdict: all go one way or all the other.
TEST_CASE("stuck: a rank that gives up its wait in time spares everybody the verdict") {
  const Environment environment{};
  const std::vector<int> host_of = {0, 1, 1, 2, 0};
  std::atomic<int> spared{0};
  const int turns = rounds(30);
  CHECK_NOTHROW(run_hosts(host_of, [&](Rank& rank) {
    std::mt19937 shared(7);
    for (int turn = 0; turn < turns; ++turn) {
      const int late = static_cast<int>(shared() % static_cast<unsigned>(rank.size));
      const double limit_s = 0.08 + 0.0001 * static_cast<double>(shared() % 4000);
      const size_t count = turn % 2 == 0 ? 2 : 3000;
      const Sum mine = start_sum(rank, rank.world, count, turn, rank.rank == late ? "late" : "in time");
      bool stuck = false;
      try {
        if (rank.rank == late && !wait_at_most(rank, mine, limit_s)) {
          sum_now(rank, rank.world, count, turn, "in time");
          ++spared;
        } else {
          finish_sum(rank.world, mine);
        }
      } catch (const MismatchError& error) {
        expect_contains(error.what(), "every rank is blocked");
        stuck = true;
      }
      if (!stuck && rank.rank != late) sum_now(rank, rank.world, count, turn, "late");
      if (!stuck && rank.rank == late) finish_sum(rank.world, mine);
      std::vector<int64_t> told = {stuck ? 1 : 0};
      Request request;
      request.kind = Kind::kAllreduce;
      request.srcs = request.dsts = {view(told, DType::kInt64)};
      rank.world.wait(*rank.world.submit(request, nullptr), -1, nullptr);
      expect(told[0] == 0 || told[0] == rank.size, "all are told or none");
    }
  }));
  MESSAGE(spared.load() << " of " << turns << " spared");
}

TEST_CASE("stuck: nobody gives up a wait while the hosts settle a verdict") {
  const Environment environment{};
  std::atomic<bool> settled{false};
  CHECK_NOTHROW(run_hosts({0, 1}, [&](Rank& rank) {
    if (rank.rank == 0) {
      wait_for([&] { return settled.load(); });
      sum_now(rank, rank.world, 2, 0, "late");
      return;
    }
    const ControlSegment& control = rank.world.control();
    Sum sum;
    std::atomic<bool> over{false};
    std::atomic<bool> in_time{true};
    std::thread waiting([&] {
      sum = start_sum(rank, rank.world, 2, 0, "late");
      in_time = wait_at_most(rank, sum, 1.0);
      over = true;
    });
    wait_for([&] { return control.line(1).blocked_on.load() != 0 || over; });
    control.header().frozen.store(1);
    const Deadline limit = Deadline::after_s(1.5);
    wait_for([&] { return limit.passed(); });
    const bool held = !over;
    control.header().frozen.store(0);
    waiting.join();
    settled = true;
    expect(held && !in_time, "the wait ends, without a result, when the verdict is settled");
    finish_sum(rank.world, sum);
  }));
}

TEST_CASE("stuck: not while another thread may announce what is missing") {
  const Environment environment{};
  for (const int busy : {0, 1, 2}) {
    CAPTURE(busy);
    CHECK_NOTHROW(run_hosts({0, 1, 1}, [busy](Rank& rank) {
      const ControlSegment& control = rank.world.control();
      if (rank.rank != busy) {
        wait_for([&] { return control.line(busy).blocked_epoch.load() >= 2; });  // blocked, and no longer
        sum_now(rank, rank.world, 2, 1, "second");
        sum_now(rank, rank.world, 2, 0, "first");
        sum_now(rank, rank.world, 2, 3, "other");
        return;
      }
      std::exception_ptr error;
      std::thread first([&] {
        try {
          sum_now(rank, rank.world, 2, 0, "first");
        } catch (...) {
          error = std::current_exception();
        }
      });
      try {
        wait_for([&] { return control.line(busy).blocked_on.load() != 0; });
        const Sum other = start_sum(rank, rank.world, 2, 3, "other");
        for (int r = 0; r < rank.size; ++r) {
          wait_for([&] { return r == busy || control.line(r).blocked_on.load() != 0; });
        }
        for (int looks = 0; looks < 5; ++looks) {  // the first host looks as often
          const int64_t before = control.line(busy).seen_ns.load();
          wait_for([&] { return control.line(busy).seen_ns.load() != before; });
        }
        sum_now(rank, rank.world, 2, 1, "second");
        finish_sum(rank.world, other);
      } catch (...) {
        rank.context.shutdown();
        first.join();
        throw;
      }
      first.join();
      if (error) std::rethrow_exception(error);
    }));
  }
}

// For the interrupt of the test below, which is a function without state.
std::function<void()> at_look;
void look() { at_look(); }

// Rank 0 has two threads, and the one that waits reads the verdict when the other has called: that call is the first
// behind the verdict, as many as rank 1 may have been ahead.
void call_before_the_verdict_is_read(bool is_quick, int ahead) {
  std::atomic<bool> is_held{false};  // rank 0's first thread is blocked, and reads nothing for now
  run_ranks(2, [&](Rank& rank) {
    if (rank.rank == 1) {
      wait_for([&] { return is_held.load(); });
      std::vector<Sum> alone;
      for (int i = 0; i < ahead; ++i) alone.push_back(start_sum(rank, rank.world, 2, 5));
      raised<MismatchError>([&] { sum_now(rank, rank.world, 2, 0, "other"); });
      for (const Sum& sum : alone) raised<MismatchError>([&] { finish_sum(rank.world, sum); });
      for (int turn = 0; turn < 4; ++turn) sum_now(rank, rank.world, 2, turn);
      return;
    }
    const ControlSegment& control = rank.world.control();
    const auto& calls = rank.context.stats().operations;
    std::string told;
    std::thread second;
    const auto call = [&] {
      try {
        if (!is_quick) return sum_now(rank, rank.world, 2, 0);
        Floats values = {0, 1};
        const TensorView tensor = view(values, DType::kFloat32);
        rank.world.allreduce_quick(tensor, tensor, Reduction{}, nullptr);
        expect(values == Floats({0, 3}), "the sum");
      } catch (const std::exception& error) {
        told = error.what();
      }
    };
    at_look = [&] {
      if (is_held || control.line(0).blocked_on.load() == 0) return;
      is_held = true;
      wait_for([&] { return control.header().verdicts.load() != 0; });
      const uint64_t before = calls;
      second = std::thread(call);
      wait_for([&] { return calls != before; });
    };
    const Sum mine = start_sum(rank, rank.world, 2, 0, "mine");
    expect_contains(raised<MismatchError>([&] { rank.world.wait(*mine.operation, -1, look); }),
                    "every rank is blocked");
    second.join();
    expect(told.empty(), told);
    for (int turn = 1; turn < 4; ++turn) sum_now(rank, rank.world, 2, turn);
  });
}

TEST_CASE("stuck: what a second thread calls between a verdict and its reading is the first of what comes after") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "20"}};
  for (const bool is_quick : {false, true}) {
    for (const int ahead : {0, 1, 5}) {
      CAPTURE(is_quick);
      CAPTURE(ahead);
      CHECK_NOTHROW(call_before_the_verdict_is_read(is_quick, ahead));
    }
  }
}

}  // namespace
}  // namespace rr::test
