// The NCCL road on a fake NCCL: what is asked of it, results of all kinds, libraries that will not do, errors and lost
// ranks. Ranks are threads here, each with a fake GPU of its own.
#include <numeric>

#include "doctest/doctest.h"
#include "gpu_ranks.h"
#include "nccl_fake.h"

namespace rr::test {
namespace {

// Small whole numbers that depend on rank and place, so that sums are exact in any order and type.
Bytes numbers(DType dtype, size_t count, int rank, size_t first = 0) {
  Bytes bytes(count * itemsize(dtype));
  for (size_t i = 0; i < count; ++i) {
    const int value = static_cast<int>((first + i) % 5) + rank + 1;
    const auto put = [&](auto number) { std::memcpy(&bytes[i * itemsize(dtype)], &number, sizeof number); };
    switch (dtype) {
      case DType::kFloat16:
      case DType::kBFloat16:
        put(rr_test::encode(dtype == DType::kFloat16 ? rr_test::kFp16 : rr_test::kBf16, static_cast<float>(value)));
        break;
      case DType::kFloat32:
        put(static_cast<float>(value));
        break;
      case DType::kFloat64:
        put(static_cast<double>(value));
        break;
      case DType::kInt8:
      case DType::kUInt8:
        put(static_cast<uint8_t>(value));
        break;
      case DType::kInt32:
      case DType::kUInt32:
        put(static_cast<uint32_t>(value));
        break;
      default:
        put(static_cast<uint64_t>(value));
    }
  }
  return bytes;
}

// Runs body(rank) on `size` ranks, each on a thread of its own, and closes what they have made.
void run_nccl(FakeNccl& fake, int size, const std::function<void(NcclRank&)>& body) {
  NcclWires wires(size);
  run_threads(size, [&](int r) {
    NcclRank rank(fake.library, wires, r, size);
    body(rank);
    rank.teams->close(60);  // a slow machine is no reason to abort
  });
}

const std::vector<DType> kTypes = {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64, DType::kInt8,
                                   DType::kInt32,   DType::kInt64,    DType::kUInt8,   DType::kUInt32,  DType::kUInt64};

// What is left once everybody has gone.
void check_clean(const FakeNccl& fake, int aborted = 0) {
  const FakeNcclCounts counts = fake.counts();
  CHECK(counts.communicators == 0);
  CHECK(counts.operations == 0);
  CHECK(counts.misuses == 0);
  CHECK(counts.aborted == aborted);
}

TEST_CASE("nccl: a bucket of all types, small tensors packed into one call, large ones in place") {
  const std::vector<size_t> lengths = {3, 0, 1000, 70000, 17};  // 70000 of 4 bytes or more are not small
  for (const int size : {2, 3}) {
    CAPTURE(size);
    FakeNccl fake;
    CHECK_NOTHROW(run_nccl(fake, size, [&](NcclRank& rank) {
      for (int turn = 0; turn < 2; ++turn) {
        std::vector<std::pair<Reduction, std::vector<Piece>>> parts;
        for (size_t t = 0; t < kTypes.size(); ++t) {
          parts.push_back({{kTypes[t], ReduceOp::kSum, 1, 1, size}, {}});
          for (size_t i = 0; i < lengths.size(); ++i) {
            const size_t nbytes = lengths[i] * itemsize(kTypes[t]);
            std::byte* const src = rank.put(numbers(kTypes[t], lengths[i], rank.rank, i));
            parts.back().second.push_back({src, turn == 0 ? src : rank.device.allocate(nbytes), lengths[i]});
          }
        }
        const auto scratch = [&](size_t nbytes) { return rank.teams->scratch(nbytes); };
        NcclJob job = nccl_allreduce(parts, scratch);
        size_t packed = 0;
        for (const NcclCall& call : job.calls) packed += call.count == 3 + 1000 + 17 || call.count == 71020;
        expect(packed == kTypes.size(), "one packed call a type");
        expect(job.before.size() == kTypes.size() && job.after.size() == kTypes.size(), "packed and unpacked");
        finish(*nccl_road(rank.teams, rank.everyone(), std::move(job)));
        for (size_t t = 0; t < kTypes.size(); ++t) {
          for (size_t i = 0; i < lengths.size(); ++i) {
            std::vector<Bytes> inputs;
            for (int r = 0; r < size; ++r) inputs.push_back(numbers(kTypes[t], lengths[i], r, i));
            const Bytes got = NcclRank::get(parts[t].second[i].dst, inputs[0].size());
            expect(got == rr_test::oracle(parts[t].first, inputs),
                   std::string("the sum of ") + name(kTypes[t]) + ", tensor " + std::to_string(i));
          }
        }
      }
    }));
    CHECK(fake.counts().made == size);  // one communicator for both turns
    check_clean(fake);
    CHECK_FALSE(fake.left_files());
  }
}

TEST_CASE("nccl: operations and factors as reduction.h says") {
  const int size = 4;
  const std::vector<Reduction> reductions = {
      {DType::kFloat32, ReduceOp::kAverage, 1, 1, size}, {DType::kFloat32, ReduceOp::kAverage, 2, 0.5, 8},
      {DType::kFloat64, ReduceOp::kSum, 0.25, 3, size},  {DType::kFloat16, ReduceOp::kAverage, 1, 1, size},
      {DType::kBFloat16, ReduceOp::kSum, -0.5, 1, size}, {DType::kInt32, ReduceOp::kMin, 1, 1, size},
      {DType::kUInt8, ReduceOp::kMax, 1, 1, size},       {DType::kInt64, ReduceOp::kProduct, 1, 1, size},
      {DType::kFloat32, ReduceOp::kProduct, 1, 1, size},
  };
  FakeNccl fake;
  CHECK_NOTHROW(run_nccl(fake, size, [&](NcclRank& rank) {
    for (const Reduction& reduction : reductions) {
      expect(nccl_can(reduction), "NCCL can do it");
      const size_t count = 300;
      std::byte* const data = rank.put(numbers(reduction.dtype, count, rank.rank));
      // Two pieces, one of them large, share the operation that the communicator makes.
      const size_t many = 300000;
      std::byte* const more = rank.put(numbers(reduction.dtype, many, rank.rank));
      const auto none = [](size_t) -> std::shared_ptr<std::byte> { throw Error("one small piece is not packed"); };
      finish(*nccl_road(rank.teams, rank.everyone(),
                        nccl_allreduce({{reduction, {{data, data, count}, {more, more, many}}}}, none)));
      std::vector<Bytes> inputs;
      for (int r = 0; r < size; ++r) inputs.push_back(numbers(reduction.dtype, many, r));
      const Bytes wanted = rr_test::oracle(reduction, inputs);
      const Bytes got = NcclRank::get(more, wanted.size());
      const std::string what = std::string(name(reduction.op)) + " of " + name(reduction.dtype);
      expect(got == wanted, what);
      expect(NcclRank::get(data, count * itemsize(reduction.dtype)) ==
                 Bytes(wanted.begin(), wanted.begin() + static_cast<long>(count * itemsize(reduction.dtype))),
             what + ", the short one");
    }
  }));
  check_clean(fake);
}

TEST_CASE("nccl: what it cannot do as reduction.h says goes another road") {
  const auto can = [](DType dtype, ReduceOp op, double pre = 1, double post = 1, int divisor = 4) {
    return nccl_can({dtype, op, pre, post, divisor});
  };
  for (const DType dtype : {DType::kBool, DType::kInt16, DType::kUInt16}) CHECK_FALSE(can(dtype, ReduceOp::kSum));
  CHECK_FALSE(can(DType::kUInt8, ReduceOp::kAverage));
  CHECK_FALSE(can(DType::kInt32, ReduceOp::kSum, 2));
  CHECK_FALSE(can(DType::kFloat32, ReduceOp::kMin));
  CHECK_FALSE(can(DType::kFloat32, ReduceOp::kProduct, 1, 2));
  CHECK_FALSE(can(DType::kInt32, ReduceOp::kBitwiseAnd));
  CHECK_FALSE(can(DType::kInt32, ReduceOp::kLogicalOr));
  // 1/3 is no float16, nor is 1e-5 a normal one; 1/4 and 1.5 are.
  CHECK_FALSE(can(DType::kFloat16, ReduceOp::kAverage, 1, 1, 3));
  CHECK_FALSE(can(DType::kBFloat16, ReduceOp::kAverage, 1, 1, 3));
  CHECK_FALSE(can(DType::kFloat16, ReduceOp::kSum, std::ldexp(1.0, -15)));
  CHECK_FALSE(can(DType::kFloat16, ReduceOp::kSum, 65536));
  CHECK_FALSE(can(DType::kFloat32, ReduceOp::kSum, INFINITY));
  CHECK(can(DType::kFloat16, ReduceOp::kSum, 1.5));
  CHECK(can(DType::kFloat16, ReduceOp::kSum, std::ldexp(1.0, -14)));
  CHECK(can(DType::kFloat16, ReduceOp::kSum, 32768));
  CHECK(can(DType::kFloat32, ReduceOp::kAverage, 1, 1, 3));
  CHECK(can(DType::kInt32, ReduceOp::kMin));
  // The scalar has the bits of the factor.
  for (const double factor : {1.0, 0.25, -1.5, 0.0, 1.0 / 1024}) {
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      const auto format = dtype == DType::kFloat16 ? rr_test::kFp16 : rr_test::kBf16;
      const auto scalar = nccl_scalar(dtype, factor);
      CHECK(rr_test::load<uint16_t>(reinterpret_cast<const uint8_t*>(scalar.data())) ==
            rr_test::encode(format, static_cast<float>(factor)));
    }
  }
}

TEST_CASE("nccl: reduce and reduce-scatter, in equal and in unequal parts") {
  const int size = 3;
  FakeNccl fake;
  CHECK_NOTHROW(run_nccl(fake, size, [&](NcclRank& rank) {
    for (const size_t count : {size_t{3000}, size_t{1001}, size_t{2}, size_t{0}}) {
      std::vector<Bytes> inputs;
      for (int r = 0; r < size; ++r) inputs.push_back(numbers(DType::kFloat32, count, r));
      ReduceJob job;
      job.reduction = {DType::kFloat32, ReduceOp::kSum, 1, 1, size};
      job.element_count = count;
      const Bytes sums = rr_test::oracle(job.reduction, inputs);
      std::byte* const src = rank.put(inputs[static_cast<size_t>(rank.rank)]);

      job.shape = ReduceShape::kReduce;
      job.root = 1;
      std::byte* const whole = rank.put(Bytes(count * 4, 77));
      job.pieces = {{src, whole, count}};
      finish(*nccl_road(rank.teams, rank.everyone(), nccl_reduce(job, rank.rank)));
      expect(NcclRank::get(whole, count * 4) == (rank.rank == 1 ? sums : Bytes(count * 4, 77)), "only the root has it");

      job.shape = ReduceShape::kReduceScatter;
      for (int r = 0; r < size; ++r) job.owned.push_back(segment(count, size, r));
      const Range mine = job.owned[static_cast<size_t>(rank.rank)];
      std::byte* const part = rank.put(Bytes(mine.count() * 4, 77));
      job.pieces = {{src, part, count}};
      finish(*nccl_road(rank.teams, rank.everyone(), nccl_reduce(job, rank.rank)));
      expect(NcclRank::get(part, mine.count() * 4) == Bytes(sums.begin() + static_cast<long>(mine.begin * 4),
                                                            sums.begin() + static_cast<long>(mine.end * 4)),
             "every rank has its part");
      expect(NcclRank::get(src, count * 4) == inputs[static_cast<size_t>(rank.rank)], "the input stays");
    }
  }));
  check_clean(fake);
}

// Rank `from`'s block for rank `to`: bytes that tell both.
Bytes block(int from, int to, size_t nbytes) {
  Bytes bytes(nbytes);
  for (size_t i = 0; i < nbytes; ++i)
    bytes[i] = static_cast<uint8_t>(i * 7 + static_cast<size_t>(from * 31 + to * 101));
  return bytes;
}

TEST_CASE("nccl: allgather and gather, with blocks of one size and of several") {
  const int size = 3;
  const std::vector<std::vector<size_t>> cases = {{500, 500, 500}, {500, 0, 1300}, {0, 0, 0}};
  FakeNccl fake;
  CHECK_NOTHROW(run_nccl(fake, size, [&](NcclRank& rank) {
    for (const auto& nbytes : cases) {
      for (const int root : {-1, 2}) {  // -1: everybody takes
        ExchangeJob job;
        job.sources.assign(3, true);
        if (root >= 0) job.takers = {false, false, true};
        job.outgoing = {{rank.put(block(rank.rank, 0, nbytes[static_cast<size_t>(rank.rank)])),
                         nbytes[static_cast<size_t>(rank.rank)]}};
        job.largest_nbytes = *std::max_element(nbytes.begin(), nbytes.end());
        const bool takes = root < 0 || root == rank.rank;
        const size_t total = std::accumulate(nbytes.begin(), nbytes.end(), size_t{0});
        std::byte* const all = rank.put(Bytes(total, 77));
        std::byte* next = all;
        for (int r = 0; r < size && takes; ++r) {
          job.incoming.push_back({r, 0, next, nbytes[static_cast<size_t>(r)], 0});
          next += nbytes[static_cast<size_t>(r)];
        }
        finish(*nccl_road(rank.teams, rank.everyone(), nccl_exchange(job, rank.rank, size)));
        Bytes wanted;
        for (int r = 0; r < size; ++r) {
          const Bytes one = block(r, 0, nbytes[static_cast<size_t>(r)]);
          wanted.insert(wanted.end(), one.begin(), one.end());
        }
        expect(NcclRank::get(all, total) == (takes ? wanted : Bytes(total, 77)), "all blocks in order");
      }
    }
  }));
  check_clean(fake);
}

TEST_CASE("nccl: alltoall, scatter and broadcast") {
  const int size = 3;
  FakeNccl fake;
  CHECK_NOTHROW(run_nccl(fake, size, [&](NcclRank& rank) {
    const auto nbytes_of = [](int from, int to) { return static_cast<size_t>(from * 40 + to * 13) % 97 * 11; };
    ExchangeJob job;
    job.lanes = size;
    job.sources.assign(3, true);
    Bytes input;
    Bytes wanted;
    for (int r = 0; r < size; ++r) {
      const Bytes out = block(rank.rank, r, nbytes_of(rank.rank, r));
      input.insert(input.end(), out.begin(), out.end());
      const Bytes in = block(r, rank.rank, nbytes_of(r, rank.rank));
      wanted.insert(wanted.end(), in.begin(), in.end());
    }
    const std::byte* src = rank.put(input);
    std::byte* const dst = rank.put(Bytes(wanted.size(), 77));
    std::byte* next = dst;
    for (int r = 0; r < size; ++r) {
      job.outgoing.push_back({src, nbytes_of(rank.rank, r)});
      src += nbytes_of(rank.rank, r);
      job.incoming.push_back({r, rank.rank, next, nbytes_of(r, rank.rank), 0});
      next += nbytes_of(r, rank.rank);
    }
    finish(*nccl_road(rank.teams, rank.everyone(), nccl_exchange(job, rank.rank, size)));
    expect(NcclRank::get(dst, wanted.size()) == wanted, "alltoall");

    for (const int root : {0, 2}) {
      const size_t nbytes = 700;
      ExchangeJob scatter;
      scatter.lanes = size;
      scatter.sources.assign(3, false);
      scatter.sources[static_cast<size_t>(root)] = true;
      scatter.largest_nbytes = nbytes;
      for (int r = 0; r < size && root == rank.rank; ++r)
        scatter.outgoing.push_back({rank.put(block(root, r, nbytes)), nbytes});
      std::byte* const mine = rank.put(Bytes(nbytes, 77));
      scatter.incoming = {{root, rank.rank, mine, nbytes, 0}};
      finish(*nccl_road(rank.teams, rank.everyone(), nccl_exchange(scatter, rank.rank, size)));
      expect(NcclRank::get(mine, nbytes) == block(root, rank.rank, nbytes), "scatter");

      ExchangeJob broadcast;
      broadcast.sources = scatter.sources;
      broadcast.takers.assign(3, true);
      broadcast.takers[static_cast<size_t>(root)] = false;
      broadcast.largest_nbytes = nbytes;
      std::byte* const data = rank.put(root == rank.rank ? block(root, 9, nbytes) : Bytes(nbytes, 77));
      if (root == rank.rank) {
        broadcast.outgoing = {{data, nbytes}};
      } else {
        broadcast.incoming = {{root, 0, data, nbytes, 0}};
      }
      NcclJob plan = nccl_exchange(broadcast, rank.rank, size);
      expect(plan.calls.size() == 1 && plan.calls[0].kind == NcclCall::Kind::kBroadcast, "one call");
      finish(*nccl_road(rank.teams, rank.everyone(), std::move(plan)));
      expect(NcclRank::get(data, nbytes) == block(root, 9, nbytes), "broadcast");
    }
  }));
  check_clean(fake);
}

std::unique_ptr<Algorithm> sum_of(NcclRank& rank, const Team& team, std::byte* data, size_t count) {
  const Reduction sum = {DType::kFloat32, ReduceOp::kSum, 1, 1, rank.size};
  return nccl_road(rank.teams, team, nccl_allreduce({{sum, {{data, data, count}}}}, nullptr));
}

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
        std::byte* const data = rank.put(numbers(DType::kFloat32, 50, rank.rank, i));
        finish(*sum_of(rank, rank.team(members), data, 50));
        expect(NcclRank::get(data, 200) == rr_test::oracle({DType::kFloat32, ReduceOp::kSum, 1, 1, size}, inputs),
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
  CHECK_NOTHROW(text = refused(RR_FAKE_NCCL_OLD));
  CHECK(text.find("is NCCL 2.12.10 and lacks ncclCommInitRankConfig; ringreduce needs 2.14.0") != std::string::npos);
  CHECK_NOTHROW(text = refused("libm.so.6"));
  CHECK(text.find("libm.so.6 is no NCCL and lacks ncclGetVersion") != std::string::npos);
  const auto library = nccl_library(RR_FAKE_NCCL);
  CHECK(library == nccl_library(RR_FAKE_NCCL));
  CHECK(library->name() == "NCCL 2.27.5");
  CHECK(library->version() == 22705);
}

TEST_CASE("nccl: ranks with different versions find out before they use them") {
  FakeNccl fake;
  const auto other = nccl_library(RR_FAKE_NCCL_OTHER);
  NcclWires wires(2);
  std::string text;
  CHECK_NOTHROW(run_threads(2, [&](int r) {
    NcclRank rank(r == 0 ? fake.library : other, wires, r, 2);
    std::byte* const data = rank.put(numbers(DType::kFloat32, 5, r));
    const auto algorithm = sum_of(rank, rank.everyone(), data, 5);
    if (r == 1) text = raised<UnavailableError>([&] { finish(*algorithm); });
    if (r == 0) expect(algorithm->step() == Step::kIdle, "it waits for the other");
  }));
  CHECK(text.find("NCCL 2.22.3") != std::string::npos);
  CHECK(text.find("rank 0 of the group has another version (code 22705, here 22203)") != std::string::npos);
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
      std::byte* const data = rank.put(numbers(DType::kFloat32, 5, rank.rank));
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
      const Mark mark = rank.device.mark(rank.teams->lane());
      wait_for([&] { return rank.device.passed(mark); });  // no kernel of NCCL's is left in the stream
    }));
    CHECK(text.find("NCCL 2.27.5, rank 1/2: an operation failed: ") != std::string::npos);
    CHECK(text.find(one.words) != std::string::npos);
    CHECK(fake.counts().aborted + fake.counts().communicators >= 1);
    CHECK(fake.counts().communicators == 0);
    CHECK(fake.counts().misuses == 0);
  }
}

TEST_CASE("nccl: a broken connection is a lost peer, once the watch over the processes has had its time") {
  FakeNccl fake;
  std::string text;
  CHECK_NOTHROW(run_nccl(fake, 1, [&](NcclRank& rank) {
    std::byte* const data = rank.put(numbers(DType::kFloat32, 5, 0));
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
      std::byte* const data = rank.put(numbers(DType::kFloat32, 5, rank.rank));
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
      const Mark mark = rank.device.mark(rank.teams->lane());
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
    std::byte* const data = rank.put(numbers(DType::kFloat32, 5, rank.rank));
    finish(*sum_of(rank, rank.everyone(), data, 5));
    if (rank.rank == 1) wait_for([&] { return left == 1; });
    rank.teams->close();
    ++left;
  }));
  CHECK(fake.counts().aborted == 1);  // after a second of waiting; then rank 1 finds that everybody has finished
  CHECK(fake.counts().communicators == 0);
}

Bytes bytes_like(size_t count, int rank) {
  Bytes bytes(count * 2);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 3 + static_cast<size_t>(rank) * 50 + 1);
  return bytes;
}

// --- through the engine ---------------------------------------------------------------------------------------------

Environment by_nccl(const char* road = "auto") {
  return {{"RINGREDUCE_CUDA_ROAD", road}, {"RINGREDUCE_NCCL_LIBRARY", RR_FAKE_NCCL}};
}

Bytes sum(DType dtype, size_t count, const std::vector<int>& ranks, int size, ReduceOp op = ReduceOp::kSum) {
  std::vector<Bytes> inputs;
  for (const int r : ranks) inputs.push_back(numbers(dtype, count, r));
  return rr_test::oracle({dtype, op, 1, 1, size}, inputs);
}

TEST_CASE("nccl: ranks with GPUs of their own take it by themselves, for what it can do") {
  FakeNccl fake;
  const Environment environment = by_nccl();
  const int size = 3;
  CHECK_NOTHROW(run_ranks(
      size, on_gpu(own_gpus(1), [&](GpuRank& rank) {
        const int me = rank.rank.rank;
        const Stats& stats = rank.rank.context.stats();
        // A bucket of tensors, all in flight.
        std::vector<GpuTensor> tensors;
        std::vector<OperationPtr> operations;
        for (const size_t count : {size_t{10}, size_t{100000}, size_t{0}, size_t{333}}) {
          tensors.emplace_back(rank.gpu, DType::kFloat32, std::vector<uint64_t>{count},
                               numbers(DType::kFloat32, count, me));
          Request request = request_of(Kind::kAllreduce);
          request.srcs = request.dsts = {tensors.back().view()};
          request.is_async = true;
          request.op = ReduceOp::kAverage;
          operations.push_back(rank.world.submit(request, nullptr));
        }
        for (const OperationPtr& operation : operations) rank.world.wait(*operation, -1, nullptr);
        for (const GpuTensor& tensor : tensors) {
          expect(tensor.get() == sum(DType::kFloat32, tensor.view().count, {0, 1, 2}, size, ReduceOp::kAverage),
                 "average");
        }
        // A group of two types; rows that do not divide; blocks of several sizes.
        const GpuTensor halves(rank.gpu, DType::kFloat16, {40}, numbers(DType::kFloat16, 40, me));
        const GpuTensor longs(rank.gpu, DType::kInt64, {7, 3}, numbers(DType::kInt64, 21, me));
        Request group = request_of(Kind::kAllreduce);
        group.srcs = group.dsts = {halves.view(), longs.view()};
        run(rank, group);
        expect(halves.get() == sum(DType::kFloat16, 40, {0, 1, 2}, size), "the group's float16");
        const Bytes sums = sum(DType::kInt64, 21, {0, 1, 2}, size);
        expect(longs.get() == sums, "the group's int64");
        const GpuTensor rows(rank.gpu, DType::kInt64, {7, 3}, numbers(DType::kInt64, 21, me));
        const Range mine = segment(7, size, me);
        const GpuTensor part(rank.gpu, DType::kInt64, {mine.count(), 3});
        Request scatter = request_of(Kind::kReduceScatter);
        scatter.srcs = {rows.view()};
        scatter.dsts = {part.view()};
        run(rank, scatter);
        expect(part.get() == Bytes(sums.begin() + static_cast<long>(mine.begin * 24),
                                   sums.begin() + static_cast<long>(mine.end * 24)),
               "its rows of the sum");
        const size_t count = static_cast<size_t>(me) * 5;
        const GpuTensor block(rank.gpu, DType::kInt16, {count}, bytes_like(count, me));
        Request gather = request_of(Kind::kAllgather);
        gather.srcs = {block.view()};
        const OperationPtr gathered = run(rank, gather);
        Bytes blocks;
        for (int r = 0; r < size; ++r) {
          const Bytes one = bytes_like(static_cast<size_t>(r) * 5, r);
          blocks.insert(blocks.end(), one.begin(), one.end());
        }
        expect(NcclRank::get(gathered->output.get(), gathered->output_nbytes) == blocks, "all blocks");
        const uint64_t by_nccl_before = stats.cuda_nccl.load();
        expect(by_nccl_before >= 4 && stats.cuda_ipc.load() == 0 && stats.cuda_staged.load() == 0, "all went by NCCL");
        // The average of integers is not NCCL's to do.
        const GpuTensor whole(rank.gpu, DType::kInt64, {21}, numbers(DType::kInt64, 21, me));
        Request average = request_of(Kind::kAllreduce);
        average.op = ReduceOp::kAverage;
        average.srcs = average.dsts = {whole.view()};
        run(rank, average);
        expect(whole.get() == sum(DType::kInt64, 21, {0, 1, 2}, size, ReduceOp::kAverage), "average of integers");
        expect(stats.cuda_nccl.load() == by_nccl_before && stats.cuda_ipc.load() == 1, "another road");
      })));
  CHECK(fake.counts().made == size);
  check_clean(fake);
}

TEST_CASE("nccl: forced where ranks share a GPU, or cannot: refused, and the group stays usable") {
  FakeNccl fake;
  const Environment environment = by_nccl("nccl");
  CHECK_NOTHROW(run_ranks(2, on_gpu(shared_gpu(1), [](GpuRank& rank) {
                            const GpuTensor tensor(rank.gpu, DType::kFloat32, {50});
                            Request request = request_of(Kind::kAllreduce);
                            request.srcs = request.dsts = {tensor.view()};
                            expect_contains(raised<InternalError>([&] { run(rank, request); }),
                                            "NCCL takes one rank a GPU");
                            sum_now(rank.rank, rank.world, 5000, 1);
                          })));
  check_clean(fake);
}

TEST_CASE("nccl: sums go on without the ranks that have joined, and sets have communicators of their own") {
  FakeNccl fake;
  const Environment environment = by_nccl();
  const Fd fd = create_memfd("set", Board::nbytes(2, 64));
  CHECK_NOTHROW(
      run_ranks(3, on_gpu(own_gpus(2), [&](GpuRank& rank) {
                  const int me = rank.rank.rank;
                  const auto check = [&](Group& group, const std::vector<int>& ranks, int size) {
                    const GpuTensor tensor(rank.gpu, DType::kFloat32, {4001}, numbers(DType::kFloat32, 4001, me));
                    Request request = request_of(Kind::kAllreduce);
                    request.srcs = request.dsts = {tensor.view()};
                    group.wait(*group.submit(request, nullptr), -1, nullptr);
                    expect(tensor.get() == sum(DType::kFloat32, 4001, ranks, size), "the sum of those who take part");
                  };
                  const std::vector<std::vector<int>> left = {{0, 1, 2}, {0, 1, 2}, {0, 1}, {0, 1}, {0}, {0}};
                  for (int step = 0; step < 2 * (3 - me); ++step) check(rank.world, left[static_cast<size_t>(step)], 3);
                  rank.world.join(nullptr);
                  check(rank.world, {0, 1, 2}, 3);
                  if (me != 1) {
                    Group& set = *rank.rank.context.add_group(fd.get(), {0, 2}, 1, nullptr);
                    check(set, {0, 2}, 2);
                    rank.rank.context.remove_group(&set, nullptr);
                  }
                  check(rank.world, {0, 1, 2}, 3);
                })));
  CHECK(fake.counts().made == 3 + 2 + 1 + 2);
  CHECK(fake.counts().shrunk == 2 + 1);
  check_clean(fake);
}

TEST_CASE("nccl: a rank that leaves while it is needed, a timeout, and an error that NCCL reports") {
  const std::vector<std::string> cases = {"leaves", "timeout", "error"};
  for (const std::string& one : cases) {
    CAPTURE(one);
    FakeNccl fake;
    const Environment environment = {{"RINGREDUCE_CUDA_ROAD", "nccl"},
                                     {"RINGREDUCE_NCCL_LIBRARY", RR_FAKE_NCCL},
                                     {"RINGREDUCE_TIMEOUT", one == "timeout" ? "0.5" : "60"}};
    const auto manual = [&](int rank) {
      FakeOptions options = own_gpus(4)(rank);
      options.manual = rank == 2;  // its GPU does nothing
      return options;
    };
    if (one == "error") fake.fail(1, 1, 3);
    CHECK_NOTHROW(run_ranks(3, on_gpu(manual, [&](GpuRank& rank) {
                              const auto tensor =
                                  std::make_shared<GpuTensor>(rank.gpu, DType::kFloat32, std::vector<uint64_t>{50000});
                              Request request = request_of(Kind::kAllreduce);
                              request.srcs = request.dsts = {tensor->view()};
                              request.is_async = true;
                              request.keep = tensor;
                              const OperationPtr operation = rank.world.submit(request, nullptr);
                              if (rank.rank.rank == 2) {
                                wait_for([&] { return rank.gpu.is_busy() || has_failed(rank.world.board()); });
                                if (one == "leaves") return;
                              }
                              std::string text;
                              try {
                                rank.world.wait(*operation, -1, nullptr);
                              } catch (const InternalError& error) {
                                text = error.what();
                              }
                              expect_contains(text, one == "leaves"    ? "rank 2 called shutdown()"
                                                    : one == "timeout" ? "RINGREDUCE_TIMEOUT=0.5 s"
                                                                       : "an operation failed: internal error");
                              if (rank.rank.rank != 2) {
                                for (size_t lane = 0; lane < rank.gpu.lanes(); ++lane) {  // NCCL's kernels let go
                                  const Mark mark = rank.gpu.mark(static_cast<Lane>(lane));
                                  wait_for([&] { return rank.gpu.passed(mark); });
                                }
                              } else {
                                rank.gpu.advance();  // nor does anything wait there, so the end need not
                              }
                            })));
    CHECK(fake.counts().communicators == 0);
    CHECK(fake.counts().misuses == 0);
    CHECK(fake.counts().aborted >= 2);
  }
}

}  // namespace
}  // namespace rr::test
