#include "transport/tcp/acknowledged.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>

namespace rr {
namespace {
constexpr int64_t kLongestLookNs = 2'000'000'000;
}  // namespace

int64_t Acknowledged::silent_ns(int fd, int64_t now_ns) {
  tcp_info info = {};
  socklen_t nbytes = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &nbytes) < 0) return 0;
  // Where the peer has no room nothing is on its way.
  const bool is_silent = info.tcpi_unacked != 0 && info.tcpi_bytes_acked == nbytes_;
  silent_ns_ = is_silent ? silent_ns_ + std::min(now_ns - looked_ns_, kLongestLookNs) : 0;
  nbytes_ = info.tcpi_bytes_acked;
  looked_ns_ = now_ns;
  return silent_ns_;
}

}  // namespace rr
