// The codecs against a reading of codec.h one element at a time, on every instruction set.
#include <doctest/doctest.h>

#include <random>

#include "base/errors.h"
#include "support/reduce_oracle.h"

using namespace rr_test;
using rr::Codec;

namespace {

using Floats = std::vector<float>;

constexpr Codec kCodecs[] = {Codec::kFp16, Codec::kBf16, Codec::kInt8, Codec::kScaledFp16};
constexpr size_t kBlock = rr::kCodecBlock;
// Around the lengths of vectors, of blocks, and of what is left of either.
constexpr size_t kCounts[] = {0,  1,  2,  3,   7,   8,   15,  16,  17,  31,   33,
                              63, 64, 65, 255, 256, 257, 511, 512, 769, 1031, 4099};
constexpr size_t kMargin = 80;
constexpr uint8_t kUntouched = 0xa5;

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}
float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Bytes with a margin on both sides, the first one `shift` bytes off an aligned address.
struct Guarded {
  Bytes all;
  size_t at, nbytes;
  Guarded(size_t n, size_t shift) : all(n + 2 * kMargin, kUntouched), at(kMargin / 2 + shift), nbytes(n) {}
  uint8_t* data() { return &all[at]; }
  bool margins_untouched() const {
    for (size_t i = 0; i < all.size(); ++i) {
      if ((i < at || i >= at + nbytes) && all[i] != kUntouched) return false;
    }
    return true;
  }
};

Bytes encode(rr::Isa isa, Codec codec, const Floats& x, size_t shift = 0) {
  Guarded src(x.size() * 4, shift);
  Guarded dst(codec_nbytes(codec, x.size()), (3 * shift) % 7);
  if (!x.empty()) std::memcpy(src.data(), x.data(), x.size() * 4);
  rr::kernels(isa).encode(codec, src.data(), reinterpret_cast<std::byte*>(dst.data()), x.size());
  CHECK(dst.margins_untouched());
  return Bytes(dst.data(), dst.data() + dst.nbytes);
}

Floats decode(rr::Isa isa, Codec codec, const Bytes& encoded, size_t count, size_t shift = 0) {
  Guarded src(encoded.size(), (5 * shift) % 7);
  Guarded dst(count * 4, shift);
  if (!encoded.empty()) std::memcpy(src.data(), encoded.data(), encoded.size());
  rr::kernels(isa).decode(codec, reinterpret_cast<const std::byte*>(src.data()), dst.data(), count);
  CHECK(dst.margins_untouched());
  Floats y(count);
  if (count != 0) std::memcpy(y.data(), dst.data(), count * 4);
  return y;
}

Floats round_trip(rr::Isa isa, Codec codec, const Floats& x) {
  return decode(isa, codec, encode(isa, codec, x), x.size());
}

// --- what codec.h says, by ldexp and nearbyint
// ------------------------------------------------------------------------

float scale_of(const float* block, size_t n) {
  float largest = 0.0f;
  for (size_t i = 0; i < n; ++i) {
    if (!std::isfinite(block[i])) return NAN;
    largest = std::max(largest, std::fabs(block[i]));
  }
  const volatile float quotient = largest / 127.0f;
  int exponent = 0;
  const double fraction = std::frexp(static_cast<double>(quotient), &exponent);
  const double cut = std::ldexp(std::floor(std::ldexp(fraction, 17)), exponent - 17);
  return cut < 0x1p-126 ? 0.0f : static_cast<float>(cut);
}

int code_of(float x, float scale) {
  if (std::isnan(scale) || scale == 0.0f) return 0;
  const volatile float inverse = 1.0f / scale;
  const volatile float steps = x * inverse;
  return static_cast<int>(std::nearbyint(steps));
}

Bytes oracle_int8(const Floats& x) {
  Bytes encoded(rr::codec_nbytes(Codec::kInt8, x.size()));
  uint8_t* at = encoded.data();
  for (size_t begin = 0; begin < x.size(); begin += kBlock) {
    const size_t n = std::min(kBlock, x.size() - begin);
    const float scale = scale_of(&x[begin], n);
    std::memcpy(at, &scale, sizeof scale);
    at += sizeof scale;
    for (size_t i = 0; i < n; ++i) {
      const size_t to = n == kBlock ? i % 64 * 4 + i / 64 : i;
      at[to] = static_cast<uint8_t>(code_of(x[begin + i], scale));
    }
    at += n;
  }
  return encoded;
}

// The least power of two that brings the largest finite element to 65504 or below.
float power_of(const float* block, size_t n) {
  float largest = 0.0f;
  for (size_t i = 0; i < n; ++i) {
    if (std::isfinite(block[i])) largest = std::max(largest, std::fabs(block[i]));
  }
  float scale = 0x1p-126f;
  while (largest / scale > 65504.0f) scale *= 2;
  return scale;
}

Floats oracle_decoded(Codec codec, const Floats& x) {
  Floats y;
  for (size_t i = 0; i < x.size(); ++i) {
    const size_t begin = i / kBlock * kBlock;
    if (codec == Codec::kScaledFp16) {
      const double scale = static_cast<double>(power_of(&x[begin], std::min(kBlock, x.size() - begin)));
      const uint16_t half = rr_test::encode(kFp16, static_cast<double>(x[i]) / scale);
      y.push_back(static_cast<float>(static_cast<double>(rr_test::decode(kFp16, half)) * scale));
    } else if (codec == Codec::kInt8) {
      const float scale = scale_of(&x[begin], std::min(kBlock, x.size() - begin));
      y.push_back(static_cast<float>(static_cast<double>(code_of(x[i], scale)) * static_cast<double>(scale)));
    } else {
      const HalfFormat format = codec == Codec::kFp16 ? kFp16 : kBf16;
      y.push_back(rr_test::decode(format, rr_test::encode(format, x[i])));
    }
  }
  return y;
}

bool same_floats(const Floats& got, const Floats& want) {
  return got.size() == want.size() && same(DType::kFloat32, reinterpret_cast<const uint8_t*>(got.data()),
                                           reinterpret_cast<const uint8_t*>(want.data()), got.size());
}

// Finite floats over many magnitudes, a narrow range in each block, with zeros of both signs and denormals among them.
Floats mixed(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Floats x(count);
  int magnitude = 0;
  for (size_t i = 0; i < count; ++i) {
    if (i % kBlock == 0) magnitude = static_cast<int>(random() % 250) - 140;
    x[i] =
        std::ldexp(static_cast<float>(static_cast<int32_t>(random())), magnitude - 31 - static_cast<int>(random() % 9));
    if (random() % 97 == 0) x[i] = random() % 2 != 0 ? -0.0f : 0.0f;
  }
  return x;
}

template <class Check>
void on_every_isa(Check check) {
  for (rr::Isa isa : rr::available_isas()) {
    INFO(std::string(rr::kernels(isa).name));
    check(isa);
  }
}

}  // namespace

TEST_CASE("wire codecs: names, codes and sizes") {
  for (int code = 0; code < rr::kCodecCount; ++code) {
    const Codec codec = rr::codec_from_code(code);
    CHECK(static_cast<int>(codec) == code);
    CHECK(rr::codec_from_name(name(codec)) == codec);
  }
  CHECK(rr::codec_from_name("") == Codec::kNone);
  CHECK_THROWS_WITH_AS(rr::codec_from_name("fp8"),
                       "there is no wire codec named \"fp8\"; the names are none, fp16, bf16, int8",
                       rr::InvalidArgumentError);
  CHECK_THROWS_AS(rr::codec_from_code(-1), rr::InvalidArgumentError);
  CHECK_THROWS_AS(rr::codec_from_code(rr::kCodecCount), rr::InvalidArgumentError);
  CHECK(rr::codec_nbytes(Codec::kNone, 1000) == 4000);
  CHECK(rr::codec_nbytes(Codec::kFp16, 1001) == 2002);
  CHECK(rr::codec_nbytes(Codec::kBf16, 1001) == 2002);
  CHECK(rr::codec_nbytes(Codec::kInt8, 0) == 0);
  CHECK(rr::codec_nbytes(Codec::kInt8, 1) == 5);
  CHECK(rr::codec_nbytes(Codec::kInt8, 256) == 260);
  CHECK(rr::codec_nbytes(Codec::kInt8, 257) == 265);
  CHECK(rr::codec_nbytes(Codec::kScaledFp16, 0) == 0);
  CHECK(rr::codec_nbytes(Codec::kScaledFp16, 1) == 6);
  CHECK(rr::codec_nbytes(Codec::kScaledFp16, 256) == 516);
  CHECK(rr::codec_nbytes(Codec::kScaledFp16, 257) == 522);
  CHECK_THROWS_AS(rr::codec_from_name("scaled_fp16"), rr::InvalidArgumentError);  // not a user's to choose
  const size_t count = 1 << 20;
  CHECK(rr::codec_nbytes(Codec::kInt8, count) * 100 <= 27 * 4 * count);
}

TEST_CASE("wire codecs: any count at any address is decoded to what the format says, and nothing else is touched") {
  on_every_isa([](rr::Isa isa) {
    for (size_t count : kCounts) {
      const Floats x = mixed(count, static_cast<uint32_t>(count) + 1);
      for (size_t shift : {0, 1, 2, 5}) {
        CAPTURE(count);
        CAPTURE(shift);
        CHECK(same_floats(decode(isa, Codec::kNone, encode(isa, Codec::kNone, x, shift), count, shift), x));
        for (Codec codec : kCodecs) {
          INFO(std::string(name(codec)));
          const Bytes encoded = encode(isa, codec, x, shift);
          if (codec == Codec::kInt8) CHECK(encoded == oracle_int8(x));
          CHECK(same_floats(decode(isa, codec, encoded, count, shift), oracle_decoded(codec, x)));
        }
      }
    }
  });
}

TEST_CASE("wire codecs: what was decoded is encoded to the same bytes") {
  const Floats x = mixed(400 * kBlock + 77, 3);
  on_every_isa([&](rr::Isa isa) {
    for (Codec codec : {Codec::kFp16, Codec::kBf16, Codec::kInt8}) {
      INFO(std::string(name(codec)));
      const Floats once = round_trip(isa, codec, x);
      CHECK(encode(isa, codec, once) == encode(isa, codec, x));
      CHECK(round_trip(isa, codec, once) == once);
      CHECK(once != x);
    }
  });
}

TEST_CASE("wire codecs: what goes through one in place is what an encoder and a decoder of the whole make of it") {
  on_every_isa([](rr::Isa isa) {
    for (const Codec codec : {Codec::kNone, Codec::kFp16, Codec::kBf16, Codec::kInt8, Codec::kScaledFp16}) {
      INFO(std::string(name(codec)));
      for (const size_t count : {size_t{0}, size_t{1}, kBlock, 16 * kBlock, 16 * kBlock + 1, 50 * kBlock + 3}) {
        CAPTURE(count);
        const Floats x = mixed(count, 5);
        Floats y = x;
        codec_round_trip(rr::kernels(isa), codec, y.data(), count);
        CHECK(same_floats(y, round_trip(isa, codec, x)));
      }
    }
  });
}

TEST_CASE("wire codecs: parts that start at a multiple of the block are encoded by themselves") {
  const Floats x = mixed(9 * kBlock + 100, 4);
  on_every_isa([&](rr::Isa isa) {
    for (Codec codec : kCodecs) {
      const Bytes whole = encode(isa, codec, x);
      for (size_t cut : {kBlock, 4 * kBlock, 9 * kBlock}) {
        const auto at = static_cast<std::ptrdiff_t>(cut);
        Bytes parts = encode(isa, codec, Floats(x.begin(), x.begin() + at));
        CHECK(parts.size() == rr::codec_nbytes(codec, cut));
        const Bytes rest = encode(isa, codec, Floats(x.begin() + at, x.end()));
        parts.insert(parts.end(), rest.begin(), rest.end());
        CHECK(parts == whole);
      }
    }
  });
}

// Every upper half of a float, with lower halves on, next to and between the ties of both formats.
TEST_CASE("fp16 and bf16: every exponent and every tie is rounded to nearest even, too large is an infinity") {
  const uint32_t lower[] = {0x0000, 0x0001, 0x0fff, 0x1000, 0x1001, 0x2000,
                            0x3000, 0x7fff, 0x8000, 0x8001, 0xf000, 0xffff};
  Floats x;
  for (uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (uint32_t low : lower) x.push_back(float_of(upper << 16 | low));
  }
  on_every_isa([&](rr::Isa isa) {
    for (Codec codec : {Codec::kFp16, Codec::kBf16}) {
      const HalfFormat format = codec == Codec::kFp16 ? kFp16 : kBf16;
      const Bytes encoded = encode(isa, codec, x);
      int wrong = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        const auto got = load<uint16_t>(&encoded[2 * i]);
        wrong += std::isnan(x[i]) ? (got & 0x7fff) <= format.infinity : got != rr_test::encode(format, x[i]);
      }
      INFO(std::string(name(codec)));
      CHECK(wrong == 0);
    }
  });
  CHECK(oracle_decoded(Codec::kFp16, {65519.0f, 65520.0f}) == Floats{65504.0f, INFINITY});
}

TEST_CASE("int8: the error is at most 0.501 of the scale, and the largest element of a block is nearly kept") {
  const Floats x = mixed(300 * kBlock, 5);
  on_every_isa([&](rr::Isa isa) {
    const Floats y = round_trip(isa, Codec::kInt8, x);
    int wrong = 0;
    for (size_t block = 0; block < x.size(); block += kBlock) {
      const auto by_magnitude = [](float a, float b) { return std::fabs(a) < std::fabs(b); };
      const auto first = x.begin() + static_cast<std::ptrdiff_t>(block);
      const double largest = std::fabs(*std::max_element(first, first + kBlock, by_magnitude));
      for (size_t i = block; i < block + kBlock; ++i) {
        const double error = std::fabs(static_cast<double>(x[i]) - static_cast<double>(y[i]));
        if (largest < 127 * 0x1p-126) {
          wrong += y[i] != 0.0f;
        } else {
          wrong += error > 0.501 / 127 * largest;
          wrong += std::fabs(x[i]) == largest && error > 0x1p-15 * largest;
        }
      }
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("int8: blocks of zeros, of denormals, of the largest float, with an infinity or a NaN") {
  constexpr float kLargest = std::numeric_limits<float>::max();
  constexpr float kDenormal = 0x1p-149f;
  const auto filled = [](float with) {
    Floats x(3 * kBlock + 5, 1.0f);
    std::fill(x.begin() + kBlock, x.begin() + 2 * kBlock, with);
    return x;
  };
  on_every_isa([&](rr::Isa isa) {
    for (float tiny : {0.0f, -0.0f, kDenormal, -127 * kDenormal, 0x1p-127f, 126 * 0x1p-126f}) {
      const Floats y = round_trip(isa, Codec::kInt8, filled(tiny));
      CAPTURE(tiny);
      CHECK(std::all_of(y.begin() + kBlock, y.begin() + 2 * kBlock, [](float v) { return bits_of(v) == 0; }));
      CHECK(std::fabs(y[0] - 1.0f) < 0x1p-15f);  // the neighbours have scales of their own
      CHECK(std::fabs(y[2 * kBlock] - 1.0f) < 0x1p-15f);
    }
    CHECK(round_trip(isa, Codec::kInt8, filled(127 * 0x1p-126f))[kBlock] == 127 * 0x1p-126f);
    for (float large : {kLargest, -kLargest}) {
      const float y = round_trip(isa, Codec::kInt8, filled(large))[kBlock];
      CHECK(std::isfinite(y));
      CHECK(std::fabs(y / large - 1.0f) < 0x1p-15f);
    }
    for (float special : {INFINITY, -INFINITY, NAN, float_of(0x7f800001), float_of(0xffc00000)}) {
      for (size_t at : {kBlock, kBlock + 130, 2 * kBlock - 1, 3 * kBlock + 4}) {
        Floats x(3 * kBlock + 5, 1.0f);
        x[at] = special;
        const Floats y = round_trip(isa, Codec::kInt8, x);
        int wrong = 0;
        for (size_t i = 0; i < y.size(); ++i) wrong += std::isnan(y[i]) != (i / kBlock == at / kBlock);
        CHECK(wrong == 0);
        CHECK(encode(isa, Codec::kInt8, x) == encode(isa, Codec::kInt8, y));
      }
    }
  });
}

TEST_CASE("fp16 and bf16: a NaN stays one, whatever its bits") {
  const Floats x = {float_of(0x7f800001), float_of(0xff800001), float_of(0x7fffffff), float_of(0xffffffff), NAN};
  on_every_isa([&](rr::Isa isa) {
    for (Codec codec : {Codec::kFp16, Codec::kBf16}) {
      for (float y : round_trip(isa, codec, x)) CHECK(std::isnan(y));
    }
  });
}

TEST_CASE("scaled fp16: what is too large or too small for fp16 keeps its bits, and a special element is alone") {
  Floats x(2 * kBlock + 3, 1.0f);
  for (size_t i = 0; i < kBlock; ++i) x[i] = 0x1p+20f * static_cast<float>(2047 - static_cast<int>(i));
  for (size_t i = kBlock; i < 2 * kBlock; ++i) x[i] = 0x1p-40f * static_cast<float>(i);
  x[7] = -0.0f;
  on_every_isa([&](rr::Isa isa) {
    CHECK(round_trip(isa, Codec::kScaledFp16, x) == x);
    for (float special : {INFINITY, -INFINITY, NAN, float_of(0x7f800001)}) {
      Floats with = x;
      with[9] = with[kBlock + 130] = with[2 * kBlock + 1] = special;
      const Floats y = round_trip(isa, Codec::kScaledFp16, with);
      CHECK(same_floats(y, with));
    }
    for (float tiny : {0.0f, 0x1p-112f, 0x1p-125f}) {
      CAPTURE(tiny);
      CHECK(round_trip(isa, Codec::kScaledFp16, Floats(300, tiny)) == Floats(300, tiny));
    }
    const Floats largest(300, 65504 * 0x1p+112f);
    CHECK(round_trip(isa, Codec::kScaledFp16, largest) == largest);
    const Floats above(300, std::numeric_limits<float>::max());  // is rounded up, as to any type of fewer bits
    CHECK(round_trip(isa, Codec::kScaledFp16, above) == Floats(300, INFINITY));
    for (float power : {0x1p-40f, 1.0f, 2.0f, 0x1p+60f}) {
      Floats all(300, 65504 * power);
      all[5] = 0x1p-24f * power;  // the least of half
      CAPTURE(power);
      CHECK(round_trip(isa, Codec::kScaledFp16, all) == all);
    }
  });
}

TEST_CASE("scaled fp16: an element is off by at most 2^-11 of it, or 2^-39 of the largest of its block") {
  std::mt19937 random(11);
  Floats x(200 * kBlock);
  for (float& one : x) {
    const float mantissa = static_cast<float>(static_cast<int32_t>(random()));
    one = std::ldexp(mantissa, -31 - static_cast<int>(random() % 60));
  }
  on_every_isa([&](rr::Isa isa) {
    const Floats y = round_trip(isa, Codec::kScaledFp16, x);
    int wrong = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      float largest = 0.0f;
      for (size_t k = 0; k < kBlock; ++k) largest = std::max(largest, std::fabs(x[i / kBlock * kBlock + k]));
      wrong += std::fabs(x[i] - y[i]) > std::max(0x1p-11f * std::fabs(x[i]), 0x1p-39f * largest);
    }
    CHECK(wrong == 0);
  });
}
