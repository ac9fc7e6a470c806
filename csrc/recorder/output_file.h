// A file that grows at its end, and that no other process writes meanwhile.
#pragma once

#include <cstddef>
#include <string>

#include "base/errors.h"
#include "os/owned_fd.h"

namespace rr {

class OutputError : public UnavailableError {
 public:
  OutputError(const std::string& what, int the_code) : UnavailableError(what), code(the_code) {}
  const int code;  // as errno
};

class OutputFile {
 public:
  // Who has named the file. By a name that anybody can foresee another user may have prepared a link, or a file: such
  // are refused.
  enum class NamedBy { kUser, kTimeline };

  // Makes the file, or empties the one that is there. Throws OutputError with the system's reason, or EAGAIN where
  // another process writes the file: a job within a job, say, that has the outer one's variables.
  OutputFile(std::string path, NamedBy who);
  // Throws OutputError with the system's reason, such as a full disk.
  void append(const void* bytes, size_t nbytes);

 private:
  void open(NamedBy who);
  OutputError error(const std::string& what, int code) const;

  std::string path_;
  OwnedFd fd_;
};

}  // namespace rr
