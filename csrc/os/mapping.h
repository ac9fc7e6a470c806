// Anonymous shared memory: a memory file (no name in any file system, gone with its last user) and a mapping of it.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "os/fd.h"

namespace rr {

// Zero-filled, close-on-exec. Nobody can make it smaller any more: a mapping of it is always whole.
Fd create_memfd(const std::string& label, size_t nbytes);

enum class OnFork { kInherit, kDrop };  // kDrop: a forked child does not see the mapping (MADV_DONTFORK)
enum class Access { kRead, kWrite };

class Mapping {
 public:
  Mapping() = default;
  // Maps the whole file, shared; huge pages are advised. The descriptor may be closed afterwards.
  Mapping(int fd, OnFork on_fork, Access access = Access::kWrite);
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        nbytes_(std::exchange(other.nbytes_, 0)),
        is_kept_(std::exchange(other.is_kept_, false)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(nbytes_, other.nbytes_);
    std::swap(is_kept_, other.is_kept_);
    return *this;
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  std::byte* data() const { return data_; }
  size_t nbytes() const { return nbytes_; }
  // Allocates the pages of a range now, so that the first use does not fault; a failure (out of memory) throws.
  void populate(size_t offset, size_t nbytes) const;
  // In a forked child: the range keeps its address and gets the content of the memory file `copy`, for this process
  // alone; without one (-1) it can only be read. The rest of the mapping is inaccessible and belongs to nobody any
  // more.
  void make_private(size_t offset, size_t nbytes, int copy) const;
  void forbid() const;  // any access is a fault from now on
  // It stays mapped until the process ends: hardware may still be at work there.
  void keep() const { is_kept_ = true; }

 private:
  std::byte* data_ = nullptr;
  size_t nbytes_ = 0;
  mutable bool is_kept_ = false;
};

}  // namespace rr
