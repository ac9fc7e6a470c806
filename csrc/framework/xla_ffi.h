// The part of XLA's FFI C API that our handlers touch (major version 0, as since jax 0.4.31), declared by hand: nothing
// is compiled against jaxlib, and one build serves all of its versions. Layouts are XLA's; the names are ours.
//
// Every struct begins with its size as its maker knows it: whoever reads a field that was added later looks there
// first. tests/python/jax/test_jax_abi.py compares this file with jaxlib's own header.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rr::xla {

constexpr int kMajor = 0;  // what this file describes; a runtime of another major version is told so and refuses us
constexpr int kMinor = 1;  // the first that asks; all that is declared here was there already

struct Error;             // owned by whoever receives it
struct ExecutionContext;  // of one run
struct InternalApi;

enum ExtensionType : int { kMetadataExtension = 1 };

struct Extension {
  size_t struct_size;
  ExtensionType type;
  Extension* next;
};

struct ApiVersion {
  size_t struct_size;
  Extension* extension_start;
  int major_version;
  int minor_version;
};

enum ErrorCode : int {
  kCancelled = 1,
  kUnknown = 2,
  kInvalidArgument = 3,
  kDeadlineExceeded = 4,
  kFailedPrecondition = 9,
  kAborted = 10,
  kUnimplemented = 12,
  kInternal = 13,
  kUnavailable = 14,
};

struct ErrorCreateArgs {
  size_t struct_size;
  Extension* extension_start;
  const char* message;
  ErrorCode errc;
};

enum DataType : int {
  kPred = 1,
  kS8 = 2,
  kS16 = 3,
  kS32 = 4,
  kS64 = 5,
  kU8 = 6,
  kU16 = 7,
  kU32 = 8,
  kU64 = 9,
  kF16 = 10,
  kF32 = 11,
  kF64 = 12,
  kBF16 = 16,
  kToken = 17,
};

struct Buffer {
  size_t struct_size;
  Extension* extension_start;
  DataType dtype;
  void* data;
  int64_t rank;
  int64_t* dims;
};

enum ArgType : int { kArgBuffer = 1 };
enum RetType : int { kRetBuffer = 1 };
enum AttrType : int { kAttrScalar = 3, kAttrString = 4 };

struct ByteSpan {
  const char* ptr;
  size_t len;
};

struct Scalar {
  DataType dtype;
  void* value;
};

enum ExecutionStage : int { kExecute = 3 };

struct Args {
  size_t struct_size;
  Extension* extension_start;
  int64_t size;
  ArgType* types;
  void** args;
};

struct Rets {
  size_t struct_size;
  Extension* extension_start;
  int64_t size;
  RetType* types;
  void** rets;
};

struct Attrs {
  size_t struct_size;
  Extension* extension_start;
  int64_t size;
  AttrType* types;
  ByteSpan** names;
  void** attrs;
};

struct Api {
  size_t struct_size;
  Extension* extension_start;
  ApiVersion api_version;
  const InternalApi* internal_api;
  Error* (*error_create)(ErrorCreateArgs* args);
  // more functions follow, which we do not call
};

struct CallFrame {
  size_t struct_size;
  Extension* extension_start;
  const Api* api;
  ExecutionContext* ctx;
  ExecutionStage stage;
  Args args;
  Rets rets;
  Attrs attrs;
  // more fields follow, which we do not read
};

// The runtime's question, before it registers a handler, which version that was written for.
struct Metadata {
  size_t struct_size;
  ApiVersion api_version;
  uint32_t traits;
  // a type's id follows, of handlers with state; 0, as the runtime has set it, says that there is none
};

struct MetadataExtension {
  Extension extension_base;
  Metadata* metadata;
};

using Handler = Error*(CallFrame* call_frame);

}  // namespace rr::xla
