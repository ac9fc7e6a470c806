#include "recorder/live_trace.h"

#include <algorithm>
#include <cstdlib>

#include "recorder/json_text.h"

namespace rr {

LiveTrace::LiveTrace(const Target& target) : target_(target), file_(target.path, OutputFile::NamedBy::kUser) {
  text_ =
      "[\n{\"name\": \"start_time_since_epoch_in_micros\", \"ph\": \"M\", \"pid\": 0, "
      "\"args\": {\"start_time_since_epoch_in_micros\": " +
      std::to_string(target.began_realtime_ns / 1000) + "}}";
  write();
}

void LiveTrace::add_names(const std::vector<std::pair<uint32_t, std::string>>& names) {
  for (const auto& [number, name] : names) names_[number] = name;
}

void LiveTrace::add_event(const std::string& event) { text_ += ",\n" + event; }

std::string LiveTrace::time_text(int64_t ns) const {
  const int64_t size_ns = std::abs(ns);  // no %f: a program's locale may write a comma, which ends a number of JSON
  const std::string fraction = std::to_string(1000 + size_ns % 1000).substr(1);
  return (ns < 0 ? "-" : "") + std::to_string(size_ns / 1000) + "." + fraction;
}

size_t LiveTrace::process_of(const std::string& operation) {
  const auto [found, is_new] = processes_.try_emplace(operation, processes_.size() + 1);
  if (is_new) {
    const std::string number = std::to_string(found->second);
    add_event("{\"name\": \"process_name\", \"ph\": \"M\", \"pid\": " + number +
              ", \"args\": {\"name\": " + json_text(operation) + "}}");
    add_event("{\"name\": \"process_sort_index\", \"ph\": \"M\", \"pid\": " + number +
              ", \"args\": {\"sort_index\": " + number + "}}");
  }
  return found->second;
}

size_t LiveTrace::lane_of(uint8_t kind, int64_t begin_ns, int64_t end_ns) {
  lane_ends_ns_.resize(target_.kinds.size());
  std::vector<int64_t>& ends = lane_ends_ns_[kind];
  const auto is_free = [begin_ns](int64_t lane_end_ns) { return lane_end_ns < begin_ns; };
  auto lane = std::find_if(ends.begin(), ends.end(), is_free);
  if (lane == ends.end()) lane = ends.insert(lane, 0);
  *lane = end_ns;
  return static_cast<size_t>(lane - ends.begin());
}

void LiveTrace::add_slice(const std::string& name, size_t process, int64_t begin_ns, int64_t end_ns,
                          const std::string& args) {
  add_event("{\"name\": " + json_text(name) + ", \"ph\": \"X\", \"ts\": " + time_text(begin_ns - target_.began_ns) +
            ", \"dur\": " + time_text(end_ns - begin_ns) + ", \"pid\": " + std::to_string(process) +
            ", \"tid\": " + std::to_string(target_.rank) + ", \"args\": {" + args + "}}");
}

void LiveTrace::add(const Record* records, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const Record& record = records[i];
    if (record.type != RecordType::kOperation || record.started_ns == 0) continue;
    if (record.kind >= target_.kinds.size()) continue;
    const auto& [kind, upper] = target_.kinds[record.kind];
    const std::string name = record.name != 0
                                 ? names_[record.name]
                                 : "noname." + std::to_string(lane_of(record.kind, record.called_ns, record.ended_ns));
    const size_t process = process_of(kind + "." + name);
    if (target_.marks_cycles && record.started_ns != cycle_ns_) {
      cycle_ns_ = record.started_ns;
      add_event("{\"name\": \"CYCLE_START\", \"ph\": \"i\", \"s\": \"g\", \"pid\": 0, \"ts\": " +
                time_text(record.started_ns - target_.began_ns) + "}");
    }
    add_slice("NEGOTIATE_" + upper, process, record.called_ns, record.started_ns, "");
    add_slice(upper, process, record.started_ns, record.ended_ns, "\"bytes\": " + std::to_string(record.nbytes));
  }
  write();
}

void LiveTrace::write() {
  file_.append(text_.data(), text_.size());
  text_.clear();
}

void LiveTrace::end() {
  text_ += "\n]\n";
  write();
}

}  // namespace rr
