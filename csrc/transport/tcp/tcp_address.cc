#include "transport/tcp/tcp_address.h"

#include <arpa/inet.h>
#include <netinet/in.h>

#include <cstring>

#include "base/errors.h"

namespace rr {

TcpAddress TcpAddress::from(const std::string& host, int port) {
  if (port < 1 || port > 65535) throw InvalidArgumentError("TCP: there is no port " + std::to_string(port));
  TcpAddress address;
  auto* const four = reinterpret_cast<sockaddr_in*>(&address.socket_address);
  auto* const six = reinterpret_cast<sockaddr_in6*>(&address.socket_address);
  if (::inet_pton(AF_INET, host.c_str(), &four->sin_addr) == 1) {
    four->sin_family = AF_INET;
    four->sin_port = htons(static_cast<uint16_t>(port));
    address.nbytes = sizeof(sockaddr_in);
    return address;
  }
  if (::inet_pton(AF_INET6, host.c_str(), &six->sin6_addr) == 1) {
    six->sin6_family = AF_INET6;
    six->sin6_port = htons(static_cast<uint16_t>(port));
    address.nbytes = sizeof(sockaddr_in6);
    return address;
  }
  throw InvalidArgumentError("TCP: \"" + host + "\" is no IPv4 or IPv6 address in numbers");
}

std::string TcpAddress::text() const {
  char text[INET6_ADDRSTRLEN] = "";
  const bool is_four = socket_address.ss_family == AF_INET;
  const auto* const four = reinterpret_cast<const sockaddr_in*>(&socket_address);
  const auto* const six = reinterpret_cast<const sockaddr_in6*>(&socket_address);
  const void* const bytes = is_four ? static_cast<const void*>(&four->sin_addr) : &six->sin6_addr;
  ::inet_ntop(socket_address.ss_family, bytes, text, sizeof text);
  const std::string port = std::to_string(ntohs(is_four ? four->sin_port : six->sin6_port));
  return is_four ? std::string(text) + ":" + port : "[" + std::string(text) + "]:" + port;
}

bool TcpAddress::is_private() const {
  const auto* const four = reinterpret_cast<const sockaddr_in*>(&socket_address);
  const auto* const six = reinterpret_cast<const sockaddr_in6*>(&socket_address);
  uint32_t ip = ntohl(four->sin_addr.s_addr);
  if (socket_address.ss_family != AF_INET) {
    const in6_addr& address = six->sin6_addr;
    if (!IN6_IS_ADDR_V4MAPPED(&address)) {
      return IN6_IS_ADDR_LOOPBACK(&address) || IN6_IS_ADDR_LINKLOCAL(&address) || (address.s6_addr[0] & 0xfe) == 0xfc;
    }
    std::memcpy(&ip, address.s6_addr + 12, sizeof ip);
    ip = ntohl(ip);
  }
  const auto is_in = [ip](uint32_t network, int bits) { return ip >> (32 - bits) == network >> (32 - bits); };
  return is_in(0x7f000000, 8) || is_in(0x0a000000, 8) || is_in(0xac100000, 12) || is_in(0xc0a80000, 16) ||
         is_in(0xa9fe0000, 16) || is_in(0x64400000, 10);
}

TcpAddress TcpAddress::with_any_port() const {
  TcpAddress any = *this;
  if (socket_address.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in*>(&any.socket_address)->sin_port = 0;
  } else {
    reinterpret_cast<sockaddr_in6*>(&any.socket_address)->sin6_port = 0;
  }
  return any;
}

}  // namespace rr
