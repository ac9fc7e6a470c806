// What the kernel does on a TCP connection while nothing comes back.
#pragma once

namespace rr {

// What is on its way is sent again at even pauses, so that it arrives soon after an outage. By default each pause is
// twice the one before, and two outages of 2 s with a second between them look like one. Linux 6.15 and later: no pause
// is longer than longest_pause_ms, 1000 at least. Linux gives up a connection of which nothing is acknowledged after 15
// such pauses and a little more, and one without TCP_USER_TIMEOUT whose peer has no room after two without an answer.
// Earlier: the first seven pauses are alike, where fewer than four packets are on their way and congestion control is
// not BBR, which has no threshold by which Linux tells such a connection from a new one.
// False, with errno: the kernel refuses.
bool retransmit_steadily(int fd, int longest_pause_ms);

// Where nothing is on its way, and nothing has come for idle_s seconds, the kernel asks the peer's once a second. After
// so many questions without an answer the connection ends; 0: Linux's 9, or TCP_USER_TIMEOUT where it is set.
// False, with errno: the kernel refuses.
bool probe_when_idle(int fd, int idle_s, int probes = 0);

}  // namespace rr
