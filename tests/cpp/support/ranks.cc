#include "support/ranks.h"

#include <cstring>
#include <mutex>

#include "support/sanitizer.h"

namespace rr::test {

Environment::Environment(std::initializer_list<std::pair<const char*, std::string>> values) {
  set("RINGREDUCE_CACHE", "/dev/null/no-cache");  // nothing that another run has measured
  set("RINGREDUCE_CHUNK", "4096");                // so that pipelines wrap soon, and nothing is measured now
  for (const auto& [name, value] : values) set(name, value);
}
Environment::~Environment() {
  for (auto one = before_.rbegin(); one != before_.rend(); ++one) {
    const auto& [name, value] = *one;
    value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
  }
}

void Environment::set(const std::string& name, const std::string& value) {
  const char* const before = std::getenv(name.c_str());
  before_.emplace_back(name, before == nullptr ? std::nullopt : std::optional<std::string>(before));
  ::setenv(name.c_str(), value.c_str(), 1);
}

void run_threads(int size, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  std::mutex mutex;
  std::exception_ptr cause, consequence;
  const auto keep = [&](std::exception_ptr& error) {
    const std::lock_guard lock(mutex);
    if (error == nullptr) error = std::current_exception();
  };
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        body(r);
      } catch (const ShutdownError&) {  // perhaps only since another rank has failed, which closes its context first
        keep(consequence);
      } catch (...) {
        keep(cause);
      }
    });
  }
  for (auto& thread : threads) thread.join();
  if (cause != nullptr || consequence != nullptr) std::rethrow_exception(cause != nullptr ? cause : consequence);
}

void run_ranks(int size, const std::function<void(Rank&)>& body, size_t capacity) {
  const Fd fd = create_memfd("test", ControlSegment::nbytes(size, capacity));
  run_threads(size, [&](int r) {
    auto segments = std::make_shared<SegmentRegistry>();
    Context context(fd.get(), r, size, std::vector<int>(static_cast<size_t>(size), -1), "host", segments, nullptr,
                    tune);
    Rank rank = {context, context.world(), r, size, *segments};
    body(rank);
  });
}

void expect_contains(const std::string& text, const std::string& part) {
  expect(text.find(part) != std::string::npos, "'" + part + "' in '" + text + "'");
}

Request request_of(Kind kind, int root) {
  Request request;
  request.kind = kind;
  request.root = root;
  return request;
}

OperationPtr run(Rank& rank, const Request& request) {
  const OperationPtr operation = rank.world.submit(request, nullptr);
  rank.world.wait(*operation, -1, nullptr);
  return operation;
}

Ints output_ints(const Operation& operation) {
  Ints values(operation.output_nbytes / sizeof(int32_t));
  if (!values.empty()) std::memcpy(values.data(), operation.output.get(), operation.output_nbytes);
  return values;
}

Sum make_sum(const Group& group, size_t count, int base) {
  Sum sum = {std::make_shared<Floats>(count), nullptr, static_cast<float>(base % 97)};
  for (size_t i = 0; i < count; ++i) {
    (*sum.data)[i] = static_cast<float>(group.ranks()[static_cast<size_t>(group.rank())] + 1) *
                     (sum.base + static_cast<float>(i % 31));
  }
  return sum;
}

Sum start_sum(Rank& rank, Group& group, size_t count, int base, const std::string& name, bool async) {
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

void check_sum(const Sum& sum, const Group& group, int contributors) {
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

void finish_sum(Group& group, const Sum& sum, int contributors) {
  expect(group.wait(*sum.operation, -1, nullptr), "wait without a limit is true");
  check_sum(sum, group, contributors);
}

void sum_now(Rank& rank, Group& group, size_t count, int base, const std::string& name) {
  finish_sum(group, start_sum(rank, group, count, base, name, false));
}

OperationPtr start_barrier(Group& group, bool async) {
  Request request;
  request.kind = Kind::kBarrier;
  request.is_async = async;
  return group.submit(request, nullptr);
}

void barrier(Group& group) { group.wait(*start_barrier(group), -1, nullptr); }

int rounds(int usual) {
  if (const char* text = std::getenv("RR_TEST_ROUNDS"); text != nullptr) return std::atoi(text);
  return is_sanitized() ? usual / 5 : usual;
}

unsigned seed(unsigned usual) {
  const char* const text = std::getenv("RR_TEST_SEED");
  return usual + 1000 * static_cast<unsigned>(text != nullptr ? std::atoi(text) : 0);
}

}  // namespace rr::test
