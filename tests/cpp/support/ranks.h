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
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/context.h"
#include "measure/tuning.h"
#include "os/mapping.h"
#include "support/expect.h"

namespace rr::test {

// Environment variables for the time of a test. Set before ranks start, since they read them when they start.
class Environment {
 public:
  Environment(std::initializer_list<std::pair<const char*, std::string>> values);
  ~Environment();
  Environment(const Environment&) = delete;

 private:
  void set(const std::string& name, const std::string& value);
  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

struct Rank {
  Context& context;
  Group& world;
  int rank;
  int size;
  SegmentRegistry& segments;
};

// Runs body(r) on a thread for each rank r; raises here what the first of them raised.
void run_threads(int size, const std::function<void(int)>& body);

// Runs body on `size` ranks. A rank that raises leaves, which releases the others.
void run_ranks(int size, const std::function<void(Rank&)>& body, size_t capacity = 64);

// An interrupt that ends whatever waits.
struct Stop {};
inline void stop() { throw Stop(); }

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

void expect_contains(const std::string& text, const std::string& part);

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
using Ints = std::vector<int32_t>;

Request request_of(Kind kind, int root = -1);
// To its end.
OperationPtr run(Rank& rank, const Request& request);
// What an operation on int32 that allocates its output has given.
Ints output_ints(const Operation& operation);

// Of a control segment that has its own: a world's.
inline Bells bells_in(const ControlSegment& control) {
  Bells bells;
  for (int r = 0; r < control.size(); ++r) {
    bells.wait.push_back(&control.wait_bell(r));
    bells.engine.push_back(&control.engine_bell(r));
  }
  return bells;
}

// What a rank announces that sums so many floats.
inline Signature signature_of_sum(uint64_t count) {
  Signature signature;
  signature.kind = Kind::kAllreduce;
  signature.dtype = DType::kFloat32;
  signature.ndim = 1;
  signature.dims[0] = count;
  signature.nbytes = count * sizeof(float);
  return signature;
}

// An asynchronous in-place sum of `count` floats that keeps its own data. Rank r contributes (r + 1) * (base + i), with
// small whole numbers, so that the sum is exact in any order.
struct Sum {
  std::shared_ptr<Floats> data;
  OperationPtr operation;
  float base = 0;
};

Sum make_sum(const Group& group, size_t count, int base);
Sum start_sum(Rank& rank, Group& group, size_t count, int base, const std::string& name = "", bool async = true);

// contributors: the sum over the ranks that took part of (rank + 1); 0 = all members of the group.
void check_sum(const Sum& sum, const Group& group, int contributors = 0);
void finish_sum(Group& group, const Sum& sum, int contributors = 0);
void sum_now(Rank& rank, Group& group, size_t count, int base, const std::string& name = "");

OperationPtr start_barrier(Group& group, bool async = false);
void barrier(Group& group);

// More or fewer rounds of a random test: RR_TEST_ROUNDS sets the number; sanitizers slow everything down ten times.
int rounds(int usual);

// The seed of a random test: another one with each RR_TEST_SEED. A test captures what it got, for the message of its
// failure.
unsigned seed(unsigned usual);

}  // namespace rr::test
