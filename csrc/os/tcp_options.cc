#include "os/tcp_options.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>

namespace rr {
namespace {

constexpr int kTcpRtoMaxMs = 44;       // TCP_RTO_MAX_MS of linux/tcp.h, which older headers do not have
constexpr int kLongestPauseMs = 1000;  // the least that Linux takes

bool set(int fd, int level, int option, int value) {
  return ::setsockopt(fd, level, option, &value, sizeof value) == 0;
}

}  // namespace

bool retransmit_steadily(int fd) {
  if (!set(fd, IPPROTO_TCP, kTcpRtoMaxMs, kLongestPauseMs) && errno != ENOPROTOOPT) return false;
  return set(fd, IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1);
}

bool probe_when_idle(int fd, int idle_s, int probes) {
  return set(fd, SOL_SOCKET, SO_KEEPALIVE, 1) && set(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle_s) &&
         set(fd, IPPROTO_TCP, TCP_KEEPINTVL, 1) && (probes == 0 || set(fd, IPPROTO_TCP, TCP_KEEPCNT, probes));
}

}  // namespace rr
