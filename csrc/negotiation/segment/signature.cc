#include "negotiation/segment/signature.h"

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "base/hash.h"

namespace rr {

const char* upper_name(Kind kind) {
  switch (kind) {
#define RR_CASE(id, upper, lower) \
  case Kind::id:                  \
    return upper;
    RR_KINDS(RR_CASE)
#undef RR_CASE
  }
  return "?";
}

const char* name(Kind kind) {
  switch (kind) {
#define RR_CASE(id, upper, lower) \
  case Kind::id:                  \
    return lower;
    RR_KINDS(RR_CASE)
#undef RR_CASE
  }
  return "?";
}

uint64_t count(const Signature& signature) { return signature.nbytes / itemsize(signature.dtype); }

namespace {

uint64_t bits(double value) {
  uint64_t word;
  std::memcpy(&word, &value, sizeof word);
  return word;
}

std::string shape(const Signature& s) {
  std::string text = "[";
  for (size_t i = 0; i < s.ndim; ++i) {
    if (i + 1 == kDims && s.ndim > kDims) return text + ", ...]";
    text += (i != 0 ? ", " : "") + std::to_string(s.dims[i]);
  }
  return text + "]";
}

// In as many digits as it takes to tell it from any other.
std::string number(double value) {
  std::array<char, 32> text = {};
  for (int digits = 6; digits <= std::numeric_limits<double>::max_digits10; ++digits) {
    std::snprintf(text.data(), text.size(), "%.*g", digits, value);
    if (bits(std::strtod(text.data(), nullptr)) == bits(value)) break;
  }
  return text.data();
}

std::string factors(const Signature& s) { return "(" + number(s.prescale) + ", " + number(s.postscale) + ")"; }

std::string with_article(const std::string& kind) { return (kind[0] == 'A' ? "an " : "a ") + kind; }

std::string differ(const Signature& a, const Signature& b) {
  const std::string kind = upper_name(a.kind);
  if (a.kind != b.kind) {
    return "Mismatched operations: One rank did " + with_article(kind) + ", but another rank did " +
           with_article(upper_name(b.kind)) + ".";
  }
  if (a.dtype != b.dtype) {
    return std::string("Mismatched data types: One rank had type ") + name(a.dtype) + ", but another rank had type " +
           name(b.dtype) + ".";
  }
  if (a.tensors != b.tensors) {
    return "Mismatched grouped " + kind + ": One rank sent " + std::to_string(a.tensors) +
           " tensors, but another rank sent " + std::to_string(b.tensors) + " tensors.";
  }
  if (a.op != b.op) {
    return "Mismatched reduction operation: One rank sent reduction op " + std::to_string(static_cast<int>(a.op)) +
           " (" + name(a.op) + "), but another rank sent reduction op " + std::to_string(static_cast<int>(b.op)) +
           " (" + name(b.op) + ").";
  }
  if (!have_same_factors(a, b)) {
    return "Mismatched prescale and/or postscale factors: One rank sent factors " + factors(a) +
           ", but another rank sent factors " + factors(b) + ".";
  }
  if (a.codec != b.codec) {
    return std::string("Mismatched wire codecs: One rank sent wire ") + name(a.codec) +
           ", but another rank sent wire " + name(b.codec) + ".";
  }
  if (a.root != b.root) {
    return "Mismatched " + kind + " root ranks: One rank specified root rank " + std::to_string(a.root) +
           ", but another rank specified root rank " + std::to_string(b.root) + ".";
  }
  if (a.place != b.place) {
    const auto device = [](const Signature& s) { return s.place == Place::kDevice ? "GPU" : "CPU"; };
    return "Mismatched " + kind + " CPU/GPU device selection: One rank specified device " + device(a) +
           ", but another rank specified device " + device(b) + ".";
  }
  if (is_ragged(a.kind)) {
    if (a.ndim != b.ndim) {
      return "Mismatched " + kind + " tensor shapes: One rank sent a tensor of rank " + std::to_string(a.ndim) +
             ", but another rank sent a tensor of rank " + std::to_string(b.ndim) + ".";
    }
    for (size_t i = 1; i < a.ndim && i < kDims; ++i) {
      if (a.dims[i] == b.dims[i]) continue;
      if (i + 1 == kDims && a.ndim > kDims) {  // dims has one number for it and all later ones
        return "Mismatched " + kind + " tensor shapes: Two ranks sent tensors that differ in dimension " +
               std::to_string(i) + " or a later one.";
      }
      return "Mismatched " + kind + " tensor shapes: One rank sent a tensor with dimension " + std::to_string(i) +
             " equal to " + std::to_string(a.dims[i]) + ", but another rank sent a tensor with dimension " +
             std::to_string(i) + " equal to " + std::to_string(b.dims[i]) + ".";
    }
  }
  if (a.tensors > 1) return "Mismatched grouped " + kind + " tensor shapes or data types.";
  return "Mismatched " + kind + " tensor shapes: One rank sent a tensor of shape " + shape(a) +
         ", but another rank sent a tensor of shape " + shape(b) + ".";
}

}  // namespace

bool have_same_factors(const Signature& a, const Signature& b) {
  return bits(a.prescale) == bits(b.prescale) && bits(a.postscale) == bits(b.postscale);
}

uint64_t digest(const Signature& s) {
  uint64_t state = static_cast<uint64_t>(s.kind) | static_cast<uint64_t>(s.dtype) << 8 |
                   static_cast<uint64_t>(s.op) << 16 | static_cast<uint64_t>(s.ndim) << 24 |
                   static_cast<uint64_t>(static_cast<uint32_t>(s.root)) << 32;
  state = mix(0x243F6A8885A308D3ull, state);
  state = mix(state, s.tensors | static_cast<uint64_t>(s.codec) << 32 | static_cast<uint64_t>(s.place) << 40);
  state = mix(state, bits(s.prescale));
  state = mix(state, bits(s.postscale));
  for (size_t i = is_ragged(s.kind) ? 1 : 0; i < s.ndim && i < kDims; ++i) state = mix(state, s.dims[i]);
  if (s.tensors > 1) state = mix(state, s.dims[0]);
  return is_ragged(s.kind) ? state : mix(state, s.nbytes);
}

uint64_t gpu_key(const DeviceId& id) {
  uint64_t words[2];
  static_assert(sizeof words == sizeof id.uuid);
  std::memcpy(words, id.uuid.data(), sizeof words);
  return mix(mix(0x243F6A8885A308D3ull, words[0]), words[1]) | 1;
}

std::string describe_mismatch(const std::vector<Signature>& requests, const std::vector<int>& ranks) {
  for (size_t i = 1; i < requests.size(); ++i) {
    if (digest(requests[i]) == digest(requests[0])) continue;
    return differ(requests[0], requests[i]) + " (rank " + std::to_string(ranks[0]) + " and rank " +
           std::to_string(ranks[i]) + ")";
  }
  return "";
}

}  // namespace rr
