// Every kernel on the GPU against the CPU's kernels, bit for bit. Guards around each destination must stay as they are.

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "bench_gpu.h"
#include "data/codec.h"

namespace rr {
namespace {

constexpr size_t kGuard = 256;  // bytes before and after a destination
constexpr auto kUntouched = std::byte{0xA5};
constexpr size_t kBlock = 16 << 20;  // of pinned and of device memory: the largest case with all its operands

using Bytes = std::vector<std::byte>;

uint64_t mixed(uint64_t x) {
  x = (x ^ (x >> 31)) * 0x9E3779B97F4A7C15ull;
  x = (x ^ (x >> 29)) * 0xBF58476D1CE4E5B9ull;
  return x ^ (x >> 32);
}

// Elements that depend on the input and on the position: small halves of both signs for floats, any bits for integers.
Bytes input(DType dtype, size_t which, size_t count) {
  Bytes bytes(count * itemsize(dtype));
  for (size_t i = 0; i < count; ++i) {
    const uint64_t bits = mixed(which * 1000003 + i);
    std::byte* to = bytes.data() + i * itemsize(dtype);
    const float real = (static_cast<float>(bits % 4001) - 2000.0f) / 512.0f;
    if (dtype == DType::kFloat64) {
      const double wide = static_cast<double>(bits % 4000037) / 1e6 - 2;
      std::memcpy(to, &wide, sizeof wide);
    } else if (dtype == DType::kFloat32) {
      std::memcpy(to, &real, sizeof real);
    } else if (dtype == DType::kBFloat16 || dtype == DType::kFloat16) {
      // Normal numbers from 2^-6 to 2^3 of both signs, any mantissa.
      const unsigned exponent = dtype == DType::kFloat16 ? 9 + bits % 10 : 121 + bits % 10;
      const unsigned shift = dtype == DType::kFloat16 ? 10 : 7;
      const auto half =
          static_cast<uint16_t>(((bits >> 8) & 1) << 15 | exponent << shift | ((bits >> 16) & ((1u << shift) - 1)));
      std::memcpy(to, &half, sizeof half);
    } else if (dtype == DType::kBool) {
      *to = std::byte{static_cast<uint8_t>(bits & 1)};
    } else {
      std::memcpy(to, &bits, itemsize(dtype));
    }
  }
  return bytes;
}

class Checker {
 public:
  explicit Checker(Device& device)
      : device_(device), host_(device, kBlock), memory_(device, kBlock), kernels_(kernels("auto")) {}

  int failures() const { return failures_; }
  int cases() const { return cases_; }

  void fold(const Reduction& reduction, size_t nsrc, size_t ndst, size_t count, size_t offset, bool in_place) {
    const size_t nbytes = count * itemsize(reduction.dtype);
    std::vector<Bytes> srcs;
    std::vector<const void*> src_data;
    for (size_t s = 0; s < nsrc; ++s) srcs.push_back(input(reduction.dtype, s + 1, count));
    for (const Bytes& src : srcs) src_data.push_back(src.data());
    Bytes expected(nbytes);
    void* out = expected.data();
    kernels_.reduce(reduction, src_data.data(), nsrc, &out, 1, count);

    start();
    DeviceFold fold;
    fold.count = count;
    for (const Bytes& src : srcs) fold.srcs.push_back(place(src, offset));
    for (size_t d = 0; d < ndst; ++d) {
      fold.dsts.push_back(in_place ? const_cast<std::byte*>(fold.srcs[d]) : place(nbytes, offset));
    }
    upload();
    device_.fold(WorkStream::kCompute, {fold}, reduction);
    const std::string what = std::string("fold ") + name(reduction.dtype) + " " + name(reduction.op) + " pre " +
                             std::to_string(reduction.prescale) + " post " + std::to_string(reduction.postscale) +
                             ", " + std::to_string(nsrc) + " to " + std::to_string(ndst) + ", " +
                             std::to_string(count) + " elements at offset " + std::to_string(offset) +
                             (in_place ? ", in place" : "");
    download();
    for (const std::byte* dst : fold.dsts) compare(dst, expected, reduction.dtype, what);
  }

  // A list of tensors of which the i-th has counts[i] elements, packed and at once cast and scaled.
  void move(DType from, DType to, double factor, const std::vector<size_t>& counts, size_t offset) {
    start();
    std::vector<DevicePart> parts;
    std::vector<Bytes> expected;
    for (size_t i = 0; i < counts.size(); ++i) {
      const Bytes src = input(from, i + 7, counts[i]);
      parts.push_back({place(src, offset), place(counts[i] * itemsize(to), 0), counts[i]});
      expected.push_back(cast(src, from, to, factor, counts[i]));
    }
    upload();
    device_.move(WorkStream::kCompute, parts, from, to, factor);
    download();
    const std::string what = std::string("move ") + name(from) + " to " + name(to) + " times " +
                             std::to_string(factor) + ", " + std::to_string(counts.size()) + " tensors from offset " +
                             std::to_string(offset);
    for (size_t i = 0; i < parts.size(); ++i) compare(parts[i].dst, expected[i], to, what);
  }

  void codec(Codec codec, size_t count) {
    const Bytes src = input(DType::kFloat32, 3, count);
    Bytes encoded(codec_nbytes(codec, count));
    kernels_.encode(codec, src.data(), encoded.data(), count);
    Bytes decoded(src.size());
    kernels_.decode(codec, encoded.data(), decoded.data(), count);

    start();
    const std::byte* from = place(src, 0);
    std::byte* coded = place(encoded.size(), 0);
    std::byte* back = place(decoded.size(), 0);
    upload();
    device_.encode(WorkStream::kCompute, codec, from, coded, count);
    device_.decode(WorkStream::kCompute, codec, coded, back, count);
    download();
    const std::string what = std::string(" of ") + name(codec) + ", " + std::to_string(count) + " elements";
    compare(coded, encoded, DType::kUInt8, "encode" + what);
    compare(back, decoded, DType::kFloat32, "decode" + what);
  }

 private:
  void start() {
    used_ = 0;
    std::fill_n(host_.data(), kBlock, kUntouched);
  }
  // Where an operand lies on the GPU: on 256 bytes and `offset` more, with a guard on either side.
  std::byte* place(size_t nbytes, size_t offset) {
    const size_t at = (used_ + kGuard + 255) / 256 * 256 + offset;
    used_ = at + nbytes;
    if (used_ + kGuard > kBlock) throw InternalError("rr_gpu: a case does not fit into its memory");
    return memory_.data() + at;
  }
  std::byte* place(const Bytes& content, size_t offset) {
    std::byte* at = place(content.size(), offset);
    std::memcpy(here(at), content.data(), content.size());
    return at;
  }
  std::byte* here(const std::byte* on_device) const { return host_.data() + (on_device - memory_.data()); }
  void upload() { to_device(device_, memory_.data(), host_.data(), used_ + kGuard); }
  void download() {
    std::fill_n(host_.data(), used_ + kGuard, std::byte{0x11});
    to_host(device_, host_.data(), memory_.data(), used_ + kGuard);
  }

  // What the CPU's kernel makes of it: a reduction of one input where the type stays, else element by element.
  static Bytes cast(const Bytes& src, DType from, DType to, double factor, size_t count) {
    Bytes result(count * itemsize(to));
    if (from == to) {
      const void* in = src.data();
      void* out = result.data();
      const Reduction scaled = {to, ReduceOp::kSum, factor, 1.0, 1};
      kernels("auto").reduce(scaled, &in, 1, &out, 1, count);
      return result;
    }
    for (size_t i = 0; i < count; ++i) {
      const auto wide = static_cast<float>(real(src.data() + i * itemsize(from), from) * factor);
      store(result.data() + i * itemsize(to), to, wide);
    }
    return result;
  }
  static double real(const std::byte* from, DType dtype) {
    if (dtype == DType::kFloat64) return *reinterpret_cast<const double*>(from);
    if (dtype == DType::kFloat32) return *reinterpret_cast<const float*>(from);
    float value = 0;
    kernels("auto").decode(dtype == DType::kFloat16 ? Codec::kFp16 : Codec::kBf16, from, &value, 1);
    return value;
  }
  static void store(std::byte* to, DType dtype, float value) {
    if (dtype == DType::kFloat32) {
      std::memcpy(to, &value, sizeof value);
    } else if (dtype == DType::kFloat64) {
      const double wide = value;
      std::memcpy(to, &wide, sizeof wide);
    } else {
      kernels("auto").encode(dtype == DType::kFloat16 ? Codec::kFp16 : Codec::kBf16, &value, to, 1);
    }
  }

  void compare(const std::byte* on_device, const Bytes& expected, DType dtype, const std::string& what) {
    ++cases_;
    const std::byte* got = here(on_device);
    std::string wrong;
    if (!expected.empty() && std::memcmp(got, expected.data(), expected.size()) != 0) {
      const auto differ = std::mismatch(expected.begin(), expected.end(), got);
      const auto at = static_cast<size_t>(differ.first - expected.begin());
      wrong = "element " + std::to_string(at / itemsize(dtype)) + " is wrong";
    }
    // The neighbours' guards: another operand's bytes may stand there, but never other ones than were uploaded.
    for (size_t i = 1; wrong.empty() && i <= 8; ++i) {
      if (got[expected.size() + i - 1] != kUntouched) wrong = "a byte behind the destination was written";
      if (got[-static_cast<ptrdiff_t>(i)] != kUntouched) wrong = "a byte before the destination was written";
    }
    if (wrong.empty()) return;
    ++failures_;
    if (failures_ <= 20) std::fprintf(stderr, "rr_gpu: %s: %s\n", what.c_str(), wrong.c_str());
  }

  Device& device_;
  HostMemory host_;
  DeviceMemory memory_;
  const Kernels& kernels_;
  size_t used_ = 0;
  int failures_ = 0;
  int cases_ = 0;
};

DType dtype_at(int code) { return dtype_from_code(code); }

void check_folds(Checker& checker, bool few) {
  const std::vector<size_t> counts = few ? std::vector<size_t>{4097} : std::vector<size_t>{1, 7, 127, 4097, 65'537};
  for (int code = 0; code < kDTypeCount; ++code) {
    const DType dtype = dtype_at(code);
    for (int op = 0; op < 10; ++op) {
      const auto reduce_op = static_cast<ReduceOp>(op);
      if (reduce_op == ReduceOp::kAdasum || !is_meaningful(dtype, reduce_op)) continue;
      const size_t nsrc = 2 + static_cast<size_t>(code + op) % 3;  // 2, 3 and 4, each with some of the pairs
      const int divisor = static_cast<int>(nsrc);
      for (const size_t count : counts) {
        const size_t offset = (count % 2) * itemsize(dtype) * static_cast<size_t>(op % 3);
        checker.fold({dtype, reduce_op, 1.0, 1.0, divisor}, nsrc, nsrc, count, offset, op % 2 == 0);
      }
      if (is_scalable(dtype, reduce_op)) {
        checker.fold({dtype, reduce_op, 0.5, 3.0, divisor}, nsrc, 1, counts.back(), 0, false);
      }
    }
  }
  for (const size_t nsrc : {size_t{1}, size_t{2}, size_t{5}, size_t{8}}) {
    checker.fold({DType::kFloat32, ReduceOp::kSum, 1.0, 1.0, 1}, nsrc, nsrc, few ? 1009 : 200'003, 0, true);
    checker.fold({DType::kBFloat16, ReduceOp::kAverage, 1.0, 1.0, static_cast<int>(nsrc)}, nsrc, nsrc, 1009, 2, true);
  }
}

void check_moves(Checker& checker, bool few) {
  std::vector<size_t> many;
  for (size_t i = 0; i < (few ? 20 : 500); ++i) many.push_back(i % 5 == 0 ? 0 : mixed(i) % (few ? 100 : 1000));
  const std::vector<std::vector<size_t>> lists = {{1}, {few ? size_t{5003} : size_t{700'003}}, many};
  for (int code = 0; code < kDTypeCount; ++code) {
    const DType dtype = dtype_at(code);
    checker.move(dtype, dtype, 1.0, many, 0);
    checker.move(dtype, dtype, 1.0, {1009}, itemsize(dtype));
    if (is_scalable(dtype, ReduceOp::kSum)) checker.move(dtype, dtype, 0.5, {1009, 1, 64}, 0);
  }
  const DType floats[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32};
  for (const DType from : floats) {
    for (const DType to : floats) {
      if (from == to) continue;
      for (const auto& list : lists) checker.move(from, to, 1.0, list, 0);
      checker.move(from, to, 0.25, {1009, 3}, itemsize(from));
    }
  }
  checker.move(DType::kFloat64, DType::kFloat32, 1.0, many, 0);
  checker.move(DType::kFloat32, DType::kFloat64, 1.0, many, 0);
}

}  // namespace

int check_kernels(Device& device, bool few) {
  Checker checker(device);
  check_folds(checker, few);
  check_moves(checker, few);
  for (const Codec codec : {Codec::kFp16, Codec::kBf16, Codec::kInt8}) {
    for (const size_t count : {size_t{1}, size_t{255}, size_t{256}, size_t{1009}, size_t{few ? 5003u : 300'007u}}) {
      checker.codec(codec, count);
    }
  }
  std::printf("{\"what\": \"kernels\", \"gpu\": \"%s\", \"cases\": %d, \"wrong\": %d}\n", device.name().c_str(),
              checker.cases(), checker.failures());
  return checker.failures();
}

}  // namespace rr
