// The list of an allocation's pieces, in a memory file that its owner keeps: a header and a row for each piece.
#pragma once

#include <cstdint>

namespace rr {

struct CudaPiecesHeader {
  uint64_t process = 0;  // as in DeviceExport: a peer that reaches the wrong process by a pid sees it here
  uint64_t uid = 0;
  uint64_t count = 0;
};

struct CudaPiece {
  int64_t fd = -1;  // the owner's descriptor
  uint64_t nbytes = 0;
};

}  // namespace rr
