// Record files, for tests of the recorder: where they are, and what is in them.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "doctest/doctest.h"
#include "recorder/record.h"

namespace rr::test {

inline Record numbered(uint64_t number) {
  Record record;
  record.number = record.nbytes = number;
  record.called_ns = record.started_ns = record.ended_ns = static_cast<int64_t>(number);
  record.group = 1;
  return record;
}

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "rr-recorder-XXXXXX").string();
    path = ::mkdtemp(name.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path); }
  std::string file(const std::string& name) const { return (path / name).string(); }
  std::filesystem::path path;
};

inline std::string content(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

struct BlockRead {
  uint32_t magic, kind;
  uint64_t nbytes, sum, dropped;
};

// The bodies of a file's blocks of one kind; checks the file's form on the way.
inline std::vector<std::string> bodies(const std::string& text, uint32_t kind) {
  std::vector<std::string> found;
  size_t at = 0;
  while (at < text.size()) {
    BlockRead head;
    REQUIRE(at + sizeof head <= text.size());
    std::memcpy(&head, text.data() + at, sizeof head);
    REQUIRE(head.magic == 0x42545252);
    at += sizeof head;
    REQUIRE(head.nbytes % 8 == 0);
    REQUIRE(at + head.nbytes <= text.size());
    uint64_t sum = 0;
    for (size_t i = 0; i < head.nbytes; i += 8) {
      uint64_t word;
      std::memcpy(&word, text.data() + at + i, sizeof word);
      sum += word;
    }
    REQUIRE(sum == head.sum);
    if (head.kind == kind) found.push_back(text.substr(at, head.nbytes));
    at += head.nbytes;
  }
  return found;
}

// Of the last block, which is the file's end.
inline uint64_t dropped_at_end(const std::string& text) {
  const std::vector<std::string> ends = bodies(text, 5);
  REQUIRE(ends.size() == 1);
  BlockRead head;
  REQUIRE(text.size() >= ends[0].size() + sizeof head);
  std::memcpy(&head, text.data() + text.size() - ends[0].size() - sizeof head, sizeof head);
  REQUIRE(head.kind == 5);
  return head.dropped;
}

inline std::vector<Record> records_in(const std::string& text) {
  std::vector<Record> records;
  for (const std::string& body : bodies(text, 4)) {
    const size_t before = records.size();
    records.resize(before + body.size() / sizeof(Record));
    std::memcpy(static_cast<void*>(&records[before]), body.data(), body.size());
  }
  return records;
}

}  // namespace rr::test
