// What calls between hosts leave to the engine of their host's leader: it is woken for what other hosts may wait for.
// Otherwise it would look for itself, a quarter of a second later.
#include <atomic>
#include <cstring>

#include "doctest/doctest.h"
#include "support/loopback_links.h"

namespace rr::test {
namespace {

constexpr int kTurns = 20;

// Whether call() rings the leader's engine, which sleeps. It may wake for another reason meanwhile, so that tests
// count.
int rings(const Rank& rank, const std::function<void()>& call) {
  const Bell& bell = rank.context.engine_bell(rank.world.hosts().leader_here());
  wait_for([&] { return bell.sleepers.load() != 0; });
  const uint32_t before = bell.seq.load();
  call();
  return bell.seq.load() != before ? 1 : 0;
}

void quick_sum(Rank& rank, Floats& data) {
  const TensorView tensor = view(data, DType::kFloat32);
  const Reduction reduction = {DType::kFloat32, ReduceOp::kSum, 1.0, 1.0, rank.size};
  expect(rank.world.allreduce_quick(tensor, tensor, reduction, nullptr), "it is quick");
}

// of: a rank of the same host.
bool are_notes_read(const Rank& rank, int of) {
  const Outbox& notes = rank.world.control().outbox(of);
  return notes.read.load() == notes.written.load();
}
bool are_notes_read(const Rank& rank) { return are_notes_read(rank, rank.rank); }

// What the rank `from` asks for, as this rank's host has it once it has come.
void write_request(const Rank& rank, int from, uint64_t counter, float value) {
  const ControlSegment& control = rank.world.control();
  const Ticket ticket = Ticket::unnamed(counter);
  RequestSlotHead& head = control.head(ticket.request_slot, from);
  const Signature signature = signature_of_sum(1);
  control.signature(ticket.request_slot, from) = signature;
  std::memcpy(control.payload(ticket.request_slot, from), &value, sizeof value);
  head.digest.store(digest(signature));
  head.tag.store(ticket.tag);
}

// The leader may have seen the request before there was a note of it, and have ended its call.
TEST_CASE("a rank whose note has not been read when its call ends wakes its leader's engine") {
  const Environment environment{};
  std::atomic<bool> is_over{false};
  int rung = 0;
  CHECK_NOTHROW(run_hosts({0, 0, 1}, [&](Rank& rank) {
    if (rank.rank != 1) return wait_for([&] { return is_over.load(); });
    for (uint64_t counter = 0; counter < kTurns; ++counter) {
      write_request(rank, 0, counter, 1);
      write_request(rank, 2, counter, 3);
      Floats data = {2};
      rung += rings(rank, [&] { quick_sum(rank, data); });
      expect(data[0] == 6, "the sum");
    }
    is_over = true;
  }));
  CHECK(rung > kTurns / 4);  // its watermark is due in a seventh of the turns
}

// MPI works on what it has taken only while somebody calls it.
TEST_CASE("a quick call leaves to the engine what the network has not delivered") {
  const Environment environment{};
  int rung = 0;
  LoopbackLinks loopback(8192);
  std::vector<Fd> segments;
  for (int host = 0; host < 2; ++host) segments.push_back(create_memfd("test", ControlSegment::nbytes(2, 64)));
  CHECK_NOTHROW(run_threads(2, [&](int r) {
    auto registry = std::make_shared<SegmentRegistry>();
    std::atomic<bool> is_on_its_way{false};
    const auto link = [&](int peer, int channel) { return loopback.end(r, peer, channel); };
    const Network network = {"loopback", {0, 1}, link, [&] { return is_on_its_way.load(); }};
    Context context(segments[static_cast<size_t>(r)].get(), r, 2, {-1, -1}, "host", registry, nullptr, tune, -1,
                    network);
    Rank rank = {context, context.world(), r, 2, *registry};
    for (int turn = 0; turn < kTurns; ++turn) {
      Floats data = {static_cast<float>(r + 1)};
      if (r == 0) {
        rung += rings(rank, [&] {
          is_on_its_way = true;
          quick_sum(rank, data);
        });
        is_on_its_way = false;
      } else {
        quick_sum(rank, data);
      }
      expect(data[0] == 3, "the sum");
    }
  }));
  CHECK(rung > 0);
}

// Eager buffers are free for others to use again once all hosts know how far a rank has come.
TEST_CASE("a rank whose calls end without a wait says how far it has come") {
  const Environment environment{};
  int rung = 0;
  CHECK_NOTHROW(run_hosts({0, 0, 1}, [&](Rank& rank) {
    const Requests& requests = rank.world.negotiation().requests();
    for (int turn = 0; turn < kTurns; ++turn) {
      std::vector<Sum> sums;
      for (size_t k = 0; k < kEagerCount; ++k) sums.push_back(start_sum(rank, rank.world, 500, turn));
      const auto finish = [&] {
        for (const Sum& sum : sums) finish_sum(rank.world, sum);
      };
      if (rank.rank == 1) {
        wait_for([&] { return are_notes_read(rank) && requests.complete(sums.back().operation->ticket); });
        rung += rings(rank, finish);
      } else {
        finish();
      }
      barrier(rank.world);
    }
  }));
  CHECK(rung > kTurns / 4);
}

// Where ranks share a host the leader has called before: its own call reads what the others have announced by then.
TEST_CASE("an asynchronous call wakes the engine, so that other hosts hear of it while its rank computes") {
  const Environment environment{};
  for (const auto& host_of : {std::vector<int>{0, 1}, std::vector<int>{0, 0, 1}}) {
    for (const size_t count : {size_t{2}, size_t{100000}}) {
      CAPTURE(host_of.size());
      CAPTURE(count);
      int rung = 0;
      std::atomic<int> leader_has_called{0};
      std::atomic<int> called{0};
      CHECK_NOTHROW(run_hosts(host_of, [&](Rank& rank) {
        const int me = rank.size - 2;
        for (int turn = 0; turn < kTurns; ++turn) {
          barrier(rank.world);
          if (rank.rank == rank.size - 1) wait_for([&] { return called.load() > turn; });
          if (rank.rank == me && me != 0) wait_for([&] { return leader_has_called.load() > turn; });
          Sum sum;
          const auto start = [&] { sum = start_sum(rank, rank.world, count, turn); };
          if (rank.rank == me) {
            rung += rings(rank, start);
            ++called;
          } else {
            start();
            if (rank.rank == 0) ++leader_has_called;
          }
          finish_sum(rank.world, sum);
        }
      }));
      CHECK(rung > 0);
    }
  }
}

// Over MPI nobody rings for what comes, and the other ranks of the host sleep until their leader has heard it.
TEST_CASE("an engine looks at links that ring nobody while a short operation misses other hosts") {
  const Environment environment{{"RR_TEST_NETWORK", "loopback"}};
  std::atomic<int> called{0};
  std::atomic<int> looked{0};
  CHECK_NOTHROW(run_hosts({0, 0, 1}, [&](Rank& rank) {
    for (int turn = 1; turn <= 3; ++turn) {
      barrier(rank.world);
      if (rank.rank == 2) wait_for([&] { return looked.load() == turn; });
      const Sum sum = start_sum(rank, rank.world, 2, turn);
      if (rank.rank == 1) called = turn;
      if (rank.rank == 0) {
        wait_for([&] { return called.load() == turn && are_notes_read(rank, 0) && are_notes_read(rank, 1); });
        look_around(rank, 1);
        expect(rank.world.is_busy(), "the engine looks");
        looked = turn;
      }
      finish_sum(rank.world, sum);
      wait_for([&] { return !rank.world.is_busy(); });
    }
    // What was complete because somebody had joined is so when the epoch is over.
    if (rank.rank != 2) {
      wait_for([&] { return rank.world.control().header().joined_count.load() == 1; });
      finish_sum(rank.world, start_sum(rank, rank.world, 2, 1), 1 + 2);
    }
    rank.world.join(nullptr);
    sum_now(rank, rank.world, 2, 1, "name");
    wait_for([&] { return !rank.world.is_busy(); });
  }));
}

// The leader has called it asynchronously, and computes.
TEST_CASE("a rank that waits for what its leader has called has its note read") {
  const Environment environment{{"RR_TEST_NETWORK", "tcp"}};
  int rung = 0;
  std::atomic<int> leader_has_called{0};
  std::atomic<int> note_is_read{0};
  CHECK_NOTHROW(run_hosts({0, 0, 1}, [&](Rank& rank) {
    for (int turn = 1; turn <= kTurns; ++turn) {
      barrier(rank.world);
      if (rank.rank == 1) wait_for([&] { return leader_has_called.load() == turn; });
      if (rank.rank == 2) wait_for([&] { return note_is_read.load() == turn; });
      if (rank.rank != 0) {
        sum_now(rank, rank.world, 2, turn);
        continue;
      }
      const Sum sum = start_sum(rank, rank.world, 2, turn);
      wait_for([&] { return are_notes_read(rank) && !rank.world.is_busy(); });  // and its request is sent
      const std::atomic<uint64_t>& written = rank.world.control().outbox(1).written;
      const uint64_t before = written.load();
      rung += rings(rank, [&] {
        leader_has_called = turn;
        wait_for([&] { return written.load() != before && are_notes_read(rank, 1); });
      });
      note_is_read = turn;
      finish_sum(rank.world, sum);
    }
  }));
  CHECK(rung > kTurns / 2);
}

TEST_CASE("an asynchronous call before the leader's wakes nobody") {
  const Environment environment{};
  int rung = 0;
  std::atomic<int> called{0};
  CHECK_NOTHROW(run_hosts({0, 0, 1}, [&](Rank& rank) {
    for (int turn = 0; turn < kTurns; ++turn) {
      barrier(rank.world);
      if (rank.rank != 1) wait_for([&] { return called.load() > turn; });
      Sum sum;
      const auto start = [&] { sum = start_sum(rank, rank.world, 2, turn); };
      if (rank.rank == 1) {
        rung += rings(rank, start);
        ++called;
      } else {
        start();
      }
      finish_sum(rank.world, sum);
    }
  }));
  CHECK(rung < kTurns / 2);
}

TEST_CASE("a call that leaves nothing wakes no engine") {
  const Environment environment{};
  int rung = 0;
  CHECK_NOTHROW(run_hosts({0, 1}, [&](Rank& rank) {
    for (int turn = 0; turn < kTurns; ++turn) {
      Floats data = {static_cast<float>(rank.rank + 1)};
      if (rank.rank == 0) {
        rung += rings(rank, [&] { quick_sum(rank, data); });
      } else {
        quick_sum(rank, data);
      }
      expect(data[0] == 3, "the sum");
    }
  }));
  CHECK(rung < kTurns / 2);
}

TEST_CASE("a look at an operation takes up what other hosts have sent") {
  const Environment environment{};
  int seen = 0;
  std::atomic<int> started{0};
  std::atomic<int> told{0};
  CHECK_NOTHROW(run_hosts({0, 1}, [&](Rank& rank) {
    for (int turn = 1; turn <= kTurns; ++turn) {
      if (rank.rank == 1) wait_for([&] { return started.load() == turn; });
      const Sum sum = start_sum(rank, rank.world, 2, turn);
      wait_for([&] { return are_notes_read(rank); });
      if (rank.rank == 1) {
        told = turn;
      } else {
        wait_for([&] { return rank.context.engine_bell(0).sleepers.load() != 0; });
        started = turn;
        wait_for([&] { return told.load() == turn; });
        if (rank.world.poll(*sum.operation)) ++seen;
      }
      finish_sum(rank.world, sum);
    }
  }));
  CHECK(seen > kTurns / 4);
}

// It has no link that anything could come on: its leader rings. Before, it woke every 50 us.
TEST_CASE("a rank that waits for a small operation sleeps until its leader rings") {
  const Environment environment{};
  std::atomic<bool> has_slept{false};
  CHECK_NOTHROW(run_hosts({0, 0, 1}, [&](Rank& rank) {
    barrier(rank.world);
    if (rank.rank == 2) wait_for([&] { return has_slept.load(); });
    const uint64_t sleeps = rank.context.stats().sleeps;
    const OperationPtr last = start_barrier(rank.world);
    if (rank.rank == 1) {
      const int64_t began = now_ns();
      std::thread watching([&] {  // beside the thread that waits
        look_around(rank, 4);
        has_slept = true;
      });
      rank.world.wait(*last, -1, nullptr);
      watching.join();
      const double in_100_ms = static_cast<double>(now_ns() - began) * 1e-8;
      const auto slept = static_cast<double>(rank.context.stats().sleeps - sleeps);
      expect(slept < 10 * in_100_ms + 10,
             "slept " + std::to_string(slept) + " times in " + std::to_string(in_100_ms) + " times 100 ms");
    } else {
      rank.world.wait(*last, -1, nullptr);
    }
  }));
}

}  // namespace
}  // namespace rr::test
