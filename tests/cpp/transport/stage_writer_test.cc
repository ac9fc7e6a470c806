// Writing past the caches moves the same bytes, and nobody streams because of one slow sample.
#include "transport/stage_writer.h"

#include <cstring>
#include <vector>

#include "data/stream.h"
#include "doctest/doctest.h"

namespace rr {
namespace {

using Phase = StageWriter::Phase;

std::vector<std::byte> pattern(size_t nbytes) {
  std::vector<std::byte> bytes(nbytes);
  for (size_t i = 0; i < nbytes; ++i) bytes[i] = static_cast<std::byte>(i * 131 + i / 251 + 1);
  return bytes;
}

// copy(dst, src, nbytes) at every offset from a cache line that matters; bytes beside the destination stay.
template <class Copy>
bool copies_exactly(size_t nbytes, Copy copy) {
  constexpr size_t kMargin = 64;
  for (const size_t to : {size_t{0}, size_t{1}, size_t{16}, size_t{63}}) {
    for (const size_t from : {size_t{0}, size_t{3}}) {
      const auto src = pattern(nbytes + from);
      std::vector<std::byte> dst(to + nbytes + 2 * kMargin, std::byte{0xEE});
      copy(dst.data() + kMargin + to, src.data() + from, nbytes);
      for (size_t i = 0; i < dst.size(); ++i) {
        const bool inside = i >= kMargin + to && i < kMargin + to + nbytes;
        if (dst[i] != (inside ? src[from + i - kMargin - to] : std::byte{0xEE})) return false;
      }
    }
  }
  return true;
}

TEST_CASE("stream copies any number of bytes at any alignment, and nothing beside them") {
  for (const size_t nbytes : {0, 1, 15, 63, 64, 65, 127, 128, 200, 4096, 10001}) {
    CAPTURE(nbytes);
    CHECK(copies_exactly(nbytes, [](void* dst, const void* src, size_t n) { stream(dst, src, n); }));
  }
}

TEST_CASE("every way of writing copies the same bytes, those of a comparison included") {
  for (const char* mode : {"auto", "cached", "streamed"}) {
    CAPTURE(mode);
    EagerWriter eager(mode);
    const StageWriter writer(mode);
    for (const size_t nbytes : {0, 1, 100, 4095, 4096, 4097, 8200, 20000}) {
      CAPTURE(nbytes);
      CHECK(copies_exactly(nbytes, [&](std::byte* dst, const std::byte* src, size_t n) { eager.write(dst, src, n); }));
      CHECK(copies_exactly(nbytes, [&](std::byte* dst, const std::byte* src, size_t n) { writer.write(dst, src, n); }));
    }
  }
  CHECK(StageWriter("streamed").streams());
  CHECK_FALSE(StageWriter("cached").streams());
}

constexpr int64_t kSlow = 2000, kFast = 300;  // ns, for
constexpr size_t kSample = 8192;              // bytes

// One comparison that finds the way past the caches faster, or slower.
void compare(EagerWriter& writer, bool for_streaming) { writer.note(for_streaming ? kSlow : kFast, kFast, kSample); }
void compare(StageWriter& writer, bool for_streaming) {
  writer.note(Phase::kTake, false, for_streaming ? kSlow : kFast, kSample);
  writer.note(Phase::kTake, true, for_streaming ? kFast : kSlow, kSample);
  writer.judge();
}

TEST_CASE_TEMPLATE("comparisons that agree decide, one that stands alone does not", Writer, EagerWriter, StageWriter) {
  Writer writer("auto");
  const auto note = [&](int times, bool for_streaming) {
    for (int i = 0; i < times; ++i) compare(writer, for_streaming);
  };
  note(1, true);
  CHECK_FALSE(writer.streams());
  note(3, true);
  CHECK(writer.streams());
  for (int i = 0; i < 10; ++i) {
    note(2, false);
    note(2, true);
  }
  CHECK(writer.streams());
  note(8, false);
  CHECK_FALSE(writer.streams());
}

TEST_CASE("the stage compares in some early rounds and in one of 257 later ones, unless a way is forced") {
  const StageWriter writer("auto");
  size_t compared = 0;
  for (uint64_t round = 0; round < 257 * 100; ++round) compared += writer.compares(round);
  CHECK(compared == 16 + 99);
  CHECK_FALSE(writer.compares(0));  // nothing has been written there
  for (uint64_t round = 0; round < 1000; ++round) {
    CHECK_FALSE(StageWriter("cached").compares(round));
    CHECK_FALSE(StageWriter("streamed").compares(round));
  }
}

// A rank may always have the same page of a round, and few rounds pass that compare.
TEST_CASE("each page of a slot is written in either way in comparisons") {
  const StageWriter writer("auto");
  for (const size_t slots : {1, 2, 4}) {
    for (const size_t turns : {1, 2, 64, 256}) {  // places of one page in a slot that are used in turn
      size_t streamed = 0;
      size_t all = 0;
      for (uint64_t round = 0; round < 257 * 101; ++round) {
        if (!writer.compares(round)) continue;
        ++all;
        streamed += StageWriter::is_streamed(round, static_cast<size_t>(round / slots % turns));
      }
      CAPTURE(slots);
      CAPTURE(turns);
      CHECK(streamed > all / 4);
      CHECK(streamed < all * 3 / 4);
    }
  }
}

TEST_CASE("the stage's comparison waits for enough bytes of both kinds, and goes by what each byte takes") {
  StageWriter writer("auto");
  for (int i = 0; i < 8; ++i) {
    writer.note(Phase::kTake, false, kFast, kSample);
    writer.judge();
  }
  CHECK_FALSE(writer.streams());
  for (int i = 0; i < 8; ++i) {
    writer.note(Phase::kTake, false, 4 * kFast, 2 * kSample);  // twice as long a byte
    writer.note(Phase::kTake, true, kFast, kSample);
    writer.note(Phase::kTake, true, kSlow, 64);  // too few bytes to be written past the caches
    writer.judge();
  }
  CHECK(writer.streams());
}

// What a rank folds may lie in pages of one kind, and folding takes longer than copying.
TEST_CASE("the stage compares each phase with itself") {
  StageWriter writer("auto");
  for (int i = 0; i < 8; ++i) {
    writer.note(Phase::kFold, i % 2 == 0, 10 * kSlow, kSample);
    writer.note(Phase::kPut, false, kFast, kSample);
    writer.note(Phase::kPut, true, kSlow, kSample);
    writer.judge();
  }
  CHECK_FALSE(writer.streams());
}

TEST_CASE("what another operation has left of a phase holds up no judgement") {
  StageWriter writer("auto");
  writer.note(Phase::kFold, false, kFast, 4096);
  writer.judge();
  for (int i = 0; i < 5; ++i) compare(writer, true);
  CHECK(writer.streams());
}

TEST_CASE("a rank that only writes goes past the caches only where writing through them takes much longer") {
  const auto streams_after = [](int64_t cached_ns) {
    StageWriter writer("auto");
    for (int i = 0; i < 8; ++i) {
      writer.note(Phase::kPut, false, cached_ns, kSample);
      writer.note(Phase::kPut, true, kFast, kSample);
      writer.judge();
    }
    return writer.streams();
  };
  CHECK_FALSE(streams_after(kFast + 4 * static_cast<int64_t>(kSample / 64)));
  CHECK(streams_after(kFast + 6 * static_cast<int64_t>(kSample / 64)));
}

}  // namespace
}  // namespace rr
