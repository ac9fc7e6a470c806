#include "gpu/cuda/cuda_exports.h"

#include <sys/random.h>
#include <unistd.h>

#include <cstring>

#include "base/log.h"
#include "gpu/cuda/cuda_memory.h"
#include "gpu/kernels/cuda_pieces.h"
#include "os/foreign_fd.h"
#include "os/mapping.h"

namespace rr {
namespace {

uint64_t drawn() {
  uint64_t number = 0;
  check_sys(::getrandom(&number, sizeof number, 0), "getrandom");
  return number;
}

// A permutation of 64 bits (the finaliser of SplitMix64): different ids of a process stay different.
uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

void write_all(int fd, const void* data, size_t nbytes, size_t offset) {
  const long written = check_sys(::pwrite(fd, data, nbytes, static_cast<off_t>(offset)), "writing a list of pieces");
  if (static_cast<size_t>(written) != nbytes) throw Error("writing a list of pieces: it was cut short");
}

}  // namespace

uint64_t process_number() {
  static const uint64_t number = drawn();  // a forked child may not use CUDA, so it may share it
  return number;
}

uint64_t CudaExports::id_of(cu::DevicePtr at) const {
  unsigned long long id = 0;
  const auto result = context_.driver().pointer_get_attribute(&id, static_cast<int>(cu::kPointerBufferId), at);
  if (result == cu::kInvalidValue) return 0;
  context_.check(result, cu::symbols::pointer_get_attribute, "what allocation this is");
  return id;
}

// Attributes are of 1 to 8 bytes; little-endian machines are the only ones with this driver.
uint64_t CudaExports::attribute_of(cu::DevicePtr at, unsigned attribute, const char* doing) const {
  uint64_t value = 0;
  context_.check(context_.driver().pointer_get_attribute(&value, static_cast<int>(attribute), at),
                 cu::symbols::pointer_get_attribute, doing);
  return value;
}

std::vector<CudaExports::Piece> CudaExports::pieces_of(cu::DevicePtr data, size_t nbytes) const {
  std::vector<Piece> pieces;
  for (cu::DevicePtr at = data; pieces.empty() || at < data + nbytes;) {
    Piece piece;
    const auto result = context_.driver().mem_get_address_range(&piece.base, &piece.nbytes, at);
    if (result == cu::kInvalidValue || result == cu::kNotFound) {
      throw InvalidArgumentError("CUDA: " + context_.where() + ": not (or not all) in device memory: " +
                                 std::to_string(nbytes) + " bytes at " + std::to_string(data));
    }
    context_.check(result, cu::symbols::mem_get_address_range);
    piece.id = id_of(piece.base);
    pieces.push_back(piece);
    at = piece.base + piece.nbytes;
  }
  return pieces;
}

DeviceExport CudaExports::exported(const std::byte* data, size_t nbytes, uint64_t& offset,
                                   std::shared_ptr<void>& keep) {
  const std::vector<Piece> pieces = pieces_of(device_ptr(data), nbytes);
  offset = device_ptr(data) - pieces.front().base;
  uint64_t uid = process_number();
  for (const Piece& piece : pieces) uid = mixed(uid + piece.id * 0x9e3779b97f4a7c15ULL);
  if (uid == 0) uid = 1;
  const std::lock_guard lock(mutex_);
  const auto known = kept_.find(uid);
  const KeptPtr kept = known != kept_.end() ? known->second : made(pieces, uid);
  if (known == kept_.end() && kept->has_room) kept_.emplace(uid, kept);
  kept->touched = ++clock_;
  keep = kept->fds.empty() ? nullptr : kept;  // a handle stays valid by itself
  return kept->made;
}

CudaExports::KeptPtr CudaExports::made(const std::vector<Piece>& pieces, uint64_t uid) {
  // Exports of what has been freed since keep its memory from others.
  for (auto one = kept_.begin(); one != kept_.end();) {
    const Piece& known = one->second->first;
    one = is_in_use(one->second) || id_of(known.base) == known.id ? std::next(one) : kept_.erase(one);
  }
  const Piece& first = pieces.front();
  const auto owner = static_cast<int>(attribute_of(first.base, cu::kPointerDeviceOrdinal, "whose memory this is"));
  if (owner != context_.ordinal()) {
    throw InvalidArgumentError("CUDA: memory of GPU " + std::to_string(owner) + ", but this rank works on " +
                               context_.where());
  }
  auto kept = std::make_shared<Kept>();
  kept->first = first;
  DeviceExport& out = kept->made;
  out.uid = uid;
  out.device = context_.id();
  out.pid = ::getpid();
  out.process = process_number();
  out.base = first.base;
  out.nbytes = pieces.back().base + pieces.back().nbytes - first.base;
  const bool is_legacy =
      attribute_of(first.base, cu::kPointerLegacyIpcCapable, "whether it can be mapped by others") != 0;
  const bool is_filled = is_legacy && pieces.size() == 1 ? fill_handle(first, out) : fill_descriptors(pieces, *kept);
  if (!is_filled) out.uid = 0;
  return kept;
}

bool CudaExports::fill_handle(const Piece& piece, DeviceExport& out) {
  cu::IpcMemHandle handle = {};
  const auto result = context_.driver().ipc_get_mem_handle(&handle, piece.base);
  if (is_sticky(result)) context_.check(result, cu::symbols::ipc_get_mem_handle);
  if (result != cu::kSuccess) {
    not_exportable(std::string(cu::symbols::ipc_get_mem_handle) + ": " + context_.driver().text(result));
    return false;
  }
  static_assert(sizeof handle.reserved == sizeof out.handle);
  std::memcpy(out.handle.data(), handle.reserved, sizeof handle.reserved);
  make_room(0);
  return true;
}

bool CudaExports::fill_descriptors(const std::vector<Piece>& pieces, Kept& kept) {
  DeviceExport& out = kept.made;
  std::vector<Fd>& fds = kept.fds;
  if (pieces.size() >= descriptors_) {
    not_exportable("it consists of " + std::to_string(pieces.size()) + " pieces");
    return false;
  }
  kept.has_room = make_room(pieces.size() + 1);
  if (!kept.has_room) {
    not_exportable("operations under way have nearly all of the " + std::to_string(descriptors_) +
                   " descriptors that there may be for its pieces");
    return false;
  }
  std::vector<CudaPiece> rows;
  for (const Piece& piece : pieces) {
    const auto types = attribute_of(piece.base, cu::kPointerAllowedHandleTypes, "how it can be mapped by others");
    cu::MemHandle handle = 0;
    const char* call = cu::symbols::mem_retain_allocation_handle;
    cu::Result result = (types & cu::kHandleTypePosixFd) == 0
                            ? cu::kNotSupported
                            : context_.driver().mem_retain_allocation_handle(&handle, host_ptr(piece.base));
    if (result == cu::kSuccess) {
      int fd = -1;
      call = cu::symbols::mem_export_to_shareable_handle;
      result =
          context_.driver().mem_export_to_shareable_handle(&fd, handle, static_cast<int>(cu::kHandleTypePosixFd), 0);
      if (result == cu::kSuccess) fds.emplace_back(fd);
      RR_CUDA_FREE(context_, mem_release, handle);
    }
    if (is_sticky(result)) context_.check(result, call);
    if (result != cu::kSuccess) {
      not_exportable(std::string(call) + ": " + context_.driver().text(result) +
                     "; memory of an asynchronous pool, or managed memory, or without a handle type");
      fds.clear();
      return false;
    }
    rows.push_back({fds.back().get(), piece.nbytes});
  }
  const CudaPiecesHeader header = {out.process, out.uid, rows.size()};
  Fd list = create_memfd("ringreduce-pieces", sizeof header + rows.size() * sizeof rows[0]);
  write_all(list.get(), &header, sizeof header, 0);
  write_all(list.get(), rows.data(), rows.size() * sizeof rows[0], sizeof header);
  out.fd = list.get();
  fds.push_back(std::move(list));
  let_siblings_take_fds();
  return true;
}

// Whether there is room for one more that needs so many. Peers fetch the descriptors of an operation when they execute
// it, so what an operation under way keeps stays.
bool CudaExports::make_room(size_t descriptors) {
  size_t used = descriptors;
  for (const auto& [uid, kept] : kept_) used += kept->fds.size();
  while (kept_.size() >= kExports || used > descriptors_) {
    auto oldest = kept_.end();
    for (auto one = kept_.begin(); one != kept_.end(); ++one) {
      const bool helps = !is_in_use(one->second) && (kept_.size() >= kExports || !one->second->fds.empty());
      if (helps && (oldest == kept_.end() || one->second->touched < oldest->second->touched)) oldest = one;
    }
    if (oldest == kept_.end()) break;
    used -= oldest->second->fds.size();
    kept_.erase(oldest);
  }
  return used <= descriptors_;
}

void CudaExports::not_exportable(const std::string& why) {
  if (has_logged_) return;
  has_logged_ = true;
  Log().warning("CUDA: " + context_.where() + ": device memory that other ranks cannot map: " + why +
                "; it is copied instead of read in place");
}

}  // namespace rr
