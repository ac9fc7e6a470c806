// The connections of a rank to the others, by peer and channel, and what links ask of the network's thread about them.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/guarded.h"
#include "transport/tcp/connection.h"

namespace rr {

using ConnectionPtr = std::shared_ptr<TcpConnection>;

class Connections {
 public:
  // Any thread's.
  ConnectionPtr find(int peer, int channel);
  // The connection is to be opened. False: that is known already.
  bool want(const ConnectionPtr& connection);
  void let_go(const ConnectionPtr& connection) { state_.lock()->asked.to_drop.push_back(connection); }  // its link goes

  // The network's thread's.
  struct Asked {
    std::vector<ConnectionPtr> to_dial;
    std::vector<ConnectionPtr> to_drop;
  };
  Asked take() { return std::exchange(state_.lock()->asked, {}); }
  std::vector<ConnectionPtr> wanted(int64_t before_ns);  // and not there yet
  // Whether a new connection would be of use: it is not open, and its link has not gone.
  bool is_free(int peer, int channel);
  void drop(const TcpConnection& connection);
  // Ends those that are open and have been sent something of which nothing is acknowledged for so long.
  void end_silent(int lost_after_ms);
  // None that is not open will be, ever.
  void fail_all(const std::string& why);

 private:
  struct State {
    std::map<std::pair<int, int>, ConnectionPtr> known;
    std::set<std::pair<int, int>> dropped;
    Asked asked;
    std::string broken;  // "": not
  };
  Guarded<State> state_;
};

}  // namespace rr
