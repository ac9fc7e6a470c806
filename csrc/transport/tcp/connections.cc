#include "transport/tcp/connections.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>

#include "base/clock.h"
#include "transport/network.h"
#include "transport/tcp/heartbeats.h"

namespace rr {

ConnectionPtr Connections::State::find(int peer, int channel) {
  ConnectionPtr& one = known[{peer, channel}];
  if (one == nullptr) {
    one = std::make_shared<TcpConnection>(peer, channel);
    if (!broken.empty()) one->fail(broken);
  }
  return one;
}

bool Connections::State::has_gone(int peer, int channel) const {
  if (channel == Heartbeats::kChannel) return false;
  const int group = group_of(channel);
  if (links.count(group) == 0) return group <= newest_group;
  return let_go.count({peer, channel}) != 0;
}

ConnectionPtr Connections::find(int peer, int channel) { return state_.lock()->find(peer, channel); }

ConnectionPtr Connections::begin_link(int peer, int channel) {
  const auto state = state_.lock();
  const int group = group_of(channel);
  ++state->links[group];
  state->newest_group = std::max(state->newest_group, group);
  return state->find(peer, channel);
}

void Connections::let_go(const ConnectionPtr& connection) {
  const auto state = state_.lock();
  state->asked.to_drop.push_back(connection);
  state->let_go.insert({connection->peer, connection->channel});
  const auto links = state->links.find(group_of(connection->channel));
  if (--links->second != 0) return;
  state->links.erase(links);
  for (auto one = state->let_go.begin(); one != state->let_go.end();) {
    one = state->links.count(group_of(one->second)) == 0 ? state->let_go.erase(one) : std::next(one);
  }
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

Connections::Use Connections::use(int peer, int channel) {
  const auto state = state_.lock();
  if (state->has_gone(peer, channel)) return Use::kGone;
  const auto known = state->known.find({peer, channel});
  const bool is_open = known != state->known.end() && known->second->state.load() == TcpConnection::State::kOpen;
  return is_open ? Use::kOpen : Use::kFree;
}

ConnectionPtr Connections::known(int peer, int channel) {
  const auto state = state_.lock();
  const auto known = state->known.find({peer, channel});
  return known == state->known.end() ? nullptr : known->second;
}

std::vector<ConnectionPtr> Connections::useless() {
  std::vector<ConnectionPtr> found;
  const auto state = state_.lock();
  for (const auto& [name, one] : state->known) {
    if (state->has_gone(one->peer, one->channel)) found.push_back(one);
  }
  return found;
}

void Connections::drop(const TcpConnection& connection) {
  state_.lock()->known.erase({connection.peer, connection.channel});
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
