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
  // Whether what is sent there stays in a network of the user's own: the host itself, RFC 1918, RFC 4193, link-local
  // addresses, and 100.64.0.0/10 (RFC 6598), which VPNs use.
  bool is_private() const;
};

}  // namespace rr
