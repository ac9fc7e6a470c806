// The file of one rank's records: blocks of {magic, kind, nbytes, sum, dropped} and a body of whole 8-byte words. A
// rank that is killed leaves a file that ends within a block, at most.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "recorder/output_file.h"
#include "recorder/recorder.h"

namespace rr {

class RecordFile {
 public:
  // process: what the file says of its rank, in JSON.
  RecordFile(const std::string& path, const std::string& process);
  void write_group(const RecordedGroup& group);
  void write_names(const std::vector<std::pair<uint32_t, std::string>>& names);
  // dropped: records lost so far.
  void write_records(const Record* records, size_t count, uint64_t dropped);
  void write_end(const std::string& reason, uint64_t dropped);

 private:
  enum class Block : uint32_t { kProcess = 1, kGroup, kNames, kRecords, kEnd };
  void write(Block kind, const void* body, size_t nbytes, uint64_t dropped);
  void write_json(Block kind, std::string text, uint64_t dropped = 0);

  OutputFile file_;
};

}  // namespace rr
