#include "gpu/cuda/driver.h"

#include <dlfcn.h>

namespace rr {
namespace {

void* load(const std::string& library) {
  // Never closed: see the class.
  if (void* const loaded = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) return loaded;
  const char* const why = ::dlerror();
  throw UnavailableError("CUDA: the driver cannot be loaded: " + (why != nullptr ? std::string(why) : library) +
                         "; a machine with an NVIDIA GPU has it from the driver's package, a container from the NVIDIA "
                         "container toolkit; RINGREDUCE_CUDA_LIBRARY names another file");
}

template <class Call>
void find(void* library, const char* symbol, Call*& call) {
  call = reinterpret_cast<Call*>(::dlsym(library, symbol));
}

}  // namespace

CudaDriver::CudaDriver(const std::string& library) : library_(library) {
  void* const loaded = load(library);
  std::string missing;
#define RR_FIND(member, symbol, ...) \
  find(loaded, #symbol, member);     \
  if (member == nullptr) missing += " " #symbol;
  RR_CUDA_CALLS(RR_FIND)
#undef RR_FIND
#define RR_FIND(member, symbol, ...) find(loaded, #symbol, member);
  RR_CUDA_OPTIONAL_CALLS(RR_FIND)
#undef RR_FIND
  needs_image_ = ::dlsym(loaded, "ringreduce_runs_kernels_on_the_host") == nullptr;
  if (missing.empty()) return;
  throw UnavailableError("CUDA: " + library + " lacks" + missing +
                         "; ringreduce needs a driver of CUDA 11.7 or newer (515), better one of CUDA 12.4");
}

std::shared_ptr<const CudaDriver> CudaDriver::open(const std::string& library) {
  struct Opened : CudaDriver {
    explicit Opened(const std::string& name) : CudaDriver(name) {}
  };
  return std::make_shared<const Opened>(library);
}

std::string CudaDriver::text(cu::Result result) const {
  const char* name = nullptr;
  const char* words = nullptr;
  if (get_error_name(result, &name) != cu::kSuccess || name == nullptr) name = "CUresult";
  if (get_error_string(result, &words) != cu::kSuccess || words == nullptr) words = "unknown to this driver";
  return std::string(name) + " (" + std::to_string(result) + "): " + words;
}

std::string CudaDriver::version() const {
  int version = 0;
  if (driver_get_version(&version) != cu::kSuccess) return "?";
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

bool is_sticky(cu::Result result) {
  switch (result) {
    case cu::kEccUncorrectable:
    case cu::kNvlinkUncorrectable:
    case cu::kContained:
    case cu::kIllegalAddress:
    case cu::kLaunchTimeout:
    case cu::kContextIsDestroyed:
    case cu::kAssert:
    case cu::kHardwareStackError:
    case cu::kIllegalInstruction:
    case cu::kMisalignedAddress:
    case cu::kInvalidAddressSpace:
    case cu::kInvalidPc:
    case cu::kLaunchFailed:
    case cu::kMpsClientTerminated:
    case cu::kUnknown:
      return true;
    default:
      return false;
  }
}

}  // namespace rr
