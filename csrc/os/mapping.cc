#include "os/mapping.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>

namespace rr {

#ifndef MADV_POPULATE_WRITE
constexpr int MADV_POPULATE_WRITE = 23;  // Linux 5.14; older C libraries lack the name
#endif

Fd create_memfd(const std::string& label, size_t nbytes) {
  Fd fd(static_cast<int>(check_sys(::memfd_create(label.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING), "memfd_create")));
  if (::ftruncate(fd.get(), static_cast<off_t>(nbytes)) < 0) {
    const std::string what = with_errno("making a memory file of " + std::to_string(nbytes) + " bytes");
    throw Error(errno == EFBIG ? what + "; raise the limit of a file's size (ulimit -f unlimited)" : what);
  }
  check_sys(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_SEAL), "sealing a memory file");
  return fd;
}

Mapping::Mapping(int fd, OnFork on_fork, Access access) {
  struct stat info = {};
  check_sys(::fstat(fd, &info), "fstat of a memory file");
  nbytes_ = static_cast<size_t>(info.st_size);
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* at = ::mmap(nullptr, nbytes_, protection, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) throw Error(with_errno("mmap of " + std::to_string(nbytes_) + " bytes"));
  data_ = static_cast<std::byte*>(at);
  // Advice only: kernels without shared huge pages ignore it.
  ::madvise(at, nbytes_, MADV_HUGEPAGE);
  if (on_fork == OnFork::kDrop) ::madvise(at, nbytes_, MADV_DONTFORK);
}

Mapping::~Mapping() {
  if (data_ != nullptr && !is_kept_) ::munmap(data_, nbytes_);
}

void Mapping::populate(size_t offset, size_t nbytes) const {
  if (::madvise(data_ + offset, nbytes, MADV_POPULATE_WRITE) == 0) return;
  // EINVAL: the kernel does not know the advice; the pages will be allocated on first use instead.
  if (errno != EINVAL) throw Error(with_errno("allocating " + std::to_string(nbytes) + " bytes of shared memory"));
}

void Mapping::make_private(size_t offset, size_t nbytes, int copy) const {
  const auto replace = [&](size_t from, size_t to, int protection, int flags, int fd) {
    if (from == to) return;
    if (::mmap(data_ + from, to - from, protection, MAP_PRIVATE | MAP_FIXED | flags, fd, 0) == MAP_FAILED) {
      throw Error(with_errno("making " + std::to_string(to - from) + " bytes private to a forked child"));
    }
  };
  const size_t end = offset + nbytes;
  replace(0, offset, PROT_NONE, MAP_ANONYMOUS | MAP_NORESERVE, -1);
  replace(end, nbytes_, PROT_NONE, MAP_ANONYMOUS | MAP_NORESERVE, -1);
  if (copy >= 0) {
    replace(offset, end, PROT_READ | PROT_WRITE, 0, copy);
  } else {
    check_sys(::mprotect(data_ + offset, nbytes, PROT_READ), "mprotect of shared memory in a forked child");
  }
}

void Mapping::forbid() const { ::mprotect(data_, nbytes_, PROT_NONE); }

}  // namespace rr
