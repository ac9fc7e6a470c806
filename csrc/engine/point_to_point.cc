#include "engine/point_to_point.h"

#include <algorithm>

namespace rr {

PointToPoint::PointToPoint(std::vector<std::unique_ptr<Link>> links) : lanes_(links.size()) {
  for (size_t i = 0; i < links.size(); ++i) lanes_[i].link = std::move(links[i]);
}

void PointToPoint::add_send(OperationPtr operation, int peer, int tag) {
  Message message;
  message.header = {tag, operation->srcs[0].nbytes()};
  message.operation = std::move(operation);
  lanes_[static_cast<size_t>(peer)].sends.push_back(std::move(message));
}

void PointToPoint::add_receive(OperationPtr operation, int peer, int tag) {
  Message message;
  message.header = {tag, operation->dsts[0].nbytes()};
  message.operation = std::move(operation);
  lanes_[static_cast<size_t>(peer)].receives.push_back(std::move(message));
}

bool PointToPoint::step_send(Lane& lane, std::vector<Finished>& finished) {
  if (lane.sends.empty()) return false;
  Message& message = lane.sends.front();
  size_t moved = 0;
  if (message.header_moved < sizeof(Header)) {
    moved = lane.link->push(reinterpret_cast<const std::byte*>(&message.header) + message.header_moved,
                            sizeof(Header) - message.header_moved);
    message.header_moved += moved;
  }
  if (message.header_moved == sizeof(Header)) {
    const size_t n =
        lane.link->push(message.operation->srcs[0].data + message.moved, message.header.nbytes - message.moved);
    message.moved += n;
    moved += n;
    if (message.moved == message.header.nbytes) {
      finished.push_back({std::move(message.operation), ""});
      lane.sends.pop_front();
      return true;
    }
  }
  return moved != 0;
}

bool PointToPoint::step_receive(Lane& lane, std::vector<Finished>& finished) {
  if (lane.receives.empty()) return false;
  Message& message = lane.receives.front();
  size_t moved = 0;
  if (message.header_moved < sizeof(Header)) {
    moved = lane.link->pull(reinterpret_cast<std::byte*>(&message.arrived) + message.header_moved,
                            sizeof(Header) - message.header_moved);
    message.header_moved += moved;
    if (message.header_moved < sizeof(Header)) return moved != 0;
    const bool fits = message.arrived.tag == message.header.tag && message.arrived.nbytes == message.header.nbytes;
    if (!fits) message.refused.resize(message.arrived.nbytes);
  }
  const bool refused = message.arrived.tag != message.header.tag || message.arrived.nbytes != message.header.nbytes;
  std::byte* at = refused ? message.refused.data() : message.operation->dsts[0].data;
  const size_t n = lane.link->pull(at + message.moved, message.arrived.nbytes - message.moved);
  message.moved += n;
  if (message.moved < message.arrived.nbytes) return moved + n != 0;
  std::string error;
  if (refused) {
    error = "Mismatched RECV: expected tag " + std::to_string(message.header.tag) + " and " +
            std::to_string(message.header.nbytes) + " bytes, but the next message from that rank has tag " +
            std::to_string(message.arrived.tag) + " and " + std::to_string(message.arrived.nbytes) +
            " bytes. Messages between two ranks arrive in the order sent.";
  }
  finished.push_back({std::move(message.operation), std::move(error)});
  lane.receives.pop_front();
  return true;
}

bool PointToPoint::progress(std::vector<Finished>& finished) {
  bool moved = false;
  for (Lane& lane : lanes_) {
    moved |= step_send(lane, finished);
    moved |= step_receive(lane, finished);
  }
  return moved;
}

std::vector<OperationPtr> PointToPoint::drain() {
  std::vector<OperationPtr> operations;
  for (Lane& lane : lanes_) {
    for (auto* queue : {&lane.sends, &lane.receives}) {
      for (Message& message : *queue) operations.push_back(std::move(message.operation));
      queue->clear();
    }
  }
  return operations;
}

}  // namespace rr
