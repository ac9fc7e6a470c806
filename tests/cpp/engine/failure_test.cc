// The end of a group: the first cause stays, waits end, and starting and leaving a thousand times leaves nothing
// behind.
#include <dirent.h>
#include <unistd.h>

#include <thread>

#include "base/clock.h"
#include "collective/direct.h"
#include "doctest/doctest.h"
#include "support/loopback_links.h"
#include "support/sanitizer.h"

namespace rr::test {
namespace {

TEST_CASE("a failure is recorded once; the first cause is repeated by every later call") {
  const Environment environment{};
  CHECK_NOTHROW(run_ranks(2, [](Rank& rank) {
    barrier(rank.world);
    Sum pending;
    if (rank.rank == 0) {
      pending = start_sum(rank, rank.world, 5000, 1, "pending");
      expect(record_failure(rank.world.control(), FatalKind::kPeerLost, "the first cause"), "the first is recorded");
      expect(!record_failure(rank.world.control(), FatalKind::kTimeout, "the second cause"), "the second is not");
      expect_contains(raised<PeerLostError>([&] { rank.world.wait(*pending.operation, -1, nullptr); }),
                      "the first cause");
    }
    wait_for([&] { return has_failed(rank.world.control()); });
    for (int i = 0; i < 3; ++i) {
      expect_contains(raised<PeerLostError>([&] { sum_now(rank, rank.world, 1, 0); }), "the first cause");
      expect_contains(raised<PeerLostError>([&] { sum_now(rank, rank.world, 5000, 0, "name"); }), "the first cause");
      expect_contains(raised<PeerLostError>([&] { rank.world.join(nullptr); }), "the first cause");
    }
  }));
}

TEST_CASE("what found no room in the log is put there by who waits, where the rank that completed it has left") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "20"}};
  CHECK_NOTHROW(run_ranks(3, [&](Rank& rank) {
    const ControlSegment& control = rank.world.control();
    for (size_t i = 0; i < kLogEntries; ++i) sum_now(rank, rank.world, 5000, 0);
    Sum late;
    if (rank.rank != 1) late = start_sum(rank, rank.world, 5000, 0, "late");
    barrier(rank.world);
    const uint64_t entries = control.header().log_tail.load();
    if (rank.rank == 1) {
      control.line(2).cursor.store(entries - kLogEntries);  // as if rank 2 had all of them still to execute
      start_sum(rank, rank.world, 5000, 0, "late");
      return;
    }
    if (rank.rank == 0) {
      wait_for([&] { return has_left(control.line(1)); });
      expect(control.header().log_tail.load() == entries, "rank 1 has left before there was room");
      control.line(2).cursor.store(entries);
    }
    expect_contains(raised<ShutdownError>([&] { finish_sum(rank.world, late); }), "rank 1 called shutdown()");
  }));
}

TEST_CASE("a rank that is lost while a group is made ends the making") {
  const Environment environment{};
  const Fd fd = create_memfd("set", ControlSegment::nbytes(2, 64));
  std::atomic<bool> is_through{false};  // rank 0: what fails before would end its barrier, too
  CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) {
    barrier(rank.world);
    if (rank.rank == 1) {
      wait_for([&] { return is_through.load(); });
      record_failure(rank.world.control(), FatalKind::kPeerLost, "the first cause");
    } else {
      is_through = true;
      const int64_t begun = now_ns();
      const auto make = [&] { rank.context.add_group(fd.get(), {0, 1}, 1, nullptr); };
      expect_contains(raised<PeerLostError>(make), "the first cause");
      expect(now_ns() - begun < int64_t{30} * 1000000000, "long before RINGREDUCE_TIMEOUT");
    }
  }));
}

TEST_CASE("a group that has failed can be removed, and a removed one takes nothing more") {
  const Environment environment{};
  for (const bool fails : {false, true}) {
    CAPTURE(fails);
    const Fd fd = create_memfd("set", ControlSegment::nbytes(2, 64));
    CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) {
      const std::shared_ptr<Group> set = rank.context.add_group(fd.get(), {0, 1}, 1, nullptr);
      sum_now(rank, *set, 5000, 1);
      barrier(rank.world);
      if (fails && rank.rank == 0) record_failure(set->control(), FatalKind::kTimeout, "too late");
      if (fails) wait_for([&] { return has_failed(set->control()); });
      rank.context.remove_group(set.get(), nullptr);
      const std::string why = fails ? "too late" : "the process set was removed";
      expect_contains(raised<Error>([&] { sum_now(rank, *set, 5000, 1); }), why);
      expect_contains(raised<Error>([&] { sum_now(rank, *set, 1, 1, "name"); }), why);
      expect_contains(raised<Error>([&] { set->join(nullptr); }), why);
      Floats data(3);
      const int other = 1 - rank.rank;
      expect_contains(raised<Error>([&] { set->send(view(data, DType::kFloat32), other, 0, nullptr); }), why);
      sum_now(rank, rank.world, 5000, 1);
    }));
  }
}

TEST_CASE("a thread that waits in a group that another one removes gets to know") {
  const Environment environment{};
  const Fd fd = create_memfd("set", ControlSegment::nbytes(2, 64));
  CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) {
    const std::shared_ptr<Group> set = rank.context.add_group(fd.get(), {0, 1}, 1, nullptr);
    sum_now(rank, *set, 5000, 1);
    // Rank 0 states the barrier of the removal as its second operation, and behind it a quick one, which is in no table
    // while its thread waits; rank 1 comes then, and only for the removal.
    const auto has_stated = [&](uint64_t request_slot) { return set->control().head(request_slot, 0).tag.load() != 0; };
    if (rank.rank == 0) {
      std::thread removes([&] { rank.context.remove_group(set.get(), nullptr); });
      wait_for([&] { return has_stated(1); });
      Floats few(2, 1.0F);
      const TensorView small = view(few, DType::kFloat32);
      const Reduction sum{DType::kFloat32, ReduceOp::kSum, 1, 1, 2};
      CHECK_NOTHROW(expect_contains(raised<ShutdownError>([&] { set->allreduce_quick(small, small, sum, nullptr); }),
                                    "was removed"));
      removes.join();
    } else {
      wait_for([&] { return has_stated(2); });
      rank.context.remove_group(set.get(), nullptr);
    }
    sum_now(rank, rank.world, 5000, 1);
  }));
}

// Rank 1 does nothing; rank 0 waits in `call`, which must raise E. A minute is a hang: machines pause.
template <class E>
std::string alone(const std::function<void(Rank&)>& call) {
  std::string text;
  std::atomic<bool> over{false};
  run_ranks(2, [&](Rank& rank) {
    barrier(rank.world);
    if (rank.rank == 0) {
      try {
        text = raised<E>([&] { call(rank); });
      } catch (...) {
        over = true;
        throw;
      }
      over = true;
    } else {
      const Deadline deadline = Deadline::after_s(60);
      while (!over && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (!over) record_failure(rank.world.control(), FatalKind::kInternal, "rank 0 hangs");
    }
  });
  return text;
}

void sum_unnamed(Rank& rank, size_t count) { sum_now(rank, rank.world, count, 0); }
void sum_named(Rank& rank, size_t count) { sum_now(rank, rank.world, count, 0, "name"); }
void sum_quick(Rank& rank, size_t count) {
  Floats data(count);
  const TensorView tensor = view(data, DType::kFloat32);
  const Reduction reduction = {DType::kFloat32, ReduceOp::kSum, 1.0, 1.0, rank.size};
  expect(rank.world.allreduce_quick(tensor, tensor, reduction, nullptr), "it is quick");
}
// Far more than fit into the window.
void fill_window(Rank& rank, size_t count) {
  std::vector<Sum> sums;
  for (int i = 0; i < 600; ++i) sums.push_back(start_sum(rank, rank.world, count, 0));
}
void receive(Rank& rank, size_t count) {
  Floats data(count);
  rank.world.wait(*rank.world.receive(view(data, DType::kFloat32), 1, 0, nullptr), -1, nullptr);
}

TEST_CASE("timeout: names the missing rank, whatever the path") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "0.8"}};  // less, and a busy machine is named instead
  for (const size_t count : {size_t{1}, size_t{500}, size_t{5000}}) {
    CAPTURE(count);
    for (const auto call : {sum_unnamed, sum_named, fill_window}) {
      std::string text;
      CHECK_NOTHROW(text = alone<TimeoutError>([&](Rank& rank) { call(rank, count); }));
      CAPTURE(text);
      CHECK(text.find("missing rank(s): 1") != std::string::npos);
    }
    if (count < 5000) CHECK_NOTHROW(alone<TimeoutError>([&](Rank& rank) { sum_quick(rank, count); }));
  }
  CHECK_NOTHROW(alone<TimeoutError>([&](Rank& rank) { receive(rank, 500); }));
}

TEST_CASE("timeout: other traffic that keeps waking the waiting rank does not put it off") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "0.5"}};
  const Fd fd = create_memfd("other", ControlSegment::nbytes(2, 64));
  CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) {
    Group& other = *rank.context.add_group(fd.get(), {0, 1}, 1, nullptr);
    std::thread traffic([&] {
      try {
        for (int turn = 0;; ++turn) sum_now(rank, other, 3000, turn);
      } catch (const Error&) {  // a rank has left
      }
    });
    std::exception_ptr error;
    try {
      const int64_t begin = now_ns();
      if (rank.rank == 0) raised<TimeoutError>([&] { sum_named(rank, 1); });
      while (!has_failed(rank.world.control()) && now_ns() - begin < 60000000000) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      expect(has_failed(rank.world.control()), "the wait ended in time");
    } catch (...) {
      error = std::current_exception();
    }
    rank.context.shutdown();
    traffic.join();
    if (error) std::rethrow_exception(error);
  }));
}

TEST_CASE("wait() with a limit leaves the operation pending") {
  const Environment environment{};
  CHECK_NOTHROW(run_ranks(2, [](Rank& rank) {
    for (const size_t count : {size_t{1}, size_t{5000}}) {
      if (rank.rank == 0) {
        const Sum sum = start_sum(rank, rank.world, count, 1, "name");
        expect(!rank.world.wait(*sum.operation, 0.02, nullptr), "nobody else is here yet");
        expect(!rank.world.wait(*sum.operation, 0.3, nullptr), "nobody else is here yet");  // long enough to be blocked
        rank.world.send(TensorView(), 1, 0, nullptr);
        finish_sum(rank.world, sum);
      } else {
        rank.world.wait(*rank.world.receive(TensorView(), 0, 0, nullptr), -1, nullptr);
        sum_now(rank, rank.world, count, 1, "name");
      }
    }
  }));
}

TEST_CASE("a rank that leaves cleanly: whoever needs it hears of it") {
  const Environment environment{};
  for (const size_t count : {size_t{1}, size_t{500}, size_t{5000}}) {
    for (const auto call : {sum_unnamed, sum_named, sum_quick, fill_window, receive}) {
      if (call == sum_quick && count == 5000) continue;
      CAPTURE(count);
      CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) {
        sum_unnamed(rank, 1);
        if (rank.rank == 0) expect_contains(raised<ShutdownError>([&] { call(rank, count); }), "rank 1");
      }));
    }
  }
}

TEST_CASE("direct: no chunk is begun once a rank has taken its memory back, and the others need it") {
  constexpr size_t kCount = 1 << 16;
  std::vector<float> values[2] = {std::vector<float>(kCount, 1.0f), std::vector<float>(kCount, 1.0f)};
  ClaimLine claims[2] = {};
  std::atomic<uint64_t> completed{0};
  std::atomic<uint32_t> any_withdrawn{0};
  Team team;
  team.members = {0, 1};
  team.kernels = &kernels("auto");
  DirectJob job;
  job.reduction = {DType::kFloat32, ReduceOp::kSum, 1.0, 1.0, 2};
  job.tensors.push_back({{values[0].data(), values[1].data()}, {values[0].data(), values[1].data()}, kCount});
  const std::unique_ptr<Algorithm> sum = direct(team, {claims, &completed, &any_withdrawn}, job);
  CHECK(sum->step() == Step::kProgress);
  claims[1].withdrawn = any_withdrawn = 1;
  const std::vector<float> before = values[1];
  CHECK(std::count(before.begin(), before.end(), 2.0f) != 0);
  CHECK(std::count(before.begin(), before.end(), 1.0f) != 0);
  CHECK(sum->step() == Step::kIdle);
  CHECK(values[1] == before);
  CHECK(sum->needs(1));
  CHECK(claims[0].storing.load() == 0);
}

TEST_CASE("a rank that leaves waits for a rank that stores into its registered memory") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "30"}};
  std::atomic<int64_t> took_ns{0};
  CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) {
    const ControlSegment& control = rank.world.control();
    std::atomic<uint32_t>& storing = control.claims(0)[1].storing;
    if (rank.rank == 0) {
      wait_for([&] { return storing.load() != 0; });
      start_sum(rank, rank.world, 3000, 1, "never");
      const int64_t began_ns = now_ns();
      rank.context.shutdown();
      took_ns = now_ns() - began_ns;
    } else {
      storing = 1;
      wait_for([&] { return has_left(control.line(0)); });
      const int64_t left_ns = now_ns();
      wait_for([&] { return took_ns != 0 || now_ns() - left_ns > 50'000'000; });
      expect(took_ns == 0 || took_ns > 900'000'000, "it waits, but not for ever");
      storing = 0;
    }
  }));
}

TEST_CASE("nobody stores into registered memory of a rank that has left, or sums what it writes there afterwards") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "30"}, {"RINGREDUCE_FUSION_THRESHOLD", "0"}};
  constexpr size_t kCount = 1000;
  constexpr int kSums = 80;  // more than the log holds
  const size_t nbytes = kSums * kCount * sizeof(float);
  const Fd file = create_memfd("registered", 2 * nbytes);
  std::atomic<bool> is_over{false};
  const auto body = [&](Rank& rank) {
    const Segment segment(file.get(), 1, rank.rank, 2, nbytes);
    rank.segments.add(&segment);
    float* const values = reinterpret_cast<float*>(segment.own());
    std::fill_n(values, kSums * kCount, 1.0f);
    barrier(rank.world);
    std::vector<OperationPtr> sums;
    const auto start = [&](int i) {
      const std::string name = "sum " + std::to_string(i);
      Request request;
      request.kind = Kind::kAllreduce;
      request.srcs.resize(1);
      request.srcs[0].data = segment.own() + static_cast<size_t>(i) * kCount * sizeof(float);
      request.srcs[0].dtype = DType::kFloat32;
      request.srcs[0].count = request.srcs[0].dims[0] = kCount;
      request.srcs[0].ndim = 1;
      request.dsts = request.srcs;
      request.name = &name;
      request.is_async = true;
      sums.push_back(rank.world.submit(request, nullptr));
    };
    if (rank.rank == 0) {
      for (int i = 0; i < kSums; ++i) start(i);
      rank.context.shutdown();
      std::fill_n(values, kSums * kCount, 1e9f);
      wait_for([&] { return is_over.load(); });
      expect(std::count(values, values + kSums * kCount, 1e9f) == kSums * kCount, "what rank 0 has written there");
    } else {
      wait_for([&] { return has_left(rank.world.control().line(0)); });
      try {
        for (int i = 0; i < kSums; ++i) start(i);
      } catch (const ShutdownError&) {  // heard of it before the last
      }
      for (const OperationPtr& sum : sums) {
        raised<ShutdownError>([&] { rank.world.wait(*sum, -1, nullptr); });
      }
      is_over = true;
    }
    rank.segments.remove(&segment);
  };
  CHECK_NOTHROW(run_ranks(2, body, 256));
}

TEST_CASE("timeout: all names in flight, and nobody else comes") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "0.3"}};
  std::string text;
  CHECK_NOTHROW(text = alone<TimeoutError>([](Rank& rank) {
                  std::vector<Sum> sums;
                  for (int i = 0; i < 70; ++i) sums.push_back(start_sum(rank, rank.world, 1, 0, std::to_string(i)));
                }));
  CHECK(text.find("missing rank(s): 1") != std::string::npos);
}

TEST_CASE("timeout: names the rank that keeps the window full with operations that all have called") {
  const Environment environment{};
  std::string text;
  CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) {
    for (size_t i = 0; i < kUnnamedSlots; ++i) sum_unnamed(rank, 1);
    sum_named(rank, 1);
    if (rank.rank != 0) return wait_for([&] { return has_failed(rank.world.control()); });
    rank.context.set_timeout_s(0.3);
    rank.world.control().line(1).watermark.store(0);  // as if rank 1 had not
    text = raised<TimeoutError>([&] { sum_unnamed(rank, 1); });
  }));
  expect_contains(text, "could not be submitted, because rank(s) 1 have not ended the operation 256 before it");
}

TEST_CASE("a rank that leaves with a full window behind it") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "30"}};
  CHECK_NOTHROW(run_ranks(2, [](Rank& rank) {
    std::vector<OperationPtr> operations;
    for (int i = 0; i < 256; ++i) operations.push_back(start_barrier(rank.world, true));
    if (rank.rank == 0) raised<ShutdownError>([&] { barrier(rank.world); });
  }));
}

TEST_CASE("what has been done stays done when the others leave first") {
  const Environment environment{};
  for (int turn = 0; turn < 50; ++turn) {
    CHECK_NOTHROW(run_ranks(4, [turn](Rank& rank) {
      for (int i = 0; i < turn % 4; ++i) sum_now(rank, rank.world, turn % 2 == 0 ? 1 : 3000, i);
      sum_now(rank, rank.world, 1, turn);
    }));
  }
}

size_t entries(const char* folder) {
  size_t count = 0;
  DIR* dir = ::opendir(folder);
  while (::readdir(dir) != nullptr) ++count;
  ::closedir(dir);
  return count;
}

TEST_CASE("a thousand starts and ends leave no descriptor and no thread behind") {
  const Environment environment{};
  run_ranks(2, [](Rank& rank) { barrier(rank.world); });
  const size_t descriptors = entries("/proc/self/fd");
  const size_t threads = entries("/proc/self/task");
  const int turns = rounds(1000);
  for (int turn = 0; turn < turns; ++turn) {
    run_ranks(2, [turn](Rank& rank) {
      if (turn % 3 == 0) sum_now(rank, rank.world, 5000, turn);
      if (turn % 3 == 1) start_sum(rank, rank.world, 5000, turn);  // not waited for
    });
  }
  CHECK(entries("/proc/self/fd") == descriptors);
  // The kernel lists a thread for a moment after it was joined, here and above.
  CHECK_NOTHROW(wait_for([&] { return entries("/proc/self/task") <= threads; }));
}

// The process of the test below.
TEST_CASE("child: ends with operations that nobody waited for" * doctest::skip()) {
  const Environment environment{};
  const Fd fd = create_memfd("test", ControlSegment::nbytes(2, 64));
  static std::vector<std::unique_ptr<Context>> contexts(2);  // gone with the other static objects
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      contexts[static_cast<size_t>(r)] = std::make_unique<Context>(fd.get(), r, 2, std::vector<int>{-1, -1}, "host",
                                                                   std::make_shared<SegmentRegistry>(), nullptr, tune);
    });
  }
  for (auto& thread : threads) thread.join();
  SegmentRegistry segments;
  Rank first = {*contexts[0], contexts[0]->world(), 0, 2, segments};
  Rank second = {*contexts[1], contexts[1]->world(), 1, 2, segments};
  start_sum(first, first.world, 5000, 1, "both");
  start_sum(second, second.world, 5000, 1, "both");
  start_sum(first, first.world, 5000, 1, "one");
  start_sum(first, first.world, 1, 1);
  std::exit(0);
}

TEST_CASE("a process exits with operations that nobody waited for") {
  char self[4096] = {};
  REQUIRE(::readlink("/proc/self/exe", self, sizeof self - 1) > 0);
  const std::string command =
      "timeout 60 '" + std::string(self) + "' --no-skip --test-case='child: ends with*' > /dev/null";
  CHECK(std::system(command.c_str()) == 0);
}

// Of a network whose thread has run out of memory.
class FailingReader : public NetworkReader {
 public:
  void start(std::function<void()>) override {}
  void monitor(const std::vector<int>&) override {}
  void begin_watch() override {}
  void end_watch() override {}
  std::vector<LostRank> newly_lost() override { return {}; }
  std::vector<std::string> new_warnings() override { throw std::bad_alloc(); }
  void leave() override {}
};

TEST_CASE("an exception of the engine's thread fails all groups, and does not end the process") {
  const Environment environment{};
  const Fd fd = create_memfd("test", ControlSegment::nbytes(1, 64));
  Network network;
  network.reader = std::make_shared<FailingReader>();
  Context context(fd.get(), 0, 1, {-1}, "host", std::make_shared<SegmentRegistry>(), nullptr, tune, -1, network);
  CHECK_NOTHROW(wait_for([&] { return has_failed(context.world().control()); }));
  const std::string text = raised<InternalError>([&] { barrier(context.world()); });
  CHECK(text.find("the engine's thread has failed: std::bad_alloc") != std::string::npos);
}

}  // namespace
}  // namespace rr::test
