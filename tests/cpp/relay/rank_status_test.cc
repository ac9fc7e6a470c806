// Where a rank stands, asked by others: what it answers itself, what another rank says of one that does not, and what
// is said of operations that take long.
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/clock.h"
#include "doctest/doctest.h"
#include "engine/late/status_answers.h"
#include "operations/usual_waits.h"
#include "support/loopback_links.h"

namespace rr::test {
namespace {

// What the rank itself answers, or another one for it.
std::string any_answer(Rank& rank, int whom) {
  const uint64_t question = rank.context.statuses().ask(whom);
  std::optional<std::string> text;
  wait_for([&] { return (text = rank.context.statuses().answer_to(whom, question)).has_value(); });
  return *text;
}

// What the rank itself answers. Where the machine is so busy that its engine does not run for a second, another rank
// says that it does not answer: it is asked again.
std::string asked(Rank& rank, int whom) {
  std::string text;
  wait_for([&] { return (text = any_answer(rank, whom)).find("does not answer") == std::string::npos; });
  return text;
}

// Runs body on rank 0, while the others wait for it in a way that their engines look around.
std::function<void(Rank&)> beside(const std::function<void(Rank&)>& body, std::atomic<bool>& is_over) {
  return [&is_over, body](Rank& rank) {
    sum_now(rank, rank.world, 3, 1, "before");
    if (rank.rank == 0) {
      const auto over = [&](bool*) { is_over = true; };
      bool flag = false;
      const std::unique_ptr<bool, decltype(over)> at_end(&flag, over);
      body(rank);
    } else {
      wait_for([&] { return is_over.load(); });
    }
    barrier(rank.world);
  };
}

void expect_answer(const std::string& text, int rank) {
  expect_contains(text, "rank " + std::to_string(rank) + " called allreduce 'before' #0 last; its process " +
                            std::to_string(::getpid()) + " on ");
  expect_contains(text, " % of a core");
}

TEST_CASE("rank status: a rank says what it has called last, and whether it has a core") {
  std::atomic<bool> is_over{false};
  CHECK_NOTHROW(run_ranks(3, beside(
                                 [](Rank& rank) {
                                   for (int turn = 0; turn < 2; ++turn) {
                                     for (const int whom : {1, 2}) expect_answer(asked(rank, whom), whom);
                                   }
                                 },
                                 is_over)));
}

TEST_CASE("rank status: a rank of another host is asked by its leader, by whichever rank") {
  std::atomic<bool> is_over{false};
  CHECK_NOTHROW(run_hosts({0, 1, 1, 0}, beside(
                                            [](Rank& rank) {
                                              for (const int whom : {2, 1, 2}) expect_answer(asked(rank, whom), whom);
                                            },
                                            is_over)));
  is_over = false;
  const auto by_the_last = [&](Rank& rank) {
    sum_now(rank, rank.world, 3, 1, "before");
    if (rank.rank == 3) {
      for (const int whom : {0, 1, 2}) expect_answer(asked(rank, whom), whom);
      is_over = true;
    }
    wait_for([&] { return is_over.load(); });
  };
  CHECK_NOTHROW(run_hosts({0, 1, 2, 0}, by_the_last));
}

TEST_CASE("rank status: what a rank waits for in a process set is part of its answer") {
  const Fd fd = create_memfd("set", ControlSegment::nbytes(2, 64));
  std::atomic<bool> is_over{false};
  CHECK_NOTHROW(run_ranks(3, [&](Rank& rank) {
    sum_now(rank, rank.world, 3, 1, "before");
    Group* const set = rank.rank == 0 ? nullptr : rank.context.add_group(fd.get(), {1, 2}, 1, nullptr).get();
    std::optional<Sum> sum;
    if (rank.rank == 1) sum = start_sum(rank, *set, 3000, 1, "in the set");
    if (rank.rank == 0) {
      std::string text;
      wait_for([&] { return (text = asked(rank, 1)).find("process set") != std::string::npos; });
      expect_contains(text,
                      "called allreduce 'before' #0 last; called allreduce 'in the set' #0 last in process set [1, 2], "
                      "and allreduce 'in the set' #0 waits for rank(s) 2");
      is_over = true;
    }
    wait_for([&] { return is_over.load(); });
    if (rank.rank == 2) sum = start_sum(rank, *set, 3000, 1, "in the set");
    if (sum) finish_sum(*set, *sum);
    barrier(rank.world);
  }));
}

using Known = const std::function<void(const std::string&)>&;
std::atomic<bool> may_return{false};
void where_without_lock(Known known) {
  wait_for([] { return may_return.load(); });
  known("is at last free");
}
void where_on_a_disk_that_hangs(Known known) {
  known("is at train.py:12 in step");
  wait_for([] { return may_return.load(); });
  known("is at train.py:12 in step: loss.item()");
}
void where(Known known) {
  known("");
  known("is at train.py:12 in step");
}

TEST_CASE("rank status: the line of the program, if it can be had") {
  std::atomic<bool> is_over{false};
  CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) {
    rank.context.set_where(where);
    sum_now(rank, rank.world, 3, 1, "before");
    if (rank.rank == 0) {
      expect_contains(asked(rank, 1), " % of a core; its main thread is at train.py:12 in step");
      is_over = true;
    }
    wait_for([&] { return is_over.load(); });
    barrier(rank.world);
  }));
}

TEST_CASE("rank status: a thread that cannot look at the program is not waited for") {
  struct Case {
    WhereInProgram where;
    const char* meanwhile;
    const char* later;
  };
  for (const Case& c : {Case{where_without_lock, " runs, but holds Python's lock (the GIL)", " thread is at last free"},
                        Case{where_on_a_disk_that_hangs, " runs; its main thread is at train.py:12 in step",
                             " % of a core; its main thread is at train.py:12 in step: loss.item()"}}) {
    may_return = false;
    CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) {
      rank.context.set_where(c.where);
      barrier(rank.world);
      if (rank.rank == 0) {
        for (int turn = 0; turn < 2; ++turn) expect_contains(asked(rank, 1), c.meanwhile);
        may_return = true;
        std::string text;
        wait_for([&] { return (text = asked(rank, 1)).find(c.later) != std::string::npos; });
      }
      wait_for([&] { return may_return.load(); });
      barrier(rank.world);
    }));
  }
}

TEST_CASE("rank status: a rank leaves though its thread hangs") {
  may_return = false;
  CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) {
    rank.context.set_where(where_without_lock);
    barrier(rank.world);
    if (rank.rank == 0) any_answer(rank, 1);
    rank.context.shutdown();
  }));
  may_return = true;  // it ends after its context
}

TEST_CASE("rank status: messages are calls, too") {
  std::atomic<bool> is_over{false};
  CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) {
    sum_now(rank, rank.world, 3, 1, "before");
    Floats data(8, 1.0f);
    const TensorView tensor = view(data, DType::kFloat32);
    OperationPtr receive;
    if (rank.rank == 1) receive = rank.world.receive(tensor, 0, 0, nullptr);
    barrier(rank.world);
    if (rank.rank == 0) {
      expect_contains(asked(rank, 1), "rank 1 called barrier #2 last, and recv from rank 0 #1 is under way");
      is_over = true;
    }
    wait_for([&] { return is_over.load(); });
    if (rank.rank == 0) receive = rank.world.send(tensor, 1, 0, nullptr);
    rank.world.wait(*receive, -1, nullptr);
    if (rank.rank == 0) receive = rank.world.receive(tensor, 1, 1, nullptr);
    if (rank.rank == 0) expect_contains(rank.world.calls_text(), "called recv from rank 1 #3 last");
    if (rank.rank == 1) receive = rank.world.send(tensor, 0, 1, nullptr);
    rank.world.wait(*receive, -1, nullptr);
  }));
}

TEST_CASE("rank status: a rank that is asked again and again, and answers, is not answered for") {
  const Fd fd = create_memfd("world", ControlSegment::nbytes(2, 16));
  const ControlSegment control = ControlSegment::map(fd.get(), 2);
  const Hosts hosts({0, 0}, 0);
  StatusAnswers answers({control, hosts, 0, "here", [] { return std::string("called nothing"); },
                         [](int) { return ::getpid(); }, [] { return std::string(); }});
  uint64_t question = answers.statuses().ask(1);
  const int64_t begun_ns = now_ns();
  while (now_ns() - begun_ns < 2'000'000'000) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    CHECK(answers.statuses().answer(1, question, "itself"));
    CHECK(*answers.statuses().answer_to(1, question) == "itself");
    question = answers.statuses().ask(1);
    answers.look();
  }
}

TEST_CASE("rank status: a rank that does not answer is answered for") {
  const Fd fd = create_memfd("world", ControlSegment::nbytes(2, 16));
  const ControlSegment control = ControlSegment::map(fd.get(), 2);
  const Hosts hosts({0, 0}, 0);
  StatusAnswers answers({control, hosts, 0, "here", [] { return std::string("called nothing"); },
                         [](int) { return ::getpid(); }, [] { return std::string(); }});
  const uint64_t question = answers.statuses().ask(1);
  CHECK(answers.statuses().ask(1) == question);  // it is asked already
  std::optional<std::string> text;
  wait_for([&] {
    answers.look();
    return (text = answers.statuses().answer_to(1, question)).has_value();
  });
  CHECK(*text == "the process " + std::to_string(::getpid()) + " of rank 1 on here is there, but does not answer");
  CHECK(answers.statuses().ask(1) == question + 1);
  answers.stop();
  answers.look();  // does nothing any more
  CHECK_FALSE(answers.statuses().answer_to(1, question + 1));
}

TEST_CASE("rank status: a lock that somebody has, and the first answer stands") {
  const Fd fd = create_memfd("world", ControlSegment::nbytes(2, 16));
  const ControlSegment control = ControlSegment::map(fd.get(), 2);
  const Hosts hosts({0, 0}, 0);
  const RankStatuses statuses(control, hosts);
  CHECK(statuses.question_to(1) == 0);
  const uint64_t question = statuses.ask(1);
  CHECK(statuses.question_to(1) == question);
  REQUIRE(control.header().lock.try_acquire());
  CHECK_FALSE(statuses.answer(1, question, "text"));
  control.header().lock.release();
  CHECK(statuses.answer(1, question, "text"));
  CHECK(statuses.question_to(1) == 0);
  CHECK(statuses.answer(1, question, "another"));
  CHECK(*statuses.answer_to(1, question) == "text");
  REQUIRE(control.header().lock.try_acquire());
  CHECK_FALSE(statuses.answer_to(1, question));
  control.header().lock.release();
}

struct Waits {
  UsualWaits usual;
  int64_t now = 1;
  Operation operation;
  // The operation is seen every 0.1 s until it is so old. When it would have been late.
  double wait(uint64_t number, double age_s) {
    operation.number = number;
    double late_s = 0;
    for (double seen_s = 0; seen_s < age_s; seen_s += 0.1) {
      late_s = usual.late_after_s(operation, seen_s, 5, now);
      now += 100'000'000;
    }
    now += 1'000'000'000;
    return late_s;
  }
};

TEST_CASE("usual waits: what takes long each time is late after 20 times as long") {
  Waits waits;
  waits.operation.name = "epoch";
  for (uint64_t number = 0; number < 3; ++number) CHECK(waits.wait(number, 2) == 5);
  CHECK(waits.wait(3, 3) == doctest::Approx(38).epsilon(0.03));  // the shortest of the last three took 1.9 s
  for (uint64_t number = 4; number < 7; ++number) waits.wait(number, 100);
  CHECK(waits.wait(7, 1) == doctest::Approx(160).epsilon(0.03));  // a minute more
  waits.operation.name = "another";
  CHECK(waits.wait(8, 2) == 5);
}

TEST_CASE("usual waits: short ones are not long ones, and one long one is not usual") {
  Waits waits;
  for (uint64_t number = 0; number < 10; ++number) CHECK(waits.wait(number, 0.2) == 5);
  CHECK(waits.wait(10, 60) == 5);
  for (uint64_t number = 11; number < 14; ++number) waits.wait(number, 0.4);
  CHECK(waits.wait(14, 60) == doctest::Approx(6).epsilon(0.2));
}

TEST_CASE("usual waits: operations without names that are under way at once are no earlier ones") {
  Waits waits;
  for (int tenths = 3; tenths < 40; ++tenths) {
    for (uint64_t number = 0; number < 6; ++number) {
      waits.operation.number = number;
      CHECK(waits.usual.late_after_s(waits.operation, tenths * 0.1, 5, waits.now) == 5);
    }
    waits.now += 100'000'000;
  }
}

}  // namespace
}  // namespace rr::test
