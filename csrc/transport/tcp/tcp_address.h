// Where a rank listens.
#pragma once

#include <sys/socket.h>

#include <string>

namespace rr {

struct TcpAddress {
  sockaddr_storage socket_address = {};
  socklen_t nbytes = 0;

  // host: an IPv4 or IPv6 address in numbers. Throws InvalidArgumentError.
  static TcpAddress from(const std::string& host, int port);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&socket_address); }
  std::string text() const;  // "10.0.0.1:29400", "[fe80::1]:29400"
  TcpAddress with_any_port() const;
};

}  // namespace rr
