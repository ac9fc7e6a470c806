// The TCP connections of one rank to ranks on other hosts, and the thread that makes them.
//
// The thread listens, dials and shakes hands; it rings when bytes arrive while nobody looks; it exchanges heartbeats
// with the leaders of other hosts and so notices their end. It moves no byte of a link: who waits does that.
#pragma once

#include <memory>
#include <vector>

#include "os/fd.h"
#include "transport/network.h"
#include "transport/tcp/session/libcrypto.h"
#include "transport/tcp/tcp_address.h"

namespace rr {

// Whether data is encrypted; control is in any case. Data that is not has a checksum, which finds what chance has
// changed and no attacker's change. kAuto: data is encrypted on its way to ranks whose address is not private.
enum class Encrypt { kAuto, kOn, kOff };

struct TcpOptions {
  int rank = 0;
  Fd listener;                        // bound, listening, at addresses[rank]
  std::vector<TcpAddress> addresses;  // by rank; where each one listens
  Bytes32 key = {};                   // of this job alone
  // From a peer whose host has vanished nothing comes. After so many ms without a sign of life the rank is lost.
  int lost_after_ms = 2800;
  // And a connection of data, while the leaders' heartbeats go on: of what is on its way nothing is acknowledged, or no
  // connection is to be had.
  int data_lost_after_ms = 10000;
  // What takes connections at a rank's address, and ends them before it has shown that it has the key, is not the rank.
  int unproven_lost_after_ms = 60000;
  Encrypt encrypt = Encrypt::kAuto;
};

class TcpNetwork : public NetworkReader {
 public:
  // Throws UnavailableError where libcrypto is missing.
  static std::shared_ptr<TcpNetwork> create(TcpOptions options);
  virtual std::unique_ptr<Link> link(int peer, int channel) = 0;
};

// host_of: by rank, equal on the same host.
Network tcp_network(std::shared_ptr<TcpNetwork> tcp, std::vector<int> host_of);

}  // namespace rr
