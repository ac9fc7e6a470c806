#include "gpu/nccl/nccl.h"

#include <dlfcn.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>

#include "base/errors.h"
#include "base/hash.h"
#include "base/never_destroyed.h"

namespace rr {
namespace {

constexpr const char* kSoname = "libnccl.so.2";
// Communicators do not block, so that a lost rank cannot hang us. Until 2.26 a call that has not ended stays in
// thread-local memory of the thread that made it (ncclGroupJobMain of group.cc), where the next call of that thread, on
// another communicator, finds it. Here whoever is at work makes the calls of all groups.
constexpr int kOldest = 22703;

std::string dotted(int version) {
  const int major = version >= 10000 ? 10000 : 1000;  // 2.8 and before: 2804
  return std::to_string(version / major) + "." + std::to_string(version % major / 100) + "." +
         std::to_string(version % 100);
}

struct Known {
  std::mutex mutex;
  std::map<std::string, std::shared_ptr<const NcclLibrary>> by_path;
  std::string found_at;
};
Known& known() {
  static auto& value = never_destroyed<Known>();
  return value;
}

std::string why_not() {
  const char* text = ::dlerror();
  return text != nullptr ? text : "no reason given";
}

// The bits of a factor in a 16-bit float, if they hold it exactly as zero or a normal number.
std::optional<uint16_t> exact_bits(DType dtype, double factor) {
  if (factor == 0.0) return uint16_t{0};
  const bool is_half = dtype == DType::kFloat16;
  const int fraction_bits = is_half ? 10 : 7;
  const int bias = is_half ? 15 : 127;
  int exponent = 0;
  const double fraction = (std::frexp(std::fabs(factor), &exponent) * 2 - 1) * (1 << fraction_bits);
  const int biased = exponent - 1 + bias;
  if (!std::isfinite(factor) || fraction != std::floor(fraction) || biased < 1 || biased > 2 * bias) return {};
  return static_cast<uint16_t>((std::signbit(factor) ? 0x8000 : 0) | biased << fraction_bits |
                               static_cast<int>(fraction));
}

std::optional<NcclType> type_of(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return NcclType::kFloat16;
    case DType::kBFloat16:
      return NcclType::kBFloat16;
    case DType::kFloat32:
      return NcclType::kFloat32;
    case DType::kFloat64:
      return NcclType::kFloat64;
    case DType::kInt8:
      return NcclType::kInt8;
    case DType::kInt32:
      return NcclType::kInt32;
    case DType::kInt64:
      return NcclType::kInt64;
    case DType::kUInt8:
      return NcclType::kUInt8;
    case DType::kUInt32:
      return NcclType::kUInt32;
    case DType::kUInt64:
      return NcclType::kUInt64;
    case DType::kInt16:
    case DType::kUInt16:
    case DType::kBool:
      break;
  }
  return {};
}

bool is_floating(DType dtype) {
  return dtype == DType::kFloat16 || dtype == DType::kBFloat16 || dtype == DType::kFloat32 || dtype == DType::kFloat64;
}

}  // namespace

NcclLibrary::NcclLibrary(const std::string& path) {
  load(path);
  std::string missing;
  const auto find = [&](const std::string& name, auto& function, bool is_needed) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(handle_, name.c_str()));
    if (function == nullptr && is_needed) missing += " " + name;
  };
#define RR_FIND(name, parameters) find("nccl" #name, name, true);
  RR_NCCL_CALLS(RR_FIND)
#undef RR_FIND
  find("ncclGetErrorString", GetErrorString_, true);
  find("ncclGetLastError", GetLastError_, false);
  find("ncclCommShrink", CommShrink, false);
  if (GetVersion != nullptr) GetVersion(&version_);
  if (const char* host = std::getenv("NCCL_HOSTID")) host_key_ = hash_of_text(host);
  if (const char* blocks = std::getenv("NCCL_COMM_BLOCKING"); blocks != nullptr && std::atoi(blocks) == 1) {
    throw UnavailableError(
        "NCCL: with NCCL_COMM_BLOCKING=1 a lost rank would hang this one in a call of NCCL; unset it, or set "
        "RINGREDUCE_GPU_PATH=ipc or staged to go without NCCL");
  }
  if (!missing.empty() || version_ < kOldest) {
    throw UnavailableError("NCCL: " + path_ + " is " + (version_ == 0 ? "no NCCL" : "NCCL " + dotted(version_)) +
                           (missing.empty() ? "" : " and lacks" + missing) + "; ringreduce needs " + dotted(kOldest) +
                           " or newer: update it, or name another by RINGREDUCE_NCCL_LIBRARY");
  }
}

void NcclLibrary::load(const std::string& path) {
  const auto open = [this](const std::string& file, int flags) {
    handle_ = ::dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL | flags);
    if (handle_ != nullptr) path_ = file;
    return handle_ != nullptr;
  };
  if (!path.empty()) {
    if (open(path, 0)) return;
    throw UnavailableError("NCCL: RINGREDUCE_NCCL_LIBRARY=" + path + ": " + why_not());
  }
  if (open(kSoname, RTLD_NOLOAD)) return;
  std::string tried;
  if (const std::string& found = known().found_at; !found.empty()) {
    if (open(found, 0)) return;
    tried = why_not() + "; ";
  }
  if (open(kSoname, 0)) return;
  throw UnavailableError("NCCL: " + tried + why_not() + "; install it (pip install nvidia-nccl-cu13) or name it by " +
                         "RINGREDUCE_NCCL_LIBRARY");
}

std::string NcclLibrary::name() const { return "NCCL " + dotted(version_); }

std::string NcclLibrary::error(NcclResult code, ncclComm* communicator) const {
  const char* said = GetErrorString_(code);
  std::string text = said != nullptr ? said : "no text";
  const char* last = GetLastError_ != nullptr ? GetLastError_(communicator) : nullptr;
  if (last != nullptr && last[0] != '\0') text += std::string("; last error: ") + last;
  while (!text.empty() && text.back() == '\n') text.pop_back();
  return text + " (code " + std::to_string(static_cast<int>(code)) + ")";
}

std::shared_ptr<const NcclLibrary> nccl_library(const std::string& path) {
  const std::lock_guard lock(known().mutex);
  std::shared_ptr<const NcclLibrary>& library = known().by_path[path];
  if (library == nullptr) library = std::make_shared<const NcclLibrary>(path);
  return library;
}

void nccl_found_at(const std::string& path) {
  const std::lock_guard lock(known().mutex);
  known().found_at = path;
}

double nccl_factor(const Reduction& reduction) {
  const double factor = reduction.prescale * reduction.postscale;
  return reduction.op == ReduceOp::kAverage ? factor / reduction.divisor : factor;
}

bool nccl_can(const Reduction& reduction) {
  if (!type_of(reduction.dtype)) return false;
  const bool floating = is_floating(reduction.dtype);
  const bool has_factors = reduction.prescale != 1.0 || reduction.postscale != 1.0;
  switch (reduction.op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage: {
      if (reduction.op == ReduceOp::kSum && !has_factors) return true;
      const double factor = nccl_factor(reduction);
      if (!floating || !std::isfinite(factor)) return false;
      return itemsize(reduction.dtype) > 2 || exact_bits(reduction.dtype, factor).has_value();
    }
    case ReduceOp::kProduct:
      return !has_factors;
    case ReduceOp::kMin:
    case ReduceOp::kMax:
      return !floating && !has_factors;
    default:
      return false;
  }
}

NcclType nccl_type(DType dtype) {
  if (const auto type = type_of(dtype)) return *type;
  throw InternalError(std::string("NCCL has no type for ") + rr::name(dtype));
}

std::array<std::byte, 8> nccl_scalar(DType dtype, double factor) {
  std::array<std::byte, 8> scalar{};
  const auto store = [&scalar](auto value) { std::memcpy(scalar.data(), &value, sizeof value); };
  if (dtype == DType::kFloat64) {
    store(factor);
  } else if (dtype == DType::kFloat32) {
    store(static_cast<float>(factor));
  } else if (const auto bits = exact_bits(dtype, factor)) {
    store(*bits);
  } else {
    throw InternalError(std::string("NCCL: ") + rr::name(dtype) + " does not hold the factor " +
                        std::to_string(factor));
  }
  return scalar;
}

}  // namespace rr
