// Memory of other processes: handles as of cudaIpc*, and virtual memory (cuMemCreate, cuMemMap) with file descriptors.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "memory.h"

using namespace rr;
using fake::Result;

namespace {

struct Ticket {
  char magic[8];
  int pid;
  int fd;
  uint64_t inode;
  uint64_t nbytes;
  uint64_t id;
  uint64_t base;  // in its owner
  int ordinal;
};
static_assert(sizeof(Ticket) <= sizeof(cu::IpcMemHandle));

constexpr char kMagic[8] = "fakeipc";

struct Opened {
  uintptr_t base;
  int users;
  Ticket ticket;
};

struct Handles {
  std::mutex mutex;
  std::map<cu::MemHandle, std::pair<std::shared_ptr<fake::File>, int>> all;
  std::map<std::pair<uint64_t, uint64_t>, Opened> opened;  // by the inode and id of a ticket
  cu::MemHandle made = 0;
};

Handles& handles() {
  static auto& instance = rr::never_destroyed<Handles>();
  return instance;
}

uint64_t inode_of(int fd) {
  struct stat info = {};
  return ::fstat(fd, &info) == 0 ? info.st_ino : 0;
}

cu::MemHandle handle_for(const std::shared_ptr<fake::File>& file) {
  auto& known = handles();
  const std::lock_guard lock(known.mutex);
  for (auto& [handle, entry] : known.all) {
    if (entry.first != file) continue;
    ++entry.second;
    return handle;
  }
  known.all[++known.made] = {file, 1};
  return known.made;
}

// The name of a memory file says which GPU's memory it is.
int ordinal_of(int fd) {
  char text[128] = {};
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  const ssize_t length = ::readlink(path.c_str(), text, sizeof text - 1);
  const char* const digits = length > 0 ? std::strstr(text, fake::kFileName) : nullptr;
  return digits != nullptr ? std::atoi(digits + std::strlen(fake::kFileName)) : 0;
}

std::shared_ptr<fake::File> file_of(cu::MemHandle handle) {
  auto& known = handles();
  const std::lock_guard lock(known.mutex);
  const auto found = known.all.find(handle);
  return found == known.all.end() ? nullptr : found->second.first;
}

}  // namespace

FAKE_API Result cuIpcGetMemHandle(cu::IpcMemHandle* handle, cu::DevicePtr address) {
  FAKE_ENTER(__func__);
  const auto block = fake::block_at(address);
  if (!block || block->kind != fake::Kind::kLegacy) return cu::kInvalidValue;
  Ticket ticket = {};
  std::memcpy(ticket.magic, kMagic, sizeof kMagic);
  ticket.pid = ::getpid();
  ticket.fd = block->file->fd.get();
  ticket.inode = inode_of(ticket.fd);
  ticket.nbytes = block->nbytes;
  ticket.id = block->id;
  ticket.base = block->base;
  ticket.ordinal = block->ordinal;
  *handle = {};
  std::memcpy(handle->reserved, &ticket, sizeof ticket);
  return cu::kSuccess;
}

FAKE_API Result cuIpcOpenMemHandle_v2(cu::DevicePtr* address, cu::IpcMemHandle handle, unsigned flags) {
  FAKE_ENTER(__func__);
  FAKE_NOT_IN_CAPTURE();
  Ticket ticket = {};
  std::memcpy(&ticket, handle.reserved, sizeof ticket);
  if (std::memcmp(ticket.magic, kMagic, sizeof kMagic) != 0 || flags != cu::kIpcLazyEnablePeerAccess) {
    return cu::kInvalidValue;
  }
  if (ticket.pid == ::getpid()) return cu::kInvalidContext;  // CUDA opens no handle where it was made
  if (ticket.ordinal != fake::current()->ordinal && !fake::peers_allowed()) return cu::kPeerAccessUnsupported;
  auto& known = handles();
  const std::lock_guard lock(known.mutex);
  const auto key = std::make_pair(ticket.inode, ticket.id);
  if (const auto before = known.opened.find(key); before != known.opened.end()) {
    ++before->second.users;
    *address = before->second.base;
    return cu::kSuccess;
  }
  for (const auto& [other, opened] : known.opened) {  // where the owner has freed and allocated anew
    const Ticket& old = opened.ticket;
    const bool overlaps = old.base < ticket.base + ticket.nbytes && ticket.base < old.base + old.nbytes;
    if (old.pid == ticket.pid && overlaps) return cu::kAlreadyMapped;
  }
  char path[64];
  std::snprintf(path, sizeof path, "/proc/%d/fd/%d", ticket.pid, ticket.fd);
  Fd fd(::open(path, O_RDWR | O_CLOEXEC));
  if (!fd || inode_of(fd.get()) != ticket.inode) return cu::kInvalidValue;
  void* const at = ::mmap(nullptr, fake::whole_pages(ticket.nbytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (at == MAP_FAILED) return cu::kMapFailed;
  fake::Block block;
  block.kind = fake::Kind::kImported;
  block.base = reinterpret_cast<uintptr_t>(at);
  block.nbytes = ticket.nbytes;
  block.ordinal = ticket.ordinal;
  block.file = std::make_shared<fake::File>();
  block.file->fd = std::move(fd);
  block.file->is_exportable = false;
  fake::add_block(std::move(block));
  known.opened[key] = {reinterpret_cast<uintptr_t>(at), 1, ticket};
  *address = reinterpret_cast<uintptr_t>(at);
  return cu::kSuccess;
}

FAKE_API Result cuIpcCloseMemHandle(cu::DevicePtr address) {
  FAKE_ENTER(__func__);
  FAKE_NOT_IN_CAPTURE();
  fake::synchronize(*fake::current(), __func__);
  auto& known = handles();
  const std::lock_guard lock(known.mutex);
  for (auto entry = known.opened.begin(); entry != known.opened.end(); ++entry) {
    if (entry->second.base != address) continue;
    if (--entry->second.users != 0) return cu::kSuccess;
    const auto block = fake::block_at(address);
    known.opened.erase(entry);
    fake::remove_block(address, fake::Kind::kImported);
    ::munmap(reinterpret_cast<void*>(address), fake::whole_pages(block->nbytes));
    return cu::kSuccess;
  }
  return cu::kInvalidValue;
}

// --- virtual memory -------------------------------------------------------------------------------------------------

FAKE_API Result cuMemGetAllocationGranularity(size_t* granularity, const cu::MemAllocationProp*, int) {
  FAKE_ENTER(__func__);
  *granularity = fake::kGranularity;
  return cu::kSuccess;
}

FAKE_API Result cuMemCreate(cu::MemHandle* handle, size_t nbytes, const cu::MemAllocationProp* prop,
                            unsigned long long) {
  FAKE_ENTER(__func__);
  if (nbytes == 0 || nbytes % fake::kGranularity != 0) return cu::kInvalidValue;
  if (!fake::fits(prop->location.id, nbytes)) return cu::kOutOfMemory;
  const bool is_exportable = (static_cast<unsigned>(prop->requested_handle_types) & cu::kHandleTypePosixFd) != 0;
  *handle = handle_for(fake::new_file(nbytes, prop->location.id, is_exportable));
  return cu::kSuccess;
}

FAKE_API Result cuMemRelease(cu::MemHandle handle) {
  FAKE_ENTER(__func__);
  auto& known = handles();
  const std::lock_guard lock(known.mutex);
  const auto found = known.all.find(handle);
  if (found == known.all.end()) return cu::kInvalidValue;
  if (--found->second.second == 0) known.all.erase(found);
  return cu::kSuccess;
}

FAKE_API Result cuMemAddressReserve(cu::DevicePtr* address, size_t nbytes, size_t, cu::DevicePtr, unsigned long long) {
  FAKE_ENTER(__func__);
  if (nbytes == 0 || nbytes % fake::kGranularity != 0) return cu::kInvalidValue;
  void* const at = ::mmap(nullptr, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) return cu::kOutOfMemory;
  *address = reinterpret_cast<uintptr_t>(at);
  return cu::kSuccess;
}

FAKE_API Result cuMemAddressFree(cu::DevicePtr address, size_t nbytes) {
  FAKE_ENTER(__func__);
  ::munmap(reinterpret_cast<void*>(address), nbytes);
  return cu::kSuccess;
}

FAKE_API Result cuMemMap(cu::DevicePtr address, size_t nbytes, size_t offset, cu::MemHandle handle,
                         unsigned long long) {
  FAKE_ENTER(__func__);
  const auto file = file_of(handle);
  if (file == nullptr || offset != 0 || nbytes != file->nbytes) return cu::kInvalidValue;
  fake::Block block;
  block.kind = fake::Kind::kMapped;
  block.base = address;
  block.nbytes = nbytes;
  block.ordinal = file->ordinal;
  block.file = file;
  block.is_accessible = false;
  if (!fake::add_block(std::move(block))) return cu::kInvalidValue;
  void* const at =
      ::mmap(reinterpret_cast<void*>(address), nbytes, PROT_NONE, MAP_SHARED | MAP_FIXED, file->fd.get(), 0);
  return at == MAP_FAILED ? cu::kMapFailed : cu::kSuccess;
}

FAKE_API Result cuMemUnmap(cu::DevicePtr address, size_t nbytes) {
  FAKE_ENTER(__func__);
  for (cu::DevicePtr at = address; at < address + nbytes;) {
    const auto block = fake::block_at(at);
    if (!block || block->base != at || !fake::remove_block(at, fake::Kind::kMapped)) return cu::kInvalidValue;
    ::mmap(reinterpret_cast<void*>(at), block->nbytes, PROT_NONE,
           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    at += block->nbytes;
  }
  return cu::kSuccess;
}

FAKE_API Result cuMemSetAccess(cu::DevicePtr address, size_t nbytes, const cu::MemAccessDesc* access, size_t count) {
  FAKE_ENTER(__func__);
  for (cu::DevicePtr at = address; at < address + nbytes;) {
    const auto block = fake::block_at(at);
    if (!block || block->base != at || block->kind != fake::Kind::kMapped) return cu::kInvalidValue;
    for (size_t i = 0; i < count; ++i) {
      if (access[i].location.id != block->ordinal && !fake::peers_allowed()) return cu::kPeerAccessUnsupported;
    }
    ::mprotect(reinterpret_cast<void*>(at), block->nbytes, PROT_READ | PROT_WRITE);
    fake::change_block(at, [](fake::Block& changed, int) { changed.is_accessible = true; }, 0);
    at += block->nbytes;
  }
  return cu::kSuccess;
}

FAKE_API Result cuMemRetainAllocationHandle(cu::MemHandle* handle, void* address) {
  FAKE_ENTER(__func__);
  const auto block = fake::block_at(reinterpret_cast<uintptr_t>(address));
  if (!block || block->kind != fake::Kind::kMapped) return cu::kInvalidValue;
  *handle = handle_for(block->file);
  return cu::kSuccess;
}

FAKE_API Result cuMemExportToShareableHandle(void* shareable, cu::MemHandle handle, int type, unsigned long long) {
  FAKE_ENTER(__func__);
  const auto file = file_of(handle);
  if (file == nullptr || static_cast<unsigned>(type) != cu::kHandleTypePosixFd) return cu::kInvalidValue;
  if (!file->is_exportable) return cu::kNotSupported;
  *static_cast<int*>(shareable) = Fd::duplicate(file->fd.get()).release();
  return cu::kSuccess;
}

FAKE_API Result cuMemImportFromShareableHandle(cu::MemHandle* handle, void* shareable, int type) {
  FAKE_ENTER(__func__);
  FAKE_NOT_IN_CAPTURE();
  const int fd = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
  struct stat info = {};
  if (static_cast<unsigned>(type) != cu::kHandleTypePosixFd || ::fstat(fd, &info) != 0) return cu::kInvalidValue;
  auto file = std::make_shared<fake::File>();
  file->fd = Fd::duplicate(fd);
  file->nbytes = static_cast<size_t>(info.st_size);
  file->ordinal = ordinal_of(fd);
  *handle = handle_for(file);
  return cu::kSuccess;
}
