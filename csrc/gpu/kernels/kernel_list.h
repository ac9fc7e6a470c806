// All kernels: X(name, type with the body), of kernel_move.h, kernel_fold.h, kernel_wide.h and kernel_codec.h.
#pragma once

// clang-format off
#define RR_KERNELS(X) \
  X(rr_copy_1, Move<Copied<1>>) \
  X(rr_copy_2, Move<Copied<2>>) \
  X(rr_copy_4, Move<Copied<4>>) \
  X(rr_copy_8, Move<Copied<8>>) \
  X(rr_move_float16_float16, Move<Cast<Half, Half>>) \
  X(rr_move_float16_bfloat16, Move<Cast<Half, BFloat>>) \
  X(rr_move_float16_float32, Move<Cast<Half, Float>>) \
  X(rr_move_float16_float64, Move<Cast<Half, Double>>) \
  X(rr_move_bfloat16_float16, Move<Cast<BFloat, Half>>) \
  X(rr_move_bfloat16_bfloat16, Move<Cast<BFloat, BFloat>>) \
  X(rr_move_bfloat16_float32, Move<Cast<BFloat, Float>>) \
  X(rr_move_bfloat16_float64, Move<Cast<BFloat, Double>>) \
  X(rr_move_float32_float16, Move<Cast<Float, Half>>) \
  X(rr_move_float32_bfloat16, Move<Cast<Float, BFloat>>) \
  X(rr_move_float32_float32, Move<Cast<Float, Float>>) \
  X(rr_move_float32_float64, Move<Cast<Float, Double>>) \
  X(rr_move_float64_float16, Move<Cast<Double, Half>>) \
  X(rr_move_float64_bfloat16, Move<Cast<Double, BFloat>>) \
  X(rr_move_float64_float32, Move<Cast<Double, Float>>) \
  X(rr_move_float64_float64, Move<Cast<Double, Double>>) \
  X(rr_fold_float16, Fold<FloatRule<Half>>) \
  X(rr_fold_bfloat16, Fold<FloatRule<BFloat>>) \
  X(rr_fold_float32, Fold<FloatRule<Float>>) \
  X(rr_fold_float64, Fold<FloatRule<Double>>) \
  X(rr_fold_1, Fold<BitsRule<1>>) \
  X(rr_fold_2, Fold<BitsRule<2>>) \
  X(rr_fold_4, Fold<BitsRule<4>>) \
  X(rr_fold_8, Fold<BitsRule<8>>) \
  X(rr_wide_int8, Fold<WideRule<int8_t, double>>) \
  X(rr_wide_int16, Fold<WideRule<int16_t, double>>) \
  X(rr_wide_int32, Fold<WideRule<int32_t, double>>) \
  X(rr_wide_int64, Fold<WideRule<int64_t, double>>) \
  X(rr_wide_uint8, Fold<WideRule<uint8_t, double>>) \
  X(rr_wide_uint16, Fold<WideRule<uint16_t, double>>) \
  X(rr_wide_uint32, Fold<WideRule<uint32_t, double>>) \
  X(rr_wide_uint64, Fold<WideRule<uint64_t, double>>) \
  X(rr_exact_int8, Fold<WideRule<int8_t, int64_t>>) \
  X(rr_exact_int16, Fold<WideRule<int16_t, int64_t>>) \
  X(rr_exact_int32, Fold<WideRule<int32_t, int64_t>>) \
  X(rr_exact_int64, Fold<WideRule<int64_t, int64_t>>) \
  X(rr_exact_uint8, Fold<WideRule<uint8_t, uint64_t>>) \
  X(rr_exact_uint16, Fold<WideRule<uint16_t, uint64_t>>) \
  X(rr_exact_uint32, Fold<WideRule<uint32_t, uint64_t>>) \
  X(rr_exact_uint64, Fold<WideRule<uint64_t, uint64_t>>) \
  X(rr_encode_int8, EncodeInt8) \
  X(rr_decode_int8, DecodeInt8)
// clang-format on
