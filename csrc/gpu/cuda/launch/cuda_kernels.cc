#include "gpu/cuda/launch/cuda_kernels.h"

#include <algorithm>
#include <cstring>

#include "gpu/cuda/cuda_memory.h"

namespace rr {
namespace {

constexpr size_t kSlotNbytes = size_t{32} << 10;  // about 1000 parts
constexpr size_t kSlots = 64;                     // at once: allocating may wait for the device

}  // namespace

CudaKernels::CudaKernels(const CudaContext& context, CudaWorkStreams& work_streams, const void* image)
    : context_(context), work_streams_(work_streams) {
  context_.check(context_.driver().module_load_data(&module_, image), cu::symbols::module_load_data,
                 "loading the kernels");
  try {
    // All of them now: loading a kernel at its first launch may wait for work that waits for that launch. Drivers
    // without cuFuncLoad load a kernel in cuModuleGetFunction (CUDA C++ Programming Guide 12.2.1, "Lazy Loading").
    for (const char* name : kernel_names()) {
      cu::Function function = nullptr;
      context_.check(context_.driver().module_get_function(&function, module_, name), cu::symbols::module_get_function,
                     name);
      if (context_.driver().func_load != nullptr) RR_CUDA(context_, func_load, function);
      functions_[name] = function;
    }
    add_slots(kSlots, kSlotNbytes);
  } catch (const Error&) {
    destroy();
    throw;
  }
}

CudaKernels::~CudaKernels() {
  const auto current = context_.current_for_freeing();
  destroy();
}

void CudaKernels::destroy() noexcept {
  if (context_.is_left()) return;
  for (const Arena& arena : arenas_) {
    RR_CUDA_FREE(context_, mem_free_host, arena.host);
    if (arena.device != 0) RR_CUDA_FREE(context_, mem_free, arena.device);
  }
  RR_CUDA_FREE(context_, module_unload, module_);
}

void CudaKernels::add_slots(size_t count, size_t nbytes) {
  const std::string doing = "tables of " + std::to_string(count * nbytes) + " bytes";
  Arena arena;
  context_.check(context_.driver().mem_host_alloc(&arena.host, count * nbytes, cu::kHostAllocPortable),
                 cu::symbols::mem_host_alloc, doing);
  arenas_.push_back(arena);
  context_.check(context_.driver().mem_alloc(&arenas_.back().device, count * nbytes), cu::symbols::mem_alloc, doing);
  for (size_t i = 0; i < count; ++i) {
    Slot slot;
    slot.host = static_cast<std::byte*>(arena.host) + i * nbytes;
    slot.device = arenas_.back().device + i * nbytes;
    slot.capacity = nbytes;
    slots_.push_back(slot);
  }
}

bool CudaKernels::is_free(const Slot& slot) {
  for (const Mark& mark : slot.used) {
    // A mark that nobody has made yet cannot be asked for.
    if (!work_streams_.seen_passed(mark) && (!work_streams_.is_made(mark) || !work_streams_.passed(mark))) return false;
  }
  return true;
}

CudaKernels::Slot& CudaKernels::slot_with(WorkStream work_stream, const std::vector<std::byte>& table) {
  for (Slot& slot : slots_) {
    if (slot.nbytes != table.size() || std::memcmp(slot.host, table.data(), table.size()) != 0) continue;
    // A launch in another work stream does not wait for the upload by itself.
    if (slot.uploaded.work_stream == work_stream || work_streams_.seen_passed(slot.uploaded)) return slot;
  }
  Slot* oldest = nullptr;
  for (Slot& slot : slots_) {
    const bool is_older = oldest == nullptr || slot.touched < oldest->touched;
    if (slot.capacity >= table.size() && is_older && is_free(slot)) oldest = &slot;
  }
  if (oldest == nullptr) {
    if (table.size() <= kSlotNbytes) {
      add_slots(kSlots, kSlotNbytes);
    } else {
      add_slots(1, (table.size() + kSlotNbytes - 1) / kSlotNbytes * kSlotNbytes);
    }
    oldest = &slots_.back();
  }
  Slot& slot = *oldest;
  slot.nbytes = 0;
  std::memcpy(slot.host, table.data(), table.size());
  RR_CUDA(context_, memcpy_async, slot.device, device_ptr(slot.host), table.size(), work_streams_.stream(work_stream));
  slot.nbytes = table.size();
  slot.uploaded = work_streams_.next(work_stream);
  slot.used.clear();
  return slot;
}

void CudaKernels::use(Slot& slot, const Mark& mark) {
  for (Mark& used : slot.used) {
    if (used.work_stream != mark.work_stream) continue;
    used = mark;
    return;
  }
  slot.used.push_back(mark);
}

void CudaKernels::launch(WorkStream work_stream, const Launch& launch) {
  if (launch.grid == 0) return;
  const auto function = functions_.find(launch.kernel);
  if (function == functions_.end()) throw Error(std::string("no kernel ") + launch.kernel);
  const std::byte* uploaded = nullptr;
  if (launch.needs_upload()) {
    Slot& slot = slot_with(work_stream, launch.table);
    use(slot, work_streams_.next(work_stream));
    slot.touched = ++clock_;
    uploaded = host_ptr(slot.device);
  }
  LaunchArgument argument = launch.argument(uploaded);
  void* parameters[] = {&argument};
  context_.check(context_.driver().launch_kernel(function->second, launch.grid, 1, 1, launch.block, 1, 1, 0,
                                                 work_streams_.stream(work_stream), parameters, nullptr),
                 cu::symbols::launch_kernel, launch.kernel);
}

}  // namespace rr
