#include "os/tcp/tcp_options.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>

namespace rr {
namespace {

constexpr int kTcpRtoMaxMs = 44;  // TCP_RTO_MAX_MS of linux/tcp.h, which older headers do not have

bool set(int fd, int level, int option, int value) {
  return ::setsockopt(fd, level, option, &value, sizeof value) == 0;
}

}  // namespace

// An option that this kernel does not know is no error: the connection works without.
bool retransmit_steadily(int fd, int longest_pause_ms) {
  return (set(fd, IPPROTO_TCP, kTcpRtoMaxMs, longest_pause_ms) || errno == ENOPROTOOPT) &&
         (set(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1) || errno == ENOPROTOOPT);
}

bool probe_when_idle(int fd, int idle_s, int probes) {
  return set(fd, SOL_SOCKET, SO_KEEPALIVE, 1) && set(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle_s) &&
         set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1) && (probes == 0 || set(fd, IPPROTO_TCP, TCP_KEEPCNT, probes));
}

}  // namespace rr
