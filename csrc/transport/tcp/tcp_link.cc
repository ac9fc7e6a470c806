// Link over TCP: what is pushed goes to the kernel, which keeps it until the peer has it. The kernel's buffers, whose
// sizes it chooses itself, hold back who sends more than the peer reads.

#include "transport/tcp/tcp_link.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/clock.h"
#include "base/errors.h"

namespace rr {
namespace {

// Read ahead at once, and folded from: it stays in a core's second cache.
constexpr size_t kScratchNbytes = 128 << 10;
// A longer rest of a message is read where it belongs; a shorter one comes with what follows it, in one system call.
constexpr size_t kDirectNbytes = 16 << 10;
// So long after the peer has closed the connection, who still needs bytes of it is told. Within that time what the peer
// has said of its end arrives by other connections: that it has left, or why it failed.
constexpr int64_t kGraceNs = 2'000'000'000;

class TcpLink final : public Link {
 public:
  TcpLink(std::shared_ptr<TcpConnection> connection, int me, std::function<void()> dial, std::function<void()> drop)
      : connection_(std::move(connection)), me_(me), dial_(std::move(dial)), drop_(std::move(drop)) {}
  ~TcpLink() override { drop_(); }
  TcpLink(const TcpLink&) = delete;
  TcpLink& operator=(const TcpLink&) = delete;

  size_t push(const void* src, size_t nbytes) override {
    if (nbytes == 0 || !is_open()) return 0;
    size_t moved = 0;
    while (moved < nbytes) {
      const ssize_t n = ::send(connection_->socket.get(), static_cast<const std::byte*>(src) + moved, nbytes - moved,
                               MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && would_block()) break;
      if (n < 0) {
        fail("send");
        break;
      }
      moved += static_cast<size_t>(n);
    }
    if (moved == 0) look_at_end();
    return moved;
  }

  size_t pull(void* dst, size_t nbytes) override {
    if (nbytes == 0 || !is_open()) return 0;
    auto* const bytes = static_cast<std::byte*>(dst);
    size_t moved = take(bytes, nbytes);
    while (moved < nbytes) {
      if (nbytes - moved >= kDirectNbytes) {
        const size_t n = receive(bytes + moved, nbytes - moved);
        if (n == 0) break;
        moved += n;
      } else {
        if (!read_ahead()) break;
        moved += take(bytes + moved, nbytes - moved);
      }
    }
    if (moved == 0) look_at_end();
    return moved;
  }

  size_t fold(void* dst, size_t nbytes, const Reduction& reduction, const Kernels& kernels) override {
    if (nbytes == 0 || !is_open()) return 0;
    const size_t item = itemsize(reduction.dtype);
    size_t moved = 0;
    while (moved < nbytes) {
      if (end_ - begin_ < item && !read_ahead()) break;
      const size_t n = std::min(nbytes - moved, end_ - begin_) / item * item;
      if (n == 0) continue;  // a part of an element has come
      void* at = static_cast<std::byte*>(dst) + moved;
      const void* inputs[2] = {at, scratch_.data() + begin_};
      kernels.reduce(reduction, inputs, 2, &at, 1, n / item);
      begin_ += n;
      moved += n;
    }
    if (moved == 0) look_at_end();
    return moved;
  }

 private:
  static bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK; }

  std::string where() const {
    return "TCP, rank " + std::to_string(me_) + ", peer " + std::to_string(connection_->peer) + ", channel " +
           std::to_string(connection_->channel);
  }

  bool is_open() {
    using State = TcpConnection::State;
    switch (connection_->state.load(std::memory_order_acquire)) {
      case State::kOpen:
        return true;
      case State::kIdle:
        dial_();
        return false;
      case State::kWanted:
        return false;
      case State::kFailed:
        break;
    }
    if (ended_ns_ == 0) ended_ns_ = now_ns();
    cause_ = *connection_->reason.lock();
    look_at_end();
    return false;
  }

  // Moves what the scratch has.
  size_t take(std::byte* dst, size_t nbytes) {
    const size_t n = std::min(nbytes, end_ - begin_);
    if (n == 0) return 0;
    std::memcpy(dst, scratch_.data() + begin_, n);
    begin_ += n;
    return n;
  }

  // Adds to the scratch what has arrived, behind the part of an element that is there.
  bool read_ahead() {
    if (scratch_.empty()) scratch_.resize(kScratchNbytes);
    if (begin_ != 0) std::memmove(scratch_.data(), scratch_.data() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
    const size_t n = receive(scratch_.data() + end_, scratch_.size() - end_);
    end_ += n;
    return n != 0;
  }

  size_t receive(std::byte* dst, size_t nbytes) {
    for (;;) {
      const ssize_t n = ::recv(connection_->socket.get(), dst, nbytes, MSG_DONTWAIT);
      if (n > 0) return static_cast<size_t>(n);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && would_block()) return 0;
      if (n < 0) {
        fail("recv");
      } else if (ended_ns_ == 0) {
        ended_ns_ = now_ns();
        cause_ = "the peer has closed the connection";
      }
      return 0;
    }
  }

  void fail(const char* call) {
    if (ended_ns_ != 0) return;
    cause_ = with_errno(call);
    ended_ns_ = now_ns();
  }

  // Nothing can be moved. Throws when that is for ever.
  void look_at_end() const {
    if (ended_ns_ == 0 || now_ns() - ended_ns_ < kGraceNs) return;
    throw PeerLostError(where() + ": lost rank " + std::to_string(connection_->peer) + ": " + cause_);
  }

  std::shared_ptr<TcpConnection> connection_;
  const int me_;
  const std::function<void()> dial_;
  const std::function<void()> drop_;
  std::vector<std::byte> scratch_;
  size_t begin_ = 0;  // of what the scratch has
  size_t end_ = 0;
  int64_t ended_ns_ = 0;  // when the connection was found to be at its end
  std::string cause_;
};

}  // namespace

std::unique_ptr<Link> tcp_link(std::shared_ptr<TcpConnection> connection, int me, std::function<void()> dial,
                               std::function<void()> drop) {
  return std::make_unique<TcpLink>(std::move(connection), me, std::move(dial), std::move(drop));
}

}  // namespace rr
