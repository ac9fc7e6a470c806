// TCP networks of several ranks in one process, over the loopback interface.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "os/owned_fd.h"
#include "transport/tcp/session/handshake.h"
#include "transport/tcp/tcp_network.h"

namespace rr::test {

// A socket that listens on a free port of 127.0.0.1, and its address.
inline std::pair<Fd, TcpAddress> listening() {
  TcpAddress address;
  auto* const four = reinterpret_cast<sockaddr_in*>(&address.socket_address);
  four->sin_family = AF_INET;
  four->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.nbytes = sizeof(sockaddr_in);
  Fd socket(static_cast<int>(check_sys(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), "socket")));
  auto* const any = reinterpret_cast<sockaddr*>(&address.socket_address);
  check_sys(::bind(socket.get(), any, address.nbytes), "bind");
  check_sys(::listen(socket.get(), 128), "listen");
  check_sys(::getsockname(socket.get(), any, &address.nbytes), "getsockname");
  return {std::move(socket), address};
}

// The two ends of a TCP connection.
inline std::pair<OwnedFd, OwnedFd> connected_pair() {
  auto [listener, address] = listening();
  OwnedFd one = OwnedFd::from([] { return ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0); });
  check_sys(::connect(one.get(), address.get(), address.nbytes), "connect");
  OwnedFd other = OwnedFd::from([&, fd = listener.get()] { return ::accept4(fd, nullptr, nullptr, SOCK_CLOEXEC); });
  check_sys(other.get(), "accept");
  return {std::move(one), std::move(other)};
}

inline Bytes32 key_of(unsigned char seed) {
  Bytes32 key;
  key.fill(static_cast<std::byte>(seed));
  return key;
}

// A connection to rank `peer` as rank `me` makes it; the higher rank, whose PROOF is the last word.
inline std::pair<Fd, Session> connected(const TcpAddress& address, int me, int peer, int channel, int size) {
  Fd socket(static_cast<int>(check_sys(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket")));
  const auto* const to = reinterpret_cast<const sockaddr*>(&address.socket_address);
  check_sys(::connect(socket.get(), to, address.nbytes), "connect");
  const Handshakes handshakes(key_of(7), me, size);
  const Hello hello = handshakes.hello(peer, channel);
  check_sys(::send(socket.get(), &hello, sizeof hello, MSG_NOSIGNAL), "send");
  Challenge challenge;
  check_sys(::recv(socket.get(), &challenge, sizeof challenge, MSG_WAITALL), "recv");
  std::string why;
  const auto proof = handshakes.prove(hello, challenge, why);
  if (!proof) throw std::runtime_error(why);
  check_sys(::send(socket.get(), proof->data(), proof->size(), MSG_NOSIGNAL), "send");
  return {std::move(socket), handshakes.session(hello, challenge, true)};
}

struct TcpRanks {
  explicit TcpRanks(int size, Encrypt encrypt = Encrypt::kAuto) {
    std::vector<Fd> listeners;
    for (int r = 0; r < size; ++r) {
      auto [socket, address] = listening();
      listeners.push_back(std::move(socket));
      addresses.push_back(address);
    }
    for (int r = 0; r < size; ++r) {
      TcpOptions options = {r, std::move(listeners[static_cast<size_t>(r)]), addresses, key_of(7)};
      options.encrypt = encrypt;
      networks.push_back(TcpNetwork::create(std::move(options)));
    }
  }

  std::vector<TcpAddress> addresses;
  std::vector<std::shared_ptr<TcpNetwork>> networks;  // by rank
};

}  // namespace rr::test
