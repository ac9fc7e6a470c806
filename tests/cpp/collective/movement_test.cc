// Everything but all-reduce, on ranks that are threads: results computed apart from the code under test.
#include "doctest/doctest.h"
#include "support/loopback_links.h"

namespace rr::test {
namespace {

// Element i of what rank r gives.
int32_t element(int rank, size_t i) {
  return static_cast<int32_t>(static_cast<size_t>(rank) * 100003 + i % 99991 * 7 + 1);
}

Ints given(int rank, size_t count) {
  Ints values(count);
  for (size_t i = 0; i < count; ++i) values[i] = element(rank, i);
  return values;
}

void check_broadcast(Rank& rank, size_t count, int root) {
  Ints values = rank.rank == root ? given(root, count) : Ints(count, -1);
  Request request = request_of(Kind::kBroadcast, root);
  request.srcs = request.dsts = {view(values, DType::kInt32)};
  run(rank, request);
  expect(values == given(root, count), "broadcast of " + std::to_string(count));
}

// Rank r gives (r * 3 + count) % (2 count + 1) rows of two elements: some give none.
size_t rows_of(int rank, size_t count) { return (static_cast<size_t>(rank) * 3 + count) % (2 * count + 1); }

void check_gathers(Rank& rank, size_t count, int root) {
  Ints mine = given(rank.rank, 2 * rows_of(rank.rank, count));
  Ints wanted;
  for (int r = 0; r < rank.size; ++r) {
    const Ints theirs = given(r, 2 * rows_of(r, count));
    wanted.insert(wanted.end(), theirs.begin(), theirs.end());
  }
  for (const Kind kind : {Kind::kAllgather, Kind::kGather}) {
    Request request = request_of(kind, kind == Kind::kGather ? root : -1);
    request.srcs = {view(mine, DType::kInt32, {mine.size() / 2, 2})};
    const OperationPtr operation = run(rank, request);
    const bool receives = kind == Kind::kAllgather || rank.rank == root;
    expect(output_ints(*operation) == (receives ? wanted : Ints()),
           std::string(name(kind)) + " of " + std::to_string(count));
    for (size_t r = 0; receives && r < operation->counts.size(); ++r) {
      expect(operation->counts[r] == rows_of(static_cast<int>(r), count), "first dimensions");
    }
  }
}

void check_scatter(Rank& rank, size_t count, int root) {
  Ints all = given(root, count * static_cast<size_t>(rank.size));
  Ints mine(count, -1);
  Request request = request_of(Kind::kScatter, root);
  if (rank.rank == root) request.srcs = {view(all, DType::kInt32)};
  request.dsts = {view(mine, DType::kInt32)};
  run(rank, request);
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(count) * rank.rank;
  expect(mine == Ints(begin, begin + static_cast<std::ptrdiff_t>(count)), "scatter of " + std::to_string(count));
}

// Rows from one rank to another.
size_t split(int from, int to, size_t count) {
  return (static_cast<size_t>(from) + 2 * static_cast<size_t>(to) + count) % (count + 2);
}

void check_alltoall(Rank& rank, size_t count) {
  Request request = request_of(Kind::kAlltoall);
  size_t rows = 0;
  for (int to = 0; to < rank.size; ++to) {
    request.splits.push_back(split(rank.rank, to, count));
    rows += request.splits.back();
  }
  Ints mine = given(rank.rank, rows);
  request.srcs = {view(mine, DType::kInt32)};
  Ints wanted;
  for (int from = 0; from < rank.size; ++from) {
    size_t begin = 0;
    for (int to = 0; to < rank.rank; ++to) begin += split(from, to, count);
    for (size_t i = 0; i < split(from, rank.rank, count); ++i) wanted.push_back(element(from, begin + i));
  }
  const OperationPtr operation = run(rank, request);
  expect(output_ints(*operation) == wanted, "alltoall of " + std::to_string(count));
}

int32_t sum_at(int size, size_t i) {
  int32_t sum = 0;
  for (int r = 0; r < size; ++r) sum += element(r, i);
  return sum;
}

void check_reduces(Rank& rank, size_t count, int root) {
  Ints src = given(rank.rank, 3 * count);
  Ints dst(3 * count, -1);
  Request request = request_of(Kind::kReduce, root);
  request.srcs = {view(src, DType::kInt32)};
  request.dsts = {view(dst, DType::kInt32)};
  run(rank, request);
  for (size_t i = 0; i < dst.size(); ++i) {
    expect(dst[i] == (rank.rank == root ? sum_at(rank.size, i) : -1),
           [&] { return "reduce of " + std::to_string(count); });
  }
  const Range mine = segment(count, rank.size, rank.rank);
  Ints part(3 * mine.count(), -1);
  request = request_of(Kind::kReduceScatter);
  request.srcs = {view(src, DType::kInt32, {count, 3})};
  request.dsts = {view(part, DType::kInt32, {mine.count(), 3})};
  run(rank, request);
  for (size_t i = 0; i < part.size(); ++i) {
    expect(part[i] == sum_at(rank.size, 3 * mine.begin + i),
           [&] { return "reducescatter of " + std::to_string(count); });
  }
}

// Round the ring, all at once, large and small messages in the order sent.
void check_messages(Rank& rank, size_t count) {
  if (rank.size == 1) return;
  const int right = (rank.rank + 1) % rank.size;
  const int left = (rank.rank + rank.size - 1) % rank.size;
  Ints out = given(rank.rank, count);
  Ints in(count, -1);
  Ints none;
  std::vector<OperationPtr> operations;
  operations.push_back(rank.world.send(view(out, DType::kInt32), right, 5, nullptr));
  operations.push_back(rank.world.send(view(none, DType::kInt32), right, 6, nullptr));
  operations.push_back(rank.world.receive(view(in, DType::kInt32), left, 5, nullptr));
  operations.push_back(rank.world.receive(view(none, DType::kInt32), left, 6, nullptr));
  for (const OperationPtr& operation : operations) rank.world.wait(*operation, -1, nullptr);
  expect(in == given(left, count), "message of " + std::to_string(count));
}

void check_all(Rank& rank) {
  const size_t n = static_cast<size_t>(rank.size);
  for (const size_t count : {size_t{0}, size_t{1}, n - 1, n, n + 1, size_t{101}, size_t{7919}}) {
    const int root = static_cast<int>(count % n);
    check_broadcast(rank, count, root);
    check_broadcast(rank, count * 5, root);
    check_gathers(rank, count, root);
    check_scatter(rank, count, root);
    check_alltoall(rank, count);
    check_reduces(rank, count, root);
    check_messages(rank, count * 5);
    barrier(rank.world);
  }
}

TEST_CASE("movement and reduction to one or to parts: every kind, over sizes and counts") {
  for (const char* algorithm : {"auto", "tree"}) {
    for (const int size : {1, 2, 3, 4, 5, 8}) {
      CAPTURE(algorithm);
      CAPTURE(size);
      const bool wander = std::string(algorithm) == "auto" && size % 2 == 0;  // small rounds, through large slots
      const Environment environment{{"RINGREDUCE_ALGORITHM", algorithm},
                                    {"RINGREDUCE_STAGING", wander ? "streamed" : "cached"},
                                    {"RINGREDUCE_CHUNK", wander ? "32768" : "4096"}};
      CHECK_NOTHROW(run_ranks(size, check_all));
    }
  }
}

TEST_CASE("movement and reduction to one or to parts on several hosts") {
  for (const auto& host_of : kLayouts) {
    CAPTURE(host_of.size());
    const Environment environment{};
    CHECK_NOTHROW(run_hosts(host_of, check_all));
  }
}

TEST_CASE("long tensors on several hosts: in pieces, round rings of hosts and along chains") {
  std::vector<std::vector<int>> layouts = kLayouts;
  layouts.push_back({0, 0, 1, 1, 2, 2, 3, 3});
  for (const auto& host_of : layouts) {
    CAPTURE(host_of.size());
    const Environment environment{};
    CHECK_NOTHROW(run_hosts(host_of, [](Rank& rank) {
      const int last = rank.size - 1;
      check_broadcast(rank, 400000, last);  // 1.6 MB
      check_broadcast(rank, 40001, 1);      // a chain of 4 hosts, in one piece
      check_gathers(rank, 50000, 1);        // blocks of up to 0.8 MB
      check_reduces(rank, 100003, last);    // 1.2 MB
      barrier(rank.world);
    }));
  }
}

TEST_CASE("any chunk that the knob takes: a whole slot, odd, or too small for all ranks' blocks") {
  const auto check = [](Rank& rank, size_t count) {
    check_broadcast(rank, count, 0);
    check_alltoall(rank, 3);
    check_reduces(rank, count, 0);
    sum_now(rank, rank.world, count, 1);
    barrier(rank.world);
  };
  for (const char* chunk : {"1048576", "4097", "1"}) {
    CAPTURE(chunk);
    const Environment environment{{"RINGREDUCE_CHUNK", chunk}, {"RINGREDUCE_STAGING", "streamed"}};
    CHECK_NOTHROW(run_ranks(2, [&](Rank& rank) { check(rank, 300000); }));  // 1.2 MB, for slots of 1 MiB
  }
  const Environment environment{{"RINGREDUCE_CHUNK", "4096"}};
  CHECK_NOTHROW(run_ranks(70, [&](Rank& rank) { check(rank, 3000); }));
}

TEST_CASE("a message that does not fit is refused on the receiving side only") {
  const Environment environment{};
  CHECK_NOTHROW(run_ranks(2, [](Rank& rank) {
    Ints values = given(rank.rank, 100000);
    Ints few(3);
    if (rank.rank == 0) {
      rank.world.wait(*rank.world.send(view(values, DType::kInt32), 1, 7, nullptr), -1, nullptr);
      rank.world.wait(*rank.world.send(view(few, DType::kInt32), 1, 8, nullptr), -1, nullptr);
    } else {
      const OperationPtr wrong = rank.world.receive(view(few, DType::kInt32), 0, 7, nullptr);
      expect_contains(raised<MismatchError>([&] { rank.world.wait(*wrong, -1, nullptr); }), "400000 bytes");
      rank.world.wait(*rank.world.receive(view(few, DType::kInt32), 0, 8, nullptr), -1, nullptr);
    }
    barrier(rank.world);
  }));
}

// A host that has been shown the request of a late alltoall knows what all ranks send each other in it. What it hears
// of the next one in the same request slot is what its own ranks receive.
TEST_CASE("alltoall: what was said of one that was late is not taken for the next one's") {
  const Environment environment{};
  CHECK_NOTHROW(run_hosts({0, 0, 1, 1}, [](Rank& rank) {
    const auto send = [&](size_t rows_of_rank_0) {
      Request request = request_of(Kind::kAlltoall);
      request.splits.assign(4, 0);
      request.splits[1] = rank.rank == 0 ? rows_of_rank_0 : 1;
      Ints mine = given(rank.rank, request.splits[1]);
      request.srcs = {view(mine, DType::kInt32)};
      const size_t received = output_ints(*run(rank, request)).size();
      expect(received == (rank.rank == 1 ? rows_of_rank_0 + 3 : 0), "received " + std::to_string(received) + " rows");
    };
    if (rank.rank == 2) {
      wait_for([&] { return rank.world.control().head(0, 0).tag.load() == Ticket::unnamed(0).tag; });
    }
    send(100);
    for (size_t i = 1; i < kUnnamedSlots; ++i) barrier(rank.world);
    send(0);
  }));
}

}  // namespace
}  // namespace rr::test
