// Memory blocks that are used again, for the thread sanitizer. Its own allocator maps each block of more than 256 KiB
// anew, and the pages of its shadow, four times as many, are then touched for the first time again.
// A block passes from one thread to the next under a lock, so that a thread that still uses it is reported as a race.
#include <malloc.h>

#include <array>
#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

namespace {

constexpr size_t kLeastLog = 16;  // 64 KiB
constexpr size_t kLogs = 16;      // up to 2 GiB
constexpr size_t kLeastNbytes = size_t{1} << kLeastLog;

struct Freed {
  std::mutex mutex;
  void* first = nullptr;  // each block begins with the address of the next
};
std::array<Freed, kLogs> freed;

// Of blocks of 2**(16 + result) bytes.
size_t log_of(size_t nbytes) {
  size_t log = 0;
  while ((kLeastNbytes << log) < nbytes) ++log;
  return log;
}

void* checked(void* block) {
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

}  // namespace

void* operator new(size_t nbytes) {
  if (nbytes < kLeastNbytes || nbytes > kLeastNbytes << (kLogs - 1)) return checked(std::malloc(nbytes));
  const size_t log = log_of(nbytes);
  {
    const std::lock_guard lock(freed[log].mutex);
    if (void* block = freed[log].first; block != nullptr) {
      freed[log].first = *static_cast<void**>(block);
      return block;
    }
  }
  return checked(std::malloc(kLeastNbytes << log));
}

void operator delete(void* block) noexcept {
  const size_t nbytes = ::malloc_usable_size(block);
  const size_t log = log_of(nbytes);
  if (nbytes < kLeastNbytes || nbytes != kLeastNbytes << log || log >= kLogs) return std::free(block);
  const std::lock_guard lock(freed[log].mutex);
  *static_cast<void**>(block) = freed[log].first;
  freed[log].first = block;
}

void operator delete(void* block, size_t) noexcept { operator delete(block); }
