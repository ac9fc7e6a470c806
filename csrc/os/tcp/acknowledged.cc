#include "os/tcp/acknowledged.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace rr {
namespace {

constexpr int64_t kLongestLookNs = 2'000'000'000;
constexpr socklen_t kLeastNbytes = 128;  // up to bytes_acked()
// A peer without room answers each probe. So many in a row without an answer are no accident.
constexpr int kSilentProbes = 3;

// The beginning of the kernel's struct tcp_info (linux/tcp.h), of which older headers know less.
struct KernelTcpInfo {
  unsigned char beginning[232];
  template <class T>
  T at(size_t offset) const {
    T value;
    std::memcpy(&value, beginning + offset, sizeof value);
    return value;
  }
  uint8_t retransmits() const { return at<uint8_t>(2); }      // of the first packet, in a row
  uint8_t probes() const { return at<uint8_t>(3); }           // without an answer
  uint32_t unacked() const { return at<uint32_t>(24); }       // packets on their way
  uint64_t bytes_acked() const { return at<uint64_t>(120); }  // Linux 4.1
  uint32_t snd_wnd() const { return at<uint32_t>(228); }      // the peer's room; Linux 5.4
};

}  // namespace

int64_t Acknowledged::silent_ns(int fd, int64_t now_ns) {
  KernelTcpInfo info = {};
  socklen_t nbytes = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &nbytes) < 0 || nbytes < kLeastNbytes) return 0;
  // A kernel that does not tell of the peer's room says at least that it has sent again what was not acknowledged.
  const bool has_room = nbytes == sizeof info ? info.snd_wnd() != 0 : info.retransmits() >= kSilentProbes;
  const bool is_sent = info.unacked() != 0 && has_room;
  const bool is_silent = (is_sent || info.probes() >= kSilentProbes) && info.bytes_acked() == nbytes_;
  silent_ns_ = is_silent ? silent_ns_ + std::min(now_ns - looked_ns_, kLongestLookNs) : 0;
  nbytes_ = info.bytes_acked();
  looked_ns_ = now_ns;
  return silent_ns_;
}

}  // namespace rr
