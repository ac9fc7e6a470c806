#include "transport/tcp/session/records.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/errors.h"
#include "transport/tcp/session/checksum.h"

namespace rr {
namespace {

constexpr size_t kSealNbytes = sizeof(Seal);
constexpr size_t kHeaderNbytes = kRecordOverheadNbytes - kSealNbytes;
constexpr size_t kScratchNbytes = 4 * (kRecordNbytes + kRecordOverheadNbytes);

Seal checksum_seal(uint64_t seed, const std::byte* payload, size_t nbytes) {
  const Checksum sum = checksum(seed, payload, nbytes);
  Seal seal;
  static_assert(sizeof sum == sizeof seal);
  std::memcpy(seal.data(), sum.data(), sizeof seal);
  return seal;
}

// Without it, a length that has grown on its way would be waited for.
uint32_t check_of(uint64_t seed, uint32_t length) {
  return checksum(seed, reinterpret_cast<const std::byte*>(&length), sizeof length)[3];
}

}  // namespace

RecordWriter::RecordWriter(const Session& session) : seed_(session.send_seed) {
  if (session.is_encrypted) gcm_.emplace(session.send_key, Gcm::Direction::kSeal);
}

void RecordWriter::begin(const std::byte* src, size_t nbytes) {
  const uint64_t number = number_++;
  const auto length = static_cast<uint32_t>(nbytes);
  const uint32_t check = check_of(seed_ + number, length);
  std::memcpy(header_.data(), &length, sizeof length);
  std::memcpy(header_.data() + sizeof length, &check, sizeof check);
  if (gcm_) {
    if (ciphertext_.size() < nbytes) ciphertext_.resize(nbytes);
    seal_ = gcm_->seal(number, {header_.data(), header_.size()}, {src, nbytes}, ciphertext_.data());
  } else {
    seal_ = checksum_seal(seed_ + number, src, nbytes);
  }
  sent_ = 0;
  payload_nbytes_ = nbytes;
}

std::optional<size_t> RecordWriter::send(int fd, const std::byte* src, size_t nbytes) {
  if (error_ != 0) {
    errno = error_;
    return {};
  }
  size_t moved = 0;
  while (moved < nbytes) {
    if (payload_nbytes_ == 0) begin(src + moved, std::min(nbytes - moved, kRecordNbytes));
    const std::byte* const payload = gcm_ ? ciphertext_.data() : src + moved;
    const ByteView record[] = {
        {header_.data(), kHeaderNbytes}, {payload, payload_nbytes_}, {seal_.data(), kSealNbytes}};
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
    if (n < 0) {
      error_ = errno;
      if (moved != 0) break;  // the next call tells
      return {};
    }
    sent_ += static_cast<size_t>(n);
    if (sent_ < kHeaderNbytes + payload_nbytes_ + kSealNbytes) continue;
    moved += payload_nbytes_;
    payload_nbytes_ = 0;
  }
  return moved;
}

RecordReader::RecordReader(const Session& session, std::string who)
    : seed_(session.receive_seed), who_(std::move(who)) {
  if (session.is_encrypted) gcm_.emplace(session.receive_key, Gcm::Direction::kOpen);
}

bool RecordReader::next() {
  if (arrived_nbytes() < kHeaderNbytes) return false;
  std::byte* const header = scratch_.data() + next_;
  uint32_t length = 0;
  uint32_t check = 0;
  std::memcpy(&length, header, sizeof length);
  std::memcpy(&check, header + sizeof length, sizeof check);
  const auto wrong = [&] {
    return InternalError(who_ + ": record " + std::to_string(number_) + " of this connection is not as the peer has " +
                         "made it: it was changed on its way, or in the sender's memory while it was sent");
  };
  if (length == 0 || length > kRecordNbytes || check != check_of(seed_ + number_, length)) throw wrong();
  const size_t whole = kHeaderNbytes + length + kSealNbytes;
  if (arrived_nbytes() < whole) return false;
  std::byte* const payload = header + kHeaderNbytes;
  Seal seal;
  std::memcpy(seal.data(), payload + length, kSealNbytes);
  const bool is_unchanged = gcm_ ? gcm_->open(number_, {header, kHeaderNbytes}, seal, {payload, length}, payload)
                                 : seal == checksum_seal(seed_ + number_, payload, length);
  if (!is_unchanged) throw wrong();
  ++number_;
  // They fit where the last seal and this header were.
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
    const ssize_t n = times_.receive(fd, scratch_.data() + arrived_, scratch_.size() - arrived_);
    if (n < 0 && errno == EINTR) continue;
    if (n > 0) arrived_ += static_cast<size_t>(n);
    return n;
  }
}

}  // namespace rr
