// Kernel speeds beside the GPU's own copy, in the same run. A time is that of a batch of launches, issued one after the
// other and waited for once, by the host's clock: tables and launches are in it.

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "bench_gpu.h"

namespace rr {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr int kSamples = 7;
constexpr size_t kBatchNbytes = size_t{8} << 30;  // moved by a batch: 2 ms at 4 TB/s, far more than waiting costs
constexpr size_t kMostLaunches = 50;
constexpr size_t kShift = 4096 + 4;  // elements between the beginnings of two inputs in one pattern

// The integer at a position of the pattern; sums of eight, halves, and their bfloat16 are exact.
float value(size_t position) { return static_cast<float>(1 + (position * 31 + (position >> 12) * 7) % 29); }

struct Figure {
  std::string what;
  std::string list;
  size_t nbytes = 0;  // of the tensors
  size_t moved = 0;   // read and written by one launch
  int ranks = 1;
};

class Bench {
 public:
  Bench(Device& device, size_t most)
      : device_(device), most_(most), pattern_(device, most + kMiB), result_(device, most) {
    const size_t count = (most + kMiB) / sizeof(float);
    for (size_t i = 0; i < count; ++i) pattern_.as<float>()[i] = value(i);
  }

  // Seconds of one launch: the median of samples.
  template <class Launch>
  double seconds(size_t moved, const Launch& launch) {
    const size_t launches = std::clamp(kBatchNbytes / std::max<size_t>(moved, 1), size_t{3}, kMostLaunches);
    launch();
    await(device_, WorkStream::kCompute);
    std::vector<double> samples;
    for (int s = 0; s < kSamples; ++s) {
      const int64_t begin = now_ns();
      for (size_t i = 0; i < launches; ++i) launch();
      await(device_, WorkStream::kCompute);
      samples.push_back(static_cast<double>(now_ns() - begin) * 1e-9 / static_cast<double>(launches));
    }
    std::sort(samples.begin(), samples.end());
    return samples[samples.size() / 2];
  }

  void report(const Figure& figure, double s, size_t wrong) {
    const double rate = static_cast<double>(figure.moved) / s * 1e-9;
    if (figure.what == "copy") copies_.emplace_back(figure.nbytes, rate);
    double copy = 0;  // of the next larger size, or of the largest
    for (const auto& [nbytes, measured] : copies_) {
      copy = measured;
      if (nbytes >= figure.nbytes) break;
    }
    std::printf(
        "{\"what\": \"%s\", \"list\": \"%s\", \"ranks\": %d, \"nbytes\": %zu, \"moved_nbytes\": %zu, \"time_us\": "
        "%.3f, "
        "\"GBps\": %.2f, \"limit_GBps\": %.2f, \"fraction\": %.4f, \"wrong\": %zu}\n",
        figure.what.c_str(), figure.list.c_str(), figure.ranks, figure.nbytes, figure.moved, s * 1e6, rate, copy,
        copy > 0 ? rate / copy : 0.0, wrong);
    std::fflush(stdout);
    all_wrong_ += wrong;
  }

  void copy(size_t nbytes) {
    const DeviceMemory src(device_, nbytes);
    const DeviceMemory dst(device_, nbytes);
    to_device(device_, src.data(), pattern_.data(), nbytes);
    const double s = seconds(2 * nbytes, [&] { device_.copy(WorkStream::kCompute, dst.data(), src.data(), nbytes); });
    report({"copy", "one", nbytes, 2 * nbytes}, s, wrong<float>(dst.data(), nbytes / 4, 0, value));
  }

  // Pack, unpack, scale and cast of a list whose tensors lie apart, on 256 bytes each.
  void lists(const TensorList& list) {
    size_t apart = 0, dense = 0;
    for (const size_t count : list.counts) {
      apart += (count * sizeof(float) + 255) / 256 * 256;
      dense += count * sizeof(float);
    }
    if (apart > most_) return;
    const DeviceMemory tensors(device_, apart);
    const DeviceMemory packed(device_, dense);
    std::vector<DevicePart> pack, unpack, cast;
    size_t at = 0, to = 0;
    for (const size_t count : list.counts) {
      const size_t nbytes = count * sizeof(float);
      to_device(device_, tensors.data() + at, pattern_.data() + to, nbytes);
      pack.push_back({tensors.data() + at, packed.data() + to, count});
      unpack.push_back({packed.data() + to, tensors.data() + at, count});
      cast.push_back({tensors.data() + at, packed.data() + to / 2, count});
      at += (nbytes + 255) / 256 * 256;
      to += nbytes;
    }
    const auto time = [&](const std::vector<DevicePart>& parts, DType type, double factor, size_t moved) {
      return seconds(moved, [&] { device_.move(WorkStream::kCompute, parts, DType::kFloat32, type, factor); });
    };
    const size_t count = dense / sizeof(float);
    double s = time(pack, DType::kFloat32, 1.0, 2 * dense);
    report({"pack", list.name, dense, 2 * dense}, s, wrong<float>(packed.data(), count, 0, value));
    s = time(unpack, DType::kFloat32, 1.0, 2 * dense);
    report({"unpack", list.name, dense, 2 * dense}, s, wrong_list(tensors.data(), list));
    s = time(pack, DType::kFloat32, 0.5, 2 * dense);
    const auto half = [](size_t i) { return 0.5f * value(i); };
    report({"scale", list.name, dense, 2 * dense}, s, wrong<float>(packed.data(), count, 0, half));
    s = time(cast, DType::kBFloat16, 1.0, dense + dense / 2);
    const auto upper = [](size_t i) {  // exact, so the upper half of a float32
      const float exact = value(i);
      uint32_t bits = 0;
      std::memcpy(&bits, &exact, sizeof bits);
      return static_cast<uint16_t>(bits >> 16);
    };
    report({"cast", list.name, dense, dense + dense / 2}, s, wrong<uint16_t>(packed.data(), count, 0, upper));
  }

  // n inputs to n outputs in place, as the leader of n ranks does it: 2 n S bytes.
  void reduce(int ranks, size_t nbytes) {
    const auto n = static_cast<size_t>(ranks);
    if (n * nbytes > most_) return;
    const DeviceMemory memory(device_, 2 * n * nbytes);
    DeviceFold fold;
    fold.count = nbytes / sizeof(float);
    for (size_t r = 0; r < n; ++r) {
      std::byte* src = memory.data() + r * nbytes;
      to_device(device_, src, pattern_.data() + r * kShift * sizeof(float), nbytes);
      fold.srcs.push_back(src);
      fold.dsts.push_back(memory.data() + (n + r) * nbytes);
    }
    const Reduction sum = {DType::kFloat32, ReduceOp::kSum, 1.0, 1.0, ranks};
    const double s = seconds(2 * n * nbytes, [&] { device_.fold(WorkStream::kCompute, {fold}, sum); });
    size_t bad = 0;
    for (const std::byte* dst : fold.dsts) {
      bad += wrong<float>(dst, fold.count, 0, [&](size_t i) {
        float total = 0;
        for (size_t r = 0; r < n; ++r) total += value(i + r * kShift);
        return total;
      });
    }
    report({"reduce", "one", nbytes, 2 * n * nbytes, ranks}, s, bad);
  }

  size_t all_wrong() const { return all_wrong_; }

 private:
  template <class T, class Expected>
  size_t wrong(const std::byte* on_device, size_t count, size_t first, const Expected& expected) {
    std::memset(result_.data(), 0xA5, count * sizeof(T));
    to_host(device_, result_.data(), on_device, count * sizeof(T));
    const T* got = result_.as<T>();
    size_t bad = 0;
    for (size_t i = 0; i < count; ++i) bad += got[i] == static_cast<T>(expected(first + i)) ? 0 : 1;
    return bad;
  }
  size_t wrong_list(const std::byte* tensors, const TensorList& list) {
    size_t bad = 0, at = 0, first = 0;
    for (const size_t count : list.counts) {
      bad += wrong<float>(tensors + at, count, first, value);
      at += (count * sizeof(float) + 255) / 256 * 256;
      first += count;
    }
    return bad;
  }

  Device& device_;
  size_t most_;
  HostMemory pattern_;
  HostMemory result_;
  std::vector<std::pair<size_t, double>> copies_;
  size_t all_wrong_ = 0;
};

}  // namespace

int bench_kernels(Device& device, const std::vector<TensorList>& lists, size_t max_nbytes) {
  Bench bench(device, max_nbytes);
  for (size_t nbytes = kMiB; nbytes <= max_nbytes; nbytes *= 4) bench.copy(nbytes);
  for (size_t nbytes = kMiB; nbytes <= max_nbytes; nbytes *= 4) bench.lists({"one", {nbytes / sizeof(float)}});
  for (const TensorList& list : lists) bench.lists(list);
  for (const int ranks : {2, 4}) {
    for (size_t nbytes = kMiB; nbytes <= max_nbytes; nbytes *= 4) bench.reduce(ranks, nbytes);
  }
  return bench.all_wrong() == 0 ? 0 : 1;
}

}  // namespace rr
