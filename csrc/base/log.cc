#include "base/log.h"

#include <unistd.h>

#include <array>
#include <cctype>

#include "base/errors.h"

namespace rr {
namespace {
constexpr std::array<const char*, 6> kNames = {"trace", "debug", "info", "warning", "error", "fatal"};
}

LogLevel log_level_from(const std::string& text) {
  std::string lower;
  for (const char c : text) lower += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (lower == kNames[i]) return static_cast<LogLevel>(i);
  }
  throw InvalidArgumentError("RINGREDUCE_LOG_LEVEL=" + text + ": use trace, debug, info, warning, error or fatal");
}

void Log::write(LogLevel level, const std::string& text) const {
  if (level < least_) return;
  const std::string line = std::string("ringreduce ") + kNames[static_cast<size_t>(level)] + " [rank " +
                           std::to_string(rank_) + "] " + text + "\n";
  // One write(2) keeps lines of several ranks whole; a closed stderr is no reason to fail.
  if (::write(STDERR_FILENO, line.data(), line.size()) < 0) return;
}

}  // namespace rr
