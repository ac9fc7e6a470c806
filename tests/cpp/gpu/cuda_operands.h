// Running the GPU's kernels on the CPU: operands that lie in every way, and launches.
#pragma once

#include <doctest/doctest.h>

#include <memory>
#include <random>

#include "gpu/cuda/launch/tables.h"
#include "gpu/cuda_host.h"
#include "support/reduce_oracle.h"

namespace rr_test {

using rr::DeviceFold;
using rr::DevicePart;
using rr::Launch;

inline constexpr uint8_t kCanary = 0xa5;
inline constexpr size_t kGuard = 16;  // bytes of canary behind an operand

inline void run(const Launch& launch) {
  if (launch.grid == 0) return;
  std::vector<rr::LaunchArgument> aligned((launch.table.size() + sizeof(rr::LaunchArgument) - 1) /
                                          sizeof(rr::LaunchArgument));
  auto* const uploaded = reinterpret_cast<std::byte*>(aligned.data());
  std::memcpy(static_cast<void*>(uploaded), launch.table.data(), launch.table.size());
  rr::LaunchArgument argument = launch.argument(launch.needs_upload() ? uploaded : nullptr);
  void* params[] = {&argument};
  REQUIRE(rr::run_on_host(launch.kernel, launch.grid, launch.block, params));
}

// How the operands of an item lie: shift(n) is the offset of the n-th one from a multiple of 64 bytes.
enum class Lie { kAligned, kAlike, kUnlike, kOdd };
inline constexpr Lie kLies[] = {Lie::kAligned, Lie::kAlike, Lie::kUnlike, Lie::kOdd};

inline size_t shift(Lie lie, size_t n, size_t element, size_t salt) {
  switch (lie) {
    case Lie::kAligned:
      return 0;
    case Lie::kAlike:
      return (1 + salt % 3) * element % 64;
    case Lie::kUnlike:
      return (n + salt) % 5 * element;
    default:
      return 2 * n + 1;
  }
}

// Memory of exactly nbytes and its guard behind such an address.
class Operand {
 public:
  Operand(size_t nbytes, size_t shift) : nbytes_(nbytes), memory_(new uint8_t[nbytes + kGuard + 64 + shift]) {
    const size_t past = reinterpret_cast<uintptr_t>(memory_.get()) % 64;
    at_ = memory_.get() + (64 - past) % 64 + shift;
    std::memset(at_, kCanary, nbytes + kGuard);
  }
  Operand(const Bytes& bytes, size_t nbytes, size_t shift) : Operand(nbytes, shift) {
    if (nbytes != 0) std::memcpy(at_, bytes.data(), nbytes);
  }
  uint8_t* at() const { return at_; }
  std::byte* data() const { return reinterpret_cast<std::byte*>(at_); }
  size_t nbytes() const { return nbytes_; }
  bool is_guarded() const {
    return std::all_of(at_ + nbytes_, at_ + nbytes_ + kGuard, [](uint8_t byte) { return byte == kCanary; });
  }

 private:
  size_t nbytes_;
  std::unique_ptr<uint8_t[]> memory_;
  uint8_t* at_;
};

template <class T>
void put_special(Bytes& bytes, size_t i, uint32_t random) {
  using Limits = std::numeric_limits<T>;
  const T specials[] = {Limits::quiet_NaN(),  Limits::infinity(), -Limits::infinity(), -T(0), T(0),
                        Limits::denorm_min(), Limits::max(),      Limits::min()};
  put(bytes, i, specials[random % 8]);
}

// Floats: of unit size, every 11th special. All else: any bits, a quarter of them zero.
inline Bytes random_input(DType dtype, size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  const size_t each = itemsize(dtype);
  Bytes bytes(count * each);
  for (size_t i = 0; i < count; ++i) {
    const bool special = random() % 11 == 0;
    if (dtype == DType::kFloat32) {
      special ? put_special<float>(bytes, i, random()) : put(bytes, i, static_cast<float>(normal(random)));
    } else if (dtype == DType::kFloat64) {
      special ? put_special<double>(bytes, i, random()) : put(bytes, i, normal(random));
    } else if (dtype <= DType::kBFloat16 && !special) {
      put(bytes, i, encode(dtype == DType::kFloat16 ? kFp16 : kBf16, normal(random)));
    } else if (dtype <= DType::kBFloat16 || random() % 4) {
      for (size_t b = 0; b < each; ++b) bytes[i * each + b] = static_cast<uint8_t>(random());
    }
  }
  return bytes;
}

}  // namespace rr_test
