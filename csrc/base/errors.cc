#include "base/errors.h"

#include <cerrno>
#include <cstring>
#include <typeinfo>

namespace rr {

ErrorCode code_of(const std::exception& error) {
#define RR_MATCH(name, base) \
  if (typeid(error) == typeid(name)) return ErrorCode::k##name;
  RR_ERRORS(RR_MATCH)
#undef RR_MATCH
  return ErrorCode::kError;
}

const char* public_name(ErrorCode code) {
  if (code == ErrorCode::kInternalError) return "HorovodInternalError";  // the one that keeps Horovod's name
  switch (code) {
#define RR_CASE(name, base) \
  case ErrorCode::k##name:  \
    return #name;
    RR_ERRORS(RR_CASE)
#undef RR_CASE
    case ErrorCode::kError:
    case ErrorCode::kNone:
      break;
  }
  return "Error";
}

std::string with_errno(const std::string& what) {
  const int code = errno;
  return what + ": " + std::strerror(code) + " (errno " + std::to_string(code) + ")";
}

}  // namespace rr
