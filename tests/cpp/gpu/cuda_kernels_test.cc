// The GPU's kernels, run on the CPU thread by thread, against the oracle of reductions, against Kernels, and against
// arithmetic of this file: every dtype and operation, every way that operands may lie.
#include <doctest/doctest.h>

#include "base/errors.h"
#include "gpu/cuda_operands.h"

using namespace rr_test;
using rr::Codec;

namespace {

const size_t kCounts[] = {0,  1,  2,   3,   7,   15,  16,  17,  31,   33,   63,
                          64, 65, 127, 128, 129, 251, 511, 513, 1021, 2048, 4099};
constexpr size_t kLongest = 4099;
const unsigned kMultiprocessors[] = {1, 2, 7, 132};

std::string describe(const Reduction& r) {
  return std::string(name(r.op)) + " of " + name(r.dtype) + ", factors " + std::to_string(r.prescale) + " and " +
         std::to_string(r.postscale);
}

std::vector<Reduction> meaningful_reductions() {
  const double factors[][2] = {{1, 1}, {0.3, 1}, {1, 2.7}, {1.7, 0.3}};
  std::vector<Reduction> reductions;
  for (int dtype = 0; dtype < rr::kDTypeCount; ++dtype) {
    for (int op = 0; op <= static_cast<int>(ReduceOp::kBitwiseOr); ++op) {
      for (const auto& factor : factors) {
        const Reduction r{rr::dtype_from_code(dtype), rr::op_from_code(op), factor[0], factor[1], 6};
        const bool scaled = factor[0] != 1 || factor[1] != 1;
        if (scaled ? is_scalable(r.dtype, r.op) : is_meaningful(r.dtype, r.op)) reductions.push_back(r);
      }
    }
  }
  return reductions;
}

// One launch with a fold of every count and lie. Destinations: one to three, the first one perhaps the last source.
void check_folds(const Reduction& r, size_t nsrc, unsigned multiprocessors) {
  const size_t each = itemsize(r.dtype);
  std::vector<Bytes> inputs;
  for (size_t s = 0; s < nsrc; ++s)
    inputs.push_back(random_input(r.dtype, kLongest, static_cast<uint32_t>(100 * s) + 7));
  const Bytes want = oracle(r, inputs);
  Bytes host(want.size());
  std::vector<const void*> host_srcs;
  for (const Bytes& input : inputs) host_srcs.push_back(input.data());
  void* host_dst = host.data();
  rr::kernels(rr::Isa::kPortable).reduce(r, host_srcs.data(), nsrc, &host_dst, 1, kLongest);

  std::vector<std::vector<Operand>> operands;
  std::vector<DeviceFold> folds;
  size_t salt = nsrc;
  for (const Lie lie : kLies) {
    for (const size_t count : kCounts) {
      ++salt;
      DeviceFold fold;
      fold.count = count;
      std::vector<Operand>& own = operands.emplace_back();
      for (size_t s = 0; s < nsrc; ++s) {
        own.emplace_back(inputs[s], count * each, shift(lie, s, each, salt));
        fold.srcs.push_back(own.back().data());
      }
      for (size_t d = 0; d < 1 + salt % 3; ++d) {
        if (d == 0 && salt % 2 == 0) {
          fold.dsts.push_back(own.back().data());
          continue;
        }
        own.emplace_back(count * each, shift(lie, nsrc + d, each, salt));
        fold.dsts.push_back(own.back().data());
      }
      folds.push_back(fold);
    }
  }
  run(rr::fold_launch(folds, r, multiprocessors));
  for (size_t i = 0; i < folds.size(); ++i) {
    bool right = true;
    for (const std::byte* dst : folds[i].dsts) {
      const auto* const got = reinterpret_cast<const uint8_t*>(dst);
      right =
          right && same(r.dtype, got, want.data(), folds[i].count) && same(r.dtype, got, host.data(), folds[i].count);
    }
    for (size_t s = 0; s < nsrc; ++s) {
      const bool is_dst = folds[i].dsts[0] == folds[i].srcs[s];
      right = right && (is_dst || std::equal(operands[i][s].at(), operands[i][s].at() + operands[i][s].nbytes(),
                                             inputs[s].begin()));
    }
    for (const Operand& operand : operands[i]) right = right && operand.is_guarded();
    if (right) continue;
    FAIL_CHECK(describe(r), ", ", nsrc, " sources, ", folds[i].count, " elements, lie ", i / std::size(kCounts), ", ",
               multiprocessors, " multiprocessors");
  }
}

double as_double(DType dtype, const uint8_t* at) {
  switch (dtype) {
    case DType::kFloat16:
      return decode(kFp16, load<uint16_t>(at));
    case DType::kBFloat16:
      return decode(kBf16, load<uint16_t>(at));
    case DType::kFloat32:
      return load<float>(at);
    default:
      return load<double>(at);
  }
}

void put_rounded(DType dtype, Bytes& out, size_t i, double value) {
  switch (dtype) {
    case DType::kFloat16:
      return put(out, i, encode(kFp16, value));
    case DType::kBFloat16:
      return put(out, i, encode(kBf16, value));
    case DType::kFloat32:
      return put(out, i, static_cast<float>(value));
    default:
      return put(out, i, value);
  }
}

// factor * x: the product in float, in double where one of the types is double.
Bytes moved(const Bytes& input, DType from, DType to, double factor) {
  const size_t count = input.size() / itemsize(from);
  Bytes out(count * itemsize(to));
  for (size_t i = 0; i < count; ++i) {
    const double x = as_double(from, &input[i * itemsize(from)]);
    const bool wide = from == DType::kFloat64 || to == DType::kFloat64;
    const volatile float narrow = static_cast<float>(x) * static_cast<float>(factor);
    put_rounded(to, out, i, wide ? x * factor : static_cast<double>(narrow));
  }
  return out;
}

void check_moves(const Bytes& input, const Bytes& want, DType from, DType to, double factor, unsigned multiprocessors) {
  std::vector<Operand> srcs, dsts;
  std::vector<DevicePart> parts;
  size_t salt = 0;
  for (const Lie lie : kLies) {
    for (const size_t count : kCounts) {
      ++salt;
      srcs.emplace_back(input, count * itemsize(from), shift(lie, 0, itemsize(from), salt));
      dsts.emplace_back(count * itemsize(to), shift(lie, 1, itemsize(to), salt));
      parts.push_back({srcs.back().data(), dsts.back().data(), count});
    }
  }
  run(rr::move_launch(parts, from, to, factor, multiprocessors));
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool right = same(to, dsts[i].at(), want.data(), parts[i].count) && dsts[i].is_guarded() &&
                       std::equal(srcs[i].at(), srcs[i].at() + srcs[i].nbytes(), input.begin());
    if (right) continue;
    FAIL_CHECK(name(from), " to ", name(to), " times ", factor, ", ", parts[i].count, " elements, lie ",
               i / std::size(kCounts));
  }
}

}  // namespace

TEST_CASE("folds agree with the oracle and with Kernels, all operations, however operands lie") {
  size_t round = 0;
  for (const Reduction& r : meaningful_reductions()) {
    for (const size_t nsrc : {1, 2, 5}) check_folds(r, nsrc, kMultiprocessors[round++ % std::size(kMultiprocessors)]);
  }
}

TEST_CASE("many sources of many folds: a table that does not fit into the parameters") {
  std::vector<DeviceFold> one(1, {{nullptr}, {nullptr}, 1});
  CHECK_FALSE(rr::fold_launch(one, Reduction(), 132).needs_upload());
  one[0].srcs.resize(1000);
  CHECK(rr::fold_launch(one, Reduction(), 132).needs_upload());
  check_folds({DType::kFloat16, ReduceOp::kAverage, 1, 1, 64}, 64, 132);
  check_folds({DType::kInt16, ReduceOp::kAverage, 1, 1, 64}, 64, 132);
}

TEST_CASE("copies of every dtype, casts between all floating-point types, with and without a factor") {
  for (int code = 0; code < rr::kDTypeCount; ++code) {
    const DType dtype = rr::dtype_from_code(code);
    const Bytes input = random_input(dtype, kLongest, 3);
    check_moves(input, input, dtype, dtype, 1.0, 7);
  }
  const DType floating[] = {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64};
  for (const DType from : floating) {
    const Bytes input = random_input(from, kLongest, 5);
    for (const DType to : floating) {
      for (const double factor : {1.0, 0.3, 1e6}) {
        check_moves(input, moved(input, from, to, factor), from, to, factor, kMultiprocessors[itemsize(to) % 4]);
      }
    }
  }
}

TEST_CASE("a double is rounded to 16 bits once") {
  std::mt19937 random(11);
  for (const DType to : {DType::kFloat16, DType::kBFloat16}) {
    Bytes input(kLongest * sizeof(double));
    for (size_t i = 0; i < kLongest; ++i) {
      // Halfway between two neighbours, and less than half a float's last bit away from it: rounding twice goes wrong.
      const auto bits = static_cast<uint16_t>(random() % (to == DType::kFloat16 ? 0x7bff : 0x7f7f));
      const HalfFormat format = to == DType::kFloat16 ? kFp16 : kBf16;
      const double middle = (double{decode(format, bits)} + decode(format, static_cast<uint16_t>(bits + 1))) / 2;
      const double away[] = {0, 1e-12, -1e-12};
      put(input, i, (random() % 2 ? 1 : -1) * middle * (1 + away[random() % 3]));
    }
    check_moves(input, moved(input, DType::kFloat64, to, 1.0), DType::kFloat64, to, 1.0, 2);
  }
}

TEST_CASE("every 16-bit float becomes its float and comes back") {
  for (const DType half : {DType::kFloat16, DType::kBFloat16}) {
    Bytes all(65536 * 2), wide(65536 * 4), back(65536 * 2);
    for (size_t i = 0; i < 65536; ++i) put(all, i, static_cast<uint16_t>(i));
    const auto bytes = [](Bytes& of) { return reinterpret_cast<std::byte*>(of.data()); };
    run(rr::move_launch({{bytes(all), bytes(wide), 65536}}, half, DType::kFloat32, 1.0, 132));
    CHECK(same(DType::kFloat32, wide.data(), moved(all, half, DType::kFloat32, 1.0).data(), 65536));
    run(rr::move_launch({{bytes(wide), bytes(back), 65536}}, DType::kFloat32, half, 1.0, 132));
    CHECK(same(half, back.data(), all.data(), 65536));
  }
}

TEST_CASE("integers times a factor are truncated and clamped; casts that are not there are refused by name") {
  int32_t numbers[] = {-7, 7, 2000000000, -2000000000, 0};
  auto* const at = reinterpret_cast<std::byte*>(numbers);
  run(rr::move_launch({{at, at, 5}}, DType::kInt32, DType::kInt32, 1.5, 132));
  const int32_t want[] = {-10, 10, 2147483647, -2147483647 - 1, 0};
  CHECK(std::equal(numbers, numbers + 5, want));
  CHECK_THROWS_WITH_AS(rr::move_launch({{at, at, 1}}, DType::kInt32, DType::kFloat32, 1.0, 1),
                       doctest::Contains("int32 to float32"), rr::InvalidArgumentError);
  CHECK_THROWS_WITH_AS(rr::move_launch({{at, at, 1}}, DType::kBool, DType::kBool, 2.0, 1), doctest::Contains("bool"),
                       rr::InvalidArgumentError);
}

TEST_CASE("wire codecs give the bytes of Kernels") {
  const rr::Kernels& host = rr::kernels(rr::Isa::kPortable);
  Bytes input = random_input(DType::kFloat32, 5000, 9);
  for (size_t i = 0; i < 5000; ++i) {
    // Every other block is finite; then one of denormals, one whose scale is just too small, one of zeros.
    const size_t block = i / rr::kCodecBlock;
    if (block % 2 == 0 && !std::isfinite(load<float>(&input[i * 4]))) put(input, i, 1.25f);
    if (block == 4) put(input, i, static_cast<float>(i % 7) * std::numeric_limits<float>::denorm_min());
    if (block == 6) put(input, i, 126.9f * 0x1p-126f);
    if (block == 8) put(input, i, -0.0f);
  }
  for (const Codec codec : {Codec::kNone, Codec::kFp16, Codec::kBf16, Codec::kInt8}) {
    for (const size_t count : {0, 1, 2, 31, 33, 255, 256, 257, 511, 512, 513, 1021, 4096, 5000}) {
      for (const size_t off : {0, 4, 1, 6}) {
        const size_t nbytes = codec_nbytes(codec, count);
        const Operand src(input, count * 4, off), encoded(nbytes, 3 * off % 16), decoded(count * 4, 5 * off % 16);
        const Operand want(nbytes, 0), want_decoded(count * 4, 0);
        host.encode(codec, src.at(), want.data(), count);
        host.decode(codec, want.data(), want_decoded.at(), count);
        run(rr::encode_launch(codec, src.data(), encoded.data(), count, 2));
        run(rr::decode_launch(codec, want.data(), decoded.data(), count, 2));
        INFO("wire ", name(codec), ", ", count, " elements, shift ", off);
        const bool half = codec == Codec::kFp16 || codec == Codec::kBf16;
        const DType as = codec == Codec::kFp16   ? DType::kFloat16
                         : codec == Codec::kBf16 ? DType::kBFloat16
                                                 : DType::kUInt8;
        CHECK(same(as, encoded.at(), want.at(), half ? count : nbytes));
        CHECK(same(DType::kFloat32, decoded.at(), want_decoded.at(), count));
        CHECK(encoded.is_guarded());
        CHECK(decoded.is_guarded());
      }
    }
  }
}
