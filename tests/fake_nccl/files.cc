#include "files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace fake_nccl {

std::string folder() {
  const char* text = std::getenv("FAKE_NCCL_DIR");
  return text == nullptr ? "" : text;
}

bool exists(const std::string& path) { return ::access(path.c_str(), R_OK) == 0; }

void publish(const std::string& path, const void* data, size_t nbytes) {
  const std::string temporary = path + ".new";
  const int fd = ::open(temporary.c_str(), O_CREAT | O_WRONLY | O_TRUNC | O_CLOEXEC, 0600);
  const auto* next = static_cast<const char*>(data);
  size_t left = nbytes;
  while (fd >= 0 && left != 0) {
    const ssize_t n = ::write(fd, next, left);
    if (n <= 0) break;
    next += n;
    left -= static_cast<size_t>(n);
  }
  if (fd >= 0) ::close(fd);
  if (fd < 0 || left != 0 || ::rename(temporary.c_str(), path.c_str()) != 0) std::perror("fake NCCL: publish");
}

bool read(const std::string& path, Bytes& bytes) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  uint8_t part[65536];
  for (ssize_t n = 0; (n = ::read(fd, part, sizeof part)) > 0;) bytes.insert(bytes.end(), part, part + n);
  ::close(fd);
  return true;
}

}  // namespace fake_nccl
