// Element types: the enum, sizes and names come from one table. The order is the dtype code used by the bindings.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rr {

// X(enumerator, name, bytes)
#define RR_DTYPES(X)          \
  X(kFloat16, "float16", 2)   \
  X(kBFloat16, "bfloat16", 2) \
  X(kFloat32, "float32", 4)   \
  X(kFloat64, "float64", 8)   \
  X(kInt8, "int8", 1)         \
  X(kInt16, "int16", 2)       \
  X(kInt32, "int32", 4)       \
  X(kInt64, "int64", 8)       \
  X(kUInt8, "uint8", 1)       \
  X(kUInt16, "uint16", 2)     \
  X(kUInt32, "uint32", 4)     \
  X(kUInt64, "uint64", 8)     \
  X(kBool, "bool", 1)

enum class DType : uint8_t {
#define RR_ENUMERATOR(id, name, nbytes) id,
  RR_DTYPES(RR_ENUMERATOR)
#undef RR_ENUMERATOR
};

inline constexpr int kDTypeCount = 0
#define RR_COUNT(id, name, nbytes) +1
    RR_DTYPES(RR_COUNT)
#undef RR_COUNT
    ;

// Both answer for every enumerator; a code from outside is checked by dtype_from_code first.
constexpr size_t itemsize(DType dtype) {
  switch (dtype) {
#define RR_CASE(id, name, nbytes) \
  case DType::id:                 \
    return nbytes;
    RR_DTYPES(RR_CASE)
#undef RR_CASE
  }
  return 0;
}

constexpr const char* name(DType dtype) {
  switch (dtype) {
#define RR_CASE(id, text, nbytes) \
  case DType::id:                 \
    return text;
    RR_DTYPES(RR_CASE)
#undef RR_CASE
  }
  return "?";
}

// Throws InvalidArgumentError when code is none of the table's.
DType dtype_from_code(int code);

}  // namespace rr
