// Communicators of the fake NCCL, and the calls that are made on them.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "files.h"
#include "gpu/nccl/nccl.h"

namespace fake_nccl {

struct Call {
  enum Kind { kAllReduce, kReduce, kReduceScatter, kBroadcast, kAllGather, kSend, kReceive } kind;
  const void* src;
  void* dst;
  size_t count;
  rr::NcclType type;
  rr::Reduction reduction;
  int peer;
  // when it is issued
  std::string mine;                 // file that this rank writes
  std::vector<std::string> theirs;  // files that it reads, by rank
  bool published = false;
  bool done = false;
};

}  // namespace fake_nccl

struct ncclComm : std::enable_shared_from_this<ncclComm> {
  std::string base;  // of its files
  int rank = 0;
  int size = 0;
  void* device = nullptr;
  std::set<std::string> files;  // own ones
  std::map<rr::NcclOp, std::pair<rr::NcclType, double>> operations;
  int next_operation = 5;
  int issued = 0;                // collectives
  std::map<int, int> sent, got;  // messages by peer
  int executed = 0;              // groups that were asked for
  std::atomic<bool> aborted{false};
  enum { kMaking, kReady, kLaunching, kShrinking, kFinalizing, kFinalized } state = kMaking;
  int looks = 0;
  std::vector<fake_nccl::Call> calls;  // of a group that is to be launched
  void* stream = nullptr;
  ncclComm** child_at = nullptr;
  std::shared_ptr<ncclComm> child;

  std::string file(const std::string& what, int r) const { return base + "-" + what + "-" + std::to_string(r); }
  void say(const std::string& what, const void* data = "", size_t nbytes = 0) {
    const std::string path = file(what, rank);
    files.insert(path);
    fake_nccl::publish(path, data, nbytes);
  }
  bool all_said(const std::string& what) const {
    for (int r = 0; r < size; ++r) {
      if (!fake_nccl::exists(file(what, r))) return false;
    }
    return true;
  }
  void clean();
};

namespace fake_nccl {

std::shared_ptr<ncclComm> find(ncclComm* comm);  // null: it has ended, or never was
rr::NcclResult begin(ncclComm** made, int size, const rr::NcclUniqueId& id, int rank, const rr::NcclConfig& config);
std::shared_ptr<ncclComm> make(const std::string& base, int rank, int size, void* device);
void launch(ncclComm& comm);  // the calls of its group, into its stream
rr::DType dtype_of(rr::NcclType type);

}  // namespace fake_nccl
