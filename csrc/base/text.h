// Texts that go into places of a fixed size, and numbers in texts.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

namespace rr {

// The longest prefix of at most `most` bytes that ends with a whole character. text: UTF-8.
inline std::string shortened(const std::string& text, size_t most) {
  if (text.size() <= most) return text;
  size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

template <size_t N>
void write_text(char (&place)[N], const std::string& text) {
  const std::string fitting = shortened(text, N - 1);
  std::memcpy(place, fitting.c_str(), fitting.size() + 1);
}

// The text of a place that its writer may be writing, or may never have written.
template <size_t N>
std::string text_from(const char (&place)[N]) {
  char copy[N];
  std::memcpy(copy, place, N);
  return std::string(copy, ::strnlen(copy, N));
}

// 0 to 100; 0 of nothing.
inline int percent(int64_t part, int64_t whole) { return whole <= 0 ? 0 : static_cast<int>(100 * part / whole); }

// "0.5", "12"
inline std::string seconds_text(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, seconds < 10 ? "%.1f" : "%.0f", seconds);
  return text;
}

}  // namespace rr
