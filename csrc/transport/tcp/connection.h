// One connection of two ranks on one channel, as the link that moves its bytes and the network's thread share it.
#pragma once

#include <atomic>
#include <string>

#include "base/guarded.h"
#include "os/owned_fd.h"
#include "os/tcp/acknowledged.h"
#include "transport/tcp/readable.h"
#include "transport/tcp/session/records.h"

namespace rr {

struct TcpConnection {
  enum class State {
    kIdle,    // nobody has asked for it yet
    kWanted,  // a link has; the network's thread dials
    kOpen,    // both sides have proven who they are
    kFailed,  // it was never opened, and will not be
  };

  TcpConnection(int peer, int channel) : peer(peer), channel(channel) {}

  void open(OwnedFd opened, const Session& agreed, Readable::Flag* flag = nullptr) {
    socket = std::move(opened);
    session = agreed;
    readable = flag;
    state.store(State::kOpen, std::memory_order_release);
  }
  void fail(const std::string& why) {
    *reason.lock() = why;
    state.store(State::kFailed, std::memory_order_release);
  }

  const int peer;
  const int channel;
  std::atomic<State> state{State::kIdle};
  std::atomic<int64_t> wanted_ns{0};   // since when; 0: it is not, or not yet
  OwnedFd socket;                      // from kOpen on the link's, until the link drops the connection
  Session session;                     // from kOpen on
  Readable::Flag* readable = nullptr;  // from kOpen on, of a link's
  Guarded<std::string> reason;         // of kFailed
  Guarded<std::string> ended;          // why the network's thread has ended one that was open; "": it has not
  Acknowledged acknowledged;           // the network's thread's
};

}  // namespace rr
