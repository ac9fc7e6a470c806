// One line per event on stderr, tagged with the level and the rank. Nothing is buffered.
#pragma once

#include <string>

namespace rr {

enum class LogLevel : int { kTrace, kDebug, kInfo, kWarning, kError, kFatal };

// Accepts the names in any case ("warning", "WARNING"); throws InvalidArgumentError otherwise.
LogLevel log_level_from(const std::string& text);

class Log {
 public:
  Log() = default;
  Log(LogLevel least, int rank) : least_(least), rank_(rank) {}
  void write(LogLevel level, const std::string& text) const;
  void warning(const std::string& text) const { write(LogLevel::kWarning, text); }
  void info(const std::string& text) const { write(LogLevel::kInfo, text); }

 private:
  LogLevel least_ = LogLevel::kWarning;
  int rank_ = 0;
};

}  // namespace rr
