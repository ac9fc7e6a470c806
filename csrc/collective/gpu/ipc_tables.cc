#include "collective/gpu/ipc_tables.h"

#include <algorithm>

namespace rr {

size_t IpcTables::most_nbytes(const IpcJob& job, int members) {
  const size_t copy_requests = job.reductions.empty() ? static_cast<size_t>(members) : 0;
  return sizeof(Head) + job.operands.size() * sizeof(DeviceOperand) + copy_requests * sizeof(CopyRequest);
}

size_t IpcTables::unit(const IpcJob& job, const Stage& stage, int members) {
  return std::min(most_nbytes(job, members), stage.slot_nbytes);
}

size_t IpcTables::rounds(const IpcJob& job, const Stage& stage, int members) {
  return divide_up(most_nbytes(job, members), unit(job, stage, members));
}

IpcTables::IpcTables(const IpcJob& job, size_t members, size_t me, size_t unit)
    : me_(me), unit_(unit), gpus_(members), texts_(members) {
  const Head head = {job.device->id(), job.operands.size(), job.copy_requests.size()};
  std::vector<std::byte>& text = texts_[me];
  text.resize(sizeof head + job.operands.size() * sizeof(DeviceOperand) +
              job.copy_requests.size() * sizeof(CopyRequest));
  std::memcpy(text.data(), &head, sizeof head);
  size_t at = sizeof head;
  const auto append = [&text, &at](const auto& list) {
    const size_t nbytes = list.size() * sizeof list[0];
    if (nbytes != 0) std::memcpy(text.data() + at, list.data(), nbytes);
    at += nbytes;
  };
  append(job.operands);
  append(job.copy_requests);
  gpus_[me] = head.gpu;
}

// Only leaders need more of a table than whose it is.
void IpcTables::read(size_t member, size_t round, const std::byte* part) {
  if (round == 0) {
    Head head;
    std::memcpy(&head, part, sizeof head);
    gpus_[member] = head.gpu;
    lengths_.resize(texts_.size());
    lengths_[member] = sizeof head + head.operands * sizeof(DeviceOperand) + head.copy_requests * sizeof(CopyRequest);
  }
  if (member < me_ && gpus_[member] == gpus_[me_]) leads_ = false;
  if (!leads_) return;
  const Range range = chunk({0, lengths_[member]}, unit_, round);
  texts_[member].insert(texts_[member].end(), part, part + range.count());
}

size_t IpcTables::leader_of(size_t member) const {
  return static_cast<size_t>(std::find(gpus_.begin(), gpus_.end(), gpus_[member]) - gpus_.begin());
}

DeviceOperand IpcTables::operand(size_t member, size_t index) const {
  DeviceOperand theirs;
  std::memcpy(&theirs, texts_[member].data() + sizeof(Head) + index * sizeof theirs, sizeof theirs);
  return theirs;
}

}  // namespace rr
