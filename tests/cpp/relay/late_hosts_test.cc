// Leaders and messages between hosts that come late, forced one by one: a test holds a link, or stops the thread of a
// leader, and lets it go when the others have come as far as they can.
#include <array>

#include "doctest/doctest.h"
#include "support/loopback_links.h"

namespace rr::test {
namespace {

// Runs both, the second on a thread of its own; raises what one of them has raised.
void run_beside(const std::function<void()>& call, const std::function<void()>& other) {
  std::exception_ptr error, other_error;
  std::thread thread([&] {
    try {
      other();
    } catch (...) {
      other_error = std::current_exception();
    }
  });
  try {
    call();
  } catch (...) {
    error = std::current_exception();
  }
  thread.join();
  if (error) std::rethrow_exception(error);
  if (other_error) std::rethrow_exception(other_error);
}

// A leader reads what its ranks have announced when it comes to it. Without the ranks that have joined nothing else
// holds a rank back, so it would have announced something else there by then.
TEST_CASE("late: a leader passes on what was announced, not what has been announced in the same place since") {
  const Environment environment{};
  struct Case {
    int alone;  // the rank that goes on; its leader is the one before it
    std::string name;
    int before;  // operations that end from the request slots, until their place is used again
  };
  for (const Case& c : {Case{2, "name", 2}, Case{2, "", 256}, Case{1, "name", 2}, Case{1, "", 256}}) {
    CAPTURE(c.alone);
    CAPTURE(c.name);
    const std::vector<int> host_of = c.alone == 2 ? std::vector<int>{0, 1, 1} : std::vector<int>{0, 0, 1};
    Delays delays;
    ByHand& leader = delays.by_hand(c.alone - 1, c.alone == 2 ? 0 : 2, control_channel_of(0));
    const auto body = [&](Rank& rank) {
      sum_now(rank, rank.world, 3, 1);
      if (rank.rank == c.alone) {
        for (int r = 0; r < rank.size; ++r) {
          wait_for([&] { return r == c.alone || rank.world.control().line(r).joined.load() != 0; });
        }
        leader.stops = true;
        wait_for([&] { return leader.stopped.load(); });
        const auto sum_alone = [&](size_t count) {
          const Sum sum = start_sum(rank, rank.world, count, 1, c.name);
          finish_sum(rank.world, sum, c.alone + 1);
        };
        for (int k = 0; k < c.before; ++k) sum_alone(2);
        const uint64_t sleeps = rank.context.stats().sleeps;
        std::atomic<bool> is_announced{false};
        const auto announce_more = [&] {
          const Sum sum = start_sum(rank, rank.world, 3000, 1, c.name);  // in the log
          is_announced = true;
          finish_sum(rank.world, sum, c.alone + 1);
        };
        run_beside(announce_more, [&] {
          wait_for([&] { return is_announced.load() || rank.context.stats().sleeps != sleeps; });
          leader.stops = false;
        });
        for (const size_t count : {size_t{2}, size_t{3000}}) sum_alone(count);
      }
      rank.world.join(nullptr);
      sum_now(rank, rank.world, 3000, 1, c.name);
    };
    CHECK_NOTHROW(run_hosts(host_of, body, 64, 8192, &delays));
  }
}

// What host 0 has put in order may reach host 1 before anything of rank 2 does: its requests, or that it has joined.
TEST_CASE("late: an entry of the log waits for nothing that a third host says") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "20"}};
  for (const bool joins : {false, true}) {
    CAPTURE(joins);
    Delays delays;
    ByHand& link = delays.by_hand(1, 2, control_channel_of(0));
    std::atomic<int> ready{0};
    std::atomic<int> done{0};
    const auto body = [&](Rank& rank) {
      sum_now(rank, rank.world, 3, 1);
      if (rank.rank == 1) link.held = true;
      ++ready;
      wait_for([&] { return ready.load() == 3; });
      std::vector<Sum> sums;
      if (!joins || rank.rank != 2) {
        sums = {start_sum(rank, rank.world, 3000, 1), start_sum(rank, rank.world, 3000, 2, "name")};
        for (const Sum& sum : sums) finish_sum(rank.world, sum, joins ? 3 : 6);
        ++done;
      }
      if (rank.rank == 1) {
        wait_for([&] { return done.load() == (joins ? 2 : 3); });
        link.held = false;
      }
      if (joins) rank.world.join(nullptr);
      for (const size_t count : {size_t{3}, size_t{3000}}) sum_now(rank, rank.world, count, 1, "name");
    };
    CHECK_NOTHROW(run_hosts({0, 1, 2}, body, 64, 8192, &delays));
  }
}

TEST_CASE("late: what a rank sent before it left arrives after the news that it has left") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "20"}};
  for (const int channel : {0, 1}) {  // of collectives, and of messages
    CAPTURE(channel);
    Delays delays;
    ByHand& link = delays.by_hand(1, 0, channel);
    link.held = true;
    const auto body = [&](Rank& rank) {
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
      } else if (rank.rank == 0) {
        operation = rank.world.send(tensor, 1, 5, nullptr);
      } else {
        operation = rank.world.receive(tensor, 0, 5, nullptr);
      }
      const auto wait = [&] { rank.world.wait(*operation, -1, nullptr); };
      const auto release = [&] {
        if (rank.rank == 0) return;
        wait_for([&] { return has_left(rank.world.control().line(0)); });
        look_around(rank);
        link.held = false;
      };
      run_beside(wait, release);
      expect(data == Floats(1000, 1.0f), "what rank 0 sent");
    };
    CHECK_NOTHROW(run_hosts({0, 1}, body, 64, 8192, &delays));
  }
}

TEST_CASE("late: ranks of other hosts are missed once they would have been heard of") {
  const Environment environment{};
  std::atomic<bool> is_over{false};
  CHECK_NOTHROW(run_hosts({0, 0, 1}, [&](Rank& rank) {
    if (rank.rank != 0) wait_for([&] { return is_over.load(); });
    const Sum sum = start_sum(rank, rank.world, 2, 1);
    if (rank.rank == 0) {
      const auto text_after = [&](double timeout_s) {
        expect(!rank.world.wait(*sum.operation, timeout_s, nullptr), "it is pending");
        return rank.world.pending_text(*sum.operation, timeout_s);
      };
      const std::string later = " (of other hosts, a call of the last 2 s may not be known here)";
      expect_contains(text_after(0.5), "is still pending after 0.5 s; missing rank(s): 1, 2" + later);
      is_over = true;
    }
    finish_sum(rank.world, sum);
  }));
}

TEST_CASE("late: a message that a rank has not sent before it left is an error") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "20"}};
  CHECK_NOTHROW(run_hosts({0, 1}, [](Rank& rank) {
    Floats data(10);
    const TensorView tensor = view(data, DType::kFloat32);
    if (rank.rank == 0) {
      rank.world.wait(*rank.world.send(tensor, 1, 5, nullptr), -1, nullptr);
      return;
    }
    rank.world.wait(*rank.world.receive(tensor, 0, 5, nullptr), -1, nullptr);
    const OperationPtr second = rank.world.receive(tensor, 0, 5, nullptr);
    expect_contains(raised<ShutdownError>([&] { rank.world.wait(*second, -1, nullptr); }),
                    "rank 0 called shutdown() or ended");
  }));
}

// Of a process that is stopped: nothing goes out, and nothing that has come is read.
class MutedLink final : public Link {
 public:
  MutedLink(std::unique_ptr<Link> link, const std::atomic<bool>& is_muted)
      : link_(std::move(link)), is_muted_(is_muted) {}

  size_t push(const void* src, size_t nbytes) override { return is_muted_ ? 0 : link_->push(src, nbytes); }
  size_t pull(void* dst, size_t nbytes) override { return is_muted_ ? 0 : link_->pull(dst, nbytes); }
  size_t fold(void* dst, size_t nbytes, const Reduction& reduction, const Kernels& kernels) override {
    return is_muted_ ? 0 : link_->fold(dst, nbytes, reduction, kernels);
  }

 private:
  std::unique_ptr<Link> link_;
  const std::atomic<bool>& is_muted_;
};

TEST_CASE("late: a timeout of what every rank has announced names the leader that does not answer") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "2"}};
  std::atomic<bool> is_stopped{false};
  const std::atomic<bool> always{true};
  std::atomic<int> decided{0};
  const Wrap mute = [&](std::unique_ptr<Link> end, int rank, int, int channel) {
    if (rank != 1) return end;
    return std::unique_ptr<Link>(
        std::make_unique<MutedLink>(std::move(end), carries_control(channel) ? is_stopped : always));
  };
  const auto body = [&](Rank& rank) {
    const Sum sum = start_sum(rank, rank.world, 1 << 18, 1, "x");
    wait_for([&] { return rank.world.negotiation().requests().is_decided(sum.operation->ticket); });
    ++decided;
    if (rank.rank == 1) {
      wait_for([&] { return decided.load() == rank.size; });
      is_stopped = true;
    }
    const std::string silent = rank.rank == 1 ? "0, 2" : "1";
    const std::string error = raised<TimeoutError>([&] { finish_sum(rank.world, sum); });
    expect_contains(error, "every rank has submitted it, but rank(s) " + silent + " of other hosts do not answer");
  };
  CHECK_NOTHROW(run_hosts({0, 1, 2}, body, 64, 8192, nullptr, mute));
}

TEST_CASE("late: a timeout in a process set blames no leader that another rank was to pass the question on to") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "2"}};
  const std::vector<int> members = {0, 2};
  const size_t nbytes = ControlSegment::nbytes(2, 64);
  const std::array<Fd, 3> segments = {create_memfd("of rank 0", nbytes), Fd(), create_memfd("of rank 2", nbytes)};
  std::atomic<bool> is_stopped{false};  // rank 1, the world's leader on the host of rank 2
  const std::atomic<bool> always{true};
  std::atomic<int> decided{0}, over{0};
  const Wrap mute = [&](std::unique_ptr<Link> end, int rank, int, int channel) -> std::unique_ptr<Link> {
    if (rank == 1) return std::make_unique<MutedLink>(std::move(end), is_stopped);
    if (rank == 2 && group_of(channel) == 1 && !carries_control(channel))
      return std::make_unique<MutedLink>(std::move(end), always);
    return end;
  };
  const auto body = [&](Rank& rank) {
    if (rank.rank == 1) {
      wait_for([&] { return decided.load() == 2; });
      is_stopped = true;
      wait_for([&] { return over.load() == 2; });
      is_stopped = false;
      return;
    }
    Group& set = *rank.context.add_group(segments[static_cast<size_t>(rank.rank)].get(), members, 1, nullptr);
    const Sum sum = start_sum(rank, set, 1 << 18, 1, "x");
    wait_for([&] { return set.negotiation().requests().is_decided(sum.operation->ticket); });
    ++decided;
    const std::string error = raised<TimeoutError>([&] { finish_sum(set, sum); });
    ++over;
    wait_for([&] { return over.load() == 2; });
    expect_contains(error, "every rank has submitted it, so one of them is stuck in it");
  };
  CHECK_NOTHROW(run_hosts({0, 1, 1}, body, 64, 8192, nullptr, mute));
}

}  // namespace
}  // namespace rr::test
