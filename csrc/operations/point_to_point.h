// send and recv of one rank: messages between a pair arrive in the order sent; each is {tag, dtype, nbytes} and the
// bytes.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "planner/operation.h"
#include "transport/link.h"

namespace rr {

class PointToPoint {
 public:
  explicit PointToPoint(std::vector<std::unique_ptr<Link>> links);  // by group rank; null for this rank

  void add_send(OperationPtr operation, int peer, int tag);
  void add_receive(OperationPtr operation, int peer, int tag);
  // Takes the first message that arrives and that no older receive wants; sets the operation's peer.
  void add_receive_from_anyone(OperationPtr operation, int tag);

  // For a caller that wants its memory back. What is being sent goes on from a copy: the receiver may have a part of
  // it. A receive that no message has come for is taken out. kNo: its message has begun to arrive.
  enum class Withdrawn { kNo, kCopied, kTakenOut };
  Withdrawn withdraw(Operation& operation);

  struct Finished {
    OperationPtr operation;
    std::string error;  // "" = success
  };
  // Moves what can be moved; appends what has finished. True when bytes moved.
  bool progress(std::vector<Finished>& finished);
  // Whether something waits for a peer that has left after so many messages to this rank.
  bool waits_for(int peer, uint64_t sent_by_peer) const {
    const auto& queue = queues_[static_cast<size_t>(peer)];
    return !queue.sends.empty() || (!queue.receives.empty() && queue.received >= sent_by_peer);
  }
  // The oldest receive from any rank that no message has come for; null: there is none.
  OperationPtr from_anyone() const { return from_anyone_.empty() ? nullptr : from_anyone_.front().operation; }
  // Whether all came that this peer has sent.
  bool has_all(int peer, uint64_t sent_by_peer) const {
    return queues_[static_cast<size_t>(peer)].received >= sent_by_peer;
  }
  // Why a message will not come that this peer had sent before it left. "": that is not so.
  std::string why_cut(int peer, uint64_t sent_by_peer) const;
  OperationPtr oldest() const;                                                       // that is under way; null: none
  uint64_t sent(int peer) const { return queues_[static_cast<size_t>(peer)].sent; }  // messages, whole ones
  // Takes everything that is still pending.
  std::vector<OperationPtr> drain();

 private:
  struct Header {
    int32_t tag = 0;
    DType dtype = DType::kFloat32;
    uint8_t unused[3] = {};
    uint64_t nbytes = 0;
  };
  static_assert(sizeof(Header) == 16);
  struct Message {
    OperationPtr operation;
    Header header;
    size_t header_moved = 0;  // send
    size_t moved = 0;
    std::vector<std::byte> refused;  // receive: where a piece of what does not fit goes
  };
  struct PeerQueue {
    std::unique_ptr<Link> link;
    std::deque<Message> sends;
    std::deque<Message> receives;
    Header arrived;  // what the sender of the next message says of it
    size_t header_moved = 0;
    uint64_t sent = 0;  // messages, whole ones
    uint64_t received = 0;
  };
  static Header header_of(const TensorView& memory, int tag);
  static std::string text(const Header& header);
  static bool fits(const Header& expected, const Header& arrived);
  static Message receive(OperationPtr operation, int tag);
  void match(PeerQueue& queue);
  bool step_send(PeerQueue& queue, std::vector<Finished>& finished);
  bool step_receive(PeerQueue& queue, std::vector<Finished>& finished);

  std::vector<PeerQueue> queues_;
  std::deque<Message> from_anyone_;
};

}  // namespace rr
