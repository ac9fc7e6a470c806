// Which ranks are lost: what the pidfds of this host and the network's reader tell.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "os/liveness.h"
#include "os/presence.h"
#include "transport/network.h"

namespace rr {

class PeerWatch {
 public:
  // pidfds[r] watches rank r, -1 = not watched. reader: null where the network has none.
  PeerWatch(const std::vector<int>& pidfds, std::shared_ptr<NetworkReader> reader)
      : reader_(std::move(reader)), liveness_(pidfds), deaths_(pidfds.size()) {}

  // This rank is there, and others of its host are to be noticed that are so no more. is_expected(rank): whether a rank
  // has said that it holds its Presence, and not that it leaves.
  bool hold(int memory_file, int world_rank, std::function<bool(int)> is_expected);
  // This rank has said that it leaves.
  void drop();
  void look();  // notes who was lost since the last look
  // Why the rank is lost; null: as far as is known it is not.
  const char* cause_of_death(int world_rank) const;
  int pid_of(int world_rank);  // of a rank of this host that lives; else 0

 private:
  friend class Context;
  void close() { liveness_.close(); }  // in a forked child: its descriptors

  bool is_replaced(int rank) const;

  struct Death {
    std::atomic<bool> is_known{false};
    std::string why;  // written before
  };

  const std::shared_ptr<NetworkReader> reader_;
  std::mutex looking_;
  Liveness liveness_;
  Presence presence_;
  std::function<bool(int)> is_expected_;  // null before hold()
  int next_asked_ = 0;                    // whether it is replaced
  std::vector<Death> deaths_;             // by world rank
};

}  // namespace rr
