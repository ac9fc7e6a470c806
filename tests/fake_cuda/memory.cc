#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "os/mapping.h"

namespace fake {
namespace {

using namespace rr;

struct Registry {
  std::mutex mutex;
  std::map<uintptr_t, Block> blocks;
  uint64_t ids = 0;
};

Registry& registry() {
  static auto& instance = rr::never_destroyed<Registry>();
  return instance;
}

std::map<uintptr_t, Block>::iterator block_of(Registry& all, uintptr_t address) {
  auto next = all.blocks.upper_bound(address);
  if (next == all.blocks.begin()) return all.blocks.end();
  --next;
  return address < next->second.base + next->second.nbytes ? next : all.blocks.end();
}

void* mapped(const File& file) {
  return ::mmap(nullptr, whole_pages(file.nbytes), PROT_READ | PROT_WRITE, MAP_SHARED, file.fd.get(), 0);
}

Result allocate(cu::DevicePtr* address, size_t nbytes, Kind kind) {
  const int ordinal = current()->ordinal;
  if (nbytes == 0) return cu::kInvalidValue;
  if (!fits(ordinal, nbytes)) return cu::kOutOfMemory;
  const auto file = new_file(nbytes, ordinal, false);
  void* const at = mapped(*file);
  if (at == MAP_FAILED) return cu::kOutOfMemory;
  // A GPU's memory holds whatever was there before.
  std::memset(at, 0xA5, std::min(nbytes, size_t{4} << 20));
  Block block;
  block.kind = kind;
  block.base = reinterpret_cast<uintptr_t>(at);
  block.nbytes = nbytes;
  block.ordinal = ordinal;
  block.file = file;
  add_block(std::move(block));
  *address = reinterpret_cast<uintptr_t>(at);
  return cu::kSuccess;
}

// As in a CUDA driver, freeing waits for the device.
Result freed(cu::DevicePtr address, Kind kind, const char* call) {
  const auto block = block_at(address);
  if (!block || block->base != address || block->kind != kind) return cu::kInvalidValue;
  synchronize(context_of(block->ordinal), call);
  remove_block(address, kind);
  ::munmap(reinterpret_cast<void*>(address), whole_pages(block->nbytes));
  return cu::kSuccess;
}

}  // namespace

size_t whole_pages(size_t nbytes) { return (nbytes + 4095) / 4096 * 4096; }

std::shared_ptr<File> new_file(size_t nbytes, int ordinal, bool is_exportable) {
  auto file = std::make_shared<File>();
  file->fd = create_memfd(kFileName + std::to_string(ordinal), whole_pages(nbytes));
  file->nbytes = nbytes;
  file->ordinal = ordinal;
  file->is_exportable = is_exportable;
  return file;
}

bool peers_allowed() { return option("FAKE_CUDA_PEER", 1) != 0; }

std::optional<Block> block_at(uintptr_t address) {
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = block_of(all, address);
  return found == all.blocks.end() ? std::nullopt : std::optional<Block>(found->second);
}

bool add_block(Block block) {
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto after = all.blocks.lower_bound(block.base);
  if (after != all.blocks.end() && after->second.base < block.base + block.nbytes) return false;
  if (block_of(all, block.base) != all.blocks.end()) return false;
  block.id = ++all.ids;
  const uintptr_t base = block.base;
  all.blocks[base] = std::move(block);
  return true;
}

bool remove_block(uintptr_t base, Kind kind) {
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.blocks.find(base);
  if (found == all.blocks.end() || found->second.kind != kind) return false;
  all.blocks.erase(found);
  return true;
}

bool change_block(uintptr_t base, void (*change)(Block&, int), int argument) {
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  const auto found = all.blocks.find(base);
  if (found == all.blocks.end()) return false;
  change(found->second, argument);
  return true;
}

bool fits(int ordinal, size_t nbytes) {
  const size_t limit = option("FAKE_CUDA_MEMORY", 0);
  if (limit == 0) return true;
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  size_t used = nbytes;
  for (const auto& [base, block] : all.blocks) {
    const bool counts = block.kind == Kind::kLegacy || block.kind == Kind::kPool || block.kind == Kind::kMapped;
    if (counts && block.ordinal == ordinal) used += block.nbytes;
  }
  return used <= limit;
}

Reach reach(uintptr_t address, size_t nbytes) {
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  uintptr_t at = address;
  Reach found = Reach::kPageable;
  while (at < address + nbytes) {  // mapped blocks may lie side by side
    const auto block = block_of(all, at);
    if (block == all.blocks.end()) return at == address ? Reach::kPageable : Reach::kBeyond;
    const bool is_host = block->second.kind == Kind::kHost || block->second.kind == Kind::kRegistered;
    if (!block->second.is_accessible) return Reach::kBeyond;
    if (at != address && block->second.kind != Kind::kMapped) return Reach::kBeyond;
    found = is_host ? Reach::kStaged : Reach::kDevice;
    at = block->second.base + block->second.nbytes;
  }
  return found;
}

}  // namespace fake

using namespace rr;
using fake::Result;

FAKE_API Result cuMemAlloc_v2(cu::DevicePtr* address, size_t nbytes) {
  FAKE_ENTER(__func__);
  FAKE_NOT_IN_CAPTURE();
  return fake::allocate(address, nbytes, fake::Kind::kLegacy);
}

FAKE_API Result cuMemFree_v2(cu::DevicePtr address) {
  FAKE_ENTER(__func__);
  FAKE_NOT_IN_CAPTURE();
  return fake::freed(address, fake::Kind::kLegacy, __func__);
}

FAKE_API Result cuMemAllocAsync(cu::DevicePtr* address, size_t nbytes, cu::Stream) {
  FAKE_ENTER(__func__);
  return fake::allocate(address, nbytes, fake::Kind::kPool);
}

FAKE_API Result cuMemFreeAsync(cu::DevicePtr address, cu::Stream) {
  FAKE_ENTER(__func__);
  return fake::freed(address, fake::Kind::kPool, __func__);
}

FAKE_API Result cuMemHostAlloc(void** address, size_t nbytes, unsigned) {
  FAKE_ENTER(__func__);
  FAKE_NOT_IN_CAPTURE();
  void* const at = ::mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) return cu::kOutOfMemory;
  std::memset(at, 0xA5, nbytes);
  fake::Block block;
  block.kind = fake::Kind::kHost;
  block.base = reinterpret_cast<uintptr_t>(at);
  block.nbytes = nbytes;
  block.ordinal = fake::current()->ordinal;
  fake::add_block(std::move(block));
  *address = at;
  return cu::kSuccess;
}

FAKE_API Result cuMemFreeHost(void* address) {
  FAKE_ENTER(__func__);
  FAKE_NOT_IN_CAPTURE();
  return fake::freed(reinterpret_cast<uintptr_t>(address), fake::Kind::kHost, __func__);
}

FAKE_API Result cuMemHostRegister_v2(void* address, size_t nbytes, unsigned) {
  FAKE_ENTER(__func__);
  FAKE_NOT_IN_CAPTURE();
  if (address == nullptr || nbytes == 0) return cu::kInvalidValue;
  fake::Block block;
  block.kind = fake::Kind::kRegistered;
  block.base = reinterpret_cast<uintptr_t>(address);
  block.nbytes = nbytes;
  block.ordinal = fake::current()->ordinal;
  return fake::add_block(std::move(block)) ? cu::kSuccess : cu::kHostMemoryAlreadyRegistered;
}

FAKE_API Result cuMemHostUnregister(void* address) {
  FAKE_ENTER(__func__);
  FAKE_NOT_IN_CAPTURE();
  const auto block = fake::block_at(reinterpret_cast<uintptr_t>(address));
  if (!block || block->kind != fake::Kind::kRegistered) return cu::kHostMemoryNotRegistered;
  fake::synchronize(fake::context_of(block->ordinal), __func__);
  fake::remove_block(block->base, fake::Kind::kRegistered);
  return cu::kSuccess;
}

FAKE_API Result cuMemHostGetDevicePointer_v2(cu::DevicePtr* device, void* host, unsigned) {
  FAKE_ENTER(__func__);
  if (fake::reach(reinterpret_cast<uintptr_t>(host), 1) != fake::Reach::kStaged) return cu::kInvalidValue;
  *device = reinterpret_cast<uintptr_t>(host);
  return cu::kSuccess;
}

FAKE_API Result cuMemGetAddressRange_v2(cu::DevicePtr* base, size_t* nbytes, cu::DevicePtr address) {
  FAKE_ENTER(__func__);
  const auto block = fake::block_at(address);
  if (!block) return cu::kNotFound;
  if (base != nullptr) *base = block->base;
  if (nbytes != nullptr) *nbytes = block->nbytes;
  return cu::kSuccess;
}

FAKE_API Result cuPointerGetAttribute(void* data, int attribute, cu::DevicePtr address) {
  FAKE_ENTER(__func__);
  const auto block = fake::block_at(address);
  if (!block) return cu::kInvalidValue;
  const bool is_host = block->file == nullptr;
  switch (static_cast<unsigned>(attribute)) {
    case cu::kPointerMemoryType:
      *static_cast<unsigned*>(data) = is_host ? cu::kMemoryTypeHost : cu::kMemoryTypeDevice;
      return cu::kSuccess;
    case cu::kPointerBufferId:
      *static_cast<unsigned long long*>(data) = block->id;
      return cu::kSuccess;
    case cu::kPointerDeviceOrdinal:
      *static_cast<int*>(data) = block->ordinal;
      return cu::kSuccess;
    case cu::kPointerLegacyIpcCapable:
      *static_cast<int*>(data) = block->kind == fake::Kind::kLegacy ? 1 : 0;
      return cu::kSuccess;
    case cu::kPointerAllowedHandleTypes:
      *static_cast<unsigned long long*>(data) = !is_host && block->file->is_exportable ? cu::kHandleTypePosixFd : 0;
      return cu::kSuccess;
    default:
      return cu::kInvalidValue;
  }
}
