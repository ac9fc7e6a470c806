#include "framework/tensorflow_node.h"

#include <locale.h>
#include <stdlib.h>

#include <limits>
#include <string>

namespace rr {
namespace {

// Without a NUL, at which texts of C end: two names might be taken for one.
std::string string_attr(TF_OpKernelConstruction* construction, const char* name) {
  const Checked status;
  int32_t list_size = 0;
  int32_t length = 0;
  tf.TF_OpKernelConstruction_GetAttrSize(construction, name, &list_size, &length, status);
  status.raise();
  std::string value(static_cast<size_t>(length), '\0');
  tf.TF_OpKernelConstruction_GetAttrString(construction, name, value.data(), value.size(), status);
  status.raise();
  if (value.find('\0') != std::string::npos) {
    throw KernelError(TF_INVALID_ARGUMENT,
                      std::string("InvalidArgumentError: ") + name + " '" + value.c_str() + "' goes on after a NUL");
  }
  return value;
}

int32_t int_attr(TF_OpKernelConstruction* construction, const char* name) {
  const Checked status;
  int64_t value = 0;
  tf.TF_OpKernelConstruction_GetAttrInt64(construction, name, &value, status);
  status.raise();
  if (value < std::numeric_limits<int32_t>::min() || value > std::numeric_limits<int32_t>::max()) {
    throw KernelError(TF_INVALID_ARGUMENT,
                      std::string("InvalidArgumentError: ") + name + "=" + std::to_string(value) + " is out of range");
  }
  return static_cast<int32_t>(value);
}

// A number as text: attributes of the type float have 32 bits, and factors of float64 tensors need 64. Python's texts
// of infinities and NaN are numbers too. The user's locale may have another point.
double factor_attr(TF_OpKernelConstruction* construction, const char* name) {
  static const locale_t plain = ::newlocale(LC_ALL_MASK, "C", nullptr);
  const std::string text = string_attr(construction, name);
  char* end = nullptr;
  const double value = ::strtod_l(text.c_str(), &end, plain);
  if (text.empty() || *end != '\0') {
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
