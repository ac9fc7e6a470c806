#include "os/tcp/arrival_times.h"

#include <linux/errqueue.h>
#include <linux/net_tstamp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cstring>
#include <ctime>

#include "base/clock.h"

namespace rr {
namespace {

// Both clocks are read with less than this between two looks at one of them, or read again.
constexpr int64_t kApartNs = 500;
constexpr int kTries = 3;

int64_t ns_of(const timespec& time) { return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec; }

int64_t realtime_ns() {
  timespec time;
  ::clock_gettime(CLOCK_REALTIME, &time);
  return ns_of(time);
}

}  // namespace

void ArrivalTimes::note(int fd, bool wanted) {
  const int flags = wanted ? SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE : 0;
  is_noting_ = ::setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &flags, sizeof flags) == 0 && wanted;
  latest_ns_ = 0;
  is_known_ = is_sure_ = false;
}

ssize_t ArrivalTimes::receive(int fd, void* dst, size_t nbytes) {
  if (!is_noting_) return ::recv(fd, dst, nbytes, MSG_DONTWAIT);
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(scm_timestamping))];
  iovec part = {dst, nbytes};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  look_at_clocks();
  const ssize_t n = ::recvmsg(fd, &message, MSG_DONTWAIT);
  if (n < 0) return n;  // mostly: nothing has come
  // What has come lies between the last call and now. Somebody may have set the time of day within.
  const bool was_sure = is_sure_;
  look_at_clocks();
  latest_ns_ = 0;
  // The time is that of the last packet that was read whole. Where the room has become full, bytes of a later one may
  // have come along.
  if (static_cast<size_t>(n) == nbytes || !was_sure || !is_sure_) return n;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_TIMESTAMPING) continue;
    scm_timestamping times;
    std::memcpy(&times, CMSG_DATA(part), sizeof times);
    if (times.ts[0].tv_sec != 0) latest_ns_ = ns_of(times.ts[0]) - ahead_ns_;
  }
  return n;
}

// Sure where the real-time clock was ahead by as much at the last look, too. The difference is too small by up to
// kApartNs, so that no arrival seems earlier than it was.
void ArrivalTimes::look_at_clocks() {
  bool is_close = false;
  int64_t ahead = 0;
  for (int tries = 0; tries < kTries && !is_close; ++tries) {
    const int64_t before = now_ns();
    const int64_t realtime = realtime_ns();
    const int64_t after = now_ns();
    is_close = after - before < kApartNs;
    ahead = realtime - after;
  }
  is_sure_ = is_close && is_known_ && ahead - ahead_ns_ < kApartNs && ahead_ns_ - ahead < kApartNs;
  is_known_ = is_close;
  ahead_ns_ = ahead;
}

}  // namespace rr
