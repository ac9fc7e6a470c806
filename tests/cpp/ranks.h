// Ranks as threads of the test program: each has its own Context over one control segment.
//
// one_mapping.cc makes all of them map a memory file at one address, so that the thread sanitizer sees what one rank
// does to another rank's memory. doctest's macros stay on the main thread: a rank reports through expect(), which
// throws.
#pragma once

#include <cstdlib>
#include <exception>
#include <functional>
#include <initializer_list>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/context.h"
#include "expect.h"
#include "os/mapping.h"

namespace rr::test {

// Environment variables for the time of a test. Set before ranks start, since they read them when they start.
class Environment {
 public:
  Environment(std::initializer_list<std::pair<const char*, std::string>> values) {
    set("RINGREDUCE_CACHE", "/dev/null/no-cache");  // nothing that another run has measured
    set("RINGREDUCE_CHUNK", "4096");                // so that pipelines wrap soon, and nothing is measured now
    for (const auto& [name, value] : values) set(name, value);
  }
  ~Environment() {
    for (const auto& name : names_) ::unsetenv(name.c_str());
  }
  Environment(const Environment&) = delete;

 private:
  void set(const std::string& name, const std::string& value) {
    ::setenv(name.c_str(), value.c_str(), 1);
    names_.push_back(name);
  }
  std::vector<std::string> names_;
};

struct Rank {
  Context& context;
  Group& world;
  int rank;
  int size;
  SegmentRegistry& segments;
};

// Runs body(r) on a thread for each rank r; raises here what the first of them raised.
inline void run_threads(int size, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  std::atomic<int> failed{0};
  std::exception_ptr first;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        body(r);
      } catch (...) {
        if (failed.fetch_add(1) == 0) first = std::current_exception();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  if (first) std::rethrow_exception(first);
}

// Runs body on `size` ranks. A rank that raises leaves, which releases the others.
inline void run_ranks(int size, const std::function<void(Rank&)>& body, size_t capacity = 64) {
  const Fd fd = create_memfd("test", Board::nbytes(size, capacity));
  run_threads(size, [&](int r) {
    auto segments = std::make_shared<SegmentRegistry>();
    Context context(fd.get(), r, size, std::vector<int>(static_cast<size_t>(size), -1), "host", segments, nullptr);
    Rank rank = {context, context.world(), r, size, *segments};
    body(rank);
  });
}

// The message of the E that call raises; fails when it raises nothing or something else.
template <class E, class Call>
std::string raised(Call call) {
  try {
    call();
  } catch (const E& error) {
    return error.what();
  }
  throw std::runtime_error("expected an error, got none");
}

inline void expect_contains(const std::string& text, const std::string& part) {
  expect(text.find(part) != std::string::npos, "'" + part + "' in '" + text + "'");
}

template <class T>
TensorView view(std::vector<T>& values, DType dtype, std::vector<uint64_t> dims = {}) {
  TensorView tensor;
  tensor.data = reinterpret_cast<std::byte*>(values.data());
  tensor.dtype = dtype;
  tensor.count = values.size();
  if (dims.empty()) dims = {values.size()};
  tensor.ndim = static_cast<uint8_t>(dims.size());
  std::copy(dims.begin(), dims.end(), tensor.dims);
  tensor.row_when_empty = itemsize(dtype);
  for (size_t i = 1; i < dims.size(); ++i) tensor.row_when_empty *= dims[i];
  return tensor;
}

using Floats = std::vector<float>;

// An asynchronous in-place sum of `count` floats that keeps its own data. Rank r contributes (r + 1) * (base + i), with
// small whole numbers, so that the sum is exact in any order.
struct Sum {
  std::shared_ptr<Floats> data;
  OperationPtr operation;
  float base = 0;
};

inline Sum make_sum(const Group& group, size_t count, int base) {
  Sum sum = {std::make_shared<Floats>(count), nullptr, static_cast<float>(base % 97)};
  for (size_t i = 0; i < count; ++i) {
    (*sum.data)[i] = static_cast<float>(group.ranks()[static_cast<size_t>(group.rank())] + 1) *
                     (sum.base + static_cast<float>(i % 31));
  }
  return sum;
}

inline Sum start_sum(Rank& rank, Group& group, size_t count, int base, const std::string& name = "",
                     bool async = true) {
  Sum sum = make_sum(group, count, base);
  Request request;
  request.kind = Kind::kAllreduce;
  request.srcs = request.dsts = {view(*sum.data, DType::kFloat32)};
  if (!name.empty()) request.name = &name;
  request.is_async = async;
  request.keep = sum.data;
  sum.operation = group.submit(request, rank.context.interrupt());
  return sum;
}

// contributors: the sum over the ranks that took part of (rank + 1); 0 = all members of the group.
inline void check_sum(const Sum& sum, const Group& group, int contributors = 0) {
  if (contributors == 0) {
    for (const int r : group.ranks()) contributors += r + 1;
  }
  for (size_t i = 0; i < sum.data->size(); ++i) {
    const float wanted = static_cast<float>(contributors) * (sum.base + static_cast<float>(i % 31));
    if ((*sum.data)[i] == wanted) continue;
    throw std::runtime_error("element " + std::to_string(i) + " of " + std::to_string(sum.data->size()) + " is " +
                             std::to_string((*sum.data)[i]) + ", not " + std::to_string(wanted));
  }
}

inline void finish_sum(Group& group, const Sum& sum, int contributors = 0) {
  expect(group.wait(*sum.operation, -1, nullptr), "wait without a limit is true");
  check_sum(sum, group, contributors);
}

inline void sum_now(Rank& rank, Group& group, size_t count, int base, const std::string& name = "") {
  finish_sum(group, start_sum(rank, group, count, base, name, false));
}

inline OperationPtr start_barrier(Group& group, bool async = false) {
  Request request;
  request.kind = Kind::kBarrier;
  request.is_async = async;
  return group.submit(request, nullptr);
}

inline void barrier(Group& group) { group.wait(*start_barrier(group), -1, nullptr); }

// More or fewer rounds of a random test: RR_TEST_ROUNDS sets the number; sanitizers slow everything down ten times.
inline int rounds(int usual) {
  if (const char* text = std::getenv("RR_TEST_ROUNDS"); text != nullptr) return std::atoi(text);
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
  usual /= 5;
#endif
  return usual;
}

// The seed of a random test: another one with each RR_TEST_SEED. A test captures what it got, for the message of its
// failure.
inline unsigned seed(unsigned usual) {
  const char* const text = std::getenv("RR_TEST_SEED");
  return usual + 1000 * static_cast<unsigned>(text != nullptr ? std::atoi(text) : 0);
}

}  // namespace rr::test
