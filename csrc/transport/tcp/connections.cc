#include "transport/tcp/connections.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include "base/clock.h"

namespace rr {

ConnectionPtr Connections::find(int peer, int channel) {
  const auto state = state_.lock();
  ConnectionPtr& known = state->known[{peer, channel}];
  if (known == nullptr) {
    known = std::make_shared<TcpConnection>(peer, channel);
    if (!state->broken.empty()) known->fail(state->broken);
  }
  return known;
}

bool Connections::want(const ConnectionPtr& connection) {
  TcpConnection::State idle = TcpConnection::State::kIdle;
  if (!connection->state.compare_exchange_strong(idle, TcpConnection::State::kWanted)) return false;
  connection->wanted_ns.store(now_ns());
  state_.lock()->asked.to_dial.push_back(connection);
  return true;
}

std::vector<ConnectionPtr> Connections::wanted(int64_t before_ns) {
  std::vector<ConnectionPtr> found;
  const auto state = state_.lock();
  for (const auto& [name, one] : state->known) {
    if (one->state.load(std::memory_order_acquire) != TcpConnection::State::kWanted) continue;
    const int64_t since_ns = one->wanted_ns.load();
    if (since_ns != 0 && since_ns <= before_ns) found.push_back(one);
  }
  return found;
}

bool Connections::is_free(int peer, int channel) {
  const auto state = state_.lock();
  if (state->dropped.count({peer, channel}) != 0) return false;
  const auto known = state->known.find({peer, channel});
  return known == state->known.end() || known->second->state.load() != TcpConnection::State::kOpen;
}

void Connections::drop(const TcpConnection& connection) {
  const auto state = state_.lock();
  state->known.erase({connection.peer, connection.channel});
  state->dropped.insert({connection.peer, connection.channel});
}

void Connections::end_silent(int lost_after_ms) {
  const auto state = state_.lock();
  const int64_t now = now_ns();
  for (const auto& [name, one] : state->known) {
    if (one->state.load(std::memory_order_acquire) != TcpConnection::State::kOpen || !one->socket) continue;
    const int fd = one->socket.get();
    if (one->acknowledged.silent_ns(fd, now) < lost_after_ms * int64_t{1'000'000}) continue;
    const auto ended = one->ended.lock();
    if (!ended->empty()) continue;
    *ended = "its host has acknowledged nothing on this connection for " + std::to_string(lost_after_ms / 1000) +
             " s. Does a packet filter drop its packets, or those above some size?";
    ::shutdown(fd, SHUT_RDWR);
    const int soon_ms = 1;  // the kernel does not try for minutes to send what is left
    ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &soon_ms, sizeof soon_ms);
  }
}

void Connections::fail_all(const std::string& why) {
  const auto state = state_.lock();
  state->broken = why;
  for (const auto& [name, one] : state->known) {
    if (one->state.load() != TcpConnection::State::kOpen) one->fail(why);
  }
}

}  // namespace rr
