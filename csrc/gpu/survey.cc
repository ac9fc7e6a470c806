#include "gpu/survey.h"

#include <array>

#include "base/config.h"
#include "base/errors.h"
#include "gpu/cuda/driver.h"

namespace rr {
namespace {

std::shared_ptr<const CudaDriver> started() {
  auto driver = CudaDriver::open(Settings::from_environment().cuda_library);
  const auto result = driver->init(0);
  if (result != cu::kSuccess) throw UnavailableError("CUDA: cuInit: " + driver->text(result));
  return driver;
}

template <class Ask>
cu::Result in_some_context(const CudaDriver& driver, const Ask& ask) {
  int count = 0;
  auto result = driver.device_get_count(&count);
  if (result != cu::kSuccess) return result;
  result = cu::kInvalidContext;
  for (int ordinal = 0; ordinal < count && result == cu::kInvalidContext; ++ordinal) {
    cu::DeviceOrdinal device = 0;
    unsigned flags = 0;
    int is_active = 0;
    cu::Context context = nullptr;
    if (driver.device_get(&device, ordinal) != cu::kSuccess) continue;
    if (driver.device_primary_ctx_get_state(device, &flags, &is_active) != cu::kSuccess || is_active == 0) continue;
    if (driver.device_primary_ctx_retain(&context, device) != cu::kSuccess) continue;
    if (driver.ctx_push_current(context) == cu::kSuccess) {
      result = ask();
      driver.ctx_pop_current(&context);
    }
    driver.device_primary_ctx_release(device);
  }
  return result;
}

}  // namespace

int gpu_of(const std::byte* data) {
  const auto driver = started();
  int ordinal = 0;
  const auto ask = [&] {
    return driver->pointer_get_attribute(&ordinal, static_cast<int>(cu::kPointerDeviceOrdinal),
                                         reinterpret_cast<cu::DevicePtr>(data));
  };
  auto result = ask();
  // A thread that has not used CUDA has no context. Any one of this process will do, and where there is memory there is
  // one; none is made for the question.
  if (result == cu::kInvalidContext) result = in_some_context(*driver, ask);
  if (result == cu::kSuccess) return ordinal;
  throw InvalidArgumentError("an array that says that it is in CUDA memory is not: cuPointerGetAttribute: " +
                             driver->text(result));
}

std::vector<std::pair<std::string, std::string>> survey_gpus() {
  std::vector<std::pair<std::string, std::string>> found;
  try {
    const auto driver = started();
    found.emplace_back("driver", "CUDA " + driver->version() + " (" + driver->library() + ")");
    int count = 0;
    if (driver->device_get_count(&count) != cu::kSuccess) count = 0;
    for (int ordinal = 0; ordinal < count; ++ordinal) {
      std::array<char, 256> name = {};
      cu::DeviceOrdinal device = 0;
      if (driver->device_get(&device, ordinal) != cu::kSuccess) continue;
      if (driver->device_get_name(name.data(), static_cast<int>(name.size() - 1), device) != cu::kSuccess) continue;
      int major = 0;
      int minor = 0;
      driver->device_get_attribute(&major, static_cast<int>(cu::kAttributeComputeMajor), device);
      driver->device_get_attribute(&minor, static_cast<int>(cu::kAttributeComputeMinor), device);
      found.emplace_back("GPU " + std::to_string(ordinal), std::string(name.data()) + ", compute capability " +
                                                               std::to_string(major) + "." + std::to_string(minor));
    }
  } catch (const UnavailableError& error) {
    found.emplace_back("driver", error.what());
  }
  return found;
}

}  // namespace rr
