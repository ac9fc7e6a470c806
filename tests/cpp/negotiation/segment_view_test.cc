// A job's memory, read from outside: what a rank waits for, what it has done, whether it has left; and what is no job's
// memory, or another version's.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/seqlock.h"
#include "doctest/doctest.h"
#include "negotiation/segment/failure.h"
#include "negotiation/segment/segment_view.h"
#include "support/loopback_links.h"
#include "support/ranks.h"

namespace rr::test {
namespace {

uint64_t stat(const SegmentView::Rank& rank, const std::string& name) {
  for (const auto& [key, value] : rank.stats) {
    if (key == name) return value;
  }
  throw std::runtime_error("no counter " + name);
}

// As the first rank does when the ranks of one host have met.
void identify(SegmentIdentity& identity, int size) {
  identity.layout = layout_hash();
  identity.size = size;
  identity.hosts = 1;
  identity.magic.store(SegmentIdentity::kMagic);
}

TEST_CASE("segment view: a rank that waits says in which operation and for whom, one that computes does not") {
  const Environment environment = {{"RINGREDUCE_LATE_WARNING", "0"}};
  CHECK_NOTHROW(run_ranks(3, [](Rank& rank) {
    SegmentView view(rank.context.presence().memory());
    sum_now(rank, rank.world, 1000, 1);
    barrier(rank.world);
    if (rank.rank == 2) {
      wait_for([&] {
        const std::optional<SegmentView::Wait> wait = view.read().ranks[0].wait;
        return wait && wait->text == "allreduce 'loss' #2" && wait->missing == std::vector<int>{2};
      });
      const SegmentView::Snapshot seen = view.read();
      expect(seen.ranks[0].wait->kind == "allreduce", "the kind of the wait");
      expect(!seen.ranks[2].wait, "a rank that computes");
      expect(seen.failure.empty(), "no failure");
      for (const SegmentView::Rank& one : seen.ranks) {
        expect(one.attendance == Attendance::kPresent, "present");
        expect(one.pid == ::getpid(), "its process");
        expect(one.host == 0, "its host");
        expect(stat(one, "operations") == (&one == &seen.ranks[2] ? 2u : 3u), "its operations");
        expect(stat(one, "bytes_moved") == 4000, "its bytes");
      }
    }
    sum_now(rank, rank.world, 3, 1, "loss");
    barrier(rank.world);
  }));
}

TEST_CASE("what is shown of a rank: nothing before it has come, because it may be writing that") {
  const Fd fd = create_memfd("test", ControlSegment::nbytes(2, 16));
  const ControlSegment control = ControlSegment::map(fd.get(), 2);
  control.facts(1).pid = 7;
  CHECK(shown_rank(control, 1).pid == 0);
  control.line(1).attendance.store(Attendance::kPresent);
  CHECK(shown_rank(control, 1).pid == 7);
}

TEST_CASE("segment view: of a wait for a message it tells which, and what was said of an earlier wait is not told") {
  CHECK_NOTHROW(run_ranks(2, [](Rank& rank) {
    SegmentView view(rank.context.presence().memory());
    Floats data(1);
    for (int turn = 0; turn < 2; ++turn) {
      if (rank.rank == 0) {
        const OperationPtr received = rank.world.receive(test::view(data, DType::kFloat32), 1, turn, nullptr);
        rank.world.wait(*received, -1, nullptr);
      } else {
        wait_for([&] {
          const std::optional<SegmentView::Wait> wait = view.read().ranks[0].wait;
          if (!wait || wait->text != "recv from rank 1 #" + std::to_string(turn)) return false;
          expect(wait->kind.empty(), "a message has no kind");
          expect(wait->missing == std::vector<int>{1}, "the sender is missing");
          return true;
        });
        const OperationPtr sent = rank.world.send(test::view(data, DType::kFloat32), 0, turn, nullptr);
        rank.world.wait(*sent, -1, nullptr);
      }
    }
    barrier(rank.world);
  }));
}

TEST_CASE("segment view: on the first host it shows the ranks of all hosts, on another one its own") {
  CHECK_NOTHROW(run_hosts({0, 1, 1}, [](Rank& rank) {
    SegmentView view(rank.context.presence().memory());
    sum_now(rank, rank.world, 1000, 1);
    if (rank.rank == 0) {
      SegmentView::Snapshot seen;
      wait_for([&] {  // rank 1 may call later, shows itself apart from rank 2, and counts while it sends
        seen = view.read();
        const SegmentView::Rank& waiting = seen.ranks[2];
        const SegmentView::Rank& leader = seen.ranks[1];
        return waiting.wait && waiting.wait->text == "allreduce 'loss' #1" && stat(waiting, "operations") == 2 &&
               waiting.wait->missing == std::vector<int>{0} && leader.links.size() == 1 &&
               leader.links[0].nbytes == stat(leader, "bytes_on_wire");
      });
      expect(seen.ranks[0].hostname == "host0" && seen.ranks[2].hostname == "host1", "the hosts' names");
      expect(seen.ranks[2].pid == ::getpid(), "its process");
      expect(seen.ranks[2].age_s >= 0 && seen.ranks[0].age_s == 0, "how old it is");
      expect(seen.ranks[1].links[0].host == 0, "its link");
      expect(view.host() == 0 && seen.ranks[1].host == 1 && seen.ranks[2].host == 1, "the hosts' numbers");
    } else {
      const SegmentView::Snapshot seen = view.read();
      expect(view.host() == 1, "its number");
      expect(seen.ranks[0].hostname.empty() && seen.ranks[0].pid == 0 && !seen.ranks[0].wait, "nothing is known");
      expect(seen.ranks[0].age_s == 0 && stat(seen.ranks[0], "operations") == 0, "nothing is known");
    }
    sum_now(rank, rank.world, 3, 1, "loss");
    barrier(rank.world);
  }));
}

TEST_CASE("segment view: who has left, and why, and how the job has failed") {
  CHECK_NOTHROW(run_ranks(2, [](Rank& rank) {
    const Fd memory = Fd::duplicate(rank.context.presence().memory());
    SegmentView view(memory.get());
    if (rank.rank == 1) {
      barrier(rank.world);
      rank.context.shutdown("the disk is full");
      return;
    }
    barrier(rank.world);
    wait_for([&] { return has_left(view.read().ranks[1].attendance); });
    expect_contains(view.read().ranks[1].cause, "lost rank 1: the disk is full");
    rank.context.fail_groups(FatalKind::kInternal, "by hand");
    expect(view.read().failure == "by hand", "the failure");
  }));
}

TEST_CASE("segment view: what is no job's memory is refused") {
  const auto refused = [](int fd) { return raised<InvalidArgumentError>([&] { SegmentView view(fd); }); };
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const Fd out(ends[0]), in(ends[1]);
  CHECK(refused(out.get()).find("can be changed") != std::string::npos);
  const Fd shrinkable(::memfd_create("other", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(shrinkable.get(), 1 << 20) == 0);
  CHECK(refused(shrinkable.get()).find("can be changed") != std::string::npos);

  const auto with = [](const std::function<void(SegmentIdentity&)>& change) {
    Fd fd = create_memfd("ringreduce.test", ControlSegment::nbytes(2, 16));
    const Mapping mapping(fd.get(), OnFork::kDrop);
    auto& identity = *reinterpret_cast<SegmentIdentity*>(mapping.data());
    identify(identity, 2);
    change(identity);
    return fd;
  };
  CHECK_NOTHROW(SegmentView(with([](SegmentIdentity&) {}).get()));
  CHECK(refused(with([](SegmentIdentity& identity) { identity.magic.store(7); }).get()) == "this is no job's memory");
  for (const int size : {0, -1, kMaxRanks + 1}) {
    CHECK_NOTHROW(expect_contains(refused(with([&](SegmentIdentity& identity) { identity.size = size; }).get()),
                                  "speaks of " + std::to_string(size) + " ranks"));
  }
  for (const int host : {-1, 1}) {
    CHECK_NOTHROW(
        expect_contains(refused(with([&](SegmentIdentity& identity) { identity.host = host; }).get()), "on 1 hosts"));
  }
  for (const int hosts : {0, 3}) {
    CHECK_NOTHROW(expect_contains(refused(with([&](SegmentIdentity& identity) { identity.hosts = hosts; }).get()),
                                  "on " + std::to_string(hosts) + " hosts"));
  }
  CHECK_NOTHROW(
      expect_contains(refused(with([](SegmentIdentity& identity) { identity.size = 3; }).get()), "does not fit"));
  const auto not_yet = [](int fd) { return raised<UnavailableError>([&] { SegmentView view(fd); }); };
  CHECK(not_yet(with([](SegmentIdentity& identity) { identity.magic.store(0); }).get()) ==
        "the ranks of the job have not met yet");
  CHECK_NOTHROW(expect_contains(not_yet(with([](SegmentIdentity& identity) { ++identity.layout; }).get()),
                                "another version of ringreduce"));
}

TEST_CASE("segment view: what a rank has said of another wait is not told of this one") {
  const Fd fd = create_memfd("ringreduce.test", ControlSegment::nbytes(2, 16));
  const ControlSegment control = ControlSegment::map(fd.get(), 2);
  identify(control.identity(), 2);
  SegmentView view(fd.get());
  control.line(0).attendance.store(Attendance::kPresent);
  control.wait_line(0).slot = WaitLine::kOther;
  control.wait_line(0).number = 7;
  WaitText told = {};
  told.wait = 7;
  std::memcpy(told.text, "barrier #1", 11);
  told.missing.set(1);
  control.wait_text(0).write(told);
  CHECK(view.read().ranks[0].wait->text == "barrier #1");
  CHECK(view.read().ranks[0].wait->missing == std::vector<int>{1});
  control.wait_line(0).number = 8;
  CHECK(view.read().ranks[0].wait->text.empty());
  CHECK(view.read().ranks[0].wait->missing.empty());
}

TEST_CASE("segment view: who is late is not told once nobody looks any more") {
  const Fd fd = create_memfd("ringreduce.test", ControlSegment::nbytes(2, 16));
  const ControlSegment control = ControlSegment::map(fd.get(), 2);
  identify(control.identity(), 2);
  SegmentView view(fd.get());
  CHECK(view.read().unsampled_s == 0);  // the job begins
  LateText told = {};
  std::memcpy(told.text, "rank 1 is late", 15);
  control.late_text().write(told);
  control.header().sampled_at_ns = now_ns();
  CHECK(view.read().late == "rank 1 is late");
  CHECK(view.read().unsampled_s == 0);
  control.header().sampled_at_ns = now_ns() - 30'000'000'000;
  CHECK(view.read().late.empty());
  CHECK(view.read().unsampled_s >= 30);
}

TEST_CASE("segment view: a job that runs says when it was sampled last") {
  CHECK_NOTHROW(run_ranks(2, [](Rank& rank) {
    const auto sampled_at_ns = [&] { return rank.world.control().header().sampled_at_ns.load(); };
    const int64_t begun_ns = now_ns();
    wait_for([&] { return sampled_at_ns() > begun_ns; });
    barrier(rank.world);
  }));
}

TEST_CASE("segment view: garbage is read, and is nothing worse") {
  const size_t nbytes = ControlSegment::nbytes(4, 16);
  for (const int byte : {0xFF, 0x01, 0x80}) {
    const Fd fd = create_memfd("ringreduce.test", nbytes);
    const Mapping mapping(fd.get(), OnFork::kDrop);
    std::memset(mapping.data(), byte, 1 << 20);
    auto& identity = *reinterpret_cast<SegmentIdentity*>(mapping.data());
    identity.host = 0;
    identify(identity, 4);
    SegmentView view(fd.get());
    const SegmentView::Snapshot seen = view.read();
    CHECK(seen.ranks.size() == 4);
    CHECK(view.context().size() == sizeof identity.context);
  }
}

TEST_CASE("seqlock: a reader gets a whole value or none while it is written") {
  struct Value {
    uint64_t words[9];
  };
  auto shared = std::make_unique<Seqlocked<Value>>();
  std::memset(static_cast<void*>(shared.get()), 0, sizeof *shared);
  REQUIRE(shared->read());
  constexpr uint64_t kTurns = 200000;
  std::atomic<bool> is_over{false};
  CHECK_NOTHROW(run_threads(2, [&](int thread) {
    if (thread == 0) {
      for (uint64_t turn = 1; turn <= kTurns; ++turn) {
        Value value;
        for (uint64_t& word : value.words) word = turn;
        shared->write(value);
      }
      is_over = true;
      return;
    }
    uint64_t last = 0;
    while (!is_over) {
      const std::optional<Value> value = shared->read();
      if (!value) continue;
      for (const uint64_t word : value->words) expect(word == value->words[0], "a whole value");
      expect(value->words[0] >= last, "no older value");
      last = value->words[0];
    }
  }));
  CHECK(shared->read()->words[8] == kTurns);
}

}  // namespace
}  // namespace rr::test
