// The tables: dtype and operation codes, which pairs mean something, and finding a kernel set.
#include <doctest/doctest.h>

#include <algorithm>
#include <string>

#include "base/errors.h"
#include "data/reduction.h"

using rr::check;
using rr::DType;
using rr::foldable_in_place;
using rr::InvalidArgumentError;
using rr::ReduceOp;
using rr::Reduction;
using rr::UnavailableError;

namespace {

constexpr int kOps = static_cast<int>(ReduceOp::kBitwiseOr) + 1;

std::string why_not(const Reduction& reduction) {
  try {
    check(reduction);
  } catch (const rr::Error& error) {
    return error.what();
  }
  return "";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("codes round-trip and unknown ones are refused") {
  for (int code = 0; code < rr::kDTypeCount; ++code) CHECK(static_cast<int>(rr::dtype_from_code(code)) == code);
  for (int code = 0; code < kOps; ++code) CHECK(static_cast<int>(rr::op_from_code(code)) == code);
  for (int code : {-1, rr::kDTypeCount, 1000}) CHECK_THROWS_AS(rr::dtype_from_code(code), InvalidArgumentError);
  for (int code : {-1, kOps, 1000}) CHECK_THROWS_AS(rr::op_from_code(code), InvalidArgumentError);
  CHECK(std::string(name(ReduceOp::kLogicalAnd)) == "logical_and");
  CHECK(std::string(name(DType::kBFloat16)) == "bfloat16");
  CHECK(itemsize(DType::kUInt16) == 2);
}

TEST_CASE("every meaningless pair is refused by name, with what to use instead") {
  for (int dtype_code = 0; dtype_code < rr::kDTypeCount; ++dtype_code) {
    for (int op_code = 0; op_code < kOps; ++op_code) {
      const auto dtype = rr::dtype_from_code(dtype_code);
      const auto op = rr::op_from_code(op_code);
      const bool is_float = dtype_code <= static_cast<int>(DType::kFloat64);
      const bool bits = op >= ReduceOp::kLogicalAnd;
      const bool refused = (is_float && bits) || (dtype == DType::kBool && op == ReduceOp::kAverage);
      const Reduction r{dtype, op};
      INFO(std::string(name(dtype)));
      INFO(std::string(name(op)));
      if (op == ReduceOp::kAdasum) {
        CHECK_THROWS_AS(check(r), UnavailableError);
      } else if (refused) {
        CHECK_THROWS_AS(check(r), InvalidArgumentError);
        CHECK(contains(why_not(r), name(dtype)));
        CHECK(contains(why_not(r), name(op)));
        CHECK(contains(why_not(r), "product"));
      } else {
        CHECK(why_not(r) == "");
      }
    }
  }
}

TEST_CASE("factors are for arithmetic only, and Average needs a divisor") {
  for (int dtype_code = 0; dtype_code < rr::kDTypeCount; ++dtype_code) {
    for (int op_code = 0; op_code < kOps; ++op_code) {
      Reduction r{rr::dtype_from_code(dtype_code), rr::op_from_code(op_code), 0.5, 1.0};
      if (!is_meaningful(r.dtype, r.op)) continue;
      const bool arithmetic = r.dtype != DType::kBool && r.op < ReduceOp::kLogicalAnd;
      CHECK((why_not(r) == "") == arithmetic);
      r.prescale = 1.0;
      r.postscale = 2.0;
      CHECK((why_not(r) == "") == arithmetic);
    }
  }
  CHECK_THROWS_AS(check({DType::kFloat32, ReduceOp::kAverage, 1, 1, 0}), InvalidArgumentError);
}

TEST_CASE("wire codecs are for float32: int8 for what is added, the others also for Min and Max") {
  for (int code = 0; code < rr::kDTypeCount; ++code) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      for (const rr::Codec codec : {rr::Codec::kNone, rr::Codec::kFp16, rr::Codec::kBf16, rr::Codec::kInt8}) {
        const DType dtype = rr::dtype_from_code(code);
        const bool adds = op == ReduceOp::kSum || op == ReduceOp::kAverage;
        const bool selects = op == ReduceOp::kMin || op == ReduceOp::kMax;
        const bool taken =
            codec == rr::Codec::kNone || (dtype == DType::kFloat32 && (adds || (selects && codec != rr::Codec::kInt8)));
        INFO(std::string(name(dtype)));
        INFO(std::string(name(op)));
        INFO(std::string(name(codec)));
        if (taken) {
          CHECK_NOTHROW(check(codec, Reduction{dtype, op}));
        } else {
          CHECK_THROWS_AS(check(codec, Reduction{dtype, op}), InvalidArgumentError);
        }
      }
    }
  }
}

TEST_CASE("what may be folded in place") {
  CHECK(foldable_in_place({DType::kFloat32, ReduceOp::kAverage, 0.5, 2.0, 4}));
  CHECK(foldable_in_place({DType::kFloat64, ReduceOp::kSum}));
  CHECK(foldable_in_place({DType::kInt32, ReduceOp::kSum}));
  CHECK(foldable_in_place({DType::kUInt8, ReduceOp::kBitwiseOr}));
  CHECK(foldable_in_place({DType::kBool, ReduceOp::kSum}));
  CHECK_FALSE(foldable_in_place({DType::kFloat16, ReduceOp::kSum}));
  CHECK_FALSE(foldable_in_place({DType::kBFloat16, ReduceOp::kMax}));
  CHECK_FALSE(foldable_in_place({DType::kInt32, ReduceOp::kAverage, 1, 1, 2}));
  CHECK_FALSE(foldable_in_place({DType::kInt32, ReduceOp::kSum, 0.5, 1}));
}

TEST_CASE("kernel sets are found by instruction set and by name") {
  const auto isas = rr::available_isas();
  REQUIRE(!isas.empty());
  CHECK(isas.back() == rr::Isa::kPortable);
  CHECK(rr::kernels("auto").isa == isas.front());
  for (rr::Isa isa : {rr::Isa::kPortable, rr::Isa::kX86_64_v2, rr::Isa::kAvx2, rr::Isa::kAvx512}) {
    if (std::count(isas.begin(), isas.end(), isa)) {
      CHECK(rr::kernels(isa).isa == isa);
      CHECK(&rr::kernels(rr::kernels(isa).name) == &rr::kernels(isa));
    } else {
      CHECK_THROWS_AS(rr::kernels(isa), UnavailableError);
    }
  }
  CHECK_THROWS_AS(rr::kernels("sse9"), InvalidArgumentError);
}
