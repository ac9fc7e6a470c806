// Every RINGREDUCE_* variable, once: name, unit, range, default, Horovod alias and meaning. Read at each init().
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"

namespace rr {

struct Knob {
  const char* name;      // RINGREDUCE_...
  const char* unit;      // "s", "us", "bytes", "name", ...
  const char* range;     // "LOW..HIGH" for numbers, "a|b|c" for choices, "" for free text
  const char* fallback;  // the default, as text
  const char* alias;     // HOROVOD_... with the same unit and sense, or ""
  const char* meaning;
};

const std::vector<Knob>& knobs();

struct KnobValue {
  std::string name;
  std::string value;
  std::string origin;  // "default" or the variable it was read from
};

// The knobs that the core itself uses, parsed and checked; the rest of the table belongs to the Python package.
struct Settings {
  double timeout_s = 0;
  double init_timeout_s = 0;
  double stall_warning_s = 0;
  bool is_stall_warning_given = false;  // else it adapts to what is usual
  double late_warning_percent = 0;
  double verdict_s = 0;
  double spin_us = 0;
  size_t fusion_threshold = 0;
  double fusion_linger_us = 0;
  size_t cache_capacity = 0;
  size_t chunk_nbytes = 0;
  std::string algorithm;
  std::string staging;
  std::string isa;
  std::string transport;
  std::string mpi_cuda;
  std::string gpu_path;
  std::string nccl_library;
  std::string cuda_library;
  LogLevel log_level = LogLevel::kWarning;
  std::vector<KnobValue> values;

  // Throws InvalidArgumentError that names the variable, its value and its range.
  static Settings from_environment();
};

}  // namespace rr
