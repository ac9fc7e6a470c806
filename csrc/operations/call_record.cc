#include "operations/call_record.h"

#include "base/text.h"

namespace rr {
namespace {
constexpr size_t kShownNbytes = 80;  // of a name, in a text about all ranks
}

std::string called_shortly(Kind kind, const std::string& name, uint64_t number) {
  return called(kind, name.size() > kShownNbytes ? shortened(name, kShownNbytes) + "..." : name, number);
}

uint64_t CallRecord::record(Kind kind, const std::string* name) {
  kind_ = kind;
  number_ = count_;
  if (name != nullptr) {
    name_ = *name;
  } else {
    name_.clear();
  }
  return count_++;
}

void CallRecord::record_other_caller() {
  const bool is_first = only_caller_ == std::thread::id();
  if (is_first) only_caller_ = std::this_thread::get_id();
  many_callers_ |= !is_first;
}

}  // namespace rr
