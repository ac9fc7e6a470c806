#include "recorder/record_file.h"

#include <cstring>

#include "base/rounding.h"
#include "recorder/json_text.h"

namespace rr {
namespace {

constexpr uint32_t kMagic = 0x42545252;  // "RRTB"

struct BlockHead {
  uint32_t magic = kMagic;
  uint32_t kind = 0;
  uint64_t nbytes = 0;  // of the body
  uint64_t sum = 0;     // of the body's 8-byte words, modulo 2^64
  uint64_t dropped = 0;
};
static_assert(sizeof(BlockHead) == 32);

uint64_t sum_of_words(const void* bytes, size_t nbytes) {
  uint64_t sum = 0;
  for (size_t at = 0; at < nbytes; at += sizeof sum) {
    uint64_t word;
    std::memcpy(&word, static_cast<const char*>(bytes) + at, sizeof word);
    sum += word;
  }
  return sum;
}

}  // namespace

RecordFile::RecordFile(const std::string& path, const std::string& process)
    : file_(path, OutputFile::NamedBy::kTimeline) {
  write_json(Block::kProcess, process);
}

void RecordFile::write(Block kind, const void* body, size_t nbytes, uint64_t dropped) {
  BlockHead head;
  head.kind = static_cast<uint32_t>(kind);
  head.nbytes = nbytes;
  head.sum = sum_of_words(body, nbytes);
  head.dropped = dropped;
  file_.append(&head, sizeof head);
  file_.append(body, nbytes);
}

void RecordFile::write_json(Block kind, std::string text, uint64_t dropped) {
  text.resize(round_up(text.size(), sizeof(uint64_t)), ' ');
  write(kind, text.data(), text.size(), dropped);
}

void RecordFile::write_group(const RecordedGroup& group) {
  std::string ranks;
  for (const int rank : group.ranks) ranks += (ranks.empty() ? "" : ", ") + std::to_string(rank);
  write_json(Block::kGroup, "{\"index\": " + std::to_string(group.number) + ", \"id\": " + std::to_string(group.id) +
                                ", \"context\": " + json_text(group.context) + ", \"ranks\": [" + ranks + "]}");
}

void RecordFile::write_names(const std::vector<std::pair<uint32_t, std::string>>& names) {
  if (names.empty()) return;
  std::string text;
  for (const auto& [number, name] : names) {
    text += (text.empty() ? "{\"" : ", \"") + std::to_string(number) + "\": " + json_text(name);
  }
  write_json(Block::kNames, text + "}");
}

void RecordFile::write_records(const Record* records, size_t count, uint64_t dropped) {
  if (count != 0) write(Block::kRecords, records, count * sizeof(Record), dropped);
}

void RecordFile::write_end(const std::string& reason, uint64_t dropped) {
  write_json(Block::kEnd, "{\"reason\": " + json_text(reason) + "}", dropped);
}

}  // namespace rr
