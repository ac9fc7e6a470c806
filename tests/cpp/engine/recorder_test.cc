// Records from many threads arrive whole, in order and counted; what cannot be written ends the timeline and nothing
// else.
#include <thread>

#include "doctest/doctest.h"
#include "os/cycle_counter.h"
#include "recorder/cycle_times.h"
#include "recorder/timeline.h"
#include "support/ranks.h"
#include "support/record_files.h"

namespace rr::test {
TEST_CASE("recorder: a full ring refuses, and takes again when there is room") {
  RecordRing ring(4);
  for (uint64_t i = 0; i < 4; ++i) CHECK(ring.add(numbered(i)));
  CHECK_FALSE(ring.add(numbered(4)));
  Record taken[8];
  REQUIRE(ring.take(taken, 3) == 3);
  CHECK(taken[2].number == 2);
  CHECK(ring.add(numbered(5)));
  REQUIRE(ring.take(taken, 8) == 2);
  CHECK(taken[0].number == 3);
  CHECK(taken[1].number == 5);
  CHECK(taken[1].sequence == 4);
  CHECK(ring.take(taken, 8) == 0);
}

TEST_CASE("recorder: what four threads add while one takes arrives whole, each thread's in order") {
  constexpr uint64_t kEach = 20000;
  constexpr uint64_t kThreads = 4;
  RecordRing ring(256);
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&ring, t] {
      for (uint64_t i = 0; i < kEach; ++i) {
        while (!ring.add(numbered(t << 32 | i))) std::this_thread::yield();
      }
    });
  }
  uint64_t next[kThreads] = {};
  uint64_t wrong = 0;
  std::vector<Record> taken(64);
  for (uint64_t count = 0; count < kThreads * kEach;) {
    const size_t come = ring.take(taken.data(), taken.size());
    for (size_t i = 0; i < come; ++i) {
      const Record& record = taken[i];
      wrong += record.nbytes != record.number || record.ended_ns != static_cast<int64_t>(record.number);
      wrong += (record.number & UINT32_MAX) != next[record.number >> 32]++;
      wrong += record.sequence != count + i;
    }
    if (come == 0) std::this_thread::yield();
    count += come;
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
}

TEST_CASE("recorder: a quarter of the ring wakes who waits for it, and so does the end") {
  RecordRing ring(256);
  std::atomic<bool> is_over{false};
  std::atomic<int> turns{0};
  std::thread taker([&] {
    Record taken[256];
    while (!is_over) {
      ring.wait(INT64_C(3'600'000'000'000), is_over);
      while (ring.take(taken, 256) != 0) turns.fetch_add(1);
    }
  });
  for (int turn = 0; turn < 3; ++turn) {
    // One that comes before the taker sleeps wakes nobody, and the next quarter does.
    for (uint64_t added = 0; turns == turn; ++added) {
      ring.add(numbered(added));
      std::this_thread::yield();
    }
  }
  is_over = true;
  ring.hurry();
  taker.join();
  CHECK(turns >= 3);
}

TEST_CASE("recorder: counts of cycles become times of the clock") {
  CycleTimes times;
  for (int turn = 0; turn < 3; ++turn) {
    const int64_t before = now_ns();
    const int64_t counted = cycles();
    const int64_t after = now_ns();
    while (now_ns() - after < 2'000'000) std::this_thread::yield();
    times.update();
    // A millisecond for a look that is disturbed. In cycles it would be wrong by the time since the machine's start.
    CHECK(times.ns(counted) > before - 1'000'000);
    CHECK(times.ns(counted) < after + 1'000'000);
  }
}

TEST_CASE("recorder: names are numbered once, calls of each in each group are counted") {
  Recorder recorder;
  REQUIRE(recorder.begin());
  CHECK(recorder.call(1, "").name == 0);
  const RecordedCall first = recorder.call(1, "loss");
  CHECK(first.timeline == recorder.timeline());
  CHECK(first.number == 0);
  CHECK(recorder.call(1, "loss").number == 1);
  CHECK(recorder.call(1, "loss").name == first.name);
  const RecordedCall other = recorder.call(2, "loss");
  CHECK(other.name != first.name);
  CHECK(other.number == 0);
  CHECK(recorder.take_names() ==
        std::vector<std::pair<uint32_t, std::string>>{{first.name, "loss"}, {other.name, "loss"}});
  CHECK(recorder.take_names().empty());
  recorder.end();
  REQUIRE(recorder.begin());
  CHECK(recorder.call(1, "loss").number == 0);
  CHECK(recorder.take_names().size() == 1);
}

TEST_CASE("recorder: long names that differ at their ends are two, and each has the same short form on all ranks") {
  Recorder recorder;
  Recorder other;
  recorder.begin();
  other.begin();
  const std::string scope(300, 's');
  const RecordedCall weights = recorder.call(1, scope + "weights", 1);
  const RecordedCall bias = recorder.call(1, scope + "bias", 1);
  other.call(1, scope + "bias", 1);
  CHECK(weights.name != bias.name);
  CHECK(recorder.call(1, scope + "bias", 1).number == bias.number + 1);
  const auto names = recorder.take_names();
  REQUIRE(names.size() == 2);
  CHECK(names[0].second != names[1].second);
  CHECK(names[1].second == other.take_names().at(0).second);
  for (const auto& [number, kept] : names) {
    CHECK(kept.size() == 244);
    CHECK(kept.find(scope.substr(0, 200)) == 0);
  }
  recorder.take_back(1, scope + "weights", weights);
  CHECK(recorder.call(1, scope + "weights", 1).number == weights.number);
}

TEST_CASE("recorder: calls are counted anew in each epoch, and a refused one does not count") {
  Recorder recorder;
  REQUIRE(recorder.begin());
  CHECK(recorder.call(1, "loss").number == 0);
  const RecordedCall refused = recorder.call(1, "loss");
  CHECK(refused.number == 1);
  recorder.take_back(1, "loss", refused);
  CHECK(recorder.call(1, "loss").number == 1);
  CHECK(recorder.call(1, "loss", 7).number == uint64_t{7} << 32);
  CHECK(recorder.call(1, "loss", 7).number == (uint64_t{7} << 32) + 1);
  // Another thread has called it since: its number stands, and no later call has it again.
  const RecordedCall other = recorder.call(1, "loss", 8);
  CHECK(recorder.call(1, "loss", 8).number == other.number + 1);
  recorder.take_back(1, "loss", other);
  CHECK(recorder.call(1, "loss", 8).number == other.number + 2);
  const RecordedCall former = recorder.call(1, "loss", 8);
  CHECK(recorder.call(1, "loss", 9).number == uint64_t{9} << 32);
  recorder.take_back(1, "loss", former);  // of another epoch
  CHECK(recorder.call(1, "loss", 9).number == (uint64_t{9} << 32) + 1);
  recorder.end();
  REQUIRE(recorder.begin());
  CHECK(recorder.call(1, "loss").number == 0);
  recorder.take_back(1, "loss", refused);  // of the former timeline
  CHECK(recorder.call(1, "loss").number == 1);
}

TEST_CASE("recorder: names without end take no memory without end") {
  Recorder recorder;
  REQUIRE(recorder.begin());
  uint32_t last = 0;
  for (int i = 0; i < (1 << 16) + 10; ++i) last = recorder.call(1, std::to_string(i)).name;
  CHECK(last == UINT32_MAX);
  CHECK(recorder.call(1, "7").number == 1);
  CHECK(recorder.take_names().size() == (1 << 16) + 1);
}

TEST_CASE(
    "recorder: names beyond those that are kept have the same number on ranks that number the group differently") {
  Recorder one, other;
  for (Recorder* const recorder : {&one, &other}) {
    REQUIRE(recorder->begin());
    for (int i = 0; i < 1 << 16; ++i) recorder->call(1, std::to_string(i));
  }
  const RecordedCall here = one.call(2, "late");
  CHECK(here.name == UINT32_MAX);
  CHECK(here.number == other.call(3, "late").number);
  CHECK(here.number != other.call(3, "later").number);
}

TEST_CASE("recorder: an operation of one timeline is no record of the next") {
  Recorder recorder;
  REQUIRE(recorder.begin());
  CHECK_FALSE(recorder.begin());
  const RecordedCall call = recorder.call(1, "loss");
  recorder.add(call.timeline, numbered(1));
  recorder.end();
  CHECK_FALSE(recorder.is_on());
  REQUIRE(recorder.begin());
  recorder.add(call.timeline, numbered(2));
  Record taken;
  CHECK(recorder.take(&taken, 1) == 0);
}

TEST_CASE("recorder: times in cycles are nanoseconds in the file, and what has not started stays so") {
  const TemporaryFolder folder;
  const auto recorder = std::make_shared<Recorder>();
  const int64_t before = now_ns();
  Timeline timeline(recorder, folder.file("rank-0000.rr"), "{}", nullptr, Log());
  Record record = numbered(0);
  record.called_ns = cycles();
  record.started_ns = 0;
  record.ended_ns = cycles();
  record.flags = kRecordQuick | kRecordInCycles;
  recorder->add(recorder->timeline(), record);
  timeline.stop("the test is over");
  const std::vector<Record> records = records_in(content(folder.file("rank-0000.rr")));
  REQUIRE(records.size() == 1);
  CHECK(records[0].flags == kRecordQuick);
  CHECK(records[0].started_ns == 0);
  CHECK(records[0].called_ns > before - 1'000'000);
  CHECK(records[0].ended_ns >= records[0].called_ns);
  CHECK(records[0].ended_ns < now_ns() + 1'000'000);
}

TEST_CASE("recorder: a timeline's file has the group, the name and the record, and its end") {
  const TemporaryFolder folder;
  const auto recorder = std::make_shared<Recorder>();
  const RecordedGroup group = recorder->add_group("train \"a\"\n", 3, {4, 5});
  const std::string path = folder.file("rank-0000.rr");
  Timeline timeline(recorder, path, "{\"rank\": 0}", nullptr, Log());
  const RecordedCall call = recorder->call(group.number, "lo\"ss");
  Record record = numbered(9);
  record.name = call.name;
  record.group = group.number;
  recorder->add(call.timeline, record);
  CHECK_THROWS_AS(Timeline(recorder, folder.file("other.rr"), "{}", nullptr, Log()), UnavailableError);
  timeline.stop("because");
  timeline.stop("again");
  const std::string text = content(path);
  CHECK(bodies(text, 1) == std::vector<std::string>{"{\"rank\": 0}     "});
  REQUIRE(bodies(text, 2).size() == 1);
  CHECK(bodies(text, 2)[0].find(
            "{\"index\": 1, \"id\": 3, \"context\": \"train \\\"a\\\"\\u000a\", \"ranks\": [4, 5]}") == 0);
  REQUIRE(bodies(text, 3).size() == 1);
  CHECK(bodies(text, 3)[0].find("{\"1\": \"lo\\\"ss\"}") == 0);
  const std::vector<Record> records = records_in(text);
  REQUIRE(records.size() == 1);
  CHECK(records[0].number == 9);
  REQUIRE(bodies(text, 5).size() == 1);
  CHECK(bodies(text, 5)[0].find("{\"reason\": \"because\"}") == 0);
}

TEST_CASE("recorder: a trace is JSON's beginning while it grows, and whole at its end") {
  const TemporaryFolder folder;
  const auto recorder = std::make_shared<Recorder>();
  const LiveTrace::Target target{folder.file("trace.json"), 0, 1000, 2000000, {{"allreduce", "ALLREDUCE"}}, true};
  Timeline timeline(recorder, folder.file("rank-0000.rr"), "{}", &target, Log());
  const RecordedCall call = recorder->call(1, "loss");
  Record record;
  record.called_ns = 2000;
  record.started_ns = 3500;
  record.ended_ns = 6000;
  record.name = call.name;
  recorder->add(call.timeline, record);
  timeline.stop("");
  const std::string text = content(target.path);
  CHECK(text.find("\"start_time_since_epoch_in_micros\": 2000}") != std::string::npos);
  CHECK(text.find("\"name\": \"allreduce.loss\"") != std::string::npos);
  CHECK(text.find("{\"name\": \"NEGOTIATE_ALLREDUCE\", \"ph\": \"X\", \"ts\": 1.000, \"dur\": 1.500") !=
        std::string::npos);
  CHECK(text.find("{\"name\": \"ALLREDUCE\", \"ph\": \"X\", \"ts\": 2.500, \"dur\": 2.500") != std::string::npos);
  CHECK(text.find("CYCLE_START") != std::string::npos);
  CHECK(text.substr(text.size() - 3) == "\n]\n");
}

TEST_CASE("recorder: operations without names that overlap have processes of their own in a trace") {
  const TemporaryFolder folder;
  const LiveTrace::Target target{folder.file("trace.json"), 0, 0, 0, {{"allreduce", "ALLREDUCE"}}, false};
  LiveTrace trace(target);
  const auto called = [&](int64_t called_ns, int64_t ended_ns) {
    Record record;
    record.called_ns = called_ns;
    record.started_ns = called_ns + 10;
    record.ended_ns = ended_ns;
    trace.add(&record, 1);
  };
  called(1000, 3000);
  called(2000, 4000);
  called(5000, 6000);
  trace.end();
  const std::string text = content(target.path);
  const auto count = [&](const std::string& part) {
    size_t found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  };
  CHECK(count("\"name\": \"allreduce.noname.0\"") == 1);
  CHECK(count("\"name\": \"allreduce.noname.1\"") == 1);
  CHECK(count("\"name\": \"ALLREDUCE\", \"ph\": \"X\", \"ts\": 1.010, \"dur\": 1.990, \"pid\": 1") == 1);
  CHECK(count("\"name\": \"ALLREDUCE\", \"ph\": \"X\", \"ts\": 2.010, \"dur\": 1.990, \"pid\": 2") == 1);
  CHECK(count("\"name\": \"ALLREDUCE\", \"ph\": \"X\", \"ts\": 5.010, \"dur\": 0.990, \"pid\": 1") == 1);
}

TEST_CASE("recorder: a full disk ends the timeline and nothing else") {
  const auto recorder = std::make_shared<Recorder>();
  CHECK_THROWS_WITH_AS(Timeline(recorder, "/dev/full", "{}", nullptr, Log(LogLevel::kFatal, 0)),
                       "the timeline's file /dev/full cannot be written: No space left on device", UnavailableError);
  CHECK_FALSE(recorder->is_on());
  const TemporaryFolder folder;
  const LiveTrace::Target target{folder.file("none/trace.json"), 0, 0, 0, {}, false};
  CHECK_THROWS_AS(Timeline(recorder, folder.file("a.rr"), "{}", &target, Log()), UnavailableError);
  CHECK_FALSE(recorder->is_on());
}

TEST_CASE("recorder: of each operation its call, start and end, and who waited") {
  run_ranks(2, [](Rank& rank) {
    Recorder& recorder = rank.context.recorder();
    sum_now(rank, rank.world, 3, 1);  // before
    expect(recorder.begin(), "a timeline begins");
    const int64_t begun_ns = now_ns();
    sum_now(rank, rank.world, 3, 1);
    sum_now(rank, rank.world, 3, 1, "few");
    sum_now(rank, rank.world, 50000, 1, "many");
    sum_now(rank, rank.world, 50000, 1, "many");
    barrier(rank.world);
    const int64_t over_ns = now_ns();
    std::vector<Record> records(100);
    records.resize(recorder.take(records.data(), records.size()));
    std::vector<Record> operations;
    for (const Record& record : records) {
      expect(record.called_ns >= begun_ns && record.ended_ns <= over_ns, "times are those of the calls");
      expect(record.group == 1, "the world is the first group");
      if (record.type == RecordType::kOperation) operations.push_back(record);
      if (record.type == RecordType::kWait) expect(record.called_ns <= record.ended_ns, "a wait ends after its begin");
    }
    expect(operations.size() == 5, "five operations, not " + std::to_string(operations.size()));
    for (const Record& record : operations) {
      expect(record.called_ns <= record.started_ns && record.started_ns <= record.ended_ns, "call, start, end");
    }
    expect(operations[0].name == 0 && operations[0].nbytes == 12, "an unnamed sum of three");
    expect(operations[0].number + 1 == operations[4].number, "unnamed ones are counted by themselves");
    expect((operations[0].flags & kRecordQuick) != 0, "three floats are quick");
    expect(operations[1].number == 0 && operations[1].name == 1, "the first call of the first name");
    expect(operations[2].number == 0 && operations[3].number == 1, "calls of a name are counted");
    expect((operations[3].flags & kRecordQuick) == 0 && operations[3].algorithm != kNoAlgorithm, "many are not quick");
    expect(operations[4].kind == static_cast<uint8_t>(Kind::kBarrier), "a barrier");
  });
}

TEST_CASE("recorder: after a deadlock verdict all ranks count alike, also one that had joined") {
  const Environment environment{};
  std::atomic<uint64_t> without[2];  // the rank that has joined: the number of "x"
  std::atomic<uint64_t> numbers[3];  // of "after"
  CHECK_NOTHROW(run_ranks(3, [&](Rank& rank) {
    Recorder& recorder = rank.context.recorder();
    expect(recorder.begin(), "a timeline begins");
    if (rank.rank != 2) {
      const Sum sum = start_sum(rank, rank.world, 4000, 1, rank.rank == 0 ? "x" : "y");
      raised<MismatchError>([&] { rank.world.wait(*sum.operation, -1, nullptr); });
      finish_sum(rank.world, start_sum(rank, rank.world, 4000, 1, "x"), 1 + 2);
    }
    rank.world.join(nullptr);
    sum_now(rank, rank.world, 4000, 1, "after");
    std::vector<Record> records(100);
    records.resize(recorder.take(records.data(), records.size()));
    std::vector<uint64_t> sums;
    for (const Record& record : records) {
      const bool is_sum = record.type == RecordType::kOperation && (record.flags & kRecordFailed) == 0;
      if (is_sum) sums.push_back(record.number);
    }
    expect(sums.size() == (rank.rank == 2 ? 1 : 2), "what has not failed");
    if (rank.rank != 2) without[rank.rank].store(sums[0]);
    numbers[rank.rank].store(sums.back());
  }));
  CHECK(without[0].load() == without[1].load());
  CHECK(numbers[0].load() != 0);
  CHECK(numbers[0].load() == numbers[1].load());
  CHECK(numbers[0].load() == numbers[2].load());
}

TEST_CASE("recorder: an operation that fails is recorded as failed") {
  run_ranks(2, [](Rank& rank) {
    Recorder& recorder = rank.context.recorder();
    expect(recorder.begin(), "a timeline begins");
    const Sum sum = start_sum(rank, rank.world, rank.rank == 0 ? 5000 : 6000, 1, "unequal");
    raised<MismatchError>([&] { rank.world.wait(*sum.operation, -1, nullptr); });
    Record records[4];
    const size_t count = recorder.take(records, 4);
    expect(count != 0, "it is recorded");
    bool has_failed = false;
    for (size_t i = 0; i < count; ++i) {
      has_failed |= records[i].type == RecordType::kOperation && (records[i].flags & kRecordFailed) != 0;
    }
    expect(has_failed, "as failed");
  });
}

}  // namespace rr::test
