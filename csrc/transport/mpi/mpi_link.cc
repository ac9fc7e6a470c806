// Link over MPI: bytes are copied into messages, each of which says in its first 8 bytes how many follow. No status is
// read, so its layout, which differs between MPIs, does not matter.
//
// Both ends go round `depth` messages in order. Receives are posted that far ahead. The first message of every round is
// sent synchronously: it completes only when the peer receives it, and it has to be complete before its memory carries
// the next round, so fewer than 2 * `depth` messages wait unreceived at a peer that no longer pulls: the rest of a
// round whose first message it has received, and the round after. Without that, MPI would take small ones until its
// memory is full.

#include <algorithm>
#include <climits>
#include <cstring>
#include <vector>

#include "base/errors.h"
#include "transport/link.h"
#include "transport/mpi/mpi_communicator.h"

namespace rr {
namespace {

class MpiLink final : public Link {
 public:
  MpiLink(std::shared_ptr<MpiCommunicator> communicator, int peer, int send_tag, int receive_tag,
          const MpiLinkOptions& options)
      : communicator_(std::move(communicator)),
        peer_(peer),
        send_tag_(send_tag),
        receive_tag_(receive_tag),
        message_nbytes_(options.message_nbytes),
        out_(options.depth),
        in_(options.depth) {}

  ~MpiLink() override {
    for (const MpiMessagePtr& message : in_) {
      if (message != nullptr) communicator_->withdraw(message);
    }
    for (const MpiMessagePtr& message : out_) {
      if (message != nullptr) communicator_->abandon(message);
    }
  }
  MpiLink(const MpiLink&) = delete;
  MpiLink& operator=(const MpiLink&) = delete;

  size_t push(const void* src, size_t nbytes) override {
    size_t moved = 0;
    while (moved < nbytes) {
      MpiMessagePtr& message = out_[turn_out_];
      if (message == nullptr) message = make();
      if (!communicator_->test(message)) break;
      const uint64_t n = std::min(nbytes - moved, message_nbytes_);
      std::memcpy(message->begin(), &n, sizeof n);
      std::memcpy(message->begin() + MpiMessage::kHeaderNbytes, static_cast<const std::byte*>(src) + moved, n);
      communicator_->send(message, MpiMessage::kHeaderNbytes + n, peer_, send_tag_, turn_out_ == 0);
      turn_out_ = (turn_out_ + 1) % out_.size();
      moved += n;
    }
    return moved;
  }

  size_t pull(void* dst, size_t nbytes) override {
    return read(nbytes, 1, [dst](const std::byte* src, size_t offset, size_t n) {
      std::memcpy(static_cast<std::byte*>(dst) + offset, src, n);
    });
  }

  size_t fold(void* dst, size_t nbytes, const Reduction& reduction, const Kernels& kernels) override {
    const size_t item = itemsize(reduction.dtype);
    return read(nbytes, item, [&](const std::byte* src, size_t offset, size_t n) {
      void* at = static_cast<std::byte*>(dst) + offset;
      const void* inputs[2] = {at, src};
      kernels.reduce(reduction, inputs, 2, &at, 1, n / item);
    });
  }

 private:
  MpiMessagePtr make() const { return std::make_shared<MpiMessage>(MpiMessage::kHeaderNbytes + message_nbytes_); }

  // Hands up to nbytes of arrived bytes to consume(src, offset, n), n a multiple of granule. The part of an element at
  // the end of a message waits in part_, so that the message can be received into again.
  template <class Consume>
  size_t read(size_t nbytes, size_t granule, Consume consume) {
    size_t moved = 0;
    while (moved < nbytes) {
      if (part_nbytes_ >= granule) {
        const size_t n = std::min(nbytes - moved, part_nbytes_) / granule * granule;
        consume(part_, moved, n);
        std::memmove(part_, part_ + n, part_nbytes_ -= n);
        moved += n;
        continue;
      }
      if (left_ == 0 && !next_message()) break;
      if (part_nbytes_ != 0 || left_ < granule) {
        const size_t n = std::min(granule - part_nbytes_, left_);
        std::memcpy(part_ + part_nbytes_, next_, n);
        part_nbytes_ += n;
        take(n);
        continue;
      }
      const size_t n = std::min(nbytes - moved, left_) / granule * granule;
      consume(next_, moved, n);
      take(n);
      moved += n;
    }
    return moved;
  }

  void take(size_t n) {
    next_ += n;
    left_ -= n;
    if (left_ != 0) return;
    communicator_->receive(in_[turn_in_], peer_, receive_tag_);
    turn_in_ = (turn_in_ + 1) % in_.size();
  }

  bool next_message() {
    if (in_[0] == nullptr) post();
    const MpiMessagePtr& message = in_[turn_in_];
    if (!communicator_->test(message)) return false;
    uint64_t n = 0;
    std::memcpy(&n, message->begin(), sizeof n);
    if (n == 0 || n > message_nbytes_) {
      throw InternalError("MPI, rank " + std::to_string(communicator_->rank()) + ": a message from peer " +
                          std::to_string(peer_) + ", tag " + std::to_string(receive_tag_) + ", says that it has " +
                          std::to_string(n) + " bytes; somebody else uses the tag");
    }
    next_ = message->begin() + MpiMessage::kHeaderNbytes;
    left_ = n;
    return true;
  }

  // At the first look, not before: of the links of a group most are never used. All or none: memory may run out.
  void post() {
    std::vector<MpiMessagePtr> messages;
    for (size_t i = 0; i < in_.size(); ++i) messages.push_back(make());
    in_ = std::move(messages);
    for (const MpiMessagePtr& message : in_) communicator_->receive(message, peer_, receive_tag_);
  }

  std::shared_ptr<MpiCommunicator> communicator_;
  int peer_;
  int send_tag_;
  int receive_tag_;
  size_t message_nbytes_;
  std::vector<MpiMessagePtr> out_;
  size_t turn_out_ = 0;  // the message to send next
  std::vector<MpiMessagePtr> in_;
  size_t turn_in_ = 0;  // the message to arrive next
  const std::byte* next_ = nullptr;
  size_t left_ = 0;  // bytes of the message that has arrived
  std::byte part_[8] = {};
  size_t part_nbytes_ = 0;
};

}  // namespace

std::unique_ptr<Link> mpi_link(std::shared_ptr<MpiCommunicator> communicator, int peer, int send_tag, int receive_tag,
                               const MpiLinkOptions& options) {
  if (options.depth == 0 || options.message_nbytes == 0 ||
      options.message_nbytes > INT_MAX - MpiMessage::kHeaderNbytes) {
    throw InvalidArgumentError("mpi_link: depth is at least 1, message_nbytes between 1 and 2^31 - 9");
  }
  if (peer < 0 || peer >= communicator->size()) {
    throw InvalidArgumentError("mpi_link: no rank " + std::to_string(peer) + " in a communicator of " +
                               std::to_string(communicator->size()));
  }
  return std::make_unique<MpiLink>(std::move(communicator), peer, send_tag, receive_tag, options);
}

}  // namespace rr
