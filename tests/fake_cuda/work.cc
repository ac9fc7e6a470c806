// Streams, events, copies, kernels.

#include <unistd.h>

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "gpu/cuda/launch/tables.h"
#include "gpu/cuda_host.h"
#include "memory.h"

using namespace rr;
using fake::issue;
using fake::kept;
using fake::Result;
using fake::stream_of;

namespace {

struct FakeFunction {
  std::string name;
};

struct Events {
  std::mutex mutex;
  std::map<const fake::Event*, std::shared_ptr<fake::Event>> all;
};

Events& events() {
  static auto& instance = rr::never_destroyed<Events>();
  return instance;
}

std::shared_ptr<fake::Event> event_of(cu::Event handle) {
  const std::lock_guard lock(events().mutex);
  const auto found = events().all.find(reinterpret_cast<const fake::Event*>(handle));
  return found == events().all.end() ? nullptr : found->second;
}

Result finished(const std::shared_ptr<fake::Stream>& stream, const char* call) {
  if (stream->capture() != nullptr) {
    stream->capture()->is_invalid = true;
    return cu::kStreamCaptureUnsupported;
  }
  if (!stream->await(stream->issued(), 60)) {
    std::fprintf(stderr, "fake CUDA: %s has waited 60 s\n", call);
    std::abort();
  }
  return stream->context().broken;
}

}  // namespace

// --- streams --------------------------------------------------------------------------------------------------------

FAKE_API Result cuStreamCreateWithPriority(cu::Stream* handle, unsigned flags, int) {
  FAKE_ENTER(__func__);
  *handle = fake::handle_of(*fake::new_stream(*fake::current(), flags != cu::kStreamNonBlocking));
  return cu::kSuccess;
}

FAKE_API Result cuStreamDestroy_v2(cu::Stream handle) {
  FAKE_ENTER(__func__);
  const auto stream = stream_of(handle);
  if (stream == nullptr) return cu::kInvalidHandle;
  stream->close();
  fake::forget(*stream);
  return cu::kSuccess;
}

FAKE_API Result cuStreamSynchronize(cu::Stream handle) {
  FAKE_ENTER(__func__);
  FAKE_NOT_IN_CAPTURE();
  const auto stream = stream_of(handle);
  return stream != nullptr ? finished(stream, __func__) : cu::kInvalidHandle;
}

FAKE_API Result cuStreamQuery(cu::Stream handle) {
  FAKE_ENTER(__func__);
  FAKE_NOT_IN_CAPTURE();
  const auto stream = stream_of(handle);
  if (stream == nullptr) return cu::kInvalidHandle;
  return stream->has_done(stream->issued()) ? cu::kSuccess : cu::kNotReady;
}

FAKE_API Result cuStreamWaitValue32_v2(cu::Stream handle, cu::DevicePtr address, uint32_t value, unsigned flags) {
  FAKE_ENTER(__func__);
  if (flags != 0 || address % 4 != 0) return cu::kInvalidValue;
  if (fake::reach(address, 4) == fake::Reach::kPageable) return cu::kInvalidValue;
  return issue(handle, fake::wait_value(*fake::current(), reinterpret_cast<const uint32_t*>(address), value));
}

FAKE_API Result cuStreamWriteValue32_v2(cu::Stream handle, cu::DevicePtr address, uint32_t value, unsigned) {
  FAKE_ENTER(__func__);
  return issue(handle,
               [address, value] { __atomic_store_n(reinterpret_cast<uint32_t*>(address), value, __ATOMIC_RELEASE); });
}

// What the fake NCCL puts on a stream.
FAKE_API Result cuLaunchHostFunc(cu::Stream handle, void (*function)(void*), void* argument) {
  FAKE_ENTER(__func__);
  return issue(handle, [function, argument] { function(argument); });
}

// For tests: the stream does nothing for so long.
FAKE_API Result fake_cuda_delay(cu::Stream handle, unsigned delay_us) {
  return issue(handle, [delay_us] { ::usleep(delay_us); });
}

// --- events ---------------------------------------------------------------------------------------------------------

FAKE_API Result cuEventCreate(cu::Event* handle, unsigned) {
  FAKE_ENTER(__func__);
  auto event = std::make_shared<fake::Event>();
  *handle = reinterpret_cast<cu::Event>(event.get());
  const std::lock_guard lock(events().mutex);
  events().all[event.get()] = std::move(event);
  return cu::kSuccess;
}

FAKE_API Result cuEventDestroy_v2(cu::Event handle) {
  FAKE_ENTER(__func__);
  const std::lock_guard lock(events().mutex);
  return events().all.erase(reinterpret_cast<const fake::Event*>(handle)) != 0 ? cu::kSuccess : cu::kInvalidHandle;
}

FAKE_API Result cuEventRecord(cu::Event handle, cu::Stream of) {
  FAKE_ENTER(__func__);
  const auto event = event_of(handle);
  const auto stream = stream_of(of);
  if (event == nullptr || stream == nullptr) return cu::kInvalidHandle;
  if (stream->capture() == nullptr) {
    // In the legacy stream it waits for the others, as any work there.
    if (const Result result = fake::issue(stream, [] {}); result != cu::kSuccess) return result;
  }
  const std::lock_guard lock(event->mutex);
  event->stream = stream;
  event->number = stream->issued();
  event->capture = stream->capture();
  return cu::kSuccess;
}

FAKE_API Result cuEventQuery(cu::Event handle) {
  FAKE_ENTER(__func__);
  FAKE_NOT_IN_CAPTURE();
  const auto event = event_of(handle);
  if (event == nullptr) return cu::kInvalidHandle;
  const std::lock_guard lock(event->mutex);
  if (event->capture != nullptr) return cu::kCapturedEvent;
  const bool done = event->stream == nullptr || event->stream->has_done(event->number);
  const Result broken = fake::current()->broken;  // it may have come about since the call began
  return broken != cu::kSuccess ? broken : done ? cu::kSuccess : cu::kNotReady;
}

FAKE_API Result cuEventSynchronize(cu::Event handle) {
  FAKE_ENTER(__func__);
  FAKE_NOT_IN_CAPTURE();
  const auto event = event_of(handle);
  if (event == nullptr) return cu::kInvalidHandle;
  const std::lock_guard lock(event->mutex);
  if (event->stream == nullptr) return cu::kSuccess;
  return event->stream->await(event->number, 60) ? event->stream->context().broken.load() : cu::kUnknown;
}

FAKE_API Result cuStreamWaitEvent(cu::Stream handle, cu::Event of, unsigned) {
  FAKE_ENTER(__func__);
  const auto stream = stream_of(handle);
  const auto event = event_of(of);
  if (event == nullptr || stream == nullptr) return cu::kInvalidHandle;
  const std::lock_guard lock(event->mutex);
  if (event->capture != nullptr) {  // the stream joins the capture
    if (stream->capture() == nullptr) stream->set_capture(event->capture);
    return cu::kSuccess;
  }
  if (event->stream == nullptr || event->stream == stream) return cu::kSuccess;
  if (stream->capture() != nullptr) return cu::kStreamCaptureIsolation;
  return fake::issue(stream, [other = event->stream, number = event->number] { other->await_in_task(number); });
}

// --- copies and kernels ---------------------------------------------------------------------------------------------

FAKE_API Result cuMemcpyAsync(cu::DevicePtr dst, cu::DevicePtr src, size_t nbytes, cu::Stream handle) {
  FAKE_ENTER(__func__);
  const auto stream = stream_of(handle);
  if (stream == nullptr) return cu::kInvalidHandle;
  if (nbytes == 0) return cu::kSuccess;
  const auto to = fake::reach(dst, nbytes);
  const auto from = fake::reach(src, nbytes);
  if (to == fake::Reach::kBeyond || from == fake::Reach::kBeyond) return cu::kInvalidValue;
  const bool is_pageable = to == fake::Reach::kPageable || from == fake::Reach::kPageable;
  const Result result = fake::issue(stream, [dst, src, nbytes] {
    std::memmove(reinterpret_cast<void*>(dst), reinterpret_cast<const void*>(src), nbytes);
  });
  // With pageable memory the driver copies before it returns, or nearly.
  if (result == cu::kSuccess && is_pageable) return finished(stream, __func__);
  return result;
}

FAKE_API Result cuMemsetD8Async(cu::DevicePtr dst, unsigned char value, size_t nbytes, cu::Stream handle) {
  FAKE_ENTER(__func__);
  return issue(handle, [dst, value, nbytes] { std::memset(reinterpret_cast<void*>(dst), value, nbytes); });
}

FAKE_API Result cuModuleLoadData(cu::Module* module, const void* image) {
  FAKE_ENTER(__func__);
  FAKE_NOT_IN_CAPTURE();
  if (image == nullptr) return cu::kInvalidImage;
  *module = reinterpret_cast<cu::Module>(kept(FakeFunction{"module"}));
  return cu::kSuccess;
}

FAKE_API Result cuModuleUnload(cu::Module) {
  FAKE_ENTER(__func__);
  return cu::kSuccess;
}

FAKE_API Result cuModuleGetFunction(cu::Function* function, cu::Module, const char* name) {
  FAKE_ENTER(__func__);
  for (const char* known : kernel_names()) {
    if (std::strcmp(known, name) != 0) continue;
    *function = reinterpret_cast<cu::Function>(kept(FakeFunction{name}));
    return cu::kSuccess;
  }
  return cu::kNotFound;
}

FAKE_API Result cuFuncLoad(cu::Function) {
  FAKE_ENTER(__func__);
  return cu::kSuccess;
}

FAKE_API Result cuLaunchKernel(cu::Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                               unsigned block_x, unsigned block_y, unsigned block_z, unsigned, cu::Stream handle,
                               void** parameters, void**) {
  FAKE_ENTER(__func__);
  if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x == 0 || block_x > 1024 || block_y != 1 || block_z != 1) {
    return cu::kInvalidValue;
  }
  auto& context = *fake::current();
  const auto& kernel = *reinterpret_cast<const FakeFunction*>(function);
  const auto argument = std::make_shared<LaunchArgument>(*static_cast<const LaunchArgument*>(parameters[0]));
  return issue(handle, [&context, &kernel, argument, grid_x, block_x] {
    const Result wanted = fake::demanded("kernel");
    if (wanted != cu::kSuccess) {
      context.broken = wanted;
      return;
    }
    void* parameter = argument.get();
    if (!run_on_host(kernel.name.c_str(), grid_x, block_x, &parameter)) context.broken = cu::kIllegalInstruction;
  });
}
