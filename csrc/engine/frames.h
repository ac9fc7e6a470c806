// How leaders of hosts talk: frames of {length, type, rank} and fields, back to back in a byte stream. All hosts of a
// job run the same build (checked when they meet), so fields travel as they lie in memory.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/errors.h"

namespace rr {

enum class FrameType : uint16_t {
  kUnnamed,  // statements
  kNamed,
  kConsumed,
  kWatermark,
  kLeft,
  kFailed,
  kEntry,    // of the first host's log
  kJoined,   // join()
  kDrained,  // the same of a host
  kBlocked,  // or no longer
  kFreeze,   // the first host asks all, who vote, and then it decides
  kVote,
  kVerdict,
  kSettled,  // nothing stated before the verdict is under way any more
};

struct FrameHead {
  uint32_t nbytes = 0;  // with this head
  FrameType type = FrameType::kUnnamed;
  uint16_t rank = 0;  // group rank it is about
};
static_assert(sizeof(FrameHead) == 8);

// Frames on their way out, in the order written.
class FrameWriter {
 public:
  void begin(FrameType type, int rank) {
    head_at_ = bytes_.size();
    const FrameHead head = {0, type, static_cast<uint16_t>(rank)};
    put(&head, sizeof head);
  }
  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    put(&value, sizeof value);
  }
  void put(const void* bytes, size_t nbytes) {
    const std::byte* const first = static_cast<const std::byte*>(bytes);
    bytes_.insert(bytes_.end(), first, first + nbytes);
  }
  void put(const std::string& text) {
    put(static_cast<uint32_t>(text.size()));
    put(text.data(), text.size());
  }
  void end() {
    const uint32_t nbytes = static_cast<uint32_t>(bytes_.size() - head_at_);
    std::memcpy(bytes_.data() + head_at_, &nbytes, sizeof nbytes);
  }

  bool empty() const { return gone_ == bytes_.size(); }
  size_t nbytes_left() const { return bytes_.size() - gone_; }
  // Hands what is left to push(bytes, nbytes), which says how much it took.
  template <class Push>
  bool drain(Push push) {
    if (empty()) return false;
    const size_t taken = push(bytes_.data() + gone_, bytes_.size() - gone_);
    gone_ += taken;
    if (gone_ > bytes_.size() / 2) {
      bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(gone_));
      gone_ = 0;
    }
    return taken != 0;
  }

 private:
  std::vector<std::byte> bytes_;
  size_t gone_ = 0;
  size_t head_at_ = 0;
};

// The fields of one frame, in the order they were put. A frame too short for them is an InternalError.
class FrameParser {
 public:
  FrameParser(const FrameHead& head, const std::byte* fields) : head(head), at_(fields) {
    left_ = head.nbytes - sizeof head;
  }
  template <class T>
  T take() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  const std::byte* take(size_t nbytes) {
    if (nbytes > left_)
      throw InternalError("a frame of another host's leader is too short; do all hosts run one build?");
    const std::byte* const bytes = at_;
    at_ += nbytes;
    left_ -= nbytes;
    return bytes;
  }
  std::string take_text() {
    const uint32_t nbytes = take<uint32_t>();
    return std::string(reinterpret_cast<const char*>(take(nbytes)), nbytes);
  }

  const FrameHead head;

 private:
  const std::byte* at_;
  size_t left_;
};

// Frames on their way in.
class FrameReader {
 public:
  // Has pull(bytes, nbytes) fill in what has come.
  template <class Pull>
  bool fill(Pull pull) {
    constexpr size_t kAtOnce = 64 << 10;
    if (done_ != 0 && (done_ == filled_ || done_ > kAtOnce)) {
      std::memmove(bytes_.data(), bytes_.data() + done_, filled_ - done_);
      filled_ -= done_;
      done_ = 0;
    }
    if (bytes_.size() < filled_ + kAtOnce) bytes_.resize(filled_ + kAtOnce);
    const size_t come = pull(bytes_.data() + filled_, kAtOnce);
    filled_ += come;
    return come != 0;
  }
  // Hands whole frames to use(parser) until it returns false: that frame will be handed out again.
  template <class Use>
  bool parse(Use use) {
    bool used = false;
    while (filled_ - done_ >= sizeof(FrameHead)) {
      FrameHead head;
      std::memcpy(&head, bytes_.data() + done_, sizeof head);
      if (head.nbytes < sizeof head) throw InternalError("a frame of another host's leader has no length");
      if (filled_ - done_ < head.nbytes) break;
      FrameParser parser(head, bytes_.data() + done_ + sizeof head);
      if (!use(parser)) break;
      done_ += head.nbytes;
      used = true;
    }
    return used;
  }
  bool empty() const { return done_ == filled_; }
  size_t nbytes_left() const { return filled_ - done_; }

 private:
  std::vector<std::byte> bytes_;
  size_t done_ = 0;
  size_t filled_ = 0;
};

}  // namespace rr
