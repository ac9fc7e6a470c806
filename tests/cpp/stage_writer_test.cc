// Writing past the caches moves the same bytes, and nobody streams because of one slow sample.
#include "transport/stage_writer.h"

#include <cstring>
#include <vector>

#include "data/stream.h"
#include "doctest/doctest.h"

namespace rr {
namespace {

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
    StageWriter writer(mode);
    for (const size_t nbytes : {0, 1, 100, 4095, 4096, 4097, 8200, 20000}) {
      CAPTURE(nbytes);
      CHECK(copies_exactly(nbytes, [&](std::byte* dst, const std::byte* src, size_t n) { writer.write(dst, src, n); }));
    }
  }
  CHECK(StageWriter("streamed").streams());
  CHECK_FALSE(StageWriter("cached").streams());
}

TEST_CASE("comparisons that agree decide, one that stands alone does not") {
  constexpr int64_t kSlow = 2000, kFast = 300;  // ns, for
  constexpr size_t kSample = 4096;              // bytes
  StageWriter writer("auto");
  const auto note = [&](int times, int64_t cached_ns) {
    for (int i = 0; i < times; ++i) writer.note(cached_ns, kFast, kSample);
  };
  note(1, kSlow);
  CHECK_FALSE(writer.streams());
  note(3, kSlow);
  CHECK(writer.streams());
  for (int i = 0; i < 10; ++i) {
    note(2, kFast);
    note(2, kSlow);
  }
  CHECK(writer.streams());
  note(8, kFast);
  CHECK_FALSE(writer.streams());
}

}  // namespace
}  // namespace rr
