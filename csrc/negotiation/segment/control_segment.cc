#include "negotiation/segment/control_segment.h"

#include <sys/stat.h>

#include "base/errors.h"
#include "collective/plan.h"

namespace rr {
namespace {
constexpr size_t kPage = 4096;
}

ControlSegment::ControlSegment(int size, size_t capacity) : size_(size), capacity_(capacity) {
  const size_t n = static_cast<size_t>(size);
  size_t end = 0;
  const auto place = [&end](size_t nbytes) {
    const size_t begin = end;
    end = round_up(end + nbytes, kPage);
    return begin;
  };
  place(sizeof(SegmentIdentity));  // at the beginning
  header_ = place(sizeof(Header));
  lines_ = place(n * sizeof(RankLine));
  causes_ = place(n * sizeof(RankCause));
  waits_ = place(n * sizeof(RankWait));
  wait_lines_ = place(n * sizeof(WaitLine));
  wait_texts_ = place(n * sizeof(Seqlocked<WaitText>));
  scores_ = place(n * sizeof(RankScore));
  late_text_ = place(sizeof(Seqlocked<LateText>));
  stats_ = place(n * sizeof(Stats));
  elsewhere_ = place(n * sizeof(Seqlocked<RankElsewhere>));
  link_scores_ = place(n * link_scores_nbytes());
  statuses_ = place(n * sizeof(RankStatus));
  facts_ = place(n * sizeof(RankFacts));
  wait_bells_ = place(n * sizeof(Bell));
  engine_bells_ = place(n * sizeof(Bell));
  progress_ = place(n * sizeof(Progress));
  hashes_ = place(capacity * sizeof(uint64_t));
  names_ = place(capacity * sizeof(NameSlot));
  marks_ = place(request_slot_count() * sizeof(uint64_t));
  request_slots_ = place(request_slot_count() * n * kRequestSlotNbytes);
  entries_ = place(kLogEntries * sizeof(Entry));
  claims_ = place(kLogEntries * n * sizeof(ClaimLine));
  outboxes_ = place(n * outbox_nbytes());
  messages_ = place(n * n * sizeof(uint64_t));
  eager_ = place(n * kEagerCount * kEagerNbytes);
  stage_ = place(n * kSlotCount * kSlotLargest);
  links_ = place(kChannels * n * n * shm_link_nbytes(link_capacity()));
  splits_ = place(size > kAlltoallRanksMost ? 0 : request_slot_count() * n * n * sizeof(uint64_t));
  total_ = end;
}

size_t ControlSegment::nbytes(int size, size_t capacity) {
  if (size < 1 || size > kMaxRanks) {
    throw InvalidArgumentError("a job, or a group, has 1 to " + std::to_string(kMaxRanks) + " ranks, not " +
                               std::to_string(size));
  }
  return ControlSegment(size, capacity).total_;
}

ControlSegment ControlSegment::map(int fd, int size, Access access) {
  struct stat info = {};
  check_sys(::fstat(fd, &info), "fstat of the control segment");
  // Sizes grow with the capacity, so bisection finds the capacity that the creator's knob gave.
  size_t low = 16;
  size_t high = 1 << 20;
  while (low < high) {
    const size_t middle = (low + high + 1) / 2;
    if (nbytes(size, middle) <= static_cast<size_t>(info.st_size)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  ControlSegment exact(size, low);
  if (exact.total_ != static_cast<size_t>(info.st_size)) {
    throw InvalidArgumentError("control segment of " + std::to_string(info.st_size) + " bytes does not fit " +
                               std::to_string(size) + " ranks: did all ranks start with the same size?");
  }
  exact.mapping_ = Mapping(fd, OnFork::kDrop, access);
  return exact;
}

bool ControlSegment::is_quick(const Signature& signature, bool is_named) const {
  if (signature.tensors > 1 || signature.place == Place::kDevice) return false;
  if (signature.kind == Kind::kBarrier) return true;
  if (signature.kind != Kind::kAllreduce && signature.kind != Kind::kBroadcast) return false;
  return signature.nbytes <= (is_named ? kInlineNbytes : header().eager_nbytes.load());
}

Stage ControlSegment::stage(size_t chunk_nbytes) const {
  return {at<Progress>(progress_), base() + stage_, chunk_nbytes, kSlotLargest, kSlotCount};
}

size_t ControlSegment::link_capacity() const { return size_ <= 16 ? 64 << 10 : 16 << 10; }

std::byte* ControlSegment::link_memory(int channel, int from, int to) const {
  const size_t n = static_cast<size_t>(size_);
  const size_t index = (static_cast<size_t>(channel) * n + static_cast<size_t>(from)) * n + static_cast<size_t>(to);
  return base() + links_ + index * shm_link_nbytes(link_capacity());
}

}  // namespace rr
