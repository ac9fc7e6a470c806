// What csrc/gpu/nccl/nccl.h declares, against nccl.h: this file is compiled where nccl.h is installed.
#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "doctest/doctest.h"
#include "gpu/nccl/nccl.h"

namespace rr {
namespace {

template <class T>
struct Passed {  // what the calling convention sees
  static constexpr bool is_pointer = std::is_pointer_v<T>;
  static constexpr bool is_class = std::is_class_v<T>;
  static constexpr size_t nbytes = sizeof(T);
};
template <class Ours, class Theirs>
constexpr bool passed_alike() {
  using A = Passed<Ours>;
  using B = Passed<Theirs>;
  return A::is_pointer == B::is_pointer && A::is_class == B::is_class && A::nbytes == B::nbytes;
}

template <class Ours, class Theirs>
struct Alike : std::false_type {};
template <class... Ours, class... Theirs>
struct Alike<NcclResult (*)(Ours...), ncclResult_t (*)(Theirs...)>
    : std::bool_constant<sizeof...(Ours) == sizeof...(Theirs) && (passed_alike<Ours, Theirs>() && ...)> {};

#define RR_COMPARE(name, parameters) \
  static_assert(Alike<decltype(NcclLibrary::name), decltype(&::nccl##name)>::value, "nccl" #name);
RR_NCCL_CALLS(RR_COMPARE)
#undef RR_COMPARE
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
static_assert(Alike<decltype(NcclLibrary::CommShrink), decltype(&::ncclCommShrink)>::value);
static_assert(NCCL_SHRINK_DEFAULT == 0);
#endif

static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId) && sizeof(NcclResult) == sizeof(ncclResult_t));
static_assert(static_cast<int>(NcclResult::kSuccess) == ncclSuccess);
static_assert(static_cast<int>(NcclResult::kSystemError) == ncclSystemError);
static_assert(static_cast<int>(NcclResult::kInvalidUsage) == ncclInvalidUsage);
static_assert(static_cast<int>(NcclResult::kRemoteError) == ncclRemoteError);
static_assert(static_cast<int>(NcclResult::kInProgress) == ncclInProgress);
static_assert(static_cast<int>(NcclType::kInt8) == ncclInt8);
static_assert(static_cast<int>(NcclType::kUInt8) == ncclUint8);
static_assert(static_cast<int>(NcclType::kInt32) == ncclInt32);
static_assert(static_cast<int>(NcclType::kUInt32) == ncclUint32);
static_assert(static_cast<int>(NcclType::kInt64) == ncclInt64);
static_assert(static_cast<int>(NcclType::kUInt64) == ncclUint64);
static_assert(static_cast<int>(NcclType::kFloat16) == ncclFloat16);
static_assert(static_cast<int>(NcclType::kFloat32) == ncclFloat32);
static_assert(static_cast<int>(NcclType::kFloat64) == ncclFloat64);
static_assert(static_cast<int>(NcclType::kBFloat16) == ncclBfloat16);
static_assert(static_cast<int>(NcclOp::kSum) == ncclSum);
static_assert(static_cast<int>(NcclOp::kProduct) == ncclProd);
static_assert(static_cast<int>(NcclOp::kMax) == ncclMax);
static_assert(static_cast<int>(NcclOp::kMin) == ncclMin);
static_assert(static_cast<int>(NcclOp::kAverage) == ncclAvg);
static_assert(static_cast<int>(NcclScalar::kHostImmediate) == ncclScalarHostImmediate);
static_assert(offsetof(NcclConfig, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(NcclConfig, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(NcclConfig, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(NCCL_VERSION(2, 14, 0) == 21400);

TEST_CASE("nccl abi: a signature that differs is told apart") {
  CHECK_FALSE(Alike<NcclResult (*)(int), ncclResult_t (*)(size_t)>::value);
  CHECK_FALSE(Alike<NcclResult (*)(NcclUniqueId), ncclResult_t (*)(ncclUniqueId*)>::value);
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  CHECK(theirs.magic == NcclConfig().magic);
}

}  // namespace
}  // namespace rr
