// The order that the first host decides, and what ranks of other hosts say before a third host has heard of a decision:
// a test holds the first host's words back, and lets them go when the others have come as far as they can.
#include "doctest/doctest.h"
#include "support/loopback_links.h"

namespace rr::test {
namespace {

// What the first host tells rank 2, the leader of a host, is handed out when `until` is set and rank 2 has taken up all
// that has come from elsewhere. Runs beside rank 2's own calls.
class HeldDecisions {
 public:
  HeldDecisions(Delays& delays, const Rank& rank, const std::atomic<bool>& until)
      : link_(delays.by_hand(2, 0, control_channel_of(0))), thread_([this, &rank, &until] {
          wait_for([&] { return until.load(); });
          look_around(rank, 3);
          link_.held = false;
        }) {}
  ~HeldDecisions() { thread_.join(); }
  HeldDecisions(const HeldDecisions&) = delete;
  HeldDecisions& operator=(const HeldDecisions&) = delete;

 private:
  ByHand& link_;
  std::thread thread_;
};

OperationPtr start_broadcast(Rank& rank, Floats& data, int root, const std::string& name) {
  Request request;
  request.kind = Kind::kBroadcast;
  request.root = root;
  request.name = &name;
  request.srcs = request.dsts = {view(data, DType::kFloat32)};
  return rank.world.submit(request, nullptr);
}

// The root of a broadcast has done its part before a host that has not heard of the order begins.
TEST_CASE("order: what a rank calls next under a name waits for the decision about what it called before") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "30"}};
  Delays delays;
  std::atomic<bool> has_gone_on{false};
  CHECK_NOTHROW(run_hosts(
      {0, 1, 2},
      [&](Rank& rank) {
        barrier(rank.world);
        if (rank.rank == 2) delays.by_hand(2, 0, control_channel_of(0)).held = true;
        Floats data(1000, rank.rank == 1 ? 7.0f : 0.0f);
        const OperationPtr broadcast = start_broadcast(rank, data, 1, "name");
        std::optional<HeldDecisions> held;
        if (rank.rank == 2) held.emplace(delays, rank, has_gone_on);
        rank.world.wait(*broadcast, -1, nullptr);
        expect(data == Floats(1000, 7.0f), "what rank 1 has sent");
        const Sum sum = start_sum(rank, rank.world, 2, 3, "name");
        if (rank.rank == 1) {
          look_around(rank, 2);  // it has been passed on
          has_gone_on = true;
        }
        finish_sum(rank.world, sum);
      },
      64, 8192, &delays));
}

TEST_CASE("order: an operation that is quick on some ranks and in the log of others is refused by all alike") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "30"}};
  for (const std::string name : {"name", ""}) {
    for (const int longer : {0, 1, 2}) {  // the rank whose tensor is longer
      CAPTURE(name);
      CAPTURE(longer);
      Delays delays;
      std::atomic<bool> has_gone_on{false};
      CHECK_NOTHROW(run_hosts(
          {0, 1, 2},
          [&](Rank& rank) {
            barrier(rank.world);
            if (rank.rank == 2) delays.by_hand(2, 0, control_channel_of(0)).held = longer == 1;
            const Sum odd = start_sum(rank, rank.world, rank.rank == longer ? 3000 : 2, 1, name);
            std::optional<HeldDecisions> held;
            if (rank.rank == 2) held.emplace(delays, rank, has_gone_on);
            if (rank.rank == 2 && longer != 1) has_gone_on = true;
            expect_contains(raised<MismatchError>([&] { finish_sum(rank.world, odd); }), "Mismatched ALLREDUCE");
            const Sum sum = start_sum(rank, rank.world, 2, 3, name);
            if (rank.rank == 1) {
              look_around(rank, 2);
              has_gone_on = true;
            }
            finish_sum(rank.world, sum);
            for (const size_t count : {size_t{3000}, size_t{2}}) sum_now(rank, rank.world, count, 1, name);
          },
          64, 8192, &delays));
    }
  }
}

// The other hosts hear of an operation of the log when it is decided, and before that only once it is late.
TEST_CASE("order: an operation that takes too long names who is missing, on every host") {
  struct Case {
    std::vector<int> host_of;
    std::string name;
  };
  for (const Case& c : {Case{{0, 1, 2}, "name"}, Case{{0, 1, 1}, ""}, Case{{0, 0, 1}, "name"}}) {
    const Environment environment{{"RINGREDUCE_TIMEOUT", "4"}};
    CAPTURE(c.name);
    CHECK_NOTHROW(run_hosts(c.host_of, [&](Rank& rank) {
      barrier(rank.world);
      if (rank.rank == 2) {
        wait_for([&] { return has_failed(rank.world.control()); });
        return;
      }
      // A rank that waits in a call tells all hosts so; one that does not is late all the same.
      const Sum sum = start_sum(rank, rank.world, 3000, 1, c.name);
      wait_for([&] { return has_failed(rank.world.control()); });
      expect_contains(raised<TimeoutError>([&] { finish_sum(rank.world, sum); }), "missing rank(s): 2");
    }));
  }
}

// Rank 2 sees that rank 0 has announced what it has itself, and that rank 1 has joined; but rank 1 had announced
// something else, and was refused before it joined.
TEST_CASE("order: a rank that joins after a refusal is heard of after the refusal") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "30"}};
  Delays delays;
  ByHand& link = delays.by_hand(2, 0, control_channel_of(0));
  std::atomic<bool> is_held{false};
  std::atomic<bool> is_refused{false};
  CHECK_NOTHROW(run_hosts(
      {0, 1, 2},
      [&](Rank& rank) {
        barrier(rank.world);
        const uint64_t request_slot = Names::request_slot(0, 1);  // of the first name
        if (rank.rank == 2) {
          wait_for([&] { return rank.world.control().head(request_slot, 0).tag.load() == 1; });
          link.held = true;
        } else if (rank.rank == 1) {
          wait_for([&] { return is_held.load(); });
        }
        const Sum sum = start_sum(rank, rank.world, rank.rank == 1 ? 3000 : 2, 1, "name");
        std::optional<HeldDecisions> held;
        if (rank.rank == 2) {
          is_held = true;
          held.emplace(delays, rank, is_refused);
        }
        expect_contains(raised<MismatchError>([&] { finish_sum(rank.world, sum); }), "Mismatched ALLREDUCE");
        if (rank.rank == 1) is_refused = true;
        rank.world.join(nullptr);
        sum_now(rank, rank.world, 2, 1, "name");
      },
      64, 8192, &delays));
}

// Rank 2's table is full, so it has no room for a name of rank 0. Behind the name is a decision that rank 1's host has
// taken up; and what rank 1 announces after that would make room.
TEST_CASE("order: a name that finds no room holds back no decision") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "15"}};
  Delays delays;
  ByHand& link = delays.by_hand(2, 0, control_channel_of(0));
  std::atomic<bool> is_announced{false};
  CHECK_NOTHROW(run_hosts(
      {0, 1, 2},
      [&](Rank& rank) {
        barrier(rank.world);
        if (rank.rank == 2) link.held = true;
        wait_for([&] { return link.held.load() || is_announced.load(); });
        std::vector<Sum> sums;
        const auto start = [&](const std::string& name) {
          sums.push_back(start_sum(rank, rank.world, name.empty() ? 3000 : 2, 1, name));
        };
        const auto start_names = [&] {
          for (int k = 0; k < 15; ++k) start("name " + std::to_string(k));
        };
        if (rank.rank == 0) {
          start_names();
          start("no room");
          is_announced = true;
          start("");
          start("full");
        } else {
          start("");
          if (rank.rank == 2) {
            start_names();
            wait_for([&] { return is_announced.load(); });
            start("full");
            link.held = false;
          } else {
            const Ticket ticket = sums.front().operation->ticket;
            wait_for([&] { return rank.world.negotiation().requests().is_decided(ticket); });
            start_names();
            start("full");
          }
          start("no room");
        }
        for (const Sum& sum : sums) finish_sum(rank.world, sum);
      },
      16, 8192, &delays));
}

// Rank 0 shows what it has announced when it waits; what has been decided is over.
TEST_CASE("order: what has been decided is not shown again") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "10"}};
  CHECK_NOTHROW(run_hosts({0, 1}, [&](Rank& rank) {
    for (const char* const name : {"name", ""}) {
      for (int k = 0; k < 3; ++k) sum_now(rank, rank.world, 3000, k, name);
      if (rank.rank == 1) {
        const RankLine& line = rank.world.control().line(0);
        const uint64_t epoch = line.blocked_epoch.load();
        wait_for([&] { return line.blocked_epoch.load() != epoch && line.blocked_on.load() != 0; });
      }
      sum_now(rank, rank.world, 3000, 1, "late");
      for (const size_t count : {size_t{2}, size_t{3000}}) sum_now(rank, rank.world, count, 1, name);
    }
  }));
}

// Once rank 1 has joined, the others need no more of it. So they have to know by then that it has announced something
// else under the name.
TEST_CASE("order: what a rank announced before it joined is compared with what the others announce later") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "30"}};
  Delays delays;
  std::atomic<bool> is_announced{false};
  CHECK_NOTHROW(run_hosts(
      {0, 1, 2},
      [&](Rank& rank) {
        barrier(rank.world);
        const ControlSegment& control = rank.world.control();
        if (rank.rank != 1) wait_for([&] { return control.line(1).joined.load() != 0; });
        std::optional<HeldDecisions> held;
        if (rank.rank == 2) {
          wait_for([&] { return control.head(Names::request_slot(0, 1), 0).tag.load() == 1; });
          delays.by_hand(2, 0, control_channel_of(0)).held = true;
          held.emplace(delays, rank, is_announced);
        }
        const Sum sum = start_sum(rank, rank.world, rank.rank == 1 ? 3000 : 2, 1, "name");
        if (rank.rank == 2) is_announced = true;
        if (rank.rank == 1) rank.world.join(nullptr);
        expect_contains(raised<MismatchError>([&] { finish_sum(rank.world, sum); }), "Mismatched ALLREDUCE");
        if (rank.rank != 1) rank.world.join(nullptr);
        sum_now(rank, rank.world, 2, 1, "name");
      },
      64, 8192, &delays));
}

// A rank may have announced what it is the root of, and then join, before the others call it.
TEST_CASE("order: what a rank announced before it joined is done with it, however late the others call it") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "30"}};
  for (const int root : {0, 1, 2}) {
    for (const size_t count : {size_t{2}, size_t{3000}}) {
      CAPTURE(root);
      CAPTURE(count);
      CHECK_NOTHROW(run_hosts({0, 1, 2}, [&](Rank& rank) {
        barrier(rank.world);
        Floats data(count, rank.rank == root ? 7.0f : 0.0f);
        if (rank.rank != root) {
          wait_for([&] { return rank.world.control().line(root).joined.load() != 0; });
        }
        const OperationPtr broadcast = start_broadcast(rank, data, root, "name");
        if (rank.rank != root) {
          rank.world.wait(*broadcast, -1, nullptr);
          expect(data == Floats(count, 7.0f), "what the root has sent");
        }
        rank.world.join(nullptr);
        if (rank.rank == root) rank.world.wait(*broadcast, -1, nullptr);
        sum_now(rank, rank.world, count, 1, "name");
      }));
    }
  }
}

}  // namespace
}  // namespace rr::test
