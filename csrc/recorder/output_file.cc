#include "recorder/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/errors.h"

namespace rr {

OutputFile::OutputFile(std::string path)
    : path_(std::move(path)), fd_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) {
  if (fd_.get() < 0) {
    throw UnavailableError("the timeline's file " + path_ + " cannot be made: " + std::strerror(errno));
  }
}

void OutputFile::append(const void* bytes, size_t nbytes) {
  const char* left = static_cast<const char*>(bytes);
  while (nbytes != 0) {
    const ssize_t written = ::write(fd_.get(), left, nbytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      throw UnavailableError("the timeline's file " + path_ + " cannot be written: " + std::strerror(errno));
    }
    left += written;
    nbytes -= static_cast<size_t>(written);
  }
}

}  // namespace rr
