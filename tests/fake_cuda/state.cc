#include "state.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <vector>

namespace fake {
namespace {

using namespace rr;

thread_local std::vector<Context*> stack;

// function:nth:code, or function:nth+:code for the nth and all that follow.
struct Demand {
  std::string call;
  uint64_t nth = 1;
  bool and_later = false;
  Result code = cu::kUnknown;
};

struct State {
  std::mutex mutex;
  std::vector<Context> contexts;
  pid_t pid = 0;  // that called cuInit
  std::vector<Demand> demands;
  std::map<std::string, uint64_t> calls;

  State() : contexts(static_cast<size_t>(device_count())) {
    for (size_t i = 0; i < contexts.size(); ++i) contexts[i].ordinal = static_cast<int>(i);
    if (const char* text = std::getenv("FAKE_CUDA_FAIL")) demand(text);
  }

  void demand(const std::string& text) {
    demands.clear();
    std::istringstream all(text);
    for (std::string one; std::getline(all, one, ',');) {
      std::istringstream parts(one);
      std::string call, nth, code;
      if (!std::getline(parts, call, ':') || !std::getline(parts, nth, ':') || !std::getline(parts, code)) {
        std::fprintf(stderr, "fake CUDA: %s: expected function:nth:code\n", one.c_str());
        std::abort();
      }
      demands.push_back({call, std::strtoull(nth.c_str(), nullptr, 10), nth.back() == '+', std::stoi(code)});
    }
  }
};

State& state() {
  static auto& instance = rr::never_destroyed<State>();
  return instance;
}

// "cuMemAlloc" for "cuMemAlloc_v2".
std::string plain(const std::string& call) { return call.substr(0, call.find("_v")); }

}  // namespace

uint64_t option(const char* name, uint64_t fallback) {
  static std::mutex mutex;
  static auto& known = rr::never_destroyed<std::map<std::string, uint64_t>>();
  const std::lock_guard lock(mutex);
  const auto found = known.find(name);
  if (found != known.end()) return found->second;
  const char* text = std::getenv(name);
  return known[name] = text != nullptr && *text != '\0' ? std::strtoull(text, nullptr, 10) : fallback;
}

int device_count() { return static_cast<int>(option("FAKE_CUDA_DEVICES", 1)); }
Context& context_of(int ordinal) { return state().contexts[static_cast<size_t>(ordinal)]; }
Context* current() { return stack.empty() ? nullptr : stack.back(); }
void push(Context* context) { stack.push_back(context); }

Context* pop() {
  Context* const top = current();
  if (top != nullptr) stack.pop_back();
  return top;
}

cu::Context handle_of(Context* context) { return reinterpret_cast<cu::Context>(context); }

Context* find(cu::Context handle) {
  for (auto& context : state().contexts) {
    if (handle_of(&context) == handle) return &context;
  }
  return nullptr;
}

bool is_initialized() {
  const std::lock_guard lock(state().mutex);
  return state().pid == ::getpid();
}

void initialize() {
  const std::lock_guard lock(state().mutex);
  if (state().pid == 0) state().pid = ::getpid();
}

std::shared_ptr<Stream> stream_of(cu::Stream handle) { return find(handle, *current()); }

Result issue(cu::Stream handle, Task task) {
  const auto stream = stream_of(handle);
  return stream != nullptr ? issue(stream, std::move(task)) : cu::kInvalidHandle;
}

Result demanded(const char* call) {
  auto& all = state();
  const std::lock_guard lock(all.mutex);
  const std::string name = plain(call);
  ++all.calls[name];
  for (auto& demand : all.demands) {
    if (plain(demand.call) != name) continue;
    if (demand.nth > 1) {
      --demand.nth;
      continue;
    }
    if (demand.nth == 0 && !demand.and_later) continue;
    demand.nth = demand.and_later ? 1 : 0;
    return demand.code;
  }
  return cu::kSuccess;
}

Result enter(const char* call, Needs needs) {
  const Result wanted = demanded(call);
  if (wanted != cu::kSuccess) {
    if (is_sticky(wanted) && current() != nullptr) current()->broken = wanted;
    return wanted;
  }
  if (needs == Needs::kNothing) return cu::kSuccess;
  if (!is_initialized()) return cu::kNotInitialized;
  if (needs == Needs::kInit) return cu::kSuccess;
  if (current() == nullptr) return cu::kInvalidContext;
  return current()->broken;
}

}  // namespace fake

// --- for tests ------------------------------------------------------------------------------------------------------

// Its presence tells CudaDriver that kernels are run here, from their names alone.
FAKE_API const int ringreduce_runs_kernels_on_the_host = 1;

FAKE_API void fake_cuda_fail(const char* text) {
  const std::lock_guard lock(fake::state().mutex);
  fake::state().demand(text);
}

// No demands, and contexts are well again.
FAKE_API void fake_cuda_reset() {
  const std::lock_guard lock(fake::state().mutex);
  fake::state().demands.clear();
  for (auto& context : fake::state().contexts) context.broken = rr::cu::kSuccess;
}

// How often it has been called in this process.
FAKE_API uint64_t fake_cuda_calls(const char* call) {
  const std::lock_guard lock(fake::state().mutex);
  return fake::state().calls[fake::plain(call)];
}
