#include "recorder/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace rr {

OutputFile::OutputFile(std::string path, NamedBy who) : path_(std::move(path)) {
  open(who);
  ::fcntl(fd_.get(), F_SETFL, 0);  // writes wait
  struct stat status;
  if (::fstat(fd_.get(), &status) != 0 || !S_ISREG(status.st_mode)) return;  // a pipe or a device
  // The descriptor's, which no child keeps. A process's own (F_SETLK) ends when it closes any descriptor of the file,
  // such as one that has read it. Some file systems know no locks.
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (::fcntl(fd_.get(), F_OFD_SETLK, &lock) != 0 && (errno == EACCES || errno == EAGAIN)) {
    throw error(
        "is written by another process, or by a timeline whose disk has not answered; give each job a place of its own",
        EAGAIN);
  }
  if (::ftruncate(fd_.get(), 0) != 0) throw error("cannot be emptied", errno);
}

void OutputFile::open(NamedBy who) {
  const auto open_with = [this](int flags) {
    do {
      fd_ = OwnedFd::from([&] { return ::open(path_.c_str(), O_WRONLY | O_CLOEXEC | flags, 0666); });
    } while (!fd_ && errno == EINTR);
  };
  // A pipe that nobody reads is not waited for: it is refused.
  if (who == NamedBy::kUser) {
    open_with(O_CREAT | O_NONBLOCK);
    if (!fd_) {
      const int code = errno;
      struct stat status;
      const bool is_pipe = code == ENXIO && ::stat(path_.c_str(), &status) == 0 && S_ISFIFO(status.st_mode);
      throw is_pipe ? error("is a pipe that nobody reads: start its reader first", 0) : error("cannot be made", code);
    }
    return;
  }
  open_with(O_CREAT | O_EXCL);
  if (fd_) return;  // ours, whomever a network's file system names as its owner
  if (errno == EEXIST) open_with(O_NOFOLLOW | O_NONBLOCK);
  if (!fd_) {
    const int code = errno;
    throw code == ELOOP ? error("cannot be made: it is a symbolic link", 0) : error("cannot be made", code);
  }
  struct stat status;
  if (::fstat(fd_.get(), &status) == 0 && !S_ISCHR(status.st_mode) && status.st_uid != ::geteuid()) {
    throw error("belongs to another user: remove it, or give another place", 0);
  }
}

// code 0: `what` says why.
OutputError OutputFile::error(const std::string& what, int code) const {
  const bool is_said = code == 0 || code == EAGAIN;
  return {"the timeline's file " + path_ + " " + what + (is_said ? "" : std::string(": ") + std::strerror(code)), code};
}

void OutputFile::append(const void* bytes, size_t nbytes) {
  const char* left = static_cast<const char*>(bytes);
  while (nbytes != 0) {
    const ssize_t written = ::write(fd_.get(), left, nbytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw error("cannot be written", errno);
    left += written;
    nbytes -= static_cast<size_t>(written);
  }
}

}  // namespace rr
