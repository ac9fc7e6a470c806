// The functions of a kernel as TensorFlow calls them: making it from a node, running it, ending it. Errors become
// statuses here.
#pragma once

#include <memory>
#include <string>

#include "framework/tensorflow_kernel.h"

namespace rr {

constexpr unsigned kSet = 1;      // process_set_id
constexpr unsigned kNamed = 2;    // tensor_name
constexpr unsigned kReduces = 4;  // reduce_op, prescale_factor, postscale_factor
constexpr unsigned kRooted = 8;   // root_rank

// A node with these attributes.
Node node_of(TF_OpKernelConstruction* construction, unsigned attrs);

template <unsigned kAttrs>
void* create(TF_OpKernelConstruction* construction) {
  const auto refuse = [construction](TF_Code code, const char* text) {
    const Checked status;
    tf.TF_SetStatus(status, code, text);
    tf.TF_OpKernelConstruction_Failure(construction, status);
    return nullptr;
  };
  try {
    return std::make_unique<Node>(node_of(construction, kAttrs)).release();
  } catch (const KernelError& error) {
    return refuse(error.code, error.what());
  } catch (const std::exception& error) {  // no memory
    return refuse(TF_UNKNOWN, error.what());
  }
}

inline void destroy(void* kernel) { const std::unique_ptr<Node> node(static_cast<Node*>(kernel)); }

inline void fail(TF_OpKernelContext* context, TF_Code code, const char* text) {
  const Checked status;
  tf.TF_SetStatus(status, code, text);
  tf.TF_OpKernelContext_Failure(context, status);
}

template <void (*kWork)(Run&)>
void compute_node(const Node& node, TF_OpKernelContext* context) {
  Run run(context, node);
  try {
    kWork(run);
  } catch (const InterruptedKernel& error) {
    run.keep_for_ever(error.outcome);
    fail(context, error.code, error.what());
  } catch (const KernelError& error) {
    fail(context, error.code, error.what());
  } catch (const std::exception& error) {
    fail(context, TF_UNKNOWN, error.what());
  }
}

template <void (*kWork)(Run&)>
void compute(void* kernel, TF_OpKernelContext* context) {
  compute_node<kWork>(*static_cast<const Node*>(kernel), context);
}

}  // namespace rr
