#include "engine/tuning.h"

#include "engine/context.h"

namespace rr {

void tune(Context& context, const Board& board, int rank) {
  Header& header = board.header();
  if (rank == 0) {
    const size_t chunk = context.settings().chunk_nbytes;
    header.chunk_nbytes = chunk == 0 ? 256 << 10 : chunk;
    header.eager_nbytes = 8 << 10;
    header.tuned.store(1, std::memory_order_release);
  }
  while (header.tuned.load(std::memory_order_acquire) == 0) relax(true);
}

void copy_tuning(const Board& from, const Board& to) {
  // Every rank writes the same values, so it does not matter who is first.
  to.header().chunk_nbytes = from.header().chunk_nbytes;
  to.header().eager_nbytes = from.header().eager_nbytes;
  to.header().tuned.store(1, std::memory_order_release);
}

}  // namespace rr
