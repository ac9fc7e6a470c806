#include "planner/gpu/operands.h"

#include "planner/gpu/device_planner.h"

namespace rr {

void show_device_operands(const Resources& from, Operation& operation) {
  Device& device = *from.gpu.device();
  Signature& signature = operation.signature;
  signature.src = {gpu_key(device.id()), 0, 0, 0};
  const std::string& path = from.settings.gpu_path;
  const auto say = [&signature](DeviceCan what) { signature.can = static_cast<uint8_t>(signature.can | what); };
  if (nccl_knows(operation, from.size())) {
    say(kNcclKnows);
    const bool may_take_nccl = from.size() > 1 && (path == "auto" || path == "nccl");
    const auto nccl = may_take_nccl ? from.gpu.nccl() : nullptr;  // looked for when it is first of use
    if (nccl != nullptr) {
      say(kCanNccl);
      signature.src.uid ^= nccl->host_key();
    }
  }
  if (from.size() > 1 && from.gpu.device_messages() != nullptr) say(kCanMpi);
  if (path != "auto" && path != "ipc") return;
  // Over several hosts only the GPUs of each may map each other's memory, for an all-reduce.
  if (from.hosts.several() && (operation.kind != Kind::kAllreduce || from.hosts.here().size() == 1)) return;
  bool exported = true;
  const auto show = [&](const TensorView& tensor) {
    operation.operands.push_back(device_operand(device, tensor.data, tensor.nbytes(), operation.exports));
    exported &= tensor.count == 0 || operation.operands.back().memory.uid != 0;
  };
  for (const TensorView& tensor : operation.srcs) show(tensor);
  for (const TensorView& tensor : operation.dsts) show(tensor);
  if (exported) say(kCanExport);
}

}  // namespace rr
