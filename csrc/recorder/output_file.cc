#include "recorder/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/errors.h"

namespace rr {

OutputFile::OutputFile(std::string path)
    : path_(std::move(path)), fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666)) {
  if (fd_.get() < 0) throw UnavailableError(text() + "cannot be made: " + std::strerror(errno));
  struct stat status;
  if (::fstat(fd_.get(), &status) != 0 || !S_ISREG(status.st_mode)) return;  // a pipe or a device
  // Some file systems know no locks.
  if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    throw UnavailableError(text() + "is written by another process; give each job a place of its own");
  }
  if (::ftruncate(fd_.get(), 0) != 0) {
    throw UnavailableError(text() + "cannot be emptied: " + std::strerror(errno));
  }
}

// Forked children share the lock, and may live on.
OutputFile::~OutputFile() { ::flock(fd_.get(), LOCK_UN); }

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
