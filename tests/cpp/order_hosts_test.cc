// The order that the first host decides, and what ranks of other hosts say before a third host has heard of a decision:
// a test holds the first host's words back, and lets them go when the others have come as far as they can.
#include "doctest/doctest.h"
#include "loopback_links.h"

namespace rr::test {
namespace {

// What the first host tells rank 2, the leader of a host, is handed out when `until` is set and rank 2 has taken up all
// that has come from elsewhere. Runs beside rank 2's own calls.
class HeldDecisions {
 public:
  HeldDecisions(Delays& delays, const Rank& rank, const std::atomic<bool>& until)
      : link_(delays.by_hand(2, 0, control_channel(0))), thread_([this, &rank, &until] {
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
        if (rank.rank == 2) delays.by_hand(2, 0, control_channel(0)).held = true;
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
            if (rank.rank == 2) delays.by_hand(2, 0, control_channel(0)).held = longer == 1;
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
  for (const auto& host_of : std::vector<std::vector<int>>{{0, 1, 2}, {0, 1, 1}, {0, 0, 1}}) {
    for (const std::string name : {"name", ""}) {
      const Environment environment{{"RINGREDUCE_TIMEOUT", "2"}};
      CAPTURE(host_of.size());
      CAPTURE(name);
      CHECK_NOTHROW(run_hosts(host_of, [&](Rank& rank) {
        barrier(rank.world);
        if (rank.rank == 2) {
          wait_for([&] { return has_failed(rank.world.control()); });
          return;
        }
        const std::string text = raised<TimeoutError>([&] { sum_now(rank, rank.world, 3000, 1, name); });
        expect_contains(text, "missing rank(s): 2");
      }));
    }
  }
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
