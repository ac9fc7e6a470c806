#include "operations/point_to_point.h"

#include <algorithm>

namespace rr {
namespace {
constexpr size_t kRefusedNbytes = 1 << 16;  // at once, of a message that does not fit: its size is the sender's word
}

PointToPoint::PointToPoint(std::vector<std::unique_ptr<Link>> links) : queues_(links.size()) {
  for (size_t i = 0; i < links.size(); ++i) queues_[i].link = std::move(links[i]);
}

PointToPoint::Header PointToPoint::header_of(const TensorView& memory, int tag) {
  Header header;
  header.tag = tag;
  header.dtype = memory.dtype;
  header.nbytes = memory.nbytes();
  return header;
}

std::string PointToPoint::text(const Header& header) {
  return "tag " + std::to_string(header.tag) + ", " + std::to_string(header.nbytes) + " bytes and dtype " +
         name(header.dtype);  // "?" for a code that there is not
}

// A message without elements has no dtype that matters.
bool PointToPoint::fits(const Header& expected, const Header& arrived) {
  if (arrived.tag != expected.tag || arrived.nbytes != expected.nbytes) return false;
  return arrived.nbytes == 0 || arrived.dtype == expected.dtype;
}

void PointToPoint::add_send(OperationPtr operation, int peer, int tag) {
  Message message;
  message.header = header_of(operation->srcs[0], tag);
  message.operation = std::move(operation);
  queues_[static_cast<size_t>(peer)].sends.push_back(std::move(message));
}

PointToPoint::Message PointToPoint::receive(OperationPtr operation, int tag) {
  Message message;
  message.header = header_of(operation->dsts[0], tag);
  message.operation = std::move(operation);
  return message;
}

void PointToPoint::add_receive(OperationPtr operation, int peer, int tag) {
  queues_[static_cast<size_t>(peer)].receives.push_back(receive(std::move(operation), tag));
}

void PointToPoint::add_receive_from_anyone(OperationPtr operation, int tag) {
  from_anyone_.push_back(receive(std::move(operation), tag));
}

// A message has begun to arrive: the oldest receive that it fits gets it.
void PointToPoint::match(PeerQueue& queue) {
  if (from_anyone_.empty()) return;
  const uint64_t oldest = from_anyone_.front().operation->number;
  if (!queue.receives.empty() && queue.receives.front().operation->number < oldest) return;
  from_anyone_.front().operation->peer = static_cast<int>(&queue - queues_.data());
  queue.receives.push_front(std::move(from_anyone_.front()));
  from_anyone_.pop_front();
}

bool PointToPoint::step_send(PeerQueue& queue, std::vector<Finished>& finished) {
  if (queue.sends.empty()) return false;
  Message& message = queue.sends.front();
  size_t moved = 0;
  if (message.header_moved < sizeof(Header)) {
    moved = queue.link->push(reinterpret_cast<const std::byte*>(&message.header) + message.header_moved,
                             sizeof(Header) - message.header_moved);
    message.header_moved += moved;
  }
  if (message.header_moved == sizeof(Header)) {
    const size_t n =
        queue.link->push(message.operation->srcs[0].data + message.moved, message.header.nbytes - message.moved);
    message.moved += n;
    moved += n;
    if (message.moved == message.header.nbytes) {
      finished.push_back({std::move(message.operation), ""});
      queue.sends.pop_front();
      ++queue.sent;
      return true;
    }
  }
  return moved != 0;
}

bool PointToPoint::step_receive(PeerQueue& queue, std::vector<Finished>& finished) {
  if (queue.receives.empty() && from_anyone_.empty()) return false;
  if (queue.link == nullptr) return false;
  const Header& arrived = queue.arrived;
  size_t moved = 0;
  if (queue.header_moved < sizeof(Header)) {
    moved = queue.link->pull(reinterpret_cast<std::byte*>(&queue.arrived) + queue.header_moved,
                             sizeof(Header) - queue.header_moved);
    queue.header_moved += moved;
    if (queue.header_moved < sizeof(Header)) return moved != 0;
    match(queue);
  }
  Message& message = queue.receives.front();
  const bool refused = !fits(message.header, arrived);
  const size_t left = arrived.nbytes - message.moved;
  size_t n = 0;
  if (refused) {
    message.refused.resize(std::min(left, kRefusedNbytes));
    n = queue.link->pull(message.refused.data(), message.refused.size());
  } else {
    n = queue.link->pull(message.operation->dsts[0].data + message.moved, left);
  }
  message.moved += n;
  if (message.moved < arrived.nbytes) return moved + n != 0;
  std::string error;
  if (refused) {
    error = "Mismatched RECV: expected " + text(message.header) + ", but the next message from that rank has " +
            text(arrived) + ". Messages between two ranks arrive in the order sent.";
  }
  finished.push_back({std::move(message.operation), std::move(error)});
  queue.receives.pop_front();
  queue.header_moved = 0;
  ++queue.received;
  return true;
}

bool PointToPoint::progress(std::vector<Finished>& finished) {
  bool moved = false;
  for (PeerQueue& queue : queues_) {
    moved |= step_send(queue, finished);
    moved |= step_receive(queue, finished);
  }
  return moved;
}

PointToPoint::Withdrawn PointToPoint::withdraw(Operation& operation) {
  if (!operation.srcs.empty()) {
    TensorView& source = operation.srcs[0];
    const auto copy = std::make_shared<std::vector<std::byte>>(source.data, source.data + source.nbytes());
    source.data = copy->data();
    operation.keep = copy;
    return Withdrawn::kCopied;
  }
  // begun: how many of the first ones have begun to arrive.
  const auto take_out = [&](std::deque<Message>& messages, std::ptrdiff_t begun) {
    const auto found = std::find_if(messages.begin() + begun, messages.end(),
                                    [&](const Message& message) { return message.operation.get() == &operation; });
    if (found == messages.end()) return false;
    messages.erase(found);
    return true;
  };
  if (take_out(from_anyone_, 0)) return Withdrawn::kTakenOut;
  for (PeerQueue& queue : queues_) {
    const bool has_begun = queue.header_moved == sizeof(Header) && !queue.receives.empty();
    if (take_out(queue.receives, has_begun ? 1 : 0)) return Withdrawn::kTakenOut;
  }
  return Withdrawn::kNo;
}

std::vector<OperationPtr> PointToPoint::drain() {
  std::vector<OperationPtr> operations;
  for (Message& message : from_anyone_) operations.push_back(std::move(message.operation));
  from_anyone_.clear();
  for (PeerQueue& queue : queues_) {
    for (auto* queue : {&queue.sends, &queue.receives}) {
      for (Message& message : *queue) operations.push_back(std::move(message.operation));
      queue->clear();
    }
  }
  return operations;
}

std::string PointToPoint::why_cut(int peer, uint64_t sent_by_peer) const {
  const PeerQueue& queue = queues_[static_cast<size_t>(peer)];
  const bool is_wanted = !queue.receives.empty() || !from_anyone_.empty();
  return queue.link != nullptr && is_wanted && !has_all(peer, sent_by_peer) ? queue.link->why_cut() : "";
}

OperationPtr PointToPoint::oldest() const {
  OperationPtr oldest;
  const auto look_at = [&](const std::deque<Message>& messages) {
    if (messages.empty()) return;
    const OperationPtr& first = messages.front().operation;
    if (oldest == nullptr || first->number < oldest->number) oldest = first;
  };
  for (const PeerQueue& queue : queues_) {
    look_at(queue.sends);
    look_at(queue.receives);
  }
  look_at(from_anyone_);
  return oldest;
}

}  // namespace rr
