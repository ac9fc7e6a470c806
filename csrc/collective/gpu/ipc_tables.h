// What each member of an operation says of itself before the GPUs' leaders map memory: which GPU it is on, where its
// operands lie, and what it wants to have copied.
//
// A member's table travels in pieces, one a round, of what a slot of the staging area takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "collective/gpu/ipc.h"
#include "collective/plan.h"

namespace rr {

class IpcTables {
 public:
  // Bytes of a table that one round carries, and the rounds that a table takes.
  static size_t unit(const IpcJob& job, const Stage& stage, int members);
  static size_t rounds(const IpcJob& job, const Stage& stage, int members);

  IpcTables(const IpcJob& job, size_t members, size_t me, size_t unit);

  // This member's own table, and the part of it that a round carries.
  const std::byte* own() const { return texts_[me_].data(); }
  Range own_part(size_t round) const { return chunk({0, texts_[me_].size()}, unit_, round); }
  // Reads the part of another member's table that a round has carried. In the order of the rounds; within a round, in
  // that of the members.
  void read(size_t member, size_t round, const std::byte* part);

  // After the last round.
  bool leads() const { return leads_; }  // whether this member is the first on its GPU
  size_t leader_of(size_t member) const;
  // Of the others only at a leader.
  DeviceOperand operand(size_t member, size_t index) const;
  // fn(request) for what the member wants to have copied. Of the others only at a leader.
  template <class Fn>
  void for_each_copy_request(size_t member, Fn fn) const {
    Head head;
    std::memcpy(&head, texts_[member].data(), sizeof head);
    const std::byte* const copy_requests = texts_[member].data() + sizeof head + head.operands * sizeof(DeviceOperand);
    for (size_t k = 0; k < head.copy_requests; ++k) {
      CopyRequest copy_request;
      std::memcpy(&copy_request, copy_requests + k * sizeof copy_request, sizeof copy_request);
      fn(copy_request);
    }
  }

 private:
  // A table begins so. Its operands and its copy requests follow.
  struct Head {
    DeviceId gpu;
    uint64_t operands = 0;
    uint64_t copy_requests = 0;
  };
  static size_t most_nbytes(const IpcJob& job, int members);

  size_t me_;
  size_t unit_;
  std::vector<DeviceId> gpus_;                 // by member
  std::vector<std::vector<std::byte>> texts_;  // tables by member; of the others only at a leader
  std::vector<size_t> lengths_;
  bool leads_ = true;
};

}  // namespace rr
