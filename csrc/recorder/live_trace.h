// A trace of one rank's operations that grows while they happen, in the form that Horovod's timeline has (the Trace
// Event Format's array of JSON objects, which may lack its closing bracket): HOROVOD_TIMELINE and start_timeline().
// ringreduce/timeline/horovod.py replaces it by one of all ranks when the timeline ends.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "recorder/output_file.h"
#include "recorder/record.h"

namespace rr {

class LiveTrace {
 public:
  struct Target {
    std::string path;
    int rank = 0;
    int64_t began_ns = 0;           // time 0, by CLOCK_MONOTONIC
    int64_t began_realtime_ns = 0;  // the same moment since 1970
    struct KindName {
      std::string name;   // "allreduce"
      std::string upper;  // "ALLREDUCE"
    };
    std::vector<KindName> kinds;  // by a record's kind
    bool marks_cycles = false;    // "CYCLE_START" where a bucket's execution begins
  };
  explicit LiveTrace(const Target& target);
  void add_names(const std::vector<std::pair<uint32_t, std::string>>& names);
  void add(const Record* records, size_t count);
  // The array's end: the file is JSON from here on.
  void end();

 private:
  size_t process_of(const std::string& operation);
  // Of an operation without a name, among those of its kind: slices of one lane do not overlap, as readers of traces
  // demand.
  size_t lane_of(uint8_t kind, int64_t begin_ns, int64_t end_ns);
  void write();
  void add_event(const std::string& event);
  void add_slice(const std::string& name, size_t process, int64_t begin_ns, int64_t end_ns, const std::string& args);
  std::string time_text(int64_t ns) const;

  const Target target_;
  OutputFile file_;
  std::string text_;  // that the file lacks
  std::unordered_map<uint32_t, std::string> names_;
  std::unordered_map<std::string, size_t> processes_;  // of the trace, by operation
  std::vector<std::vector<int64_t>> lane_ends_ns_;     // by kind and lane: until when it is taken
  int64_t cycle_ns_ = 0;                               // the last one marked
};

}  // namespace rr
