// Ranks that leave a group on several hosts, leaders above all: what they have to pass on, and what ends without them.
#include <algorithm>
#include <chrono>
#include <thread>

#include "doctest/doctest.h"
#include "negotiation/segment/failure.h"
#include "support/breakable_link.h"
#include "support/child.h"
#include "support/loopback_links.h"

namespace rr::test {
namespace {

TEST_CASE("a rank that leaves ends what needs it on the other hosts") {
  const Environment environment{};
  CHECK_NOTHROW(run_hosts({0, 1, 1}, [](Rank& rank) {
    sum_now(rank, rank.world, 1000, 1);
    if (rank.rank == 2) return;
    const std::string text = raised<ShutdownError>([&] { sum_now(rank, rank.world, 5000, 2); });
    expect_contains(text, "rank 2 called shutdown() or ended");
    expect_contains(text, "shm+" + rank.context.network_name());
  }));
}

TEST_CASE("a process set fails with the world where a member, which has left, never had it") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "60"}};
  const Fd of_rank_1 = create_memfd("group", ControlSegment::nbytes(2, 16));
  CHECK_NOTHROW(run_hosts({0, 1}, [&](Rank& rank) {
    sum_now(rank, rank.world, 1000, 1);
    if (rank.rank == 0) {  // it adds the process set when it sees a rank die
      record_failure(rank.world.control(), FatalKind::kPeerLost, "lost rank 7");
      raised<PeerLostError>([&] { sum_now(rank, rank.world, 1000, 2); });
      return;
    }
    const std::shared_ptr<Group> set = rank.context.add_group(of_rank_1.get(), {0, 1}, 1, nullptr);
    expect_contains(raised<PeerLostError>([&] { sum_now(rank, *set, 1000, 1); }), "lost rank 7");
  }));
}

TEST_CASE("a leader that leaves passes on what the ranks of its host state meanwhile") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "20"}};
  CHECK_NOTHROW(run_hosts({0, 0, 1}, [](Rank& rank) {
    barrier(rank.world);
    if (rank.rank == 1) {
      wait_for([&] { return has_left(rank.world.control().line(0)); });
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // a leader that waited for nobody would be gone
    }
    const OperationPtr last = start_barrier(rank.world, true);
    if (rank.rank == 0) return;
    rank.world.wait(*last, -1, nullptr);
  }));
}

TEST_CASE("what only a leader that has left could pass on ends the operations of all hosts") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "20"}};
  std::atomic<bool> is_gone{false};
  CHECK_NOTHROW(run_hosts({0, 0, 1, 1}, [&](Rank& rank) {
    sum_now(rank, rank.world, 1000, 1);
    // Rank 0 has announced it, so that only the others are missed.
    const Sum sum = rank.rank == 0 || rank.rank == 2 ? start_sum(rank, rank.world, 5000, 2) : Sum{};
    if (rank.rank == 0) {
      rank.context.shutdown();
      is_gone = true;
      return;
    }
    if (rank.rank != 2) wait_for([&] { return is_gone.load(); });
    const std::string text = raised<ShutdownError>(
        [&] { finish_sum(rank.world, rank.rank == 2 ? sum : start_sum(rank, rank.world, 5000, 2)); });
    expect_contains(text, "rank 0 called shutdown() or ended");
  }));
}

TEST_CASE("what the first host has not put in order before its leader left ends the operations of the others") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "20"}};
  std::atomic<bool> is_gone{false};
  CHECK_NOTHROW(run_hosts({0, 1}, [&](Rank& rank) {
    sum_now(rank, rank.world, 1000, 1);
    if (rank.rank == 1) wait_for([&] { return is_gone.load(); });
    const Sum sum = start_sum(rank, rank.world, 50000, 2);
    if (rank.rank == 0) {
      rank.context.shutdown();
      is_gone = true;
      return;
    }
    const std::string text = raised<ShutdownError>([&] { finish_sum(rank.world, sum); });
    expect_contains(text, "rank 0 called shutdown() or ended");
  }));
}

TEST_CASE("a rank whose leader has left waits for no name that only the leader could free") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "20"}};
  std::atomic<bool> is_gone{false};
  CHECK_NOTHROW(run_hosts(
      {0, 0, 1},
      [&](Rank& rank) {
        std::vector<Sum> sums;
        for (int k = 0; k < 16; ++k) sums.push_back(start_sum(rank, rank.world, 2, k, "name " + std::to_string(k)));
        if (rank.rank == 1) wait_for([&] { return is_gone.load(); });
        for (const Sum& sum : sums) finish_sum(rank.world, sum);
        if (rank.rank == 0) {
          rank.context.shutdown();
          is_gone = true;
        }
        if (rank.rank != 1) return;
        const std::string text = raised<ShutdownError>([&] { sum_now(rank, rank.world, 2, 1, "one more"); });
        expect_contains(text, "rank 0 called shutdown() or ended");
      },
      16));
}

TEST_CASE("a leader leaves all its groups before it waits for the other leaders, and waits once") {
  constexpr int kGroups = 30;      // waiting for each in turn would take 1 s and more a group
  constexpr double kSoonS = 20.0;  // twenty times the limit of one wait
  const std::vector<int> host_of = {0, 0, 1};
  std::vector<Fd> segments;
  for (int i = 0; i < 2 * kGroups; ++i) segments.push_back(create_memfd("group", ControlSegment::nbytes(3, 16)));
  const Environment environment{};
  std::atomic<bool> is_gone{false};
  CHECK_NOTHROW(run_hosts(
      host_of,
      [&](Rank& rank) {
        std::vector<Group*> groups = {&rank.world};
        for (int id = 1; id <= kGroups; ++id) {
          const int fd = segments[static_cast<size_t>(2 * (id - 1) + host_of[static_cast<size_t>(rank.rank)])].get();
          groups.push_back(rank.context.add_group(fd, {0, 1, 2}, id, nullptr).get());
        }
        barrier(rank.world);
        if (rank.rank == 0) {
          const int64_t begin = now_ns();
          rank.context.shutdown();
          is_gone = true;
          expect(static_cast<double>(now_ns() - begin) < kSoonS * 1e9, "one wait for all groups");
          return;
        }
        if (rank.rank == 1) {  // sees what rank 0 writes in the order in which it writes it
          wait_for([&] {
            return std::any_of(groups.begin(), groups.end(),
                               [](Group* one) { return has_closed(one->control().line(0)); });
          });
          for (Group* one : groups) expect(has_left(one->control().line(0)), "left before any group is closed");
        }
        wait_for([&] { return is_gone.load(); });
        for (Group* one : groups) {
          const std::string text = raised<ShutdownError>([&] { sum_now(rank, *one, 5000, 1); });
          expect_contains(text, "rank 0 called shutdown() or ended");
        }
      },
      16));
}

// Of the root's data to each rank's `mine`, by the log.
OperationPtr start_scatter(Rank& rank, int root, Floats& data, Floats& mine) {
  Request request = request_of(Kind::kScatter, root);
  if (rank.rank == root) request.srcs = {view(data, DType::kFloat32)};
  request.dsts = {view(mine, DType::kFloat32)};
  const std::string name = "scatter";
  request.name = &name;
  return rank.world.submit(request, nullptr);
}

// What this rank hears of another one waits while `stops` says so, and so does whoever looks.
class StoppedLink final : public Link {
 public:
  StoppedLink(std::unique_ptr<Link> link, std::function<bool()> stops)
      : link_(std::move(link)), stops_(std::move(stops)) {}
  size_t push(const void* src, size_t nbytes) override { return link_->push(src, nbytes); }
  size_t pull(void* dst, size_t nbytes) override {
    wait_for([this] { return !stops_(); });
    return link_->pull(dst, nbytes);
  }
  size_t fold(void* dst, size_t nbytes, const Reduction& reduction, const Kernels& kernels) override {
    return link_->fold(dst, nbytes, reduction, kernels);
  }

 private:
  std::unique_ptr<Link> link_;
  std::function<bool()> stops_;
};

// Rank 1 hears nothing of rank 0 by the leaders' link while `stops` says so.
Wrap leader_1_stops(const std::function<bool()>& stops) {
  return [stops](std::unique_ptr<Link> end, int rank, int peer, int channel) -> std::unique_ptr<Link> {
    if (rank != 1 || peer != 0 || channel != control_channel_of(0)) return end;
    return std::make_unique<StoppedLink>(std::move(end), stops);
  };
}

// The root needs nobody, so its call ends, and no failure tells the others.
TEST_CASE("leaving: what a leader takes up meanwhile comes into the log of its host") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "20"}};
  std::atomic<const RankLine*> leaving{nullptr};
  std::atomic<bool> has_announced{false};  // rank 2: its leader passes that on, which it does not while it is stopped
  std::atomic<bool> has_root_ended{false};
  std::atomic<bool> is_over{false};
  const auto stops = [&] {
    const RankLine* const line = leaving.load();
    return line != nullptr && has_left(*line) && !has_root_ended.load();
  };
  const auto body = [&](Rank& rank) {
    barrier(rank.world);
    Floats data(3000, 7.0f);
    Floats mine(1000);
    if (rank.rank == 0) wait_for([&] { return has_left(rank.world.control().line(1)); });
    if (rank.rank == 1) wait_for([&] { return has_announced.load(); });
    const OperationPtr scatter = start_scatter(rank, 0, data, mine);
    if (rank.rank == 2) has_announced = true;
    if (rank.rank == 1) {
      leaving = &rank.world.control().line(1);
      return rank.context.shutdown();
    }
    rank.world.wait(*scatter, -1, nullptr);
    expect(mine == Floats(1000, 7.0f), "what rank 0 has sent");
    if (rank.rank == 0) {
      has_root_ended = true;
      wait_for([&] { return is_over.load(); });
    }
    is_over = true;
  };
  CHECK_NOTHROW(run_hosts({0, 1, 1}, body, 64, 8192, nullptr, leader_1_stops(stops)));
}

TEST_CASE("leaving: what the first host's leader has not told the other hosts ends, though it misses another's data") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "20"}};
  std::atomic<bool> is_gone{false};
  std::atomic<bool> is_over{false};
  CHECK_NOTHROW(run_hosts({0, 0, 1}, [&](Rank& rank) {
    barrier(rank.world);
    Floats data(3000);
    Floats mine(1000);
    if (rank.rank == 0) look_around(rank);
    if (rank.rank == 1) wait_for([&] { return is_gone.load(); });
    const OperationPtr scatter = start_scatter(rank, 2, data, mine);
    if (rank.rank == 0) {
      rank.context.shutdown();
      is_gone = true;
      return;
    }
    const std::string text = raised<ShutdownError>([&] { rank.world.wait(*scatter, -1, nullptr); });
    expect_contains(text, "rank 0 called shutdown() or ended");
    if (rank.rank == 1) is_over = true;
    if (rank.rank == 2) wait_for([&] { return is_over.load(); });  // its links are there as long
  }));
}

TEST_CASE("leaving: a leader that is killed before it has closed passes nothing on any more") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "20"}};
  std::atomic<bool> is_cut{false};
  std::atomic<bool> is_over{false};
  const Wrap wrap = [&](std::unique_ptr<Link> end, int rank, int peer, int channel) -> std::unique_ptr<Link> {
    if (rank != 0 || peer != 1 || channel != control_channel_of(0)) return end;
    return std::make_unique<BreakableLink>(std::move(end), is_cut);
  };
  const auto body = [&](Rank& rank) {
    barrier(rank.world);
    if (rank.rank == 0) {
      wait_for([&] { return has_left(rank.world.control().line(1)); });
      is_cut = true;
    }
    if (rank.rank == 2) wait_for([&] { return is_cut.load(); });
    const OperationPtr last = start_barrier(rank.world, true);
    if (rank.rank == 1) return rank.context.shutdown();
    if (rank.rank == 2) return wait_for([&] { return is_over.load(); });  // what it has announced, nobody passes on
    const std::string text = raised<ShutdownError>([&] { rank.world.wait(*last, -1, nullptr); });
    is_over = true;
    expect_contains(text, "rank 1 called shutdown() or ended");
  };
  CHECK_NOTHROW(run_hosts({0, 1, 1}, body, 64, 8192, nullptr, wrap));
}

TEST_CASE("leaving: the ranks of a leader's host see that it was killed before it has closed") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "20"}};
  std::atomic<bool> is_stopped{false};
  std::atomic<bool> is_over{false};
  Child leader;
  const auto body = [&](Rank& rank) {
    barrier(rank.world);
    if (rank.rank == 0) return wait_for([&] { return is_over.load(); });
    if (rank.rank == 1) {
      start_barrier(rank.world, true);  // so that only rank 0 is missed
      return rank.context.shutdown();
    }
    wait_for([&] { return has_left(rank.world.control().line(1)); });
    is_stopped = true;
    leader.end();
    const std::string text = raised<ShutdownError>([&] { barrier(rank.world); });
    is_over = true;
    is_stopped = false;
    expect_contains(text, "rank 1 called shutdown() or ended");
  };
  CHECK_NOTHROW(run_hosts({0, 1, 1}, body, 64, 8192, nullptr, leader_1_stops([&] { return is_stopped.load(); }),
                          {-1, leader.pidfd(), -1}));
}

// Nothing comes from the peer until is_cut; from then on the connection is broken.
class LosingLink final : public Link {
 public:
  LosingLink(std::unique_ptr<Link> link, const std::atomic<bool>& is_cut) : link_(std::move(link)), is_cut_(is_cut) {}
  size_t push(const void* src, size_t nbytes) override { return link_->push(src, nbytes); }
  size_t pull(void*, size_t) override {
    if (is_cut_) throw PeerLostError("the test has cut this link");
    return 0;
  }
  size_t fold(void* dst, size_t nbytes, const Reduction&, const Kernels&) override { return pull(dst, nbytes); }

 private:
  std::unique_ptr<Link> link_;
  const std::atomic<bool>& is_cut_;
};

TEST_CASE("leaving: what a rank had sent before it left is lost with its connection, and missed by name") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "20"}};
  for (const int lost_channel : {0, 1}) {  // of collectives, of messages
    CAPTURE(lost_channel);
    std::atomic<bool> is_cut{false};
    const Wrap wrap = [&](std::unique_ptr<Link> end, int rank, int, int channel) -> std::unique_ptr<Link> {
      if (rank != 0 || channel != lost_channel) return end;
      return std::make_unique<LosingLink>(std::move(end), is_cut);
    };
    const auto body = [&](Rank& rank) {
      barrier(rank.world);
      Floats data(1000, 1.0f);  // less than a link takes without a reader
      const TensorView tensor = view(data, DType::kFloat32);
      const std::string name = "sent before";
      Request request;
      request.kind = Kind::kBroadcast;
      request.root = 1;
      request.srcs = request.dsts = {tensor};
      request.name = &name;
      OperationPtr operation;
      if (lost_channel == 0) {
        operation = rank.world.submit(request, nullptr);
      } else if (rank.rank == 1) {
        operation = rank.world.send(tensor, 0, 0, nullptr);
      } else {
        operation = rank.world.receive(tensor, 1, 0, nullptr);
      }
      if (rank.rank == 1) {
        rank.world.wait(*operation, -1, nullptr);
        return rank.context.shutdown();
      }
      wait_for([&] { return has_left(rank.world.control().line(1)); });
      is_cut = true;
      const std::string text = raised<PeerLostError>([&] { rank.world.wait(*operation, -1, nullptr); });
      expect_contains(text, lost_channel == 0 ? "broadcast 'sent before' #1] lost rank 1: it called shutdown() or ended"
                                              : "recv from rank 1 #1] lost rank 1: it called shutdown() or ended");
      expect_contains(text, "did not all come: the test has cut this link");
    };
    CHECK_NOTHROW(run_hosts({0, 1}, body, 64, 8192, nullptr, wrap));
  }
}

// Its making failed there, say; the leader of its host has passed on nothing about this group.
TEST_CASE("leaving: a member that never had the group has left it when it has left the world") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "60"}};
  for (const std::vector<int>& host_of : {std::vector<int>{0, 1, 1}, {0, 0}}) {
    CAPTURE(host_of.size());
    const Fd fd = create_memfd("set", ControlSegment::nbytes(2, 64));
    CHECK_NOTHROW(run_hosts(host_of, [&](Rank& rank) {
      if (rank.rank == 1 && host_of[0] == host_of[1])
        ControlSegment::map(fd.get(), 2).line(1).attendance.store(Attendance::kPresent);  // as far as it has come
      barrier(rank.world);
      if (rank.rank != 0) return;
      Group& set = *rank.context.add_group(fd.get(), {0, 1}, 1, nullptr);
      expect_contains(raised<ShutdownError>([&] { sum_now(rank, set, 2, 0); }), "rank 1 called shutdown() or ended");
    }));
  }
}

TEST_CASE("leaving: a group whose removal is interrupted has failed, so that no member waits for a second call") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "60"}};
  for (const std::vector<int>& host_of : {std::vector<int>{0, 1, 1}, {0, 0, 0}}) {
    std::vector<Fd> segments;
    for (int host = 0; host < 2; ++host) segments.push_back(create_memfd("set", ControlSegment::nbytes(3, 64)));
    CHECK_NOTHROW(run_hosts(host_of, [&](Rank& rank) {
      const int fd = segments[static_cast<size_t>(host_of[static_cast<size_t>(rank.rank)])].get();
      Group& set = *rank.context.add_group(fd, {0, 1, 2}, 1, nullptr);
      sum_now(rank, set, 2, 0);
      if (rank.rank == 0) {
        bool is_stopped = false;
        try {
          rank.context.remove_group(&set, stop);
        } catch (const Stop&) {
          is_stopped = true;
        }
        expect(is_stopped, "the removal is interrupted");
      }
      if (rank.rank == 1) wait_for([&] { return has_failed(set.control()); });
      rank.context.remove_group(&set, nullptr);  // of a failed group: without the others
      sum_now(rank, rank.world, 2, 0);
    }));
  }
}

}  // namespace
}  // namespace rr::test
