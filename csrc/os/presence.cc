#include "os/presence.h"

#include <string>

namespace rr {
namespace {

struct flock byte_of(int rank) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

bool Presence::hold(int memory_file, int rank) {
  const std::string path = "/proc/self/fd/" + std::to_string(memory_file);
  file_ = OwnedFd::from([&] { return ::open(path.c_str(), O_RDWR | O_CLOEXEC); });
  struct flock lock = byte_of(rank);
  if (file_ && ::fcntl(file_.get(), F_OFD_SETLK, &lock) == 0) return true;
  file_.reset();
  return false;
}

bool Presence::is_gone(int rank) const {
  struct flock lock = byte_of(rank);
  return file_ && ::fcntl(file_.get(), F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

}  // namespace rr
