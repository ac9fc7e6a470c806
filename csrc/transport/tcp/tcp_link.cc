// Link over TCP: what is pushed goes to the kernel in records (session/records.h), and the kernel keeps it until the
// peer has it. The kernel's buffers, whose sizes it chooses itself, hold back who sends more than the peer reads.

#include "transport/tcp/tcp_link.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>

#include "base/clock.h"
#include "base/errors.h"
#include "os/tcp/unsent.h"

namespace rr {
namespace {

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
    const std::optional<size_t> moved =
        writer_->send(connection_->socket.get(), static_cast<const std::byte*>(src), nbytes);
    if (!moved) fail("send");
    if (moved.value_or(0) == 0) look_at_end();
    return moved.value_or(0);
  }

  size_t pull(void* dst, size_t nbytes) override {
    if (nbytes == 0 || !is_open()) return 0;
    is_drained_ = false;
    size_t moved = 0;
    while (moved < nbytes && has(1)) {
      const size_t n = std::min(nbytes - moved, reader_->size());
      std::memcpy(static_cast<std::byte*>(dst) + moved, reader_->data(), n);
      reader_->consume(n);
      moved += n;
    }
    if (moved == 0) look_at_end();
    return moved;
  }

  size_t fold(void* dst, size_t nbytes, const Reduction& reduction, const Kernels& kernels) override {
    if (nbytes == 0 || !is_open()) return 0;
    const size_t item = itemsize(reduction.dtype);
    is_drained_ = false;
    size_t moved = 0;
    while (moved < nbytes && has(item)) {
      const size_t n = std::min(nbytes - moved, reader_->size()) / item * item;
      void* at = static_cast<std::byte*>(dst) + moved;
      const void* inputs[2] = {at, reader_->data()};
      kernels.reduce(reduction, inputs, 2, &at, 1, n / item);
      reader_->consume(n);
      moved += n;
    }
    if (moved == 0) look_at_end();
    return moved;
  }

  // Not where this rank's dialling has failed: the peer's own may be on its way.
  bool has_ended() const override {
    return ended_ns_ != 0 && connection_->state.load(std::memory_order_acquire) == TcpConnection::State::kOpen;
  }

  bool has_unsent() const override {
    return connection_->state.load(std::memory_order_acquire) == TcpConnection::State::kOpen &&
           rr::has_unsent(connection_->socket.get());
  }

  void note_arrivals(bool wanted) override {
    notes_arrivals_ = wanted;
    if (reader_) reader_->times().note(connection_->socket.get(), wanted);
  }

  int64_t arrived_ns() const override { return reader_ ? reader_->times().latest_ns() : 0; }

 private:
  std::string where() const {
    return "TCP, rank " + std::to_string(me_) + ", peer " + std::to_string(connection_->peer) + ", channel " +
           std::to_string(connection_->channel);
  }

  bool is_open() {
    using State = TcpConnection::State;
    switch (connection_->state.load(std::memory_order_acquire)) {
      case State::kOpen:
        if (!reader_) {
          writer_.emplace(connection_->session);
          reader_.emplace(connection_->session, where());
          if (notes_arrivals_) reader_->times().note(connection_->socket.get(), true);
          connection_->session = Session();  // keys are kept once
          ended_ns_ = 0;                     // if this rank's dialling failed, the peer's has not
        }
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

  // Whether so many checked bytes are there; reads what has arrived.
  bool has(size_t nbytes) {
    while (reader_->size() < nbytes) {
      if (!reader_->next() && !receive()) return false;
    }
    return true;
  }

  // The kernel has given less than there was room for, so it has no more: the next call asks it again.
  bool receive() {
    if (is_drained_ || !connection_->readable->take()) return false;
    const ssize_t n = reader_->receive(connection_->socket.get());
    is_drained_ = reader_->has_room();
    if (!is_drained_) connection_->readable->put_back();
    if (n > 0) return true;
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK) {
      fail("recv");
    } else if (n == 0 && ended_ns_ == 0) {
      ended_ns_ = now_ns();
      cause_ = why_silent("the peer has closed the connection");
    }
    return false;
  }

  void fail(const char* call) {
    if (ended_ns_ != 0) return;
    cause_ = why_silent(with_errno(call));
    ended_ns_ = now_ns();
  }

  // Why the network's thread has ended the connection, if it has.
  std::string why_silent(std::string otherwise) const {
    const auto ended = connection_->ended.lock();
    return ended->empty() ? otherwise : *ended;
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
  std::optional<RecordWriter> writer_;  // from the first use of an open connection on
  std::optional<RecordReader> reader_;
  bool notes_arrivals_ = false;
  bool is_drained_ = false;  // in this pull() or fold()
  int64_t ended_ns_ = 0;     // when the connection was found to be at its end
  std::string cause_;
};

}  // namespace

std::unique_ptr<Link> tcp_link(std::shared_ptr<TcpConnection> connection, int me, std::function<void()> dial,
                               std::function<void()> drop) {
  return std::make_unique<TcpLink>(std::move(connection), me, std::move(dial), std::move(drop));
}

}  // namespace rr
