// What the whole process shares.
#pragma once

#include <memory>
#include <utility>

namespace rr {

// A new T that is never destroyed, for a function-local `static auto&`: threads of ours, of a driver's and of NCCL's
// may outlast the destructors of statics. The reference keeps it reachable, so that it is no leak.
template <class T, class... Arguments>
T& never_destroyed(Arguments&&... arguments) {
  return *std::make_unique<T>(std::forward<Arguments>(arguments)...).release();
}

}  // namespace rr
