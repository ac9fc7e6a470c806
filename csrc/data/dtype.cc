#include "data/dtype.h"

#include <string>

#include "base/errors.h"

namespace rr {

DType dtype_from_code(int code) {
  if (code < 0 || code >= kDTypeCount) {
    throw InvalidArgumentError("dtype code " + std::to_string(code) + " is unknown; the codes are 0 (" +
                               name(DType{0}) + ") to " + std::to_string(kDTypeCount - 1) + " (" +
                               name(static_cast<DType>(kDTypeCount - 1)) + ")");
  }
  return static_cast<DType>(code);
}

}  // namespace rr
