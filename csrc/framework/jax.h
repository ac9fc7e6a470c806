// The collectives as XLA FFI handlers, which compiled JAX programs call as "ringreduce_allreduce" and so on.
//
// A handler takes tensors, and tokens, which it skips, and the attributes process_set, op, root (int64), prescale,
// postscale (float64), name and splits (strings; splits: numbers with spaces between). It blocks the thread of XLA's
// that runs it.
#pragma once

#include <vector>

#include "framework/xla_ffi.h"

namespace rr {

struct XlaHandler {
  const char* name;
  xla::Handler* handler;
};
const std::vector<XlaHandler>& xla_handlers();

}  // namespace rr
