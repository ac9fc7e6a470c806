#include "engine/group/group_parts.h"

#include <new>

#include "base/errors.h"
#include "engine/context.h"

namespace rr {

void GroupParts::throw_if_removed() const {
  if (is_removed.load()) throw ShutdownError(from.here() + "] the process set was removed");
}

void GroupParts::throw_if_over() const {
  throw_if_failed();
  throw_if_removed();
  context.throw_if_shut_down();
}

void GroupParts::fail(const std::exception& error) const {
  const std::string what = dynamic_cast<const std::bad_alloc*>(&error) != nullptr ? "out of memory" : error.what();
  const bool says_where = what.rfind("[ringreduce", 0) == 0;
  record_failure(control(), kind_of(error), says_where ? what : from.here() + "] " + what);
}

}  // namespace rr
