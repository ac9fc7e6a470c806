// A file that grows at its end.
#pragma once

#include <cstddef>
#include <string>

#include "os/fd.h"

namespace rr {

class OutputFile {
 public:
  // Makes the file, or empties the one that is there. Throws UnavailableError with the system's reason.
  explicit OutputFile(std::string path);
  // Throws UnavailableError with the system's reason, such as a full disk.
  void append(const void* bytes, size_t nbytes);

 private:
  std::string path_;
  Fd fd_;
};

}  // namespace rr
