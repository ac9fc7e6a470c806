// A job of many hosts, from its start to its end: what no test of a few hosts shows.
#include <algorithm>

#include "doctest/doctest.h"
#include "support/loopback_links.h"

namespace rr::test {
namespace {

TEST_CASE("many hosts: ranks start, sum, gather, exchange and leave") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "120"}};
  const int hosts = std::max(4, rounds(32));
  CAPTURE(hosts);
  std::vector<int> host_of;
  for (int r = 0; r < 2 * hosts; ++r) host_of.push_back(r / 2);
  const auto body = [](Rank& rank) {
    for (int turn = 0; turn < 2; ++turn) {
      barrier(rank.world);
      for (const size_t count : {size_t{2}, size_t{200}, size_t{20000}}) {  // in a request slot, eager, in the log
        sum_now(rank, rank.world, count, turn);
        sum_now(rank, rank.world, count, turn, "sum of " + std::to_string(count));
      }
    }
    Ints mine(static_cast<size_t>(rank.rank % 3 + 1), rank.rank);
    Request gather = request_of(Kind::kAllgather);
    gather.srcs = {view(mine, DType::kInt32)};
    Ints all;
    for (int r = 0; r < rank.size; ++r) all.insert(all.end(), static_cast<size_t>(r % 3 + 1), r);
    const OperationPtr gathered = run(rank, gather);
    expect(output_ints(*gathered) == all, "what all ranks have");
    Ints rows(static_cast<size_t>(rank.size));
    for (int to = 0; to < rank.size; ++to) rows[static_cast<size_t>(to)] = 1000 * rank.rank + to;
    Request exchange = request_of(Kind::kAlltoall);
    exchange.srcs = {view(rows, DType::kInt32)};
    Ints received;
    for (int from = 0; from < rank.size; ++from) received.push_back(1000 * from + rank.rank);
    expect(output_ints(*run(rank, exchange)) == received, "a row from each rank");
    barrier(rank.world);
  };
  CHECK_NOTHROW(run_hosts(host_of, body, 64, 1024));
}

}  // namespace
}  // namespace rr::test
