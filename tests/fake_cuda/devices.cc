// Devices, contexts, errors.

#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "memory.h"

using namespace rr;
using fake::Needs;
using fake::Result;

namespace {

bool is_device(int ordinal) { return ordinal >= 0 && ordinal < fake::device_count(); }

}  // namespace

FAKE_API Result cuGetErrorName(Result error, const char** text) {
  switch (error) {
#define RR_CASE(ours, theirs, value) \
  case value:                        \
    *text = #theirs;                 \
    return cu::kSuccess;
    RR_CUDA_RESULTS(RR_CASE)
#undef RR_CASE
    default:
      return cu::kInvalidValue;
  }
}

FAKE_API Result cuGetErrorString(Result error, const char** text) {
  const char* name = nullptr;
  if (cuGetErrorName(error, &name) != cu::kSuccess) return cu::kInvalidValue;
  *text = error == cu::kOutOfMemory      ? "out of memory"
          : error == cu::kIllegalAddress ? "an illegal memory access was encountered"
                                         : "as the fake driver was told to say";
  return cu::kSuccess;
}

FAKE_API Result cuInit(unsigned) {
  FAKE_ENTER(__func__, Needs::kNothing);
  if (fake::device_count() == 0) return cu::kNoDevice;
  fake::initialize();
  return fake::is_initialized() ? cu::kSuccess : cu::kNotInitialized;
}

FAKE_API Result cuDriverGetVersion(int* version) {
  FAKE_ENTER(__func__, Needs::kNothing);
  *version = 13000;
  return cu::kSuccess;
}

FAKE_API Result cuDeviceGetCount(int* count) {
  FAKE_ENTER(__func__, Needs::kInit);
  *count = fake::device_count();
  return cu::kSuccess;
}

FAKE_API Result cuDeviceGet(cu::DeviceOrdinal* device, int ordinal) {
  FAKE_ENTER(__func__, Needs::kInit);
  if (!is_device(ordinal)) return cu::kInvalidDevice;
  *device = ordinal;
  return cu::kSuccess;
}

FAKE_API Result cuDeviceGetName(char* text, int nbytes, cu::DeviceOrdinal) {
  FAKE_ENTER(__func__, Needs::kInit);
  std::snprintf(text, static_cast<size_t>(nbytes), "Fake GPU");
  return cu::kSuccess;
}

// The same for all processes: ranks tell by it whether they share a GPU.
FAKE_API Result cuDeviceGetUuid_v2(cu::Uuid* uuid, cu::DeviceOrdinal device) {
  FAKE_ENTER(__func__, Needs::kInit);
  if (!is_device(device)) return cu::kInvalidDevice;
  std::memset(uuid->bytes, 0x60 + device, sizeof uuid->bytes);
  return cu::kSuccess;
}

FAKE_API Result cuDeviceGetAttribute(int* value, int attribute, cu::DeviceOrdinal) {
  FAKE_ENTER(__func__, Needs::kInit);
  switch (static_cast<unsigned>(attribute)) {
    case cu::kAttributeMultiprocessorCount:
      *value = 4;
      return cu::kSuccess;
    case cu::kAttributeComputeMajor:
      *value = 9;
      return cu::kSuccess;
    case cu::kAttributeComputeMinor:
      *value = 0;
      return cu::kSuccess;
    case cu::kAttributeUnifiedAddressing:
    case cu::kAttributeHostPointerForRegistered:
      *value = 1;
      return cu::kSuccess;
    default:
      return cu::kInvalidValue;
  }
}

FAKE_API Result cuDeviceCanAccessPeer(int* can, cu::DeviceOrdinal one, cu::DeviceOrdinal other) {
  FAKE_ENTER(__func__, Needs::kInit);
  if (!is_device(one) || !is_device(other)) return cu::kInvalidDevice;
  *can = one != other && fake::peers_allowed() ? 1 : 0;
  return cu::kSuccess;
}

FAKE_API Result cuDevicePrimaryCtxRetain(cu::Context* context, cu::DeviceOrdinal device) {
  FAKE_ENTER(__func__, Needs::kInit);
  if (!is_device(device)) return cu::kInvalidDevice;
  *context = fake::handle_of(&fake::context_of(device));
  return cu::kSuccess;
}

FAKE_API Result cuDevicePrimaryCtxRelease_v2(cu::DeviceOrdinal device) {
  FAKE_ENTER(__func__, Needs::kInit);
  return is_device(device) ? cu::kSuccess : cu::kInvalidDevice;
}

FAKE_API Result cuDevicePrimaryCtxGetState(cu::DeviceOrdinal device, unsigned* flags, int* is_active) {
  FAKE_ENTER(__func__, Needs::kInit);
  if (!is_device(device)) return cu::kInvalidDevice;
  *flags = 0;
  *is_active = 1;
  return cu::kSuccess;
}

FAKE_API Result cuCtxGetCurrent(cu::Context* context) {
  FAKE_ENTER(__func__, Needs::kInit);
  *context = fake::handle_of(fake::current());
  return cu::kSuccess;
}

FAKE_API Result cuCtxSetCurrent(cu::Context context) {
  FAKE_ENTER(__func__, Needs::kInit);
  if (context != nullptr && fake::find(context) == nullptr) return cu::kInvalidContext;
  fake::pop();
  if (context != nullptr) fake::push(fake::find(context));
  return cu::kSuccess;
}

FAKE_API Result cuCtxPushCurrent_v2(cu::Context context) {
  FAKE_ENTER(__func__, Needs::kInit);
  if (fake::find(context) == nullptr) return cu::kInvalidContext;
  fake::push(fake::find(context));
  return cu::kSuccess;
}

FAKE_API Result cuCtxPopCurrent_v2(cu::Context* context) {
  FAKE_ENTER(__func__, Needs::kInit);
  fake::Context* const top = fake::pop();
  if (context != nullptr) *context = fake::handle_of(top);
  return top != nullptr ? cu::kSuccess : cu::kInvalidContext;
}

FAKE_API Result cuCtxEnablePeerAccess(cu::Context peer, unsigned) {
  FAKE_ENTER(__func__);
  if (fake::find(peer) == nullptr) return cu::kInvalidContext;
  return fake::peers_allowed() ? cu::kSuccess : cu::kPeerAccessUnsupported;
}

FAKE_API Result cuCtxSynchronize() {
  FAKE_ENTER(__func__);
  FAKE_NOT_IN_CAPTURE();
  fake::synchronize(*fake::current(), __func__);
  return fake::current()->broken;
}

FAKE_API Result cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  FAKE_ENTER(__func__);
  *least = 0;
  *greatest = -5;
  return cu::kSuccess;
}
