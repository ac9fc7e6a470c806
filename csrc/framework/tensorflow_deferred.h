// Kernels that finish later, on threads of ours: for graphs whose operators TensorFlow runs in any order.
//
// In a session a rank may come to an operator before another one that its peers have come to first. One that blocks
// holds one of TensorFlow's few threads, and once operators that peers have not come to hold them all, no rank goes on.
// An order of the operators in the graph would be no help: who fetches one would also run all before it, needed or not.
// So these return at once, and wait on threads of which there are always enough. Operations are matched by names.
#pragma once

#include <functional>
#include <string>

#include "framework/tensorflow_node.h"

namespace rr {

// Finds out whether kernels can finish later with this TensorFlow, given its library; run_later() says if not.
void check_later(void* library);

// The node of one run: within a loop its name has the iteration, because iterations run at once.
Node in_iteration(const Node& node, TF_OpKernelContext* context);

// Runs work, and then tells TensorFlow that the kernel is done. Raises where there is no thread to run it.
void run_later(std::function<void()> work, TF_AsyncOpKernelDoneCallback* done);

template <void (*kWork)(Run&)>
void compute_later(void* kernel, TF_OpKernelContext* context, TF_AsyncOpKernelDoneCallback* done) {
  try {
    const Node node = in_iteration(*static_cast<const Node*>(kernel), context);
    run_later([node, context] { compute_node<kWork>(node, context); }, done);
  } catch (const KernelError& error) {
    fail(context, error.code, error.what());
    tf.TF_RunAsyncOpKernelDoneCallback(done);
  } catch (const std::exception& error) {  // no memory
    fail(context, TF_UNKNOWN, error.what());
    tf.TF_RunAsyncOpKernelDoneCallback(done);
  }
}

}  // namespace rr
