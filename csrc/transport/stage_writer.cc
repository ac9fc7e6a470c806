#include "transport/stage_writer.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/clock.h"
#include "base/rounding.h"
#include "data/stream.h"

namespace rr {
namespace {

constexpr size_t kLeastSample = 1 << 10;  // bytes written each way by a comparison of a writer
constexpr size_t kMostSample = 8 << 10;
constexpr size_t kLeastStreamed = 1 << 10;   // below, the reader's way to the memory takes longer than 27 ns a line
constexpr int64_t kDearerNs = 5;             // per line; writers measure -1 with one L3, 10 to 25 with two
constexpr int64_t kNbytesBetween = 2 << 20;  // comparing then costs 2 % where cached is slow
constexpr int kDecided = 4;  // votes: a sample may have met an interrupt, or lines that were in no cache
// The stage's rounds that compare: some after the first lap of long ones, in which pages are faulted in, and then one
// in kRoundsBetween. One in 64 cost 4 % where cached is fast, since lines that have been written past the caches are
// missed in later rounds. The number is odd, so that other slots and other parts of a program's step have their turn.
constexpr uint64_t kFirstLap = 64;
constexpr uint64_t kFirstRounds = 16;
constexpr uint64_t kRoundsBetween = 257;
constexpr size_t kLeastCompared = 8 << 10;  // bytes of each kind

// Into the L1 cache, or the comparison would be one of reading.
void touch(const std::byte* src, size_t nbytes) {
  std::byte sum{};
  for (size_t i = 0; i < nbytes; i += kCacheLine) sum ^= src[i];
  [[maybe_unused]] volatile std::byte sink = sum;
}

}  // namespace

bool WriteMode::is_sure() const { return votes_ == kDecided || votes_ == -kDecided; }

void WriteMode::vote(bool for_streaming) {
  votes_ = std::clamp(votes_ + (for_streaming ? 1 : -1), -kDecided, kDecided);
  if (is_sure()) streams_ = for_streaming;
}

void write(std::byte* dst, const std::byte* src, size_t nbytes, bool streams) {
  if (streams && nbytes >= kLeastStreamed) {
    stream(dst, src, nbytes);
  } else if (nbytes != 0) {
    std::memcpy(dst, src, nbytes);
  }
}

void EagerWriter::write(std::byte* dst, const std::byte* src, size_t nbytes) {
  if (mode_.adapts()) {
    until_next_ -= static_cast<int64_t>(nbytes);
    if (until_next_ <= 0 && nbytes >= 2 * kLeastSample) {
      const size_t sample = std::min(kMostSample, nbytes / 2 / kCacheLine * kCacheLine);
      compare(dst, src, sample);
      dst += 2 * sample;
      src += 2 * sample;
      nbytes -= 2 * sample;
    }
  }
  rr::write(dst, src, nbytes, streams());
}

void EagerWriter::compare(std::byte* dst, const std::byte* src, size_t sample) {
  touch(src, 2 * sample);
  const int64_t start = now_ns();
  std::memcpy(dst, src, sample);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // till the stores are done, not only issued
  const int64_t middle = now_ns();
  stream(dst + sample, src + sample, sample);
  note(middle - start, now_ns() - middle, sample);
}

void EagerWriter::note(int64_t cached_ns, int64_t streamed_ns, size_t sample) {
  mode_.vote(cached_ns > streamed_ns + kDearerNs * static_cast<int64_t>(sample / kCacheLine));
  until_next_ = mode_.is_sure() ? kNbytesBetween : 0;
}

bool StageWriter::compares(uint64_t round) const {
  const bool is_early = round >= kFirstLap && round < kFirstLap + kFirstRounds;
  return mode_.adapts() && (is_early || (round != 0 && round % kRoundsBetween == 0));
}

// A bit of a product that has no period: pages of a slot have their turns in periods of their own.
bool StageWriter::is_streamed(uint64_t round, size_t page) {
  return (page + (round * 0x9e3779b97f4a7c15ULL >> 63)) % 2 != 0;
}

// What is shorter than kLeastStreamed is written in one way whatever its page.
void StageWriter::note(Phase phase, bool was_streamed, int64_t ns, size_t nbytes) {
  if (nbytes < kLeastStreamed) return;
  Compared& compared = phases_[static_cast<size_t>(phase)];
  Taken& taken = was_streamed ? compared.streamed : compared.cached;
  taken.ns += ns;
  taken.nbytes += nbytes;
  compared.is_new = true;
}

// By phase, since a rank may fold pages of one kind and copy pages of the other. A phase that has few bytes so far is
// waited for; but what other operations have left of it, and these have nothing of, is forgotten.
void StageWriter::judge() {
  double cached_ns = 0;
  double streamed_ns = 0;
  bool is_complete = true;
  bool only_writes = true;
  for (size_t phase = 0; phase < phases_.size(); ++phase) {
    Compared& compared = phases_[phase];
    const auto& [cached, streamed, is_new] = compared;
    if (std::min(cached.nbytes, streamed.nbytes) >= kLeastCompared) {
      const auto nbytes = static_cast<double>(cached.nbytes + streamed.nbytes);
      cached_ns += cached.per_byte() * nbytes;
      streamed_ns += streamed.per_byte() * nbytes;
      only_writes &= phase == static_cast<size_t>(Phase::kPut);
    } else if (is_new) {
      is_complete = false;
    } else {
      compared = {};
    }
    compared.is_new = false;
  }
  if (!is_complete || cached_ns == 0) return;
  if (only_writes) {
    const Compared& put = phases_[static_cast<size_t>(Phase::kPut)];
    streamed_ns +=
        static_cast<double>(kDearerNs) / kCacheLine * static_cast<double>(put.cached.nbytes + put.streamed.nbytes);
  }
  mode_.vote(cached_ns > streamed_ns);
  phases_ = {};
}

}  // namespace rr
