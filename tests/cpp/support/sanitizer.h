// Which sanitizer the core was compiled with. Tests ask while they run, because the address sanitizer's core is linked
// with the objects of the tests without one (CMakeLists.txt).
#pragma once

namespace rr::test {

enum class Sanitizer { kNone, kAddress, kThread };
Sanitizer sanitizer();
inline bool is_sanitized() { return sanitizer() != Sanitizer::kNone; }

}  // namespace rr::test
