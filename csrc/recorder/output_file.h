// A file that grows at its end, and that no other process writes meanwhile.
#pragma once

#include <cstddef>
#include <string>

#include "os/owned_fd.h"

namespace rr {

class OutputFile {
 public:
  // Makes the file, or empties the one that is there. Throws UnavailableError with the system's reason, or where
  // another process writes the file: a job within a job, say, that has the outer one's variables.
  explicit OutputFile(std::string path);
  // Throws UnavailableError with the system's reason, such as a full disk.
  void append(const void* bytes, size_t nbytes);

 private:
  std::string text() const;

  std::string path_;
  OwnedFd fd_;
};

}  // namespace rr
