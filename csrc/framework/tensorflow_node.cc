#include "framework/tensorflow_node.h"

#include <locale>
#include <sstream>

namespace rr {
namespace {

std::string string_attr(TF_OpKernelConstruction* construction, const char* name) {
  const Checked status;
  int32_t list_size = 0;
  int32_t length = 0;
  tf.TF_OpKernelConstruction_GetAttrSize(construction, name, &list_size, &length, status);
  status.raise();
  std::string value(static_cast<size_t>(length), '\0');
  tf.TF_OpKernelConstruction_GetAttrString(construction, name, value.data(), value.size(), status);
  status.raise();
  return value;
}

int32_t int_attr(TF_OpKernelConstruction* construction, const char* name) {
  const Checked status;
  int64_t value = 0;
  tf.TF_OpKernelConstruction_GetAttrInt64(construction, name, &value, status);
  status.raise();
  return static_cast<int32_t>(value);
}

// A number as text: attributes of the type float have 32 bits, and factors of float64 tensors need 64.
double factor_attr(TF_OpKernelConstruction* construction, const char* name) {
  std::istringstream text(string_attr(construction, name));
  text.imbue(std::locale::classic());
  double value = 0;
  if (!(text >> value)) {
    throw KernelError(TF_INVALID_ARGUMENT, std::string("InvalidArgumentError: ") + name + " is not a number");
  }
  return value;
}

}  // namespace

Node node_of(TF_OpKernelConstruction* construction, unsigned attrs) {
  Node node;
  if ((attrs & kSet) != 0) node.process_set = int_attr(construction, "process_set_id");
  if ((attrs & kNamed) != 0) node.name = string_attr(construction, "tensor_name");
  if ((attrs & kRooted) != 0) node.root_rank = int_attr(construction, "root_rank");
  if ((attrs & kReduces) != 0) {
    node.op = int_attr(construction, "reduce_op");
    node.prescale = factor_attr(construction, "prescale_factor");
    node.postscale = factor_attr(construction, "postscale_factor");
  }
  return node;
}

}  // namespace rr
