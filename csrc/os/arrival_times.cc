#include "os/arrival_times.h"

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

// The real-time clock minus the monotonic one, but for 2 kApartNs. Somebody who sets the time of day changes it.
int64_t realtime_ahead_ns() {
  for (int tries = 1;; ++tries) {
    const int64_t before = now_ns();
    const int64_t realtime = realtime_ns();
    const int64_t apart = now_ns() - before;
    if (apart < kApartNs || tries == kTries) return realtime - before;
  }
}

}  // namespace

void ArrivalTimes::note(int fd, bool wanted) {
  const int flags = wanted ? SOF_TIMESTAMPING_RX_SOFTWARE | SOF_TIMESTAMPING_SOFTWARE : 0;
  is_noting_ = ::setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &flags, sizeof flags) == 0 && wanted;
  latest_ns_ = 0;
  ahead_ns_ = realtime_ahead_ns();
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
  const ssize_t n = ::recvmsg(fd, &message, MSG_DONTWAIT);
  if (n < 0) return n;
  latest_ns_ = 0;
  // The time is that of the last packet that was read whole. Where the room has become full, bytes of a later one may
  // have come along.
  if (static_cast<size_t>(n) == nbytes) return n;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr; part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_TIMESTAMPING) continue;
    scm_timestamping times;
    std::memcpy(&times, CMSG_DATA(part), sizeof times);
    if (times.ts[0].tv_sec != 0) latest_ns_ = to_monotonic(ns_of(times.ts[0]));
  }
  return n;
}

// 0 where the real-time clock may have been set since the kernel has noted the time.
int64_t ArrivalTimes::to_monotonic(int64_t realtime_ns) {
  const int64_t ahead = realtime_ahead_ns();
  const int64_t changed = ahead - ahead_ns_;
  const int64_t monotonic = realtime_ns - ahead;
  ahead_ns_ = ahead;
  // Earlier by the error of the difference would be too early; later is what the answer may be.
  return changed < -2 * kApartNs || changed > 2 * kApartNs ? 0 : monotonic + kApartNs;
}

}  // namespace rr
