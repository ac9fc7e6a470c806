// The 16-bit floats value by value: every bit pattern, every rounding tie, and one rounding only.
#include <doctest/doctest.h>

#include "support/reduce_oracle.h"

using namespace rr_test;

namespace {

struct Format {
  DType dtype;
  HalfFormat half;
};
const Format kFormats[] = {{DType::kFloat16, kFp16}, {DType::kBFloat16, kBf16}};

std::vector<uint16_t> reduce(rr::Isa isa, const Reduction& r, const std::vector<std::vector<uint16_t>>& inputs) {
  std::vector<uint16_t> out(inputs[0].size(), 0xdead);
  std::vector<const void*> srcs;
  for (const auto& input : inputs) srcs.push_back(input.data());
  void* dsts[] = {out.data()};
  rr::kernels(isa).reduce(r, srcs.data(), srcs.size(), dsts, 1, out.size());
  return out;
}

std::vector<uint16_t> all_patterns() {
  std::vector<uint16_t> patterns;
  for (int bits = 0; bits < 0x10000; ++bits) patterns.push_back(static_cast<uint16_t>(bits));
  return patterns;
}

}  // namespace

TEST_CASE("the sum of one input is that input, for all 65536 bit patterns; a NaN at most turns quiet") {
  for (const Format& format : kFormats) {
    for (rr::Isa isa : rr::available_isas()) {
      const auto out = reduce(isa, {format.dtype, ReduceOp::kSum}, {all_patterns()});
      int wrong = 0;
      for (int bits = 0; bits < 0x10000; ++bits) {
        const bool nan = (bits & 0x7fff) > format.half.infinity;
        const int quiet_bit = 1 << (format.half.mantissa_bits - 1);
        wrong += out[bits] != bits && !(nan && out[bits] == (bits | quiet_bit));
      }
      INFO(std::string(rr::kernels(isa).name));
      INFO(std::string(name(format.dtype)));
      CHECK(wrong == 0);
    }
  }
}

// A half times 1 + 2^-11 (or an odd factor) lands between two halves, a tie among them: to even, upward past the
// largest to infinity, down through the denormals to zero.
TEST_CASE("every pattern times awkward factors rounds to nearest even") {
  const double factors[] = {1.00048828125, 1.00390625, 0.5, 0.25, 0x1p-9, 0x1p-20, 3.0, 1.0 / 3, 0x1.8p-24, 65504.0};
  for (const Format& format : kFormats) {
    for (double factor : factors) {
      const Reduction r{format.dtype, ReduceOp::kSum, 1.0, factor};
      for (rr::Isa isa : rr::available_isas()) {
        const auto out = reduce(isa, r, {all_patterns()});
        int wrong = 0;
        for (int bits = 0; bits < 0x10000; ++bits) {
          const float x = decode(format.half, static_cast<uint16_t>(bits)) * static_cast<float>(factor);
          const uint16_t want = encode(format.half, x);
          wrong += std::isnan(x) ? !std::isnan(decode(format.half, out[bits])) : out[bits] != want;
        }
        INFO(std::string(rr::kernels(isa).name));
        INFO(std::string(name(format.dtype)));
        CAPTURE(factor);
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("known sums") {
  struct Known {
    DType dtype;
    std::vector<uint16_t> inputs;
    uint16_t sum;
    const char* why;
  };
  const Known table[] = {
      {DType::kFloat16, {0x6800, 0x3c00}, 0x6800, "2048 + 1 is a tie: to even, down"},
      {DType::kFloat16, {0x6801, 0x3c00}, 0x6802, "2050 + 1 is a tie: to even, up"},
      {DType::kFloat16, {0x6800, 0x3c00, 0x3c00}, 0x6801, "2048 + 1 + 1 = 2050: rounded once, not at every step"},
      {DType::kFloat16, {0x7bff, 0x4b80}, 0x7bff, "65504 + 15 is below the tie to infinity"},
      {DType::kFloat16, {0x7bff, 0x4c00}, 0x7c00, "65504 + 16 is the tie to infinity"},
      {DType::kFloat16, {0x7bff, 0x7bff, 0xfbff}, 0x7bff, "65504 + 65504 - 65504 does not overflow on the way"},
      {DType::kFloat16, {0x0001, 0x0001}, 0x0002, "denormals add"},
      {DType::kFloat16, {0x03ff, 0x0001}, 0x0400, "denormals add up to the least normal"},
      {DType::kFloat16, {0x7c00, 0x3c00}, 0x7c00, "inf + 1"},
      {DType::kFloat16, {0x8000, 0x8000}, 0x8000, "-0 + -0"},
      {DType::kFloat16, {0x8000, 0x0000}, 0x0000, "-0 + 0"},
      {DType::kBFloat16, {0x4380, 0x3f80}, 0x4380, "256 + 1 is a tie: to even, down"},
      {DType::kBFloat16, {0x4381, 0x3f80}, 0x4382, "258 + 1 is a tie: to even, up"},
      {DType::kBFloat16, {0x4380, 0x3f80, 0x3f80}, 0x4381, "256 + 1 + 1 = 258: rounded once"},
      {DType::kBFloat16, {0x7f7f, 0x7f7f}, 0x7f80, "the largest twice is infinity"},
      {DType::kBFloat16, {0x0001, 0x0001}, 0x0002, "denormals are kept"},
      {DType::kBFloat16, {0x007f, 0x0001}, 0x0080, "denormals add up to the least normal"},
      {DType::kBFloat16, {0xff80, 0x3f80}, 0xff80, "-inf + 1"},
  };
  for (const Known& known : table) {
    for (rr::Isa isa : rr::available_isas()) {
      std::vector<std::vector<uint16_t>> inputs;
      for (uint16_t x : known.inputs) inputs.push_back({x});
      INFO(std::string(rr::kernels(isa).name));
      INFO(std::string(known.why));
      CHECK(reduce(isa, {known.dtype, ReduceOp::kSum}, inputs)[0] == known.sum);
    }
  }
}

TEST_CASE("Average, Min and Max of a NaN or of opposite infinities is NaN, wherever it stands") {
  for (const Format& format : kFormats) {
    const auto infinity = static_cast<uint16_t>(format.half.infinity);
    const auto nan = static_cast<uint16_t>(infinity | 1);
    const auto minus = static_cast<uint16_t>(infinity | 0x8000);
    for (rr::Isa isa : rr::available_isas()) {
      for (ReduceOp op : {ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax}) {
        const Reduction r{format.dtype, op, 1, 1, 2};
        CHECK(std::isnan(decode(format.half, reduce(isa, r, {{nan}, {0x3c00}})[0])));
        CHECK(std::isnan(decode(format.half, reduce(isa, r, {{0x3c00}, {nan}})[0])));
        CHECK(std::isnan(decode(format.half, reduce(isa, r, {{0x3c00}, {nan}, {0}})[0])));
      }
      const Reduction sum{format.dtype, ReduceOp::kSum};
      CHECK(std::isnan(decode(format.half, reduce(isa, sum, {{infinity}, {minus}})[0])));
    }
  }
}

namespace {

constexpr uint8_t kUntouched = 0xa5;
constexpr size_t kMargin = 80;

// "": the result has the bits that are wanted, and nothing beside it has changed. shift: bytes off an aligned address.
std::string fault_of(rr::Isa isa, const Reduction& r, const std::vector<Bytes>& halves, const Bytes& want, size_t count,
                     size_t shift) {
  std::vector<Bytes> inputs;
  std::vector<const void*> srcs;
  for (const Bytes& one : halves) {
    inputs.emplace_back(shift);
    inputs.back().insert(inputs.back().end(), one.begin(), one.begin() + static_cast<long>(2 * count));
  }
  for (const Bytes& input : inputs) srcs.push_back(input.data() + shift);
  Bytes dst(2 * kMargin + 4 * count, kUntouched);
  const auto begin = dst.begin() + static_cast<long>(kMargin + shift);
  const auto end = begin + static_cast<long>(4 * count);
  rr::kernels(isa).reduce_to_float(r, srcs.data(), srcs.size(), &*begin, count);
  const auto is_untouched = [](uint8_t byte) { return byte == kUntouched; };
  if (!std::all_of(dst.begin(), begin, is_untouched) || !std::all_of(end, dst.end(), is_untouched)) {
    return "touched what is not its own";
  }
  return same(DType::kFloat32, &*begin, want.data(), count) ? "" : "wrong bits";
}

}  // namespace

// Its bits are those of float32 inputs of the same values.
TEST_CASE("a reduction of float16 to float32 is not rounded, at any length and address, and nothing else is touched") {
  constexpr size_t kCounts[] = {0, 1, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 127, 129, 1000};
  std::vector<Reduction> reductions;
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
    for (const auto& [pre, post] : {std::pair(1.0, 1.0), std::pair(1.0, 0.3), std::pair(1.7, 0.3)}) {
      reductions.push_back({DType::kFloat16, op, pre, post, 6});
    }
  }
  for (const size_t nsrc : {size_t{1}, size_t{2}, size_t{5}}) {
    std::vector<Bytes> halves(nsrc, Bytes(2000));
    std::vector<Bytes> floats(nsrc, Bytes(4000));
    for (size_t s = 0; s < nsrc; ++s) {
      for (size_t i = 0; i < 1000; ++i) {
        const auto bits = static_cast<uint16_t>((i + 1) * (s + 3) * 40503);
        put(halves[s], i, bits);
        put(floats[s], i, decode(kFp16, bits));
      }
    }
    for (const Reduction& r : reductions) {
      Reduction as_float = r;
      as_float.dtype = DType::kFloat32;
      const Bytes want = oracle(as_float, floats);
      for (const rr::Isa isa : rr::available_isas()) {
        INFO(std::string(rr::kernels(isa).name));
        INFO(std::string(name(r.op)));
        CAPTURE(nsrc);
        for (const size_t count : kCounts) {
          CAPTURE(count);
          for (const size_t shift : {size_t{0}, size_t{2}}) CHECK(fault_of(isa, r, halves, want, count, shift) == "");
        }
      }
    }
  }
}
