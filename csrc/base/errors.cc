#include "base/errors.h"

#include <cerrno>
#include <cstring>

namespace rr {

std::string with_errno(const std::string& what) {
  const int code = errno;
  return what + ": " + std::strerror(code) + " (errno " + std::to_string(code) + ")";
}

}  // namespace rr
