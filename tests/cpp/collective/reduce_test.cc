// Every kernel set against the oracle: every meaningful (dtype, op), with and without factors, every short length (so
// that every tail is met), numbers of sources and destinations, misaligned pointers, a destination that is a source.
#include <doctest/doctest.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <cstring>
#include <memory>
#include <random>

#include "support/reduce_oracle.h"
#include "support/sanitizer.h"

using namespace rr_test;

namespace {

const size_t kLengths[] = {1000, 4097};  // beside 0 to 70
constexpr size_t kLongest = 4097;
const size_t kSourceCounts[] = {1, 2, 3, 5};
constexpr int kDivisor = 6;  // of Average: more ranks than sources, as after a join
constexpr uint8_t kCanary = 0xa5;

using Kernel = decltype(rr::Kernels::reduce);

template <class T>
void put_special(Bytes& bytes, size_t i, uint32_t random) {
  const T specials[] = {std::numeric_limits<T>::quiet_NaN(),
                        std::numeric_limits<T>::infinity(),
                        -std::numeric_limits<T>::infinity(),
                        -T(0),
                        T(0),
                        std::numeric_limits<T>::denorm_min(),
                        std::numeric_limits<T>::max(),
                        std::numeric_limits<T>::min()};
  put(bytes, i, specials[random % 8]);
}

// Floats: mostly of unit size, every 11th special. 16-bit floats and integers: any bits, with zeros among them.
Bytes random_input(DType dtype, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Bytes bytes(kLongest * itemsize(dtype));
  const bool half = dtype == DType::kFloat16 || dtype == DType::kBFloat16;
  for (size_t i = 0; i < kLongest; ++i) {
    const bool special = random() % 11 == 0;
    if (dtype == DType::kFloat32) {
      special ? put_special<float>(bytes, i, random()) : put(bytes, i, static_cast<float>(normal(random)));
    } else if (dtype == DType::kFloat64) {
      special ? put_special<double>(bytes, i, random()) : put(bytes, i, normal(random));
    } else if (half && !special) {
      put(bytes, i, encode(dtype == DType::kFloat16 ? kFp16 : kBf16, static_cast<float>(normal(random))));
    } else if (half || random() % 4) {
      for (size_t b = 0; b < itemsize(dtype); ++b) bytes[i * itemsize(dtype) + b] = static_cast<uint8_t>(random());
    }
  }
  return bytes;
}

std::vector<Bytes> random_inputs(DType dtype, size_t n) {
  std::vector<Bytes> inputs;
  for (size_t s = 0; s < n; ++s) inputs.push_back(random_input(dtype, static_cast<uint32_t>(100 * s) + 7));
  return inputs;
}

// Memory of exactly nbytes behind a misaligned pointer, so that the address sanitizer sees one byte too many.
struct Misaligned {
  Misaligned(size_t nbytes, size_t shift) : memory(new uint8_t[nbytes + shift]), at(memory.get() + shift) {}
  std::unique_ptr<uint8_t[]> memory;
  uint8_t* at;
};

struct Case {
  size_t count, ndst, shift;
  bool aliased;  // the first destination is the last source
};

bool matches(Kernel kernel, const Reduction& r, const std::vector<Bytes>& inputs, const Bytes& want, const Case& c) {
  const size_t nbytes = c.count * itemsize(r.dtype);
  std::vector<Misaligned> sources, destinations;
  std::vector<const void*> srcs;
  std::vector<void*> dsts;
  sources.reserve(inputs.size());  // the address sanitizer makes an allocation cost more than the kernel
  srcs.reserve(inputs.size());
  destinations.reserve(c.ndst);
  dsts.reserve(c.ndst);
  for (const Bytes& input : inputs) {
    const bool last = srcs.size() + 1 == inputs.size();
    sources.emplace_back(nbytes + (last ? 8 : 0), c.shift * (srcs.size() + 1) % 64);
    std::memcpy(sources.back().at, input.data(), nbytes);
    if (last) std::memset(sources.back().at + nbytes, kCanary, 8);
    srcs.push_back(sources.back().at);
  }
  for (size_t d = 0; d < c.ndst; ++d) {
    destinations.emplace_back(nbytes + 8, c.shift * (d + 3) % 64);
    std::memset(destinations.back().at, kCanary, nbytes + 8);
    dsts.push_back(d == 0 && c.aliased ? sources.back().at : destinations.back().at);
  }
  kernel(r, srcs.data(), srcs.size(), dsts.data(), dsts.size(), c.count);
  static const Bytes canary(8, kCanary);
  for (void* dst : dsts) {
    const auto* got = static_cast<const uint8_t*>(dst);
    if (!same(r.dtype, got, want.data(), c.count)) return false;
    if (std::memcmp(got + nbytes, canary.data(), 8) != 0) return false;
  }
  for (size_t s = 0; s + (c.aliased ? 1 : 0) < srcs.size(); ++s) {
    if (std::memcmp(srcs[s], inputs[s].data(), nbytes) != 0) return false;
  }
  return true;
}

std::vector<Reduction> meaningful_reductions() {
  const double factors[][2] = {{1, 1}, {0.3, 1}, {1, 2.7}, {1.7, 0.3}};
  std::vector<Reduction> reductions;
  for (int dtype = 0; dtype < rr::kDTypeCount; ++dtype) {
    for (int op = 0; op <= static_cast<int>(ReduceOp::kBitwiseOr); ++op) {
      for (const auto& factor : factors) {
        Reduction r{rr::dtype_from_code(dtype), rr::op_from_code(op), factor[0], factor[1], kDivisor};
        const bool scaled = factor[0] != 1 || factor[1] != 1;
        if (scaled ? is_scalable(r.dtype, r.op) : is_meaningful(r.dtype, r.op)) reductions.push_back(r);
      }
    }
  }
  return reductions;
}

// The two sets between the narrowest and the widest are the same code in every build (CMakeLists.txt: the address
// sanitizer is not in them), so the build without sanitizers has checked them.
bool is_checked_in_this_build(rr::Isa isa) {
  if (rr::test::sanitizer() != rr::test::Sanitizer::kAddress) return true;
  return isa != rr::Isa::kX86_64_v2 && isa != rr::Isa::kAvx2;
}

std::string describe(const Reduction& r) {
  return std::string(name(r.op)) + " of " + name(r.dtype) + ", prescale " + std::to_string(r.prescale) +
         ", postscale " + std::to_string(r.postscale);
}

void check_all_cases(const rr::Kernels& set, const Reduction& r, const std::vector<Bytes>& inputs, const Bytes& want) {
  const auto check_case = [&](const Case& c) {
    if (matches(set.reduce, r, inputs, want, c)) return;
    FAIL_CHECK(std::string(set.name), ": ", describe(r), ", ", c.count, " elements, ", inputs.size(), " sources, ",
               c.ndst, " destinations, shift ", c.shift, ", aliased ", c.aliased);
  };
  for (size_t ndst = 1; ndst <= 3; ++ndst) {
    for (const bool aliased : {false, true}) {
      for (size_t count = 0; count <= 70; ++count) {
        check_case({count, ndst, 0, aliased});
        check_case({count, ndst, 1 + (count + ndst) % 31, aliased});
      }
      for (size_t count : kLengths) check_case({count, ndst, count % 5, aliased});
    }
  }
}

void no_op(const Reduction&, const void* const*, size_t, void* const*, size_t, size_t) {}
void first_only(const Reduction& r, const void* const* srcs, size_t, void* const* dsts, size_t, size_t count) {
  std::memmove(dsts[0], srcs[0], count * itemsize(r.dtype));
}

}  // namespace

TEST_CASE("every kernel set agrees with the oracle") {
  for (const Reduction& r : meaningful_reductions()) {
    for (size_t nsrc : kSourceCounts) {
      const std::vector<Bytes> inputs = random_inputs(r.dtype, nsrc);
      const Bytes want = oracle(r, inputs);
      for (rr::Isa isa : rr::available_isas()) {
        if (is_checked_in_this_build(isa)) check_all_cases(rr::kernels(isa), r, inputs, want);
      }
    }
  }
}

TEST_CASE("the comparison above notices kernels that do nothing or too little") {
  for (const Reduction& r : meaningful_reductions()) {
    const std::vector<Bytes> inputs = random_inputs(r.dtype, 2);
    const Bytes want = oracle(r, inputs);
    for (const bool aliased : {false, true}) {
      INFO(describe(r));
      CHECK_FALSE(matches(no_op, r, inputs, want, {1000, 1, 0, aliased}));
      CHECK_FALSE(matches(first_only, r, inputs, want, {1000, 1, 0, aliased}));
    }
  }
}

TEST_CASE("integer Average is exact, divides by the divisor and truncates toward zero") {
  for (rr::Isa isa : rr::available_isas()) {
    const Reduction r{DType::kInt64, ReduceOp::kAverage, 1, 1, 4};
    const int64_t a[] = {-7, 7, (int64_t{1} << 60) + 3, -1}, b[] = {0, 0, int64_t{1} << 60, -1};
    int64_t out[4];
    const void* srcs[] = {a, b};
    void* dsts[] = {out};
    rr::kernels(isa).reduce(r, srcs, 2, dsts, 1, 4);
    CHECK(out[0] == -1);
    CHECK(out[1] == 1);
    CHECK(out[2] == int64_t{1} << 59);
    CHECK(out[3] == 0);
    const Reduction narrow{DType::kInt8, ReduceOp::kAverage, 1, 1, 3};
    const int8_t x[] = {127, -128, 100};
    int8_t mean[3];
    const void* same_thrice[] = {x, x, x};
    void* to[] = {mean};
    rr::kernels(isa).reduce(narrow, same_thrice, 3, to, 1, 3);
    CHECK(mean[0] == 127);
    CHECK(mean[1] == -128);
    CHECK(mean[2] == 100);
  }
}

#if defined(__x86_64__)
// As after torch.set_flush_denormal(True), and in another rounding.
TEST_CASE("kernels give the same bits in whatever floating-point mode a thread is, which it keeps") {
  constexpr size_t kCount = 300;
  constexpr unsigned kUsual = 0x1f80, kFlushing = kUsual | 0x8040, kDown = kUsual | 0x2000;
  std::vector<float> tiny(kCount, 1e-39F), third(kCount, 1.0F / 3.0F);
  std::vector<uint16_t> halves(kCount, 1);  // the smallest of bfloat16
  const auto results = [&](const rr::Kernels& kernels) {
    std::vector<Bytes> all;
    const auto reduce = [&](DType dtype, const void* one, const void* other) {
      Bytes result(kCount * itemsize(dtype));
      const void* srcs[] = {one, other, one};
      void* dst = result.data();
      kernels.reduce({dtype, ReduceOp::kSum, 1.0, 1.0, 1}, srcs, 3, &dst, 1, kCount);
      all.push_back(result);
    };
    reduce(DType::kFloat32, tiny.data(), tiny.data());
    reduce(DType::kFloat32, third.data(), tiny.data());
    reduce(DType::kBFloat16, halves.data(), halves.data());
    for (const rr::Codec codec : {rr::Codec::kFp16, rr::Codec::kBf16, rr::Codec::kInt8}) {
      for (std::vector<float> data : {tiny, third}) {
        rr::codec_round_trip(kernels, codec, data.data(), kCount);
        Bytes result(kCount * sizeof(float));
        std::memcpy(result.data(), data.data(), result.size());
        all.push_back(result);
      }
    }
    return all;
  };
  const unsigned before = _mm_getcsr();
  for (const rr::Isa isa : rr::available_isas()) {
    const rr::Kernels& kernels = rr::kernels(isa);
    CAPTURE(kernels.name);
    const std::vector<Bytes> expected = results(kernels);
    for (const unsigned mode : {kFlushing, kDown}) {
      _mm_setcsr(mode);
      const std::vector<Bytes> there = results(kernels);
      const unsigned after = _mm_getcsr();
      _mm_setcsr(before);
      CHECK(there == expected);
      CHECK((after & 0xffc0) == mode);
    }
  }
}
#endif
