// The error classes of the core, each written once in RR_ERRORS and mapped 1:1 to ringreduce.errors by
// python/module.cc. A message says where (rank r/n), what (operation and its number), who (peer) and, where there is
// one, what to do.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace rr {

// X(class, base)
#define RR_ERRORS(X)                    \
  X(InternalError, Error)               \
  X(PeerLostError, InternalError)       \
  X(TimeoutError, InternalError)        \
  X(MismatchError, InternalError)       \
  X(ShutdownError, InternalError)       \
  X(NotInitializedError, InternalError) \
  X(InvalidArgumentError, Error)        \
  X(UnavailableError, Error)

class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

#define RR_DECLARE(name, base) \
  class name : public base {   \
   public:                     \
    using base::base;          \
  };
RR_ERRORS(RR_DECLARE)
#undef RR_DECLARE

// The classes as numbers, for callers that exceptions cannot reach; 0 = no error.
enum class ErrorCode : int32_t {
  kNone,
  kError,
#define RR_ENUMERATOR(name, base) k##name,
  RR_ERRORS(RR_ENUMERATOR)
#undef RR_ENUMERATOR
};

// kError for an exception that is none of ours.
ErrorCode code_of(const std::exception& error);
// The class as ringreduce.errors calls it: "PeerLostError", and "HorovodInternalError" for InternalError.
const char* public_name(ErrorCode code);

// "what: No such file or directory (errno 2)"; reads errno first thing.
std::string with_errno(const std::string& what);

// Throws Error(with_errno(what)) when a system call returned a negative value.
inline long check_sys(long returned, const char* what) {
  if (returned < 0) throw Error(with_errno(what));
  return returned;
}

}  // namespace rr
