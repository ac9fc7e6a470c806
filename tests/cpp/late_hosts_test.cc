// Leaders and messages between hosts that come late, forced one by one: a test holds a link, or stops the thread of a
// leader, and lets it go when the others have come as far as they can.
#include "doctest/doctest.h"
#include "wires.h"

namespace rr::test {
namespace {

// A leader reads what its ranks have stated when it comes to it. Without the ranks that have joined nothing else holds
// a rank back, so it would have stated something else there by then.
TEST_CASE("late: a leader passes on what was stated, not what has been stated in the same place since") {
  const Environment environment{};
  struct Case {
    int alone;             // the rank that goes on; its leader is the one before it
    std::string name;
    int before;            // operations that end from the cells, until their place is used again
  };
  for (const Case& c : {Case{2, "name", 2}, Case{2, "", 256}, Case{1, "name", 2}, Case{1, "", 256}}) {
    CAPTURE(c.alone);
    CAPTURE(c.name);
    const std::vector<int> host_of = c.alone == 2 ? std::vector<int>{0, 1, 1} : std::vector<int>{0, 0, 1};
    Delays delays;
    ByHand& leader = delays.by_hand(c.alone - 1, c.alone == 2 ? 0 : 2, control_channel(0));
    const auto body = [&](Rank& rank) {
      sum_now(rank, rank.world, 3, 1);
      if (rank.rank == c.alone) {
        for (int r = 0; r < rank.size; ++r) {
          wait_for([&] { return r == c.alone || rank.world.board().line(r).joined.load() != 0; });
        }
        leader.stops = true;
        wait_for([&] { return leader.stopped.load(); });
        const auto sum_alone = [&](size_t count) {
          const Sum sum = start_sum(rank, rank.world, count, 1, c.name);
          finish_sum(rank.world, sum, c.alone + 1);
        };
        for (int k = 0; k < c.before; ++k) sum_alone(2);
        const uint64_t sleeps = rank.context.stats().sleeps;
        std::atomic<bool> is_stated{false};
        std::thread release([&] {
          wait_for([&] { return is_stated.load() || rank.context.stats().sleeps != sleeps; });
          leader.stops = false;
        });
        Sum sum;
        try {
          sum = start_sum(rank, rank.world, 3000, 1, c.name);  // in the log
        } catch (...) {
          is_stated = true;
          release.join();
          throw;
        }
        is_stated = true;
        release.join();
        finish_sum(rank.world, sum, c.alone + 1);
        for (const size_t count : {size_t{2}, size_t{3000}}) sum_alone(count);
      }
      rank.world.join(nullptr);
      sum_now(rank, rank.world, 3000, 1, c.name);
    };
    CHECK_NOTHROW(run_hosts(host_of, body, 64, 8192, &delays));
  }
}

// Lets go of a link when this rank knows that its peer has left, and has looked around so often that it believes it has
// missed something.
void release_late(Rank& rank, int peer, ByHand& link) {
  const Board& board = rank.world.board();
  wait_for([&] { return has_left(board.line(peer)); });
  for (int looks = 0; looks < 3; ++looks) {
    const int64_t before = board.line(rank.rank).seen_ns.load();
    wait_for([&] { return board.line(rank.rank).seen_ns.load() != before; });
  }
  link.held = false;
}

TEST_CASE("late: what a rank sent before it left arrives after the news that it has left") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "20"}};
  for (const int channel : {0, 1}) {  // of collectives, and of messages
    CAPTURE(channel);
    Delays delays;
    ByHand& link = delays.by_hand(1, 0, channel);
    link.held = true;
    CHECK_NOTHROW(run_hosts(
        {0, 1},
        [&](Rank& rank) {
          const std::string name = "name";  // so that it is in the log
          Floats data(1000, rank.rank == 0 ? 1.0f : 0.0f);
          const TensorView tensor = view(data, DType::kFloat32);
          OperationPtr operation;
          if (channel == 0) {
            Request request;
            request.kind = Kind::kBroadcast;
            request.root = 0;
            request.name = &name;
            request.srcs = request.dsts = {tensor};
            operation = rank.world.submit(request, nullptr);
          } else {
            operation =
                rank.rank == 0 ? rank.world.send(tensor, 1, 5, nullptr) : rank.world.receive(tensor, 0, 5, nullptr);
          }
          std::thread release;
          if (rank.rank == 1) release = std::thread([&] { release_late(rank, 0, link); });
          std::exception_ptr error;
          try {
            rank.world.wait(*operation, -1, nullptr);
          } catch (...) {
            error = std::current_exception();
          }
          if (release.joinable()) release.join();
          if (error) std::rethrow_exception(error);
          expect(data == Floats(1000, 1.0f), "what rank 0 sent");
        },
        64, 8192, &delays));
  }
}

}  // namespace
}  // namespace rr::test
