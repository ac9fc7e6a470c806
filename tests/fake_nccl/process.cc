#include "process.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

namespace fake_nccl {

using rr::NcclResult;

Process& process() {
  static Process value;
  return value;
}

NcclResult misuse(const std::string& text) {
  std::fprintf(stderr, "fake NCCL: %s\n", text.c_str());
  const std::lock_guard lock(process().mutex);
  ++process().counts.misuses;
  return NcclResult::kInvalidUsage;
}

void* memory(const void* address) {
  if (process().has_hooks) return process().hooks.memory(address);
  return const_cast<void*>(address);
}

void enqueue(void* device, void* stream, bool (*action)(void*), void (*free)(void*), void* argument) {
  if (process().has_hooks) return process().hooks.enqueue(device, stream, action, free, argument);
  struct Task {
    bool (*action)(void*);
    void (*free)(void*);
    void* argument;
  };
  auto run = [](void* data) {
    const std::unique_ptr<Task> task(static_cast<Task*>(data));
    while (!task->action(task->argument)) ::usleep(50);
    task->free(task->argument);
  };
  using Launch = int (*)(void*, void (*)(void*), void*);
  static const Launch launch = [] {
    const char* path = std::getenv("RINGREDUCE_CUDA_LIBRARY");
    void* library = ::dlopen(path == nullptr ? "libcuda.so.1" : path, RTLD_NOW | RTLD_LOCAL);
    return library == nullptr ? nullptr : reinterpret_cast<Launch>(::dlsym(library, "cuLaunchHostFunc"));
  }();
  auto task = std::make_unique<Task>(Task{action, free, argument});
  if (launch == nullptr || launch(stream, run, task.get()) != 0) {
    free(argument);
    misuse("no stream to launch in");
    return;
  }
  task.release();  // run has it
}

void read_failures() {
  const char* text = std::getenv("FAKE_NCCL_FAIL");
  Failure failure;
  if (text == nullptr || std::sscanf(text, "%d:%d:%d", &failure.rank, &failure.operation, &failure.code) != 3) return;
  const std::lock_guard lock(process().mutex);
  process().failures = {failure};
}

NcclResult failure_of(int rank, int executed) {
  const std::lock_guard lock(process().mutex);
  for (const Failure& failure : process().failures) {
    const bool has_come = failure.operation >= 0 && executed >= failure.operation;
    if (failure.rank == rank && has_come) return static_cast<NcclResult>(failure.code);
  }
  return NcclResult::kSuccess;
}

NcclResult failure_of_calls(int rank) {
  const std::lock_guard lock(process().mutex);
  for (const Failure& failure : process().failures) {
    if (failure.rank == rank && failure.operation < 0) return static_cast<NcclResult>(failure.code);
  }
  return NcclResult::kSuccess;
}

}  // namespace fake_nccl

using fake_nccl::process;

EXPORT void fake_nccl_hooks(const FakeNcclHooks* hooks) {
  const std::lock_guard lock(process().mutex);
  process().has_hooks = hooks != nullptr;
  if (hooks != nullptr) process().hooks = *hooks;
  process().failures.clear();
  process().counts = {};
}

EXPORT void fake_nccl_fail(int rank, int operation, int code) {
  const std::lock_guard lock(process().mutex);
  process().failures.push_back({rank, operation, code});
}

EXPORT void fake_nccl_block_abort(bool blocks) { process().abort_blocks.store(blocks); }

EXPORT FakeNcclCounts fake_nccl_counts() {
  const std::lock_guard lock(process().mutex);
  return process().counts;
}
