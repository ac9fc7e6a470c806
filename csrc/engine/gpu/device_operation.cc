#include "engine/gpu/device_operation.h"

namespace rr {

bool is_automatic_name(const std::string& name) {
  const size_t dot = name.rfind('.');
  const size_t start = std::char_traits<char>::length(kAutomaticPrefix);
  if (name.rfind(kAutomaticPrefix, 0) != 0 || dot < start || dot + 1 == name.size()) return false;
  return name.find_first_not_of("0123456789", dot + 1) == std::string::npos;
}

void Unheard::keep(std::exception_ptr error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& failure) {
    log_.warning(std::string("an operation on GPU memory has failed, and nobody asked for its outcome: ") +
                 failure.what());
  }
  const std::lock_guard lock(mutex_);
  if (first_ == nullptr) first_ = std::move(error);
}

void Unheard::raise() {
  std::exception_ptr error;
  {
    const std::lock_guard lock(mutex_);
    std::swap(error, first_);
  }
  if (error != nullptr) std::rethrow_exception(error);
}

// Fatal errors come up anyway.
DeviceOperation::~DeviceOperation() {
  if (state.load() == State::kFailed && error != nullptr && !error_is_fatal && !was_asked.load()) unheard->keep(error);
}

}  // namespace rr
