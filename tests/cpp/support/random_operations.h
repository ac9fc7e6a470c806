// Random operations for stress tests. All ranks draw the same ones from one random sequence; each submits, polls and
// waits in an order of its own, and compares the results with what they must be.
#pragma once

#include <algorithm>
#include <cstring>
#include <random>

#include "collective/plan.h"
#include "support/ranks.h"

namespace rr::test {

enum class What { kSum, kMismatch, kBarrier, kAllgather, kBroadcast, kAlltoall, kReduceScatter, kMessage };

// One operation, as all ranks draw it.
struct Draw {
  What what;
  size_t group;      // index into the ranks' groups
  std::string name;  // "" = unnamed
  size_t count;
  bool sync;    // waited for at once; unnamed ones only, whose order all ranks share
  int special;  // kMismatch: who differs; kBroadcast: the root
};

inline size_t draw_count(std::mt19937& random) {
  const unsigned scale = random() % 20;
  return scale < 14 ? random() % 40 : scale < 17 ? 30 + random() % 1500 : 2049 + random() % 3000;
}

inline Draw draw(std::mt19937& random, int round, int index, size_t groups, int size) {
  Draw d = {};
  const unsigned what = random() % 100;
  d.what = what < 74   ? What::kSum
           : what < 80 ? What::kMismatch
           : what < 84 ? What::kBarrier
           : what < 88 ? What::kAllgather
           : what < 92 ? What::kBroadcast
           : what < 94 ? What::kAlltoall
           : what < 96 ? What::kReduceScatter
                       : What::kMessage;
  d.group = random() % groups;
  const bool named = random() % 2 == 0 && d.what != What::kBarrier && d.what != What::kMessage;
  if (named) d.name = "tensor " + std::to_string(round % 3) + "." + std::to_string(index);
  d.count = draw_count(random);
  d.sync = !named && random() % 3 == 0;
  d.special = static_cast<int>(random() % static_cast<unsigned>(size));
  return d;
}

inline std::string text_of(const Draw& d) {
  static const char* const names[] = {"sum",       "mismatch", "barrier",       "allgather",
                                      "broadcast", "alltoall", "reducescatter", "message"};
  return std::string(names[static_cast<size_t>(d.what)]) + " '" + d.name + "' of " + std::to_string(d.count) +
         " in group " + std::to_string(d.group) + (d.sync ? ", synchronous" : "");
}

struct Running {
  Draw draw;
  Group* group;
  Sum sum;                             // its operation, whatever the kind
  std::shared_ptr<Floats> received{};  // kReduceScatter, kMessage
  OperationPtr receipt{};              // kMessage
};

// Element i of what a rank gives to operations that only move data.
inline float moved_element(int rank, float base, size_t i) {
  return static_cast<float>(1000 * (rank + 1)) + base + static_cast<float>(i % 31);
}

inline std::shared_ptr<Floats> moved_data(int rank, float base, size_t count) {
  auto data = std::make_shared<Floats>(count);
  for (size_t i = 0; i < count; ++i) (*data)[i] = moved_element(rank, base, i);
  return data;
}

inline size_t gathered_rows(const Draw& d, int rank) { return d.count + static_cast<size_t>(rank); }
inline size_t split_rows(const Draw& d, int from, int to) {
  return d.count / 8 + (d.count + 3 * static_cast<size_t>(from) + static_cast<size_t>(to)) % 7;
}

// A sum that the fastest path may finish at once; true when it has, with the result or the error that it must have.
inline bool finish_quick(Rank& rank, Group& group, const Draw& d, Sum& sum) {
  const TensorView tensor = view(*sum.data, DType::kFloat32);
  const Reduction reduction = {DType::kFloat32, ReduceOp::kSum, 1.0, 1.0, group.size()};
  const auto quick = [&] { return group.allreduce_quick(tensor, tensor, reduction, rank.context.interrupt()); };
  if (d.what == What::kSum || group.size() == 1) {
    if (!quick()) return false;
    check_sum(sum, group);
    return true;
  }
  try {
    expect(!quick(), "a mismatch is an error");
    return false;
  } catch (const MismatchError& error) {
    expect_contains(error.what(), "Mismatched");
    return true;
  }
}

inline Running start(Rank& rank, Group& group, const Draw& d, int base) {
  Running running = {d, &group, {nullptr, nullptr, static_cast<float>(base % 97)}};
  Sum& sum = running.sum;
  const int me = group.rank();
  const int size = group.size();
  Request request;
  if (!d.name.empty()) request.name = &d.name;
  request.is_async = !d.sync;
  switch (d.what) {
    case What::kSum:
    case What::kMismatch: {
      const bool is_odd = d.what == What::kMismatch && me == d.special % size;
      const size_t more = d.count % 2 == 0 ? 1 : 2500;  // often beyond what ends from the request slots
      const size_t count = d.count + (is_odd ? more : 0);
      sum = make_sum(group, count, base);
      if (!d.sync || !finish_quick(rank, group, d, sum)) sum = start_sum(rank, group, count, base, d.name, !d.sync);
      return running;
    }
    case What::kBarrier:
      sum.operation = start_barrier(group, !d.sync);
      return running;
    case What::kAllgather:
      request.kind = Kind::kAllgather;
      sum.data = moved_data(me, sum.base, gathered_rows(d, me));
      request.srcs = {view(*sum.data, DType::kFloat32)};
      break;
    case What::kBroadcast:
      request.kind = Kind::kBroadcast;
      request.root = d.special % size;
      sum.data = moved_data(me, sum.base, d.count);
      request.srcs = request.dsts = {view(*sum.data, DType::kFloat32)};
      break;
    case What::kAlltoall: {
      request.kind = Kind::kAlltoall;
      size_t rows = 0;
      for (int to = 0; to < size; ++to) {
        request.splits.push_back(split_rows(d, me, to));
        rows += request.splits.back();
      }
      sum.data = moved_data(me, sum.base, rows);
      request.srcs = {view(*sum.data, DType::kFloat32)};
      break;
    }
    case What::kReduceScatter:
      request.kind = Kind::kReduceScatter;
      sum.data = moved_data(me, sum.base, d.count);
      running.received = std::make_shared<Floats>(segment(d.count, size, me).count());
      request.srcs = {view(*sum.data, DType::kFloat32)};
      request.dsts = {view(*running.received, DType::kFloat32)};
      break;
    case What::kMessage:  // to the right neighbour
      sum.data = moved_data(me, sum.base, d.count);
      running.received = std::make_shared<Floats>(d.count);
      if (size == 1) return running;
      sum.operation = group.send(view(*sum.data, DType::kFloat32), (me + 1) % size, 5, sum.data);
      running.receipt =
          group.receive(view(*running.received, DType::kFloat32), (me + size - 1) % size, 5, running.received);
      return running;
  }
  request.keep =
      std::make_shared<std::pair<std::shared_ptr<Floats>, std::shared_ptr<Floats>>>(sum.data, running.received);
  sum.operation = group.submit(request, nullptr);
  return running;
}

inline void check_output(const Operation& operation, const Floats& wanted, const Draw& d) {
  expect(operation.output_nbytes == wanted.size() * sizeof(float), "size of " + text_of(d));
  const bool same = wanted.empty() || std::memcmp(operation.output.get(), wanted.data(), operation.output_nbytes) == 0;
  expect(same, "result of " + text_of(d));
}

// What has been waited for.
inline void check(const Running& running) {
  const Draw& d = running.draw;
  const Group& group = *running.group;
  const Sum& sum = running.sum;
  Floats wanted;
  switch (d.what) {
    case What::kSum:
      return check_sum(sum, group);
    case What::kMismatch:
      return expect(group.size() == 1, "a mismatch is an error");
    case What::kBarrier:
      return;
    case What::kAllgather:
      for (int r = 0; r < group.size(); ++r) {
        for (size_t i = 0; i < gathered_rows(d, r); ++i) wanted.push_back(moved_element(r, sum.base, i));
      }
      return check_output(*sum.operation, wanted, d);
    case What::kAlltoall:
      for (int r = 0; r < group.size(); ++r) {
        size_t before = 0;
        for (int to = 0; to < group.rank(); ++to) before += split_rows(d, r, to);
        for (size_t i = 0; i < split_rows(d, r, group.rank()); ++i) {
          wanted.push_back(moved_element(r, sum.base, before + i));
        }
      }
      return check_output(*sum.operation, wanted, d);
    case What::kBroadcast:
      return expect(*sum.data == *moved_data(d.special % group.size(), sum.base, d.count), "result of " + text_of(d));
    case What::kReduceScatter: {
      const Range mine = segment(d.count, group.size(), group.rank());
      for (size_t i = mine.begin; i < mine.end; ++i) {
        float total = 0;
        for (int r = 0; r < group.size(); ++r) total += moved_element(r, sum.base, i);
        wanted.push_back(total);
      }
      return expect(*running.received == wanted, "result of " + text_of(d));
    }
    case What::kMessage: {
      const int left = (group.rank() + group.size() - 1) % group.size();
      if (group.size() == 1) return;
      return expect(*running.received == *moved_data(left, sum.base, d.count), "what has come by " + text_of(d));
    }
  }
}

// impatient: gives up the wait once, which must change nothing.
inline void finish(const Running& running, bool impatient = false) {
  Group& group = *running.group;
  if (running.sum.operation == nullptr) return;  // done already
  const auto wait = [&] {
    if (impatient) group.wait(*running.sum.operation, 1e-4, nullptr);
    group.wait(*running.sum.operation, -1, nullptr);
    if (running.receipt != nullptr) group.wait(*running.receipt, -1, nullptr);
  };
  if (running.draw.what == What::kMismatch && group.size() > 1) {
    return expect_contains(raised<MismatchError>(wait), "Mismatched");
  }
  wait();
  check(running);
}

}  // namespace rr::test
