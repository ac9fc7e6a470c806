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

bool CallRecord::record_other_thread(bool is_from_queue) {
  if (!is_from_queue) record_caller();
  if (only_thread_ != std::thread::id()) return false;
  only_thread_ = std::this_thread::get_id();
  return true;
}

void CallRecord::record_caller() {
  const std::thread::id self = std::this_thread::get_id();
  if (only_caller_ == std::thread::id()) only_caller_ = self;
  many_callers_ |= only_caller_ != self;
}

}  // namespace rr
