#include "transport/tcp/records.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/errors.h"

namespace rr {
namespace {

constexpr size_t kHeaderNbytes = 8;
constexpr size_t kTagNbytes = sizeof(Gcm::Tag);
constexpr size_t kFullNbytes = kHeaderNbytes + kRecordNbytes + kTagNbytes;
constexpr size_t kScratchNbytes = 4 * kFullNbytes;

}  // namespace

void RecordWriter::begin(const std::byte* src, size_t nbytes) {
  payload_nbytes_ = std::min(nbytes, kRecordNbytes);
  sent_ = 0;
  const auto length = static_cast<uint32_t>(payload_nbytes_);
  const uint32_t turned_over = ~length;
  std::memcpy(header_.data(), &length, sizeof length);
  std::memcpy(header_.data() + sizeof length, &turned_over, sizeof turned_over);
  const ByteView header = {header_.data(), header_.size()};
  const ByteView payload = {src, payload_nbytes_};
  if (is_encrypted_) {
    if (ciphertext_.size() < payload_nbytes_) ciphertext_.resize(payload_nbytes_);
    tag_ = gcm_.seal(number_++, {header}, payload, ciphertext_.data());
  } else {
    tag_ = gcm_.seal(number_++, {header, payload});
  }
}

std::optional<size_t> RecordWriter::send(int fd, const std::byte* src, size_t nbytes) {
  size_t moved = 0;
  while (moved < nbytes) {
    if (payload_nbytes_ == 0) begin(src + moved, nbytes - moved);
    const std::byte* const payload = is_encrypted_ ? ciphertext_.data() : src + moved;
    const ByteView record[] = {{header_.data(), kHeaderNbytes}, {payload, payload_nbytes_}, {tag_.data(), kTagNbytes}};
    iovec rest[3];
    size_t count = 0;
    size_t skipped = sent_;
    for (const ByteView& part : record) {
      const size_t gone = std::min(skipped, part.nbytes);
      skipped -= gone;
      if (gone == part.nbytes) continue;
      rest[count++] = {static_cast<std::byte*>(const_cast<void*>(part.data)) + gone, part.nbytes - gone};
    }
    msghdr message = {};
    message.msg_iov = rest;
    message.msg_iovlen = count;
    const ssize_t n = ::sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (n < 0) return {};
    sent_ += static_cast<size_t>(n);
    if (sent_ < kHeaderNbytes + payload_nbytes_ + kTagNbytes) continue;
    moved += payload_nbytes_;
    payload_nbytes_ = 0;
  }
  return moved;
}

RecordReader::RecordReader(const Session& session, std::string who)
    : gcm_(session.receive_key, Gcm::Direction::kOpen), is_encrypted_(session.is_encrypted), who_(std::move(who)) {}

bool RecordReader::next() {
  if (arrived_nbytes() < kHeaderNbytes) return false;
  std::byte* const header = scratch_.data() + next_;
  uint32_t length = 0;
  uint32_t turned_over = 0;
  std::memcpy(&length, header, sizeof length);
  std::memcpy(&turned_over, header + sizeof length, sizeof turned_over);
  const auto wrong = [&] {
    return InternalError(who_ + ": record " + std::to_string(number_) + " of this connection is not as the peer has " +
                         "made it: it was changed on its way, or in the sender's memory while it was sent");
  };
  if (length == 0 || length > kRecordNbytes || turned_over != ~length) throw wrong();
  const size_t whole = kHeaderNbytes + length + kTagNbytes;
  if (arrived_nbytes() < whole) return false;
  std::byte* const payload = header + kHeaderNbytes;
  Gcm::Tag tag;
  std::memcpy(tag.data(), payload + length, kTagNbytes);
  const ByteView authenticated = {header, kHeaderNbytes};
  const ByteView text = {payload, length};
  const bool is_proven = is_encrypted_ ? gcm_.open(number_, {authenticated}, tag, text, payload)
                                       : gcm_.open(number_, {authenticated, text}, tag);
  if (!is_proven) throw wrong();
  ++number_;
  // They fit where the last tag and this header were.
  const size_t left = size();
  std::memmove(payload - left, data(), left);
  begin_ = next_ + kHeaderNbytes - left;
  end_ = next_ + kHeaderNbytes + length;
  next_ += whole;
  return true;
}

ssize_t RecordReader::receive(int fd) {
  if (scratch_.empty()) scratch_.resize(kScratchNbytes);
  if (begin_ == end_) begin_ = end_ = next_;
  if (begin_ == arrived_) begin_ = end_ = next_ = arrived_ = 0;
  // At most a part of one record is there: the rest of it has room, with some more.
  if (begin_ != 0 && scratch_.size() - arrived_ < kScratchNbytes / 2) {
    std::memmove(scratch_.data(), scratch_.data() + begin_, arrived_ - begin_);
    end_ -= begin_;
    next_ -= begin_;
    arrived_ -= begin_;
    begin_ = 0;
  }
  for (;;) {
    const ssize_t n = ::recv(fd, scratch_.data() + arrived_, scratch_.size() - arrived_, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n > 0) arrived_ += static_cast<size_t>(n);
    return n;
  }
}

}  // namespace rr
