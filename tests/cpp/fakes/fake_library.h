// Where a fake library lies that tests load by name: in the build folder, two above this program's. A path that is
// compiled in would differ from one clone to the next, and ccache would find nothing there.
#pragma once

#include <unistd.h>

#include <stdexcept>
#include <string>

namespace rr::test {

// name: its path below the build folder.
inline std::string fake_library(const std::string& name) {
  char self[4096] = {};
  if (::readlink("/proc/self/exe", self, sizeof self - 1) <= 0) throw std::runtime_error("no /proc/self/exe");
  const std::string program = self;
  return program.substr(0, program.rfind('/')) + "/../../" + name;
}

inline std::string fake_cuda_library() { return fake_library("libfakecuda.so"); }
inline std::string fake_nccl_library() { return fake_library("fake_nccl/libfakenccl.so"); }

}  // namespace rr::test
