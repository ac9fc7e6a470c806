// The files through which the ranks of the fake NCCL exchange their data.
#pragma once

#include <cstddef>
#include <string>

#include "support/reduce_oracle.h"

namespace fake_nccl {

using rr_test::Bytes;

std::string folder();  // FAKE_NCCL_DIR; "": not set
bool exists(const std::string& path);
// All of it at once: whoever finds the file finds it whole.
void publish(const std::string& path, const void* data, size_t nbytes);
// False: there is no such file.
bool read(const std::string& path, Bytes& bytes);

}  // namespace fake_nccl
