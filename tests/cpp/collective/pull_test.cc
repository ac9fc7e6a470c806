// Everything but all-reduce over registered memory: read straight from it, nothing copied to staging, same results.
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "doctest/doctest.h"
#include "negotiation/segment/failure.h"
#include "support/ranks.h"

namespace rr::test {
namespace {

int32_t element(int rank, size_t i) { return static_cast<int32_t>(static_cast<size_t>(rank) * 1009 + i % 997 + 1); }

// This rank's part of a registered allocation as a tensor of `count` numbers, filled.
TensorView registered(const Segment& segment, int rank, size_t count) {
  TensorView tensor;
  tensor.data = segment.own();
  tensor.dtype = DType::kInt32;
  tensor.ndim = 1;
  tensor.count = tensor.dims[0] = count;
  tensor.row_when_empty = sizeof(int32_t);
  auto* values = reinterpret_cast<int32_t*>(segment.own());
  for (size_t i = 0; i < count; ++i) values[i] = element(rank, i);
  return tensor;
}

void expect_values(const std::byte* data, size_t count, const std::string& what,
                   const std::function<int32_t(size_t)>& wanted) {
  for (size_t i = 0; i < count; ++i) {
    int32_t value;
    std::memcpy(&value, data + i * sizeof value, sizeof value);
    expect(value == wanted(i),
           [&] { return what + ": element " + std::to_string(i) + " of " + std::to_string(count); });
  }
}

void check_reducescatter(Rank& rank, const Segment& segment, size_t count, int32_t factor = 1) {
  const Range mine = rr::segment(count, rank.size, rank.rank);
  std::vector<int32_t> output(mine.count());
  Request request;
  request.kind = Kind::kReduceScatter;
  request.postscale = factor;
  request.srcs = {registered(segment, rank.rank, count)};
  request.dsts = {view(output, DType::kInt32)};
  run(rank, request);
  expect_values(reinterpret_cast<std::byte*>(output.data()), output.size(), "reducescatter", [&](size_t i) {
    int32_t sum = 0;
    for (int r = 0; r < rank.size; ++r) sum += element(r, mine.begin + i);
    return factor * sum;
  });
}

void check_gathers(Rank& rank, const Segment& segment, size_t count) {
  for (const Kind kind : {Kind::kAllgather, Kind::kGather}) {
    Request request;
    request.kind = kind;
    request.root = kind == Kind::kGather ? rank.size - 1 : -1;
    request.srcs = {registered(segment, rank.rank, count + static_cast<size_t>(rank.rank))};
    const OperationPtr operation = run(rank, request);
    if (kind == Kind::kGather && rank.rank != request.root) continue;
    const std::byte* at = operation->output.get();
    for (int r = 0; r < rank.size; ++r) {
      const size_t theirs = count + static_cast<size_t>(r);
      expect_values(at, theirs, "gather", [r](size_t i) { return element(r, i); });
      at += theirs * sizeof(int32_t);
    }
  }
}

void check_broadcast(Rank& rank, const Segment& segment, size_t count, int root) {
  Request request;
  request.kind = Kind::kBroadcast;
  request.root = root;
  request.srcs = request.dsts = {registered(segment, rank.rank, count)};
  run(rank, request);
  expect_values(segment.own(), count, "broadcast", [root](size_t i) { return element(root, i); });
}

// Rank r sends count + to + 2r rows to rank `to`.
void check_alltoall(Rank& rank, const Segment& segment, size_t count) {
  const auto rows = [count](int from, int to) {
    return count + static_cast<size_t>(to) + 2 * static_cast<size_t>(from);
  };
  Request request;
  request.kind = Kind::kAlltoall;
  size_t total = 0;
  for (int to = 0; to < rank.size; ++to) {
    request.splits.push_back(rows(rank.rank, to));
    total += rows(rank.rank, to);
  }
  request.srcs = {registered(segment, rank.rank, total)};
  const OperationPtr operation = run(rank, request);
  const std::byte* at = operation->output.get();
  for (int from = 0; from < rank.size; ++from) {
    size_t before = 0;
    for (int to = 0; to < rank.rank; ++to) before += rows(from, to);
    expect_values(at, rows(from, rank.rank), "alltoall", [&](size_t i) { return element(from, before + i); });
    at += rows(from, rank.rank) * sizeof(int32_t);
  }
}

TEST_CASE("movement over registered memory reads it straight") {
  for (const int size : {1, 2, 3, 5}) {
    CAPTURE(size);
    const Environment environment{};
    const size_t nbytes = 1 << 21;
    const Fd file = create_memfd("registered", nbytes * static_cast<size_t>(size));
    CHECK_NOTHROW(run_ranks(size, [&](Rank& rank) {
      const Segment segment(file.get(), 1, rank.rank, size, nbytes);
      rank.segments.add(&segment);
      barrier(rank.world);
      uint64_t pulls = 0;
      for (const size_t count : {size_t{1}, size_t{5}, size_t{5000}, size_t{70001}}) {
        check_reducescatter(rank, segment, count + static_cast<size_t>(size));
        check_reducescatter(rank, segment, count, 3);
        check_gathers(rank, segment, count);
        check_broadcast(rank, segment, count + 5000, static_cast<int>(count) % size);
        check_alltoall(rank, segment, count);
        pulls += 6;
      }
      barrier(rank.world);
      const Stats& stats = rank.context.stats();
      expect(stats.direct.load() == pulls, "direct: " + std::to_string(stats.direct.load()));
      expect(stats.bytes_copied.load() == 0, "staged: " + std::to_string(stats.bytes_copied.load()));
      rank.segments.remove(&segment);
    }));
  }
}

TEST_CASE("one rank's private memory makes the operation private for all") {
  const Environment environment{};
  const Fd file = create_memfd("registered", 3 << 20);
  CHECK_NOTHROW(run_ranks(3, [&](Rank& rank) {
    const Segment segment(file.get(), 1, rank.rank, 3, 1 << 20);
    if (rank.rank != 1) rank.segments.add(&segment);  // rank 1 does not know that it is registered
    barrier(rank.world);
    check_gathers(rank, segment, 3000);
    check_reducescatter(rank, segment, 3000);
    barrier(rank.world);
    expect(rank.context.stats().direct.load() == 0, "nothing was direct");
    if (rank.rank != 1) rank.segments.remove(&segment);
  }));
}

// Memory whose last page holds up the first thread that writes there, until it is released.
class HeldPage {
 public:
  explicit HeldPage(size_t nbytes) : nbytes_(nbytes) {
    at_ = static_cast<std::byte*>(::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    page_ = at_ + nbytes - 4096;
    ::mprotect(page_, 4096, PROT_NONE);
    is_held = is_released = false;
    current = this;
    struct sigaction action = {};
    action.sa_sigaction = hold;
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGSEGV, &action, &before_);
  }
  ~HeldPage() {
    ::sigaction(SIGSEGV, &before_, nullptr);
    ::munmap(at_, nbytes_);
  }
  HeldPage(const HeldPage&) = delete;
  HeldPage& operator=(const HeldPage&) = delete;

  std::byte* data() const { return at_; }
  inline static std::atomic<bool> is_held{false};
  inline static std::atomic<bool> is_released{false};

 private:
  static void hold(int, siginfo_t*, void*) {
    is_held = true;
    while (!is_released) ::usleep(1000);
    ::mprotect(current->page_, 4096, PROT_READ | PROT_WRITE);
  }
  inline static HeldPage* current = nullptr;

  const size_t nbytes_;
  std::byte* at_;
  std::byte* page_;
  struct sigaction before_ = {};
};

TEST_CASE("what a rank reads from memory whose owner has taken it back is no result") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "60"}};
  constexpr size_t kCount = 1 << 16;
  const Fd file = create_memfd("registered", 2 * kCount * sizeof(int32_t));
  HeldPage output(kCount / 2 * sizeof(int32_t));
  CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) {
    const Segment segment(file.get(), 1, rank.rank, 2, kCount * sizeof(int32_t));
    rank.segments.add(&segment);
    barrier(rank.world);
    std::vector<int32_t> plain(kCount / 2);
    Request request;
    request.kind = Kind::kReduceScatter;
    request.srcs = {registered(segment, rank.rank, kCount)};
    request.dsts = {view(plain, DType::kInt32)};
    if (rank.rank == 1) request.dsts[0].data = output.data();
    const OperationPtr operation = rank.world.submit(request, nullptr);
    if (rank.rank == 0) {
      // Its own part is done, and it waits for the other one.
      const auto& completed = rank.world.control().entry(0).completed;
      wait_for([&] { return HeldPage::is_held && !rank.world.poll(*operation) && completed.load() == 1; });
      record_failure(rank.world.control(), FatalKind::kTimeout, "for this test");
      raised<TimeoutError>([&] { rank.world.wait(*operation, -1, nullptr); });
      std::fill_n(reinterpret_cast<int32_t*>(segment.own()), kCount, -1);
      HeldPage::is_released = true;
    } else {
      expect_contains(raised<TimeoutError>([&] { rank.world.wait(*operation, -1, nullptr); }), "for this test");
    }
    rank.segments.remove(&segment);
  }));
  CHECK(HeldPage::is_held);
}

}  // namespace
}  // namespace rr::test
