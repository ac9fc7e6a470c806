// Compiled in every build.
#include "support/sanitizer.h"

namespace rr::test {

Sanitizer sanitizer() {
#if defined(__SANITIZE_THREAD__)
  return Sanitizer::kThread;
#elif defined(__SANITIZE_ADDRESS__)
  return Sanitizer::kAddress;
#else
  return Sanitizer::kNone;
#endif
}

}  // namespace rr::test
