#include "transport/stage_writer.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/clock.h"
#include "base/rounding.h"
#include "data/stream.h"

namespace rr {
namespace {

constexpr size_t kLeastSample = 1 << 10;  // bytes written each way by a comparison
constexpr size_t kMostSample = 8 << 10;
constexpr size_t kLeastStreamed = 1 << 10;   // below, the reader's way to the memory takes longer than 27 ns a line
constexpr int64_t kDearerNs = 5;             // per line; comparisons measure -1 with one L3, 10 to 25 with two
constexpr int64_t kNbytesBetween = 2 << 20;  // comparing then costs 2 % where cached is slow
constexpr int kDecided = 4;  // votes: a sample may have met an interrupt, or lines that were in no cache

// Into the L1 cache, or the comparison would be one of reading.
void touch(const std::byte* src, size_t nbytes) {
  std::byte sum{};
  for (size_t i = 0; i < nbytes; i += kCacheLine) sum ^= src[i];
  [[maybe_unused]] volatile std::byte sink = sum;
}

}  // namespace

StageWriter::StageWriter(const std::string& mode) : adapts_(mode == "auto"), streams_(mode == "streamed") {}

void StageWriter::write(std::byte* dst, const std::byte* src, size_t nbytes) {
  if (adapts_) {
    until_next_ -= static_cast<int64_t>(nbytes);
    if (until_next_ <= 0 && nbytes >= 2 * kLeastSample) {
      const size_t sample = std::min(kMostSample, nbytes / 2 / kCacheLine * kCacheLine);
      compare(dst, src, sample);
      dst += 2 * sample;
      src += 2 * sample;
      nbytes -= 2 * sample;
    }
  }
  if (streams_ && nbytes >= kLeastStreamed) {
    stream(dst, src, nbytes);
  } else if (nbytes != 0) {
    std::memcpy(dst, src, nbytes);
  }
}

void StageWriter::compare(std::byte* dst, const std::byte* src, size_t sample) {
  touch(src, 2 * sample);
  const int64_t start = now_ns();
  std::memcpy(dst, src, sample);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // till the stores are done, not only issued
  const int64_t middle = now_ns();
  stream(dst + sample, src + sample, sample);
  note(middle - start, now_ns() - middle, sample);
}

void StageWriter::note(int64_t cached_ns, int64_t streamed_ns, size_t sample) {
  const bool for_streaming = cached_ns > streamed_ns + kDearerNs * static_cast<int64_t>(sample / kCacheLine);
  votes_ = std::clamp(votes_ + (for_streaming ? 1 : -1), -kDecided, kDecided);
  if (votes_ == kDecided) streams_ = true;
  if (votes_ == -kDecided) streams_ = false;
  until_next_ = votes_ == kDecided || votes_ == -kDecided ? kNbytesBetween : 0;
}

}  // namespace rr
