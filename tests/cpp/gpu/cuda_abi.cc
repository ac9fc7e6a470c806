// What csrc/gpu/cuda/driver.h declares, against cuda.h: this file is compiled where cuda.h is installed.
#include <cuda.h>

#include <cstddef>
#include <type_traits>

#include "doctest/doctest.h"
#include "gpu/cuda/driver.h"

namespace rr {
namespace {

// What the calling convention sees of a type: a pointer, or a number of some size, or a struct of some size.
template <class Ours, class Theirs>
constexpr bool passed_alike() {
  if constexpr (std::is_pointer_v<Ours> || std::is_pointer_v<Theirs>) {
    if constexpr (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) {
      using A = std::remove_cv_t<std::remove_pointer_t<Ours>>;
      using B = std::remove_cv_t<std::remove_pointer_t<Theirs>>;
      if constexpr (std::is_function_v<A> || std::is_function_v<B>) {
        return std::is_same_v<A, B>;
      } else if constexpr (std::is_void_v<A> || std::is_void_v<B>) {
        return std::is_same_v<A, B>;
      } else if constexpr (std::is_class_v<A> && std::is_class_v<B>) {
        return true;  // sizes and offsets are compared below
      } else {
        return passed_alike<A, B>();
      }
    } else {
      return false;
    }
  } else if constexpr (std::is_class_v<Ours> != std::is_class_v<Theirs>) {
    return false;
  } else {
    return sizeof(Ours) == sizeof(Theirs);
  }
}

template <class Ours, class Theirs>
struct Alike : std::false_type {};

template <class... Ours, class... Theirs>
struct Alike<cu::Result (*)(Ours...), CUresult (*)(Theirs...)>
    : std::bool_constant<sizeof...(Ours) == sizeof...(Theirs)> {
  static_assert(sizeof...(Ours) == sizeof...(Theirs));
  static_assert((passed_alike<Ours, Theirs>() && ...));
};

#define RR_COMPARE(member, symbol, ...) \
  static_assert(Alike<decltype(CudaDriver::member), decltype(&::symbol)>::value, #symbol);
RR_CUDA_CALLS(RR_COMPARE)
#if CUDA_VERSION >= 12040
RR_CUDA_OPTIONAL_CALLS(RR_COMPARE)
#endif
#undef RR_COMPARE

#define RR_COMPARE(ours, theirs, value) static_assert(static_cast<unsigned>(theirs) == value, #theirs);
RR_CUDA_RESULTS(RR_COMPARE)
RR_CUDA_CONSTANTS(RR_COMPARE)
#undef RR_COMPARE

static_assert(sizeof(cu::Uuid) == sizeof(::CUuuid));
static_assert(sizeof(cu::IpcMemHandle) == sizeof(::CUipcMemHandle));
static_assert(sizeof(cu::MemLocation) == sizeof(::CUmemLocation));
static_assert(offsetof(cu::MemLocation, id) == offsetof(::CUmemLocation, id));
static_assert(sizeof(cu::MemAccessDesc) == sizeof(::CUmemAccessDesc));
static_assert(offsetof(cu::MemAccessDesc, flags) == offsetof(::CUmemAccessDesc, flags));
static_assert(sizeof(cu::MemAllocationProp) == sizeof(::CUmemAllocationProp));
static_assert(offsetof(cu::MemAllocationProp, requested_handle_types) ==
              offsetof(::CUmemAllocationProp, requestedHandleTypes));
static_assert(offsetof(cu::MemAllocationProp, location) == offsetof(::CUmemAllocationProp, location));
static_assert(offsetof(cu::MemAllocationProp, win32_handle_meta_data) ==
              offsetof(::CUmemAllocationProp, win32HandleMetaData));
static_assert(offsetof(cu::MemAllocationProp, flags) == offsetof(::CUmemAllocationProp, allocFlags));

TEST_CASE("cuda abi: a signature that differs is told apart") {
  CHECK_FALSE(passed_alike<int, size_t>());
  CHECK_FALSE(passed_alike<int*, size_t*>());
  CHECK_FALSE(passed_alike<cu::DevicePtr, void*>());
  CHECK_FALSE(passed_alike<cu::DevicePtr*, ::CUstream>());
  CHECK(passed_alike<cu::DevicePtr*, ::CUdeviceptr*>());
}

}  // namespace
}  // namespace rr
