#include "recorder/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/errors.h"

namespace rr {

OutputFile::OutputFile(std::string path) : path_(std::move(path)) {
  do {
    fd_ = OwnedFd::from([this] { return ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666); });
  } while (!fd_ && errno == EINTR);
  if (!fd_) throw UnavailableError(text() + "cannot be made: " + std::strerror(errno));
  struct stat status;
  if (::fstat(fd_.get(), &status) != 0 || !S_ISREG(status.st_mode)) return;  // a pipe or a device
  // Of this process and not of its children. Some file systems know no locks.
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (::fcntl(fd_.get(), F_SETLK, &lock) != 0 && (errno == EACCES || errno == EAGAIN)) {
    throw UnavailableError(text() + "is written by another process; give each job a place of its own");
  }
  if (::ftruncate(fd_.get(), 0) != 0) throw UnavailableError(text() + "cannot be emptied: " + std::strerror(errno));
}

std::string OutputFile::text() const { return "the timeline's file " + path_ + " "; }

void OutputFile::append(const void* bytes, size_t nbytes) {
  const char* left = static_cast<const char*>(bytes);
  while (nbytes != 0) {
    const ssize_t written = ::write(fd_.get(), left, nbytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      throw UnavailableError(text() + "cannot be written: " + std::strerror(errno));
    }
    left += written;
    nbytes -= static_cast<size_t>(written);
  }
}

}  // namespace rr
