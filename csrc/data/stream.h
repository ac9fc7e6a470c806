// Copying past the caches.
#pragma once

#include <cstddef>

namespace rr {

// Copies nbytes from src to dst with stores that do not fetch dst's lines; all of it is visible to whoever acquires a
// release store that follows. Plain stores at the ends that are no whole 64 B line, and where the processor has no
// such stores. Any alignment; nothing overlaps. Defined by x86.cc or its twin no_x86.cc.
void stream(void* dst, const void* src, size_t nbytes);

// Outputs at least this large are written past the caches: they do not fit, and the lines need not be fetched first.
// Two ranks, an allgather of 16 MiB: 720 to 980 us streamed, 1130 to 1280 through the caches; of 4 MiB: 155 and 130.
inline constexpr size_t kStreamedNbytes = 8 << 20;

}  // namespace rr
