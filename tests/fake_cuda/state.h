// What a call of the fake driver finds: options, devices and their contexts, errors on demand.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/never_destroyed.h"
#include "gpu/cuda/driver.h"
#include "streams.h"

#define FAKE_API extern "C" __attribute__((visibility("default")))

namespace fake {

// A number from the environment, read once.
uint64_t option(const char* name, uint64_t fallback);

int device_count();  // FAKE_CUDA_DEVICES, default 1
Context& context_of(int ordinal);
Context* current();
void push(Context* context);
Context* pop();
rr::cu::Context handle_of(Context* context);
Context* find(rr::cu::Context handle);  // null: none of ours
bool is_initialized();
void initialize();

std::shared_ptr<Stream> stream_of(rr::cu::Stream handle);  // of the current context; null: none of ours
Result issue(rr::cu::Stream handle, Task task);

// Modules, functions and graphs are never freed: tests make few of them.
template <class Object>
Object* kept(Object object) {
  static std::mutex mutex;
  static auto& all = rr::never_destroyed<std::vector<std::unique_ptr<Object>>>();
  const std::lock_guard lock(mutex);
  all.push_back(std::make_unique<Object>(std::move(object)));
  return all.back().get();
}

// What a call begins with: counts it, gives the error that FAKE_CUDA_FAIL wants of it, refuses calls from host
// functions, from forked children and before cuInit, and repeats a sticky error of the current context.
enum class Needs { kNothing, kInit, kContext };
Result enter(const char* call, Needs needs = Needs::kContext);
// The error that FAKE_CUDA_FAIL wants of the next one that is called so; kSuccess else.
Result demanded(const char* call);

}  // namespace fake

#define FAKE_ENTER(...) \
  if (const rr::cu::Result demanded = fake::enter(__VA_ARGS__); demanded != rr::cu::kSuccess) return demanded
#define FAKE_NOT_IN_CAPTURE() \
  if (const rr::cu::Result forbidden = fake::forbidden_in_capture(); forbidden != rr::cu::kSuccess) return forbidden
