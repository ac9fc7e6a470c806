// A rank that leaves with a cause: who misses it is told the cause, and nobody else fails.
#include <cstring>
#include <functional>
#include <mutex>

#include "doctest/doctest.h"
#include "support/child.h"
#include "support/loopback_links.h"

namespace rr::test {
namespace {

const std::string kWhy = "RuntimeError: CUDA out of memory (train.py:14)";

// What `call` raises on this rank, without the place that it begins with.
std::string told(const Rank& rank, const std::function<void()>& call, const std::string& why = kWhy, int left = 1) {
  const std::string text = raised<PeerLostError>(call);
  expect(text.find("[ringreduce rank " + std::to_string(rank.rank) + "/") == 0,
         "of rank " + std::to_string(rank.rank) + ": " + text);
  const std::string lost = "] lost rank " + std::to_string(left) + ": " + why;
  expect_contains(text, lost);
  return text.substr(text.find(lost));
}

void sum_quick(Rank& rank) {
  Floats data(2);
  const TensorView tensor = view(data, DType::kFloat32);
  const Reduction reduction = {DType::kFloat32, ReduceOp::kSum, 1.0, 1.0, rank.size};
  rank.world.allreduce_quick(tensor, tensor, reduction, nullptr);
}
void sum_eager(Rank& rank) { sum_now(rank, rank.world, 500, 0); }
void sum_named(Rank& rank) { sum_now(rank, rank.world, 1, 0, "name"); }
void sum_long(Rank& rank) { sum_now(rank, rank.world, 5000, 0); }
void join(Rank& rank) { rank.world.join(nullptr); }
void receive(Rank& rank) {
  Floats data(3);
  rank.world.wait(*rank.world.receive(view(data, DType::kFloat32), 1, 0, nullptr), -1, nullptr);
}
void fill_window(Rank& rank) {
  std::vector<OperationPtr> barriers;
  for (int i = 0; i < 600; ++i) barriers.push_back(start_barrier(rank.world, true));
}

TEST_CASE("what needs a rank that left with a cause fails with it, in the same words on all ranks") {
  const Environment environment{};
  for (const auto call : {sum_quick, sum_eager, sum_named, sum_long, join, receive, fill_window}) {
    std::vector<std::string> texts(3);
    CHECK_NOTHROW(run_ranks(3, [&](Rank& rank) {
      barrier(rank.world);
      if (rank.rank == 1) return rank.context.shutdown(kWhy);
      texts[static_cast<size_t>(rank.rank)] = told(rank, [&] { call(rank); });
    }));
    CHECK(texts[0] == texts[2]);
  }
}

TEST_CASE("the error of a lost rank names the rank that raises it, and its operation") {
  const Environment environment{};
  std::atomic<int> submitted{0};
  CHECK_NOTHROW(run_ranks(3, [&](Rank& rank) {
    barrier(rank.world);
    if (rank.rank == 1) {
      wait_for([&] { return submitted == 2; });
      return rank.context.shutdown(kWhy);
    }
    const std::string me = std::to_string(rank.rank);
    const auto expect_place = [&](const std::string& operation, const std::function<void()>& call) {
      const std::string text = raised<PeerLostError>(call);
      expect(text == "[ringreduce rank " + me + "/3 on host, shm, " + operation + "] lost rank 1: " + kWhy, text);
    };
    const std::string name = "of rank " + me;
    Floats data(5000);
    Request request;
    request.kind = Kind::kAllreduce;
    request.srcs = request.dsts = {view(data, DType::kFloat32)};
    request.name = &name;
    const OperationPtr logged = rank.world.submit(request, nullptr);
    Floats received(3);
    const OperationPtr message = rank.world.receive(view(received, DType::kFloat32), 1, 0, nullptr);
    ++submitted;
    expect_place("allreduce 'of rank " + me + "' #1", [&] { rank.world.wait(*logged, -1, nullptr); });
    expect_place("recv from rank 1 #2", [&] { rank.world.wait(*message, -1, nullptr); });
    expect_place("allreduce", [&] { sum_quick(rank); });  // was not taken any more, and has no number
    expect_place("allreduce 'name'", [&] { sum_named(rank); });
  }));
}

// An exception that goes on after shutdown() comes to sys.excepthook.
TEST_CASE("a rank that has left records no failure any more") {
  const Environment environment{};
  CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) {
    barrier(rank.world);
    if (rank.rank == 1) {
      rank.context.shutdown(kWhy);
      rank.context.fail_as_lost("the same again");
      expect(!has_failed(rank.world.control()), "no failure");
      return;
    }
    wait_for([&] { return has_left(rank.world.control().line(1)); });
    told(rank, [&] { sum_long(rank); });
  }));
}

// Holds whoever executes for a rank.
struct Gate {
  std::atomic<bool> closed{false};
  std::atomic<bool> holds{false};
  bool operator()() {
    if (!closed) return false;  // one look: whoever has seen it open is not held by a gate that closes then
    holds = true;
    wait_for([this] { return !closed; });
    holds = false;
    return false;
  }
};

TEST_CASE("what a rank has finished before it left with a cause succeeds on a rank that is slower") {
  const Environment environment{};
  const Fd fd = create_memfd("test", ControlSegment::nbytes(2, 64));
  Gate gate;
  CHECK_NOTHROW(run_threads(2, [&](int r) {
    auto segments = std::make_shared<SegmentRegistry>();
    Network network;
    if (r == 0) network.progress = [&gate] { return gate(); };
    Context context(fd.get(), r, 2, {-1, -1}, "host", segments, nullptr, tune, -1, network);
    Rank rank = {context, context.world(), r, 2, *segments};
    barrier(rank.world);
    std::vector<int32_t> data(3000, r);  // less than the room of the slots, so that the root waits for nobody
    const std::string name = "from rank 1";
    Request request;
    request.kind = Kind::kBroadcast;
    request.root = 1;
    request.srcs = request.dsts = {view(data, DType::kInt32)};
    request.name = &name;
    if (r == 1) {
      rank.world.wait(*rank.world.submit(request, nullptr), -1, nullptr);
      return context.shutdown(kWhy);
    }
    gate.closed = true;
    std::thread held([&] {
      while (gate.closed && !gate.holds) context.try_progress();
    });
    OperationPtr operation;
    try {
      wait_for([&] { return gate.holds.load(); });
      operation = rank.world.submit(request, nullptr);
      wait_for([&] { return has_left(rank.world.control().line(1)); });
    } catch (...) {
      gate.closed = false;
      held.join();
      throw;
    }
    const bool is_slower = operation->state.load() == State::kPending;
    gate.closed = false;
    held.join();
    expect(is_slower, "rank 0 has not executed it yet");
    rank.world.wait(*operation, -1, nullptr);
    expect(data == std::vector<int32_t>(3000, 1), "the data of rank 1");
    told(rank, [&] { sum_long(rank); });
  }));
}

TEST_CASE("a group without the rank that left with a cause goes on; the making of one with it ends") {
  const Environment environment{};
  const Fd of_two = create_memfd("set", ControlSegment::nbytes(2, 64));
  const Fd with_it = create_memfd("set", ControlSegment::nbytes(2, 64));
  const Fd late = create_memfd("set", ControlSegment::nbytes(2, 64));
  CHECK_NOTHROW(run_ranks(3, [&](Rank& rank) {
    std::shared_ptr<Group> without;
    std::shared_ptr<Group> with;
    if (rank.rank != 1) without = rank.context.add_group(of_two.get(), {0, 2}, 1, nullptr);
    if (rank.rank != 0) with = rank.context.add_group(with_it.get(), {1, 2}, 2, nullptr);
    barrier(rank.world);
    if (rank.rank == 1) return rank.context.shutdown(kWhy);
    wait_for([&] { return has_left(rank.world.control().line(1)); });
    if (rank.rank == 0) told(rank, [&] { rank.context.add_group(late.get(), {0, 1}, 3, nullptr); });
    sum_now(rank, *without, 5000, 1);
    if (rank.rank == 2) told(rank, [&] { sum_now(rank, *with, 5000, 1); });
    sum_now(rank, *without, 1, 1);
    told(rank, [&] { sum_long(rank); });
    sum_now(rank, *without, 5000, 1);
  }));
}

TEST_CASE("of two ranks that leave with a cause each is told with its own, and one without a cause with none") {
  const Environment environment{};
  for (const int missed : {1, 2, 3}) {
    CAPTURE(missed);
    CHECK_NOTHROW(run_ranks(4, [&](Rank& rank) {
      barrier(rank.world);
      if (rank.rank == 3) return rank.context.shutdown();
      if (rank.rank != 0) return rank.context.shutdown("ValueError: of rank " + std::to_string(rank.rank));
      for (int r = 1; r < 4; ++r) wait_for([&] { return has_left(rank.world.control().line(r)); });
      Floats data(3);
      const OperationPtr message = rank.world.receive(view(data, DType::kFloat32), missed, 0, nullptr);
      const auto wait = [&] { rank.world.wait(*message, -1, nullptr); };
      if (missed == 3) {
        expect_contains(raised<ShutdownError>(wait), "rank 3 called shutdown()");
      } else {
        told(rank, wait, "ValueError: of rank " + std::to_string(missed), missed);
      }
    }));
  }
}

TEST_CASE("a cause that is too long ends with a whole letter") {
  const Environment environment{};
  const std::string letter = "\xF0\x9F\x98\x80";
  for (const std::string before : {"", ".", "..", "..."}) {
    std::string why = before;
    for (int i = 0; i < 600; ++i) why += letter;
    std::string text;
    const auto body = [&](Rank& rank) {
      barrier(rank.world);
      if (rank.rank == 1) return rank.context.shutdown(why);
      told(rank, [&] { sum_long(rank); }, before + letter);
      text = failure_text(rank.world.control());
    };
    for (const bool has_hosts : {false, true}) {
      CHECK_NOTHROW(has_hosts ? run_hosts({0, 1}, body) : run_ranks(2, body));
      CHECK(text.size() < sizeof(RankCause));
      CHECK(text.size() > sizeof(RankCause) - 1 - letter.size());
      CHECK(text.substr(text.size() - letter.size()) == letter);
    }
  }
}

TEST_CASE("a rank that leaves with a cause while another one shuts down, and again in the next group") {
  const Environment environment{};
  for (int turn = 0; turn < 20; ++turn) {
    CHECK_NOTHROW(run_ranks(3, [turn](Rank& rank) {
      sum_long(rank);
      const std::string why = "ValueError: in turn " + std::to_string(turn);
      if (rank.rank == 1) return rank.context.shutdown(turn % 2 == 0 ? why : "");
      if (rank.rank == 2) return rank.context.shutdown();
      if (turn % 2 == 1) {
        expect_contains(raised<ShutdownError>([&] { receive(rank); }), "rank 1 called shutdown()");
      } else {
        told(rank, [&] { receive(rank); }, why);
      }
    }));
  }
}

TEST_CASE("a cause that a rank was writing when its process ended is not told") {
  const Environment environment{};
  const Fd fd = create_memfd("test", ControlSegment::nbytes(2, 64));
  Child process;  // in place of rank 1's
  CHECK_NOTHROW(run_threads(2, [&](int r) {
    auto segments = std::make_shared<SegmentRegistry>();
    Context context(fd.get(), r, 2, {-1, r == 0 ? process.pidfd() : -1}, "host", segments, nullptr, tune);
    Rank rank = {context, context.world(), r, 2, *segments};
    barrier(rank.world);
    if (r == 1) return wait_for([&] { return has_failed(rank.world.control()); });
    std::strcpy(rank.world.control().cause(1).text, "half a te");
    process.end();
    expect_contains(raised<PeerLostError>([&] { sum_long(rank); }), "lost rank 1: its process has ended without");
  }));
}

TEST_CASE("hosts: what needs a rank that left with a cause fails with it, in the same words on all hosts") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "30"}};
  // The leaver is the leader of its host, alone there or not, of the first one or not, or no leader.
  for (const std::vector<int>& host_of : {std::vector<int>{0, 1}, {1, 0, 1}, {0, 1, 1}, {0, 0, 1}, {1, 0, 0, 1}}) {
    for (const auto call : {sum_eager, sum_named, sum_long, receive}) {
      CAPTURE(host_of.size());
      std::mutex mutex;
      std::vector<std::string> texts;
      CHECK_NOTHROW(run_hosts(host_of, [&](Rank& rank) {
        sum_now(rank, rank.world, 1000, 1);
        if (rank.rank == 1) return rank.context.shutdown(kWhy);
        const std::string text = told(rank, [&] { call(rank); });
        const std::lock_guard lock(mutex);
        texts.push_back(text);
      }));
      for (const std::string& text : texts) CHECK(text == texts.front());
    }
  }
}

// Makes the length of the cause in a frame one that the frame does not have.
class Forger final : public Link {
 public:
  explicit Forger(std::unique_ptr<Link> link) : link_(std::move(link)) {}
  size_t push(const void* src, size_t nbytes) override {
    std::string bytes(static_cast<const char*>(src), nbytes);
    const size_t cause = bytes.find("[ringreduce rank 1/");
    if (cause != std::string::npos) bytes.replace(cause - 4, 4, "\xff\xff\xff\xff");
    return link_->push(bytes.data(), nbytes);
  }
  size_t pull(void* dst, size_t nbytes) override { return link_->pull(dst, nbytes); }
  size_t fold(void* dst, size_t nbytes, const Reduction& reduction, const Kernels& kernels) override {
    return link_->fold(dst, nbytes, reduction, kernels);
  }

 private:
  std::unique_ptr<Link> link_;
};

TEST_CASE("hosts: a cause of impossible length ends the group") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "30"}};
  const auto forge = [](std::unique_ptr<Link> link, int rank, int /*peer*/, int channel) -> std::unique_ptr<Link> {
    if (rank == 1 && carries_control(channel)) return std::make_unique<Forger>(std::move(link));
    return link;
  };
  const auto body = [&](Rank& rank) {
    sum_now(rank, rank.world, 1000, 1);
    if (rank.rank == 1) return rank.context.shutdown(kWhy);
    expect_contains(raised<InternalError>([&] { sum_long(rank); }),
                    "rank 1, which speaks for another host, has sent a frame that has too long a text");
  };
  CHECK_NOTHROW(run_hosts({0, 1}, body, 64, 8192, nullptr, forge));
}

}  // namespace
}  // namespace rr::test
