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
  // The same for a link, after whose end let_go() is called.
  ConnectionPtr begin_link(int peer, int channel);
  // The connection is to be opened. False: that is known already.
  bool want(const ConnectionPtr& connection);
  void let_go(const ConnectionPtr& connection);

  // The network's thread's.
  struct Asked {
    std::vector<ConnectionPtr> to_dial;
    std::vector<ConnectionPtr> to_drop;
  };
  Asked take() { return std::exchange(state_.lock()->asked, {}); }
  std::vector<ConnectionPtr> wanted(int64_t before_ns);  // and not there yet
  enum class Use {
    kFree,  // a new connection would be of use
    kOpen,  // there is one
    kGone,  // its link has gone, or will never be made
  };
  Use use(int peer, int channel);
  ConnectionPtr known(int peer, int channel);  // null: there is none
  // Those that peers have opened and whose link has gone, or will never be made.
  std::vector<ConnectionPtr> useless();
  void drop(const TcpConnection& connection);
  // Ends those that are open and have been sent something of which nothing is acknowledged for so long.
  void end_silent(int lost_after_ms);
  // None that is not open will be, ever.
  void fail_all(const std::string& why);

 private:
  struct State {
    // The ids of groups ascend, and none is used twice: one that is not newer and has no link here will have none.
    bool has_gone(int peer, int channel) const;
    ConnectionPtr find(int peer, int channel);

    std::map<std::pair<int, int>, ConnectionPtr> known;
    std::map<int, int> links;              // by group, of those that have links here: how many
    int newest_group = -1;                 // of those that have had links here
    std::set<std::pair<int, int>> let_go;  // of groups that have other links here
    Asked asked;
    std::string broken;  // "": not
  };
  Guarded<State> state_;
};

}  // namespace rr
