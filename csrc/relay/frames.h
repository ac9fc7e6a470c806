// How leaders of hosts talk: frames of {length, type, rank} and fields, back to back in a byte stream. All hosts of a
// job run the same build (checked when they meet), so fields travel as they lie in memory. A frame that cannot be, such
// as one about a rank of another host, is an InternalError that names the rank which sent it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"

namespace rr {

enum class FrameType : uint16_t {
  kUnnamed,  // a quick request, with its payload
  kNamed,
  kLogged,   // requests of ranks of one host for one operation of the log
  kDecided,  // from the first host: so many decisions have been made; from another one: it has taken up so many
  kEntry,    // of the first host's log
  kRefused,  // an operation whose requests differ
  kWatermark,
  kLeft,
  kFailed,
  kJoined,   // join()
  kDrained,  // the same of a host
  kBlocked,  // or no longer
  kFreeze,   // the first host asks all, who vote, and then it decides
  kVote,
  kVerdict,
  kSettled,      // nothing announced before the verdict is under way any more
  kStatusAsked,  // where a rank of the host that is sent this stands
  kStatus,
  kClockAsked,  // what the first host's clock shows
  kClock,       // when the question came there, and the answer left
  kShown,       // a rank, as who looks on sees it
  kShownTaken,  // all of a host's
};

struct FrameHead {
  uint32_t nbytes = 0;  // with this head
  FrameType type = FrameType::kUnnamed;
  uint16_t rank = 0;  // group rank it is about
};
static_assert(sizeof(FrameHead) == 8);

// The longest are those of an alltoall of 1024 ranks, 1023 of which share a host: their requests have 132 + 8 * 1024
// bytes each, 8.5 MB, and its entry has 16 + 8 * 1023 bytes for each rank. A reader that believed a length without a
// limit would wait for ever.
inline constexpr size_t kFrameNbytesMost = 9 << 20;
// Bytes that wait to be sent, or to be taken up: ranks that go on without those who have joined need no answers, so
// nothing else holds them back.
inline constexpr size_t kAhead = 1 << 20;

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
    if (nbytes > kFrameNbytesMost) {
      bytes_.resize(head_at_);  // a frame without its length would end what the reader understands
      throw InternalError("a frame of " + std::to_string(nbytes) + " bytes is too long");
    }
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

// The fields of one frame, in the order they were put. Nothing of a frame is used before expect() or take() has looked
// at it.
class FrameParser {
 public:
  // sender: who is to blame, for the text of an error.
  FrameParser(const FrameHead& head, const std::byte* fields, const std::string& sender)
      : head(head), at_(fields), left_(head.nbytes - sizeof head), sender_(sender) {}

  // Throws InternalError unless `is_so`. what: of the frame, such as "is too short".
  void expect(bool is_so, const char* what) const {
    if (is_so) return;
    throw InternalError(sender_ + ", which speaks for another host, has sent a frame that " + what + " (type " +
                        std::to_string(static_cast<int>(head.type)) + "); do all hosts run one build?");
  }
  template <class T>
  T take() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  const std::byte* take(size_t nbytes) {
    expect(nbytes <= left_, "is too short");
    const std::byte* const bytes = at_;
    at_ += nbytes;
    left_ -= nbytes;
    return bytes;
  }
  std::string take_text(size_t most) {
    const uint32_t nbytes = take<uint32_t>();
    expect(nbytes <= most, "has too long a text");
    return std::string(reinterpret_cast<const char*>(take(nbytes)), nbytes);
  }
  // A field whose values are 0 to last.
  template <class T>
  T take_up_to(T last) {
    const T value = take<T>();
    expect(value <= last, "has a value that its field cannot have");
    return value;
  }
  // The fields that are left.
  void skip() { left_ = 0; }
  // After the last field.
  void end() const { expect(left_ == 0, "is longer than its fields"); }

  const FrameHead head;

 private:
  const std::byte* at_;
  size_t left_;
  const std::string& sender_;
};

// Frames on their way in.
class FrameReader {
 public:
  void set_sender(std::string sender) { sender_ = std::move(sender); }
  static constexpr size_t kAtOnce = 64 << 10;
  // Has pull(bytes, nbytes) fill in what has come, at most kAtOnce bytes. Returns how many.
  template <class Pull>
  size_t fill(Pull pull) {
    if (done_ != 0 && (done_ == filled_ || done_ > kAtOnce)) {
      std::memmove(bytes_.data(), bytes_.data() + done_, filled_ - done_);
      filled_ -= done_;
      for (size_t& looked : looked_) looked = std::max(looked, done_) - done_;
      begin_ = std::max(begin_, done_) - done_;
      done_ = 0;
    }
    if (bytes_.size() < filled_ + kAtOnce) bytes_.resize(filled_ + kAtOnce);
    const size_t come = pull(bytes_.data() + filled_, kAtOnce);
    filled_ += come;
    return come;
  }
  // Hands whole frames to use(parser) until it returns false: that frame will be handed out again.
  template <class Use>
  bool parse(Use use) {
    bool used = false;
    while (filled_ - done_ >= sizeof(FrameHead)) {
      const FrameHead head = head_at(done_);
      FrameParser parser(head, bytes_.data() + done_ + sizeof head, sender_);
      parser.expect(head.nbytes >= sizeof head, "has no length");
      parser.expect(head.nbytes <= kFrameNbytesMost, "is too long");
      if (filled_ - done_ < head.nbytes) break;
      if (!use(parser)) break;
      done_ += head.nbytes;
      used = true;
    }
    return used;
  }
  // Hands the whole frames that parse() has left to look(parser), each once for each purpose, until it returns false:
  // that frame will be handed out again.
  enum Purpose : size_t { kForFailures, kForDecisions, kPurposes };
  template <class Look>
  void look_ahead(Purpose purpose, Look look) {
    size_t& looked = looked_[purpose];
    looked = std::max(looked, done_);
    while (filled_ - looked >= sizeof(FrameHead)) {
      const FrameHead head = head_at(looked);
      if (head.nbytes < sizeof head || head.nbytes > filled_ - looked) return;
      FrameParser parser(head, bytes_.data() + looked + sizeof head, sender_);
      if (!look(parser)) return;
      looked += head.nbytes;
    }
  }
  bool empty() const { return done_ == filled_; }
  // Whether a whole frame waits; the rest of another one may never come.
  bool has_frame() const { return filled_ - done_ >= sizeof(FrameHead) && head_at(done_).nbytes <= filled_ - done_; }
  size_t nbytes_left() const { return filled_ - done_; }
  // Whether there is room for more: for kAhead bytes, and for the rest of the frame that begins last in them.
  bool has_room() {
    begin_ = std::max(begin_, done_);
    while (begin_ - done_ < kAhead && filled_ - begin_ >= sizeof(FrameHead)) {
      const FrameHead head = head_at(begin_);
      if (head.nbytes < sizeof head || head.nbytes > kFrameNbytesMost) return false;  // parse() says so
      if (head.nbytes > filled_ - begin_) return true;
      begin_ += head.nbytes;
    }
    return begin_ - done_ < kAhead;
  }

 private:
  FrameHead head_at(size_t at) const {
    FrameHead head;
    std::memcpy(&head, bytes_.data() + at, sizeof head);
    return head;
  }

  std::string sender_;
  std::vector<std::byte> bytes_;
  size_t done_ = 0;
  size_t begin_ = 0;  // of the frame that has_room() looks at next
  size_t looked_[kPurposes] = {};
  size_t filled_ = 0;
};

}  // namespace rr
