#include "gpu/cuda/cuda_imports.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "gpu/cuda/cuda_exports.h"
#include "gpu/cuda/cuda_memory.h"
#include "gpu/kernels/cuda_pieces.h"
#include "os/foreign_fd.h"

namespace rr {
namespace {

std::string memory_of(const DeviceExport& peer) {
  return "mapping " + std::to_string(peer.nbytes) + " bytes of device memory of process " + std::to_string(peer.pid);
}

void read_all(int fd, void* data, size_t nbytes, size_t offset) {
  const long got = check_sys(::pread(fd, data, nbytes, static_cast<off_t>(offset)), "reading a list of pieces");
  if (static_cast<size_t>(got) != nbytes) throw Error("reading a list of pieces: it is cut short");
}

// The list of the peer's pieces, which the process wrote that the export is of, and no other.
Fd list_of(const ForeignFds& owner, const DeviceExport& peer, CudaPiecesHeader& header) {
  Fd list = owner.get(peer.fd);
  struct stat info = {};
  check_sys(::fstat(list.get(), &info), "fstat of a list of pieces");
  const auto size = static_cast<size_t>(info.st_size);
  if (size < sizeof header) throw Error("process " + std::to_string(peer.pid) + " is not the one that exported it");
  read_all(list.get(), &header, sizeof header, 0);
  if (header.process != peer.process || header.uid != peer.uid ||
      header.count != (size - sizeof header) / sizeof(CudaPiece)) {
    throw Error("process " + std::to_string(peer.pid) +
                " is not the one that exported it; ranks in containers need the same pid namespace");
  }
  return list;
}

// Their sizes and descriptors.
std::vector<CudaPiece> pieces_of(const ForeignFds& owner, const DeviceExport& peer) {
  CudaPiecesHeader header;
  const Fd list = list_of(owner, peer, header);
  std::vector<CudaPiece> rows(header.count);
  read_all(list.get(), rows.data(), rows.size() * sizeof rows[0], sizeof header);
  return rows;
}

// A reserved range of addresses and what has been mapped into it so far.
class Range {
 public:
  Range(const CudaContext& context, size_t nbytes) : context_(context), nbytes_(nbytes) {
    RR_CUDA(context_, mem_address_reserve, &base_, nbytes, 0, 0, 0);
  }
  ~Range() {
    if (base_ == 0) return;
    if (filled_ != 0) RR_CUDA_FREE(context_, mem_unmap, base_, filled_);
    RR_CUDA_FREE(context_, mem_address_free, base_, nbytes_);
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

  void add(int fd, size_t nbytes, const std::string& doing) {
    cu::MemHandle handle = 0;
    context_.check(
        context_.driver().mem_import_from_shareable_handle(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                                           static_cast<int>(cu::kHandleTypePosixFd)),
        cu::symbols::mem_import_from_shareable_handle, doing);
    const auto result = context_.driver().mem_map(base_ + filled_, nbytes, 0, handle, 0);
    RR_CUDA_FREE(context_, mem_release, handle);  // the mapping keeps the memory
    context_.check(result, cu::symbols::mem_map, doing);
    filled_ += nbytes;
  }
  void open(const std::string& doing) {
    const cu::MemAccessDesc access = {{static_cast<int>(cu::kLocationTypeDevice), context_.ordinal()},
                                      static_cast<int>(cu::kAccessReadWrite)};
    context_.check(context_.driver().mem_set_access(base_, nbytes_, &access, 1), cu::symbols::mem_set_access, doing);
  }
  cu::DevicePtr release() { return std::exchange(base_, 0); }

 private:
  const CudaContext& context_;
  const size_t nbytes_;
  cu::DevicePtr base_ = 0;
  size_t filled_ = 0;
};

}  // namespace

CudaImports::~CudaImports() {
  if (context_.is_left()) return;
  const auto current = context_.current_for_freeing();
  while (!mapped_.empty()) drop(mapped_.begin());
  close_forgotten();
}

size_t CudaImports::size() {
  const std::lock_guard lock(mutex_);
  return mapped_.size();
}

std::byte* CudaImports::imported(const DeviceExport& peer, bool may_wait) {
  if (peer.uid == 0) throw InvalidArgumentError("imported: memory that cannot be mapped by others");
  std::unique_lock lock(mutex_);
  if (const auto known = mapped_.find(peer.uid); known != mapped_.end()) return host_ptr(known->second.base);
  forget_stale(peer);
  if (mapped_.size() >= capacity_) {
    throw DeviceBusyError("CUDA: " + context_.where() + ": " + memory_of(peer) + ": " + std::to_string(capacity_) +
                          " allocations of other processes are mapped already and may be in use; "
                          "RINGREDUCE_GPU_PATH=nccl or staged does without");
  }
  if (!revive(peer.uid)) {
    std::optional<Mapped> made = map(peer);
    if (!made && may_wait) {
      lock.unlock();
      close_forgotten();
      lock.lock();
      made = map(peer);
    }
    if (!made) {
      const std::string text = "CUDA: " + context_.where() + ": " + memory_of(peer) + ": it is mapped already";
      if (may_wait) throw InternalError(text);
      throw DeviceBusyError(text + ", and not to be closed while operations of NCCL's are under way");
    }
    made->uid = peer.uid;
    made->process = peer.process;
    made->owner_base = peer.base;
    mapped_[peer.uid] = *made;
  }
  return host_ptr(mapped_.at(peer.uid).base);
}

// What has been forgotten may be wanted again before it is closed.
bool CudaImports::revive(uint64_t uid) {
  for (auto one = forgotten_.begin(); one != forgotten_.end(); ++one) {
    if (one->uid != uid || one->is_closing) continue;
    mapped_[uid] = *one;
    forgotten_.erase(one);
    return true;
  }
  return false;
}

void CudaImports::forget(uint64_t uid) {
  const std::lock_guard lock(mutex_);
  if (const auto known = mapped_.find(uid); known != mapped_.end()) drop(known);
}

void CudaImports::drop(std::map<uint64_t, Mapped>::iterator which) {
  if (which->second.kind != Mapped::Kind::kOwn) forgotten_.push_back(which->second);
  mapped_.erase(which);
}

size_t CudaImports::forgotten() {
  const std::lock_guard lock(mutex_);
  return forgotten_.size();
}

uint64_t CudaImports::closed() {
  const std::lock_guard lock(mutex_);
  return closed_;
}

// Each stays in the list until it is closed: what overlaps one cannot be mapped before.
void CudaImports::close_forgotten() {
  if (context_.is_left()) return;
  const std::lock_guard closing(closing_);
  for (;;) {
    Mapped oldest;
    {
      const std::lock_guard lock(mutex_);
      if (forgotten_.empty()) return;
      forgotten_.front().is_closing = true;
      oldest = forgotten_.front();
    }
    close(oldest);
    const std::lock_guard lock(mutex_);
    forgotten_.pop_front();
    ++closed_;
  }
}

// Two allocations of a process overlap only if the first has been freed.
void CudaImports::forget_stale(const DeviceExport& peer) {
  if (peer.fd >= 0) return;  // ranges of pieces do, though
  for (auto one = mapped_.begin(); one != mapped_.end();) {
    const Mapped& old = one->second;
    const bool overlaps = old.process == peer.process && old.kind == Mapped::Kind::kHandle &&
                          old.owner_base < peer.base + peer.nbytes && peer.base < old.owner_base + old.nbytes;
    const auto here = one++;
    if (overlaps) drop(here);
  }
}

// Nothing: the driver says that it maps something there already. Drivers differ: what the owner has freed may still be
// mapped here (an H200's driver 580 maps the new memory beside it).
std::optional<CudaImports::Mapped> CudaImports::map(const DeviceExport& peer) {
  if (peer.process == process_number()) return map_own(peer);
  return peer.fd < 0 ? map_handle(peer) : map_pieces(peer);
}

// The driver opens no handle in the process that made it. Of another GPU of this process only access is missing.
CudaImports::Mapped CudaImports::map_own(const DeviceExport& peer) {
  Mapped mapped;
  mapped.base = peer.base;
  mapped.nbytes = peer.nbytes;
  if (peer.device == context_.id()) return mapped;
  const std::string doing = "reaching memory of another GPU of this process";
  if (peer.fd >= 0) {
    const cu::MemAccessDesc access = {{static_cast<int>(cu::kLocationTypeDevice), context_.ordinal()},
                                      static_cast<int>(cu::kAccessReadWrite)};
    context_.check(context_.driver().mem_set_access(peer.base, peer.nbytes, &access, 1), cu::symbols::mem_set_access,
                   doing);
    return mapped;
  }
  context_.reach(peer.device, doing);
  return mapped;
}

std::optional<CudaImports::Mapped> CudaImports::map_handle(const DeviceExport& peer) {
  cu::IpcMemHandle handle = {};
  static_assert(sizeof handle.reserved == sizeof peer.handle);
  std::memcpy(handle.reserved, peer.handle.data(), sizeof handle.reserved);
  Mapped mapped;
  mapped.nbytes = peer.nbytes;
  mapped.kind = Mapped::Kind::kHandle;
  // The flag has access between GPUs enabled where the peer's is another one.
  const auto result = context_.driver().ipc_open_mem_handle(&mapped.base, handle, cu::kIpcLazyEnablePeerAccess);
  if (result == cu::kAlreadyMapped) return std::nullopt;
  context_.check(result, cu::symbols::ipc_open_mem_handle, memory_of(peer));
  return mapped;
}

CudaImports::Mapped CudaImports::map_pieces(const DeviceExport& peer) {
  const std::string doing = memory_of(peer);
  try {
    const ForeignFds owner(peer.pid, "CUDA: " + context_.where() + ": " + doing);
    const std::vector<CudaPiece> pieces = pieces_of(owner, peer);
    uint64_t nbytes = 0;
    for (const CudaPiece& piece : pieces) nbytes += piece.nbytes;
    if (nbytes != peer.nbytes) throw Error(doing + ": its pieces have " + std::to_string(nbytes) + " bytes together");
    Range range(context_, nbytes);
    for (const CudaPiece& piece : pieces) {
      const Fd fd = owner.get(static_cast<int>(piece.fd));
      range.add(fd.get(), piece.nbytes, doing);
    }
    // The list is still there: so were the pieces, and no descriptor was another one's by then.
    CudaPiecesHeader header;
    list_of(owner, peer, header);
    range.open(doing);
    Mapped mapped;
    mapped.base = range.release();
    mapped.nbytes = nbytes;
    mapped.kind = Mapped::Kind::kPieces;
    return mapped;
  } catch (const InternalError&) {
    throw;  // the driver's, complete
  } catch (const Error& error) {
    throw InternalError(std::string(error.what()) +
                        "; without PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True no descriptors are needed, and "
                        "RINGREDUCE_GPU_PATH=nccl or staged does without");
  }
}

void CudaImports::close(const Mapped& mapped) const {
  if (mapped.kind == Mapped::Kind::kHandle) {
    RR_CUDA_FREE(context_, ipc_close_mem_handle, mapped.base);
  } else if (mapped.kind == Mapped::Kind::kPieces) {
    RR_CUDA_FREE(context_, mem_unmap, mapped.base, mapped.nbytes);
    RR_CUDA_FREE(context_, mem_address_free, mapped.base, mapped.nbytes);
  }
}

}  // namespace rr
