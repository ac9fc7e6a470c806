// What one host says to another comes late, while a third one's words arrive: nothing is done before all of it is here.
#include <optional>

#include "doctest/doctest.h"
#include "support/loopback_links.h"

namespace rr::test {
namespace {

// Runs beside the rank's thread, which ends after it.
class Beside {
 public:
  explicit Beside(std::function<void()> work) : thread_(std::move(work)) {}
  ~Beside() { thread_.join(); }
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;

 private:
  std::thread thread_;
};

constexpr int kData = 0;  // the collectives' channel

// Nothing that one rank sends to another is handed out until it is let go.
void hold(Delays& delays, int from, int to, bool is_held = true) {
  for (const int channel : {kData, control_channel_of(0)}) delays.by_hand(to, from, channel).held = is_held;
}

void let_go(Delays& delays, int from, int to) { hold(delays, from, to, false); }

// A rank that fails ends the others' calls, which may wait for what it holds.
void run_late(const std::vector<int>& host_of, Delays& delays, const std::function<void(Rank&)>& body) {
  const auto guarded = [&](Rank& rank) {
    try {
      body(rank);
    } catch (...) {
      record_failure(rank.world.control(), FatalKind::kInternal, "a rank of the test has failed");
      throw;
    }
  };
  run_hosts(host_of, guarded, 64, 8192, &delays);
}

// Rank r has 2000 (r + 1) rows of r + 1.
OperationPtr start_gather(Rank& rank, std::vector<int32_t>& mine, const std::string& name) {
  mine.assign(static_cast<size_t>(2000 * (rank.rank + 1)), rank.rank + 1);
  Request request;
  request.kind = Kind::kAllgather;
  request.srcs = {view(mine, DType::kInt32)};
  request.name = &name;
  return rank.world.submit(request, nullptr);
}

TEST_CASE("an entry of the log waits for what the ranks of a third host announce about it") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "30"}};
  Delays delays;
  hold(delays, 1, 2);
  CHECK_NOTHROW(run_late({0, 1, 2}, delays, [&](Rank& rank) {
    std::vector<int32_t> mine;
    const OperationPtr gather = start_gather(rank, mine, "rows");
    if (rank.rank == 2) {
      look_around(rank, 3);  // the first host has put the operation in order, and said so
      let_go(delays, 1, 2);
    }
    rank.world.wait(*gather, -1, nullptr);
    expect(gather->counts == std::vector<uint64_t>{2000, 4000, 6000}, "rows of each rank");
    const auto* const rows = reinterpret_cast<const int32_t*>(gather->output.get());
    expect(rows[0] == 1 && rows[1999] == 1 && rows[2000] == 2 && rows[6000] == 3 && rows[11999] == 3, "rows");
  }));
}

TEST_CASE("what a rank announces after a join waits for the hosts that have not heard yet that all have joined") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "30"}};
  struct Case {
    std::string name;
    size_t count;
  };
  for (const Case& c : {Case{"", 3000}, Case{"named", 3000}, Case{"", 3}, Case{"named", 3}}) {
    CAPTURE(c.name);
    CAPTURE(c.count);
    Delays delays;
    std::atomic<bool> is_announced{false};
    CHECK_NOTHROW(run_late({0, 1, 2}, delays, [&](Rank& rank) {
      sum_now(rank, rank.world, c.count, 1, c.name);
      barrier(rank.world);
      std::optional<Beside> beside;
      if (rank.rank == 0) {
        wait_for([&] { return rank.world.control().line(2).joined.load() != 0; });
        hold(delays, 2, 0);  // that it knows that all have
        beside.emplace([&] {
          wait_for([&] { return is_announced.load(); });
          look_around(rank, 3);  // it is here
          let_go(delays, 2, 0);
        });
      }
      rank.world.join(nullptr);
      const Sum sum = start_sum(rank, rank.world, c.count, 2, c.name);
      if (rank.rank == 1) is_announced = true;
      finish_sum(rank.world, sum);
      sum_now(rank, rank.world, 3, 3, c.name);
    }));
  }
}

// The last one to join has seen the other two join; a third host hears of it first.
TEST_CASE("the rank that has seen all others join is the last one on every host, whatever a host hears first") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "30"}};
  for (int last = 0; last < 3; ++last) {
    CAPTURE(last);
    const int first = (last + 1) % 3;
    const int listener = (last + 2) % 3;
    Delays delays;
    hold(delays, first, listener);
    CHECK_NOTHROW(run_late({0, 1, 2}, delays, [&](Rank& rank) {
      const ControlSegment& control = rank.world.control();
      std::optional<Beside> beside;
      if (rank.rank == listener) {
        beside.emplace([&] {
          wait_for([&] { return control.line(last).joined.load() != 0; });
          let_go(delays, first, listener);
        });
      }
      if (rank.rank == last) {
        wait_for([&] { return control.line(first).joined.load() != 0 && control.line(listener).joined.load() != 0; });
      }
      expect(rank.world.join(nullptr) == last, "who joined last");
    }));
  }
}

// Rank 1 hears that rank 3 has joined before it hears of those whom rank 3 had seen join.
TEST_CASE("a rank that has seen another one join joined after it, whomever else the other one had seen") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "30"}};
  Delays delays;
  hold(delays, 0, 1);
  hold(delays, 2, 1);
  CHECK_NOTHROW(run_late({0, 1, 2, 3}, delays, [&](Rank& rank) {
    const ControlSegment& control = rank.world.control();
    const auto has_joined = [&](int r) { return control.line(r).joined.load() != 0; };
    std::optional<Beside> beside;
    if (rank.rank == 3) wait_for([&] { return has_joined(0) && has_joined(2); });
    if (rank.rank == 1) {
      wait_for([&] { return has_joined(3); });
      beside.emplace([&] {
        wait_for([&] { return has_joined(1); });
        let_go(delays, 0, 1);
        let_go(delays, 2, 1);
      });
    }
    expect(rank.world.join(nullptr) == 1, "who joined last");
  }));
}

// The first host decides about the sum, since rank 1 alone has not joined. Rank 1 has it before it hears from rank 2.
TEST_CASE("a rank that has gone on without another one, by the first host's word, joined after it") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "30"}};
  Delays delays;
  hold(delays, 2, 1);
  CHECK_NOTHROW(run_late({0, 1, 2}, delays, [&](Rank& rank) {
    const ControlSegment& control = rank.world.control();
    std::optional<Beside> beside;
    if (rank.rank == 2) wait_for([&] { return control.line(0).joined.load() != 0; });
    if (rank.rank == 1) {
      beside.emplace([&] {
        wait_for([&] { return control.line(1).joined.load() != 0; });
        let_go(delays, 2, 1);
      });
      const Sum sum = start_sum(rank, rank.world, 3000, 1);
      finish_sum(rank.world, sum, 2);
      expect(control.line(2).joined.load() == 0, "it has not heard from rank 2");
    }
    expect(rank.world.join(nullptr) == 1, "who joined last");
  }));
}

TEST_CASE("a rank that leaves after a join is not missed by a host that has not heard yet that all have joined") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "30"}};
  Delays delays;
  std::atomic<bool> is_over{false};
  CHECK_NOTHROW(run_late({0, 1, 2}, delays, [&](Rank& rank) {
    barrier(rank.world);
    std::optional<Beside> beside;
    if (rank.rank == 0) {
      wait_for([&] { return rank.world.control().line(2).joined.load() != 0; });
      hold(delays, 2, 0);
      beside.emplace([&] {
        wait_for([&] { return rank.world.control().line(1).cursor.load() == kFinished; });  // it has left
        look_around(rank, 3);
        let_go(delays, 2, 0);
      });
    }
    rank.world.join(nullptr);
    if (rank.rank == 0) is_over = true;
    if (rank.rank == 2) wait_for([&] { return is_over || has_failed(rank.world.control()); });
  }));
}

TEST_CASE(
    "pairwise: inputs of one rank wait outside while another's, which are to be folded with older ones, are late") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "30"}};
  Delays delays;
  delays.by_hand(0, 2, kData).held = true;
  CHECK_NOTHROW(run_late({0, 1, 2}, delays, [&](Rank& rank) {
    const Sum sum = start_sum(rank, rank.world, 200000, 1);  // nine pieces
    if (rank.rank == 2) {
      look_around(rank, 3);  // rank 1 has sent rank 0 all that it can
      let_go(delays, 2, 0);
    }
    finish_sum(rank.world, sum);
  }));
}

TEST_CASE("recursive doubling sends what a rank had before it folded what came") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "30"}, {"RINGREDUCE_ALGORITHM", "recursive_doubling"}};
  Delays delays;
  delays.by_hand(1, 0, kData).held = true;
  CHECK_NOTHROW(run_late({0, 1}, delays, [&](Rank& rank) {
    const Sum sum = start_sum(rank, rank.world, 20000, 1);  // ten times what a codec takes
    if (rank.rank == 1) {
      look_around(rank, 3);  // rank 0 has folded what it was sent
      let_go(delays, 0, 1);
    }
    finish_sum(rank.world, sum);
  }));
}

struct GaveUp {};
std::atomic<bool> gives_up{false};
void give_up() {
  if (gives_up) throw GaveUp();
}

TEST_CASE("a verdict that all are stuck needs the vote of a host whose rank has moved meanwhile") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "30"}};
  Delays delays;
  gives_up = false;
  CHECK_NOTHROW(run_late({0, 1}, delays, [&](Rank& rank) {
    barrier(rank.world);
    if (rank.rank == 0) {
      const Beside beside([&] {
        wait_for([&] { return rank.world.control().header().frozen.load() != 0; });
        gives_up = true;
      });
      sum_now(rank, rank.world, 3, 1, "first");
      sum_now(rank, rank.world, 3, 2, "second");
      return;
    }
    hold(delays, 0, 1);  // the question
    const Sum second = start_sum(rank, rank.world, 3, 2, "second");
    bool gave_up = false;
    try {
      rank.world.wait(*second.operation, -1, give_up);
    } catch (const GaveUp&) {
      gave_up = true;
    }
    expect(gave_up, "the wait ends when the first host asks");
    const Sum first = start_sum(rank, rank.world, 3, 1, "first");
    let_go(delays, 0, 1);
    finish_sum(rank.world, first);
    finish_sum(rank.world, second);
  }));
}

// Rank 0 waits for rows that the others have not announced. After the verdict it announces others under the same name.
TEST_CASE("what is decided after a verdict waits for a host that has not withdrawn its requests yet") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "30"}};
  Delays delays;
  hold(delays, 2, 1);  // that nothing more comes from rank 2
  std::atomic<int> called{0};
  CHECK_NOTHROW(run_late({0, 1, 2}, delays, [&](Rank& rank) {
    std::vector<int32_t> mine;
    const auto start = [&](size_t rows) {
      const std::string name = "rows";
      mine.assign(rows, rank.rank);
      Request request;
      request.kind = Kind::kAllgather;
      request.srcs = {view(mine, DType::kInt32)};
      request.name = &name;
      return rank.world.submit(request, nullptr);
    };
    OperationPtr gather;
    if (rank.rank == 0) {
      gather = start(500);
      raised<MismatchError>([&] { rank.world.wait(*gather, -1, nullptr); });
      gather = start(1000);
    } else if (rank.rank == 1) {
      gather = start(2000);
      const Beside beside([&] {
        wait_for([&] { return called.load() == 2; });
        look_around(rank, 3);
        let_go(delays, 2, 1);
      });
      raised<MismatchError>([&] { sum_now(rank, rank.world, 3000, 1, "of rank 1"); });
    } else {
      raised<MismatchError>([&] { sum_now(rank, rank.world, 3000, 1, "of rank 2"); });
      gather = start(3000);
    }
    ++called;
    rank.world.wait(*gather, -1, nullptr);
    expect(gather->counts == std::vector<uint64_t>{1000, 2000, 3000}, "rows of each rank");
  }));
}

// Ranks 0 and 1 have joined; host 1 does not hear that rank 3 has settled a verdict before it hears what host 0 says
// after the verdict.
TEST_CASE("that a host has drained waits for a host that has not settled the verdict before it") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "30"}};
  Delays delays;
  hold(delays, 3, 1);
  std::atomic<bool> has_drained{false};
  CHECK_NOTHROW(run_late({0, 1, 2, 3}, delays, [&](Rank& rank) {
    const ControlSegment& control = rank.world.control();
    std::optional<Beside> beside;
    if (rank.rank == 0) {
      beside.emplace([&] {
        wait_for([&] { return control.header().drained_count.load() == 1; });
        look_around(rank, 3);  // it has said so
        has_drained = true;
      });
    } else if (rank.rank == 1) {
      beside.emplace([&] {
        wait_for([&] { return has_drained.load(); });
        look_around(rank, 3);
        let_go(delays, 3, 1);
      });
    } else {
      wait_for([&] { return control.line(0).joined.load() != 0 && control.line(1).joined.load() != 0; });
      raised<MismatchError>([&] { sum_now(rank, rank.world, 3000, 1, "of " + std::to_string(rank.rank)); });
    }
    rank.world.join(nullptr);
    sum_now(rank, rank.world, 3000, 1);
  }));
}

TEST_CASE("a second question whether all are stuck waits for a host that has not settled the first") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "30"}};
  Delays delays;
  hold(delays, 3, 1);
  std::atomic<int> told{0};
  std::atomic<bool> is_first_over{false}, is_asked_again{false};
  CHECK_NOTHROW(run_late({0, 1, 2, 3}, delays, [&](Rank& rank) {
    const ControlSegment& control = rank.world.control();
    std::optional<Beside> beside;
    if (rank.rank == 0) {
      beside.emplace([&] {
        wait_for([&] { return told.load() == 2 && control.header().frozen.load() == 0; });
        is_first_over = true;
        wait_for([&] { return control.header().frozen.load() != 0; });
        look_around(rank, 3);
        is_asked_again = true;
      });
    } else if (rank.rank == 1) {
      beside.emplace([&] {
        wait_for([&] { return is_asked_again.load(); });
        look_around(rank, 3);
        let_go(delays, 3, 1);
      });
    } else {
      wait_for([&] { return control.line(0).joined.load() != 0 && control.line(1).joined.load() != 0; });
      const auto get_stuck = [&](const std::string& name) {
        expect_contains(raised<MismatchError>([&] { sum_now(rank, rank.world, 3000, 1, name); }), name);
      };
      get_stuck("first of " + std::to_string(rank.rank));
      ++told;
      wait_for([&] { return is_first_over.load(); });
      get_stuck("second of " + std::to_string(rank.rank));
    }
    rank.world.join(nullptr);
    sum_now(rank, rank.world, 3000, 1);
  }));
}

// A leader that has died says nothing, and nobody else speaks for its host.
TEST_CASE("the death of a leader is heard on other hosts" * doctest::should_fail()) {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "3"}};
  Delays delays;
  std::atomic<bool> is_silent{false};
  CHECK_NOTHROW(run_hosts(
      {0, 1, 1},
      [&](Rank& rank) {
        barrier(rank.world);
        if (rank.rank == 1) {
          hold(delays, 1, 0);
          is_silent.store(true);
          wait_for([&] { return has_failed(rank.world.control()); });
          return;
        }
        wait_for([&] { return is_silent.load(); });
        if (rank.rank == 2) record_failure(rank.world.control(), FatalKind::kPeerLost, "lost rank 1");  // it sees that
        expect_contains(raised<PeerLostError>([&] { sum_now(rank, rank.world, 3, 0); }), "lost rank 1");
      },
      64, 8192, &delays));
}

}  // namespace
}  // namespace rr::test
