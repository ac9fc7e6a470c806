#include "data/codec.h"

#include <algorithm>
#include <string>

#include "base/errors.h"
#include "data/reduction.h"

namespace rr {

const char* name(Codec codec) {
  switch (codec) {
#define RR_CASE(id, text, nbits) \
  case Codec::id:                \
    return text;
    RR_CODECS(RR_CASE)
#undef RR_CASE
    case Codec::kScaledFp16:
      return "scaled_fp16";
  }
  return "?";
}

Codec codec_from_name(std::string_view text) {
  if (text.empty()) return Codec::kNone;
  std::string known;
  for (int code = 0; code < kCodecCount; ++code) {
    const auto codec = static_cast<Codec>(code);
    if (text == name(codec)) return codec;
    known += (code != 0 ? ", " : "") + std::string(name(codec));
  }
  throw InvalidArgumentError("there is no wire codec named \"" + std::string(text) + "\"; the names are " + known);
}

Codec codec_from_code(int code) {
  if (code < 0 || code >= kCodecCount) {
    throw InvalidArgumentError("wire codec " + std::to_string(code) + " is unknown; the codes are 0 (" +
                               name(Codec::kNone) + ") to " + std::to_string(kCodecCount - 1) + " (" +
                               name(static_cast<Codec>(kCodecCount - 1)) + ")");
  }
  return static_cast<Codec>(code);
}

void codec_round_trip(const Kernels& kernels, Codec codec, void* elements, size_t count) {
  constexpr size_t kPiece = 16 * kCodecBlock;  // stays in the first cache
  std::byte encoded[codec_nbytes(Codec::kNone, kPiece)];
  std::byte* at = static_cast<std::byte*>(elements);
  for (size_t done = 0; done < count; done += kPiece) {
    const size_t n = std::min(kPiece, count - done);
    kernels.encode(codec, at, encoded, n);
    kernels.decode(codec, encoded, at, n);
    at += n * sizeof(float);
  }
}

}  // namespace rr
