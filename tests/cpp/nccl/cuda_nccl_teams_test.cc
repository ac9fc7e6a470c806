// Communicators of a fake NCCL: who shares one, libraries that will not do, errors, lost ranks, the end.
#include "doctest/doctest.h"
#include "nccl/nccl_checks.h"

namespace rr::test {
namespace {

TEST_CASE("nccl: smaller teams have communicators of their own, made by shrinking where there is a larger one") {
  const int size = 4;
  const std::vector<std::vector<int>> teams = {{0, 1, 2, 3}, {0, 2, 3}, {2, 3}, {0, 2, 3}, {0, 1}, {1}};
  for (const bool begins_large : {true, false}) {
    FakeNccl fake;
    CHECK_NOTHROW(run_nccl(fake, size, [&](NcclRank& rank) {
      for (size_t i = begins_large ? 0 : 1; i < teams.size(); ++i) {
        const std::vector<int>& members = teams[i];
        if (std::find(members.begin(), members.end(), rank.rank) == members.end()) continue;
        std::vector<Bytes> inputs;
        for (const int r : members) inputs.push_back(numbers(DType::kFloat32, 50, r, i));
        std::byte* const data = put(rank.device, numbers(DType::kFloat32, 50, rank.rank, i));
        finish(*sum_of(rank, rank.team(members), data, 50));
        expect(get(data, 200) == rr_test::oracle({DType::kFloat32, ReduceOp::kSum, 1, 1, size}, inputs),
               "the sum of team " + std::to_string(i));
      }
    }));
    // Five teams; {2, 3} fits into {0, 2, 3} as well. Without the largest, {0, 2, 3} and {0, 1} have to meet.
    CHECK(fake.counts().made == (begins_large ? 4 + 3 + 2 + 2 + 1 : 3 + 2 + 2 + 1));
    CHECK(fake.counts().shrunk == (begins_large ? 3 + 2 + 2 + 1 : 2 + 1));
    check_clean(fake);
  }
}

TEST_CASE("nccl: libraries that are missing, too old or something else are told apart") {
  const auto refused = [](const std::string& path) { return raised<UnavailableError>([&] { nccl_library(path); }); };
  std::string text;
  CHECK_NOTHROW(text = refused("/nowhere/libnccl.so.2"));
  CHECK(text.find("RINGREDUCE_NCCL_LIBRARY=/nowhere/libnccl.so.2: ") != std::string::npos);
  CHECK_NOTHROW(text = refused(fake_library("fake_nccl/libfakenccl_old.so")));
  CHECK(text.find("is NCCL 2.12.10 and lacks ncclCommInitRankConfig; ringreduce needs 2.27.3") != std::string::npos);
  {
    const Environment blocking{{"NCCL_COMM_BLOCKING", "1"}};
    CHECK_NOTHROW(text = refused(fake_library("fake_nccl/libfakenccl_old.so")));
    CHECK(text.find("NCCL_COMM_BLOCKING=1") != std::string::npos);
  }
  CHECK_NOTHROW(text = refused("libm.so.6"));
  CHECK(text.find("libm.so.6 is no NCCL and lacks ncclGetVersion") != std::string::npos);
  const auto library = nccl_library(fake_nccl_library());
  CHECK(library == nccl_library(fake_nccl_library()));
  CHECK(library->name() == "NCCL 2.27.5");
  CHECK(library->version() == 22705);
}

TEST_CASE("nccl: ranks with different versions find out before they use them") {
  FakeNccl fake;
  const auto other = nccl_library(fake_library("fake_nccl/libfakenccl_other.so"));
  NcclWires loopback(2);
  std::string text;
  CHECK_NOTHROW(run_threads(2, [&](int r) {
    NcclRank rank(r == 0 ? fake.library : other, loopback, r, 2);
    std::byte* const data = put(rank.device, numbers(DType::kFloat32, 5, r));
    const auto algorithm = sum_of(rank, rank.everyone(), data, 5);
    if (r == 1) text = raised<UnavailableError>([&] { finish(*algorithm); });
    expect(rank.device.waits_for_peers(), "the GPU is told that there is such work");
    if (r == 0) expect(algorithm->step() == Step::kIdle, "it waits for the other");
  }));
  CHECK(text.find("NCCL 2.28.9") != std::string::npos);
  CHECK(text.find("rank 0 of the group has another version (code 22705, here 22809)") != std::string::npos);
}

TEST_CASE("nccl: what NCCL reports later comes with its words, and the communicator is aborted") {
  struct Case {
    int operation;  // 0: while the communicator is made, 1: when the second sum is launched, 2: while it runs
    int code;
    const char* words;
  };
  const std::vector<Case> cases = {{0, 2, "unhandled system error; last error: what the fake says last (code 2)"},
                                   {1, 1, "unhandled cuda error"},
                                   {2, 3, "internal error"}};
  for (const Case& one : cases) {
    CAPTURE(one.words);
    FakeNccl fake;
    if (one.operation == 0) fake.fail(1, 0, one.code);
    std::atomic<bool> over{false};
    std::atomic<int> met{0};
    std::string text;
    CHECK_NOTHROW(run_nccl(fake, 2, [&](NcclRank& rank) {
      std::byte* const data = put(rank.device, numbers(DType::kFloat32, 5, rank.rank));
      if (one.operation != 0) finish(*sum_of(rank, rank.everyone(), data, 5));
      ++met;
      wait_for([&] { return met == 2; });  // who aborts takes its data away
      if (one.operation != 0 && rank.rank == 1) fake.fail(1, one.operation, one.code);
      auto algorithm = sum_of(rank, rank.everyone(), data, 5);
      if (rank.rank == 1) {
        text = raised<InternalError>([&] { finish(*algorithm); });
        over = true;
      } else {
        wait_for([&] {
          if (one.operation == 0) algorithm->step();
          return over.load();  // nobody else tells it
        });
      }
      algorithm.reset();  // as a group does that has failed
      const Mark mark = rank.device.mark(rank.teams->work_stream());
      wait_for([&] { return rank.device.passed(mark); });  // no kernel of NCCL's is left in the stream
    }));
    CHECK(text.find("NCCL 2.27.5, rank 1/2: an operation failed: ") != std::string::npos);
    CHECK(text.find(one.words) != std::string::npos);
    CHECK(fake.counts().aborted + fake.counts().communicators >= 1);
    CHECK(fake.counts().communicators == 0);
    CHECK(fake.counts().misuses == 0);
  }
}

TEST_CASE("nccl: a call that NCCL refuses leaves the thread in no group of NCCL's") {
  FakeNccl fake;
  std::string text;
  CHECK_NOTHROW(run_nccl(fake, 1, [&](NcclRank& rank) {
    std::byte* const data = put(rank.device, numbers(DType::kFloat32, 5, 0));
    fake.fail(0, -1, 4);
    text = raised<InternalError>([&] { finish(*sum_of(rank, rank.everyone(), data, 5)); });
  }));
  CHECK(text.find("ncclAllReduce of 5 elements") != std::string::npos);
  check_clean(fake, 1);
}

TEST_CASE("nccl: a broken connection is a lost peer, once the watch over the processes has had its time") {
  FakeNccl fake;
  std::string text;
  CHECK_NOTHROW(run_nccl(fake, 1, [&](NcclRank& rank) {
    std::byte* const data = put(rank.device, numbers(DType::kFloat32, 5, 0));
    finish(*sum_of(rank, rank.everyone(), data, 5));
    fake.fail(0, 1, 6);
    const auto algorithm = sum_of(rank, rank.everyone(), data, 5);
    text = raised<PeerLostError>([&] { finish(*algorithm); });
  }));
  CHECK(text.find("remote process exited or there was a network error") != std::string::npos);
  check_clean(fake, 1);
}

TEST_CASE("nccl: a rank that never comes, while the communicator is made and while an operation runs") {
  for (const bool has_met : {false, true}) {
    CAPTURE(has_met);
    FakeNccl fake;
    std::atomic<int> met{0};
    std::atomic<bool> made{false};  // the communicators of those who come; the first to go takes its own away
    std::atomic<bool> over{false};
    CHECK_NOTHROW(run_nccl(fake, 3, [&](NcclRank& rank) {
      std::byte* const data = put(rank.device, numbers(DType::kFloat32, 5, rank.rank));
      if (has_met) finish(*sum_of(rank, rank.everyone(), data, 5));
      ++met;
      wait_for([&] { return met == 3; });
      if (rank.rank == 2) {
        wait_for([&] { return over.load(); });
        rank.teams->abort();  // it is told that the group has failed, like the others
        return;
      }
      auto algorithm = sum_of(rank, rank.everyone(), data, 5);
      int steps = 0;
      wait_for([&] {
        expect(algorithm->step() != Step::kDone, "it cannot be done");
        expect(algorithm->needs(2) && !algorithm->needs(rank.rank), "it says whom it needs");
        if (fake.counts().communicators >= 2) made = true;
        return ++steps >= 1000 && made;
      });
      algorithm.reset();
      const Mark mark = rank.device.mark(rank.teams->work_stream());
      wait_for([&] { return rank.device.passed(mark); });
      over = true;
    }));
    CHECK(fake.counts().communicators == 0);
    CHECK(fake.counts().misuses == 0);
    CHECK(fake.counts().aborted >= 2);
    CHECK_FALSE(fake.left_files());
  }
}

TEST_CASE("nccl: an abort that does not return is left alone") {
  FakeNccl fake;
  std::string text;
  CHECK_NOTHROW(run_nccl(fake, 1, [&](NcclRank& rank) {
    NcclUniqueId id = {};
    expect(fake.library->GetUniqueId(&id) == NcclResult::kSuccess, "an id");
    const auto current = rank.device.make_current();
    NcclCommunicator communicator(fake.library, id, 0, 1, "rank 0/1");
    wait_for([&] { return communicator.settled(); });
    fake.block_abort(true);
    text = communicator.abort(0.05);
    expect(communicator.abort().empty(), "it ends once");
    fake.block_abort(false);
    wait_for([&] { return fake.counts().communicators == 0; });
  }));
  CHECK(text.find("rank 0/1: ncclCommAbort takes longer than ") == 0);
}

TEST_CASE("nccl: who leaves does not wait for who stays") {
  FakeNccl fake;
  std::atomic<int> left{0};
  CHECK_NOTHROW(run_nccl(fake, 2, [&](NcclRank& rank) {
    std::byte* const data = put(rank.device, numbers(DType::kFloat32, 5, rank.rank));
    finish(*sum_of(rank, rank.everyone(), data, 5));
    if (rank.rank == 1) wait_for([&] { return left == 1; });
    rank.teams->close(rank.rank == 0 ? 0.05 : 60);
    ++left;
  }));
  CHECK(fake.counts().aborted == 1);  // after 0.05 s of waiting; then rank 1 finds that everybody has finished
  CHECK(fake.counts().communicators == 0);
}

TEST_CASE("nccl: two groups whose operations come in another order on each rank do not wait for each other") {
  FakeNccl fake;
  constexpr size_t kCount = 1000;
  CHECK_NOTHROW(run_nccl(fake, 2, [&](NcclRank& rank) {
    const std::vector<std::shared_ptr<NcclTeams>> groups = {
        rank.teams, std::make_shared<NcclTeams>(fake.library, rank.device, rank.log, "the other group")};
    std::vector<std::byte*> data;
    const auto sum_in = [&](size_t group) {
      rank.teams = groups[group];
      return sum_of(rank, rank.everyone(), data[group], kCount);
    };
    for (const size_t group : {0, 1}) {
      data.push_back(put(rank.device, numbers(DType::kFloat32, kCount, rank.rank, group)));
      finish(*sum_in(group));  // makes the communicator
    }
    std::vector<std::unique_ptr<Algorithm>> sums;
    for (const size_t group : rank.rank == 0 ? std::vector<size_t>{0, 1} : std::vector<size_t>{1, 0}) {
      sums.push_back(sum_in(group));
      bool is_launched = false;
      wait_for([&] { return is_launched = is_launched || sums.back()->step() == Step::kIssued; });
    }
    for (const auto& sum : sums) finish(*sum);
    for (const size_t group : {0, 1}) {
      const Reduction sum = {DType::kFloat32, ReduceOp::kSum, 1, 1, 2};
      const Bytes once = rr_test::oracle(
          sum, {numbers(DType::kFloat32, kCount, 0, group), numbers(DType::kFloat32, kCount, 1, group)});
      expect(get(data[group], kCount * 4) == rr_test::oracle(sum, {once, once}), "the sum of the sums");
      groups[group]->close(60);
    }
  }));
  check_clean(fake);
}

}  // namespace
}  // namespace rr::test
