// Ranks that are threads map the same memory files. Each would get an address of its own, and the thread sanitizer,
// which thinks in addresses, would see no race between them. The linker therefore sends mmap and munmap here
// (--wrap, see CMakeLists.txt): a shared file that is mapped already is given out again.
#include <sys/mman.h>
#include <sys/stat.h>

#include <map>
#include <mutex>
#include <utility>

extern "C" {
void* __real_mmap(void*, size_t, int, int, int, off_t);
int __real_munmap(void*, size_t);

namespace {

using File = std::pair<dev_t, ino_t>;
struct Shared {
  void* at;
  int users;
};
std::mutex mutex;
std::map<File, Shared>& mappings() {
  static auto& instance = *new std::map<File, Shared>;  // outlives the ranks' threads
  return instance;
}

}  // namespace

void* __wrap_mmap(void* hint, size_t nbytes, int protection, int flags, int fd, off_t offset) {
  struct stat info = {};
  if ((flags & MAP_SHARED) == 0 || fd < 0 || offset != 0 || ::fstat(fd, &info) != 0) {
    return __real_mmap(hint, nbytes, protection, flags, fd, offset);
  }
  const std::lock_guard lock(mutex);
  const File file = {info.st_dev, info.st_ino};
  if (const auto known = mappings().find(file); known != mappings().end()) {
    ++known->second.users;
    return known->second.at;
  }
  void* at = __real_mmap(hint, nbytes, protection, flags, fd, offset);
  if (at != MAP_FAILED) mappings()[file] = {at, 1};
  return at;
}

int __wrap_munmap(void* at, size_t nbytes) {
  const std::lock_guard lock(mutex);
  for (auto shared = mappings().begin(); shared != mappings().end(); ++shared) {
    if (shared->second.at != at) continue;
    if (--shared->second.users != 0) return 0;
    mappings().erase(shared);
    break;
  }
  return __real_munmap(at, nbytes);
}
}
