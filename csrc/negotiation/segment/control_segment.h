// The control segment of a group: what is in it and where. All of it starts as zeros; every counter only grows.
//
//   identity | header | rank lines | causes | rank waits | wait lines | wait texts | rank scores | late text | stats |
//   ranks elsewhere | link scores | rank statuses | facts | wait bells | engine bells | progress lines | name hashes |
//   name slots | append marks | request slots | log entries | claim lines | outboxes | messages sent | eager buffers |
//   staging slots | links | splits
//
// The file is sparse: pages that nobody touches, such as those of links between ranks of other hosts, take no memory.
//
// A request slot holds what one rank has announced of one operation: {tag, digest, consumed, payload, signature}.
// Unnamed operation c uses request slots [c mod 256]; generation g of named slot s uses request slots [256 + 2s + g mod
// 2] (two deep: a rank that announces g has consumed g-1, hence everybody announced g-1, hence everybody consumed g-2,
// whose request slots g overwrites).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/rounding.h"
#include "base/stats.h"
#include "collective/direct.h"
#include "negotiation/segment/hosts.h"
#include "negotiation/segment/lock.h"
#include "negotiation/segment/rank_mask.h"
#include "negotiation/segment/rank_records.h"
#include "negotiation/segment/shown.h"
#include "negotiation/segment/signature.h"
#include "os/bell.h"
#include "os/mapping.h"
#include "transport/link.h"
#include "transport/stage.h"

namespace rr {

inline constexpr size_t kUnnamedSlots = 256;
inline constexpr size_t kInlineNbytes = 104;      // largest payload of a request slot
inline constexpr size_t kEagerNbytes = 16 << 10;  // largest payload of an eager buffer
inline constexpr size_t kEagerUsual = 8 << 10;    // largest eager message, where nothing speaks for another limit
// What a host may send of all ranks' input of one operation, in place of about twice the input by the log. It takes
// 0.5 ms at 1 Gbit/s, about what two rounds and the decision between them take.
inline constexpr size_t kEagerBetweenHosts = 64 << 10;
inline constexpr size_t kEagerCount = 16;
inline constexpr size_t kSlotLargest = 1 << 20;  // bytes reserved for a staging slot; the chunk knob uses part of it
inline constexpr size_t kSlotCount = 4;
inline constexpr size_t kLogEntries = 64;
inline constexpr size_t kEntryMembers = 256;
inline constexpr size_t kNameNbytes = 244;
// Of an alltoall, whose splits grow with the square of the ranks: 8 MB of each operation on the first of several hosts.
inline constexpr int kAlltoallRanksMost = 1024;
inline constexpr uint32_t kTuned = 1;
inline constexpr uint64_t kRefused = uint64_t{1} << 63;  // in an append mark: the requests did not agree

// The largest eager message of a group before it is tuned. On several hosts each rank's goes to every other host.
inline size_t usual_eager_nbytes(const Hosts& hosts) {
  if (!hosts.several()) return kEagerUsual;
  const size_t sent = static_cast<size_t>(hosts.count() - 1) * hosts.most_ranks();
  return std::clamp(kEagerBetweenHosts / sent, kInlineNbytes, kEagerUsual);
}

struct Header {
  alignas(64) std::atomic<uint32_t> failed;  // 0 no, 1 being written, 2 yes
  std::atomic<uint32_t> joined_count;
  std::atomic<uint64_t> join_epoch;  // finished joins
  std::atomic<uint32_t> unmappable;  // 1 once a GPU has been refused the memory of another one
  std::atomic<uint32_t> frozen;      // several hosts: nobody unblocks until they know whether all ranks are stuck
  std::atomic<uint32_t> deadlock_timed_out;  // of the world: 1 once all ranks are found to wait for ever, which ends it
  std::atomic<int64_t> sampled_ns;           // of the world: how much time the scores speak of
  std::atomic<int64_t> warned_ns;       // of the world: when a rank of this host last said that an operation takes long
  std::atomic<uint64_t> warned_of;      // a hash of the ranks that it waits for
  std::atomic<uint32_t> any_withdrawn;  // 1 once a rank of this host has taken back memory (ClaimLine::withdrawn)
  std::atomic<uint32_t> status_changes;  // of the world: questions where ranks stand, and answers
  std::atomic<int64_t> sampled_at_ns;    // of the world: when the scores were sampled last; 0: never
  alignas(64) SharedLock lock;           // guards everything below, the name table, append marks, open entries
  std::atomic<uint64_t> log_tail;        // entries ever opened
  std::atomic<uint64_t> log_sent;        // of them, on the first of several hosts: sent to the others
  uint64_t names_used;
  uint64_t name_hand;
  std::atomic<uint32_t> drained_count;    // of all ranks; on several hosts, of those of this one
  std::atomic<uint32_t> join_stamp_seen;  // by the first host's word; see Joins
  struct {
    uint64_t unnamed;
    int64_t last_joined;
  } join_results[2];                          // by epoch mod 2: a rank reads one before it can join twice more
  alignas(64) std::atomic<uint64_t> notes;    // that the ranks of this host have begun, on several hosts
  alignas(64) std::atomic<uint32_t> tuned;    // kTuned once chunk_nbytes and eager_nbytes are final
  std::atomic<uint64_t> chunk_nbytes;         // atomic because all members of a new group write the same values
  std::atomic<uint64_t> device_chunk_nbytes;  // the same for memory of GPUs
  std::atomic<uint64_t> eager_nbytes;
  std::atomic<uint32_t> room_waiters;  // threads of this host that wait until others have consumed what they announced
  alignas(64) uint32_t failure_kind;   // index into the error table
  char failure_text[8188];
  char withdraw_text[2048];
  uint64_t withdraw_unnamed;       // every rank's counter continues here after the verdict
  std::atomic<uint32_t> verdicts;  // that all ranks wait for what can never be complete, so far
};

// How a request slot begins; the payload and the signature follow.
struct RequestSlotHead {
  std::atomic<uint64_t> tag;  // c + 1, or the generation
  std::atomic<uint64_t> digest;
  std::atomic<uint64_t> consumed;  // named: generation this rank has finished with (kept in the even request slot)
};
inline constexpr size_t kRequestSlotNbytes = sizeof(RequestSlotHead) + kInlineNbytes + sizeof(Signature);
static_assert(kRequestSlotNbytes % 64 == 0, "no two ranks write to one cache line");

struct NameSlot {
  uint64_t base;  // no rank may announce a generation <= base any more
  uint32_t length;
  char text[kNameNbytes];
};
static_assert(sizeof(NameSlot) == 256);

struct Entry {
  alignas(64) std::atomic<uint64_t> seq;  // position + 1 once open
  std::atomic<uint32_t> closed;
  uint32_t members;
  uint32_t algorithm;
  uint32_t registered;
  uint64_t nbytes;
  RankMask participants;
  // Of the staging area, + 1, once a participant knows; a rank that has joined skips them.
  std::atomic<uint64_t> rounds;
  alignas(64) std::atomic<uint64_t> completed;
  struct Member {
    uint64_t request_slot;
    uint64_t tag;
  } member[kEntryMembers];
};

// What a rank of a group on several hosts has announced, in order, for the leader of its host to pass on; or that it
// has joined, which has no request slot.
struct Note {
  static constexpr uint64_t kJoined = UINT64_MAX;
  uint64_t request_slot;
  uint64_t tag;
  uint64_t number;  // Header::notes when the rank began
};

struct Outbox {
  alignas(64) std::atomic<uint64_t> written;  // notes, by the rank
  alignas(64) std::atomic<uint64_t> read;     // by the leader
};

// Addresses within one mapped control segment.
class ControlSegment {
 public:
  // Bytes of a control segment for `size` ranks and `capacity` names.
  static size_t nbytes(int size, size_t capacity);
  // Maps the segment; the capacity follows from the file's size.
  static ControlSegment map(int fd, int size, Access access = Access::kWrite);

  int size() const { return size_; }
  size_t capacity() const { return capacity_; }
  size_t request_slot_count() const { return kUnnamedSlots + 2 * capacity_; }

  SegmentIdentity& identity() const { return *at<SegmentIdentity>(0); }
  Header& header() const { return *at<Header>(header_); }
  RankLine& line(int rank) const { return at<RankLine>(lines_)[rank]; }
  RankCause& cause(int rank) const { return at<RankCause>(causes_)[rank]; }
  RankWait& wait(int rank) const { return at<RankWait>(waits_)[rank]; }
  WaitLine& wait_line(int rank) const { return at<WaitLine>(wait_lines_)[rank]; }
  Seqlocked<WaitText>& wait_text(int rank) const { return at<Seqlocked<WaitText>>(wait_texts_)[rank]; }
  RankScore& score(int rank) const { return at<RankScore>(scores_)[rank]; }
  Seqlocked<LateText>& late_text() const { return *at<Seqlocked<LateText>>(late_text_); }
  Stats& stats(int rank) const { return at<Stats>(stats_)[rank]; }
  Seqlocked<RankElsewhere>& rank_elsewhere(int rank) const { return at<Seqlocked<RankElsewhere>>(elsewhere_)[rank]; }
  LinkScore& link_score(int rank, int host) const {
    return at<LinkScore>(link_scores_ + static_cast<size_t>(rank) * link_scores_nbytes())[host];
  }
  RankStatus& status(int rank) const { return at<RankStatus>(statuses_)[rank]; }
  RankFacts& facts(int rank) const { return at<RankFacts>(facts_)[rank]; }
  Bell& wait_bell(int rank) const { return at<Bell>(wait_bells_)[rank]; }
  Bell& engine_bell(int rank) const { return at<Bell>(engine_bells_)[rank]; }
  std::atomic<uint64_t>* name_hashes() const { return at<std::atomic<uint64_t>>(hashes_); }
  NameSlot& name_slot(size_t slot) const { return at<NameSlot>(names_)[slot]; }
  // The tag of the operation of a request slot that was appended to the log last, or that was refused last (kRefused).
  std::atomic<uint64_t>& append_mark(size_t request_slot) const {
    return at<std::atomic<uint64_t>>(marks_)[request_slot];
  }
  // Whether the operation of the request slot has been appended, or refused.
  bool is_decided(size_t request_slot, uint64_t tag) const {
    return (append_mark(request_slot).load(std::memory_order_acquire) & ~kRefused) == tag;
  }
  Entry& entry(uint64_t position) const { return at<Entry>(entries_)[position % kLogEntries]; }
  ClaimLine* claims(uint64_t position) const {
    return at<ClaimLine>(claims_) + position % kLogEntries * static_cast<size_t>(size_);
  }
  Outbox& outbox(int rank) const { return *reinterpret_cast<Outbox*>(outbox_base(rank)); }
  Note& note(int rank, uint64_t index) const {
    return reinterpret_cast<Note*>(outbox_base(rank) + sizeof(Outbox))[index % note_count()];
  }
  // A rank announces nothing while so many notes have not been passed on. Usually it has no more in flight; without the
  // ranks that have joined it may be faster than its leader. There is always a place for the note that it has joined.
  size_t note_count() const { return kUnnamedSlots + capacity_ + 1; }
  // Messages that `from` has sent to `to`, once it has left: they may arrive after that news.
  std::atomic<uint64_t>& messages_sent(int from, int to) const {
    return at<std::atomic<uint64_t>>(messages_)[from * size_ + to];
  }
  std::byte* eager(int rank, size_t index) const {
    return base() + eager_ + (static_cast<size_t>(rank) * kEagerCount + index) * kEagerNbytes;
  }
  // Whether an operation ends from the request slots and never enters the log.
  bool is_quick(const Signature& signature, bool is_named) const;
  Stage stage(size_t chunk_nbytes) const;
  size_t link_capacity() const;
  std::byte* link_memory(int channel, int from, int to) const;

  std::byte* slot_address(size_t index, int rank) const {
    return base() + request_slots_ +
           (index * static_cast<size_t>(size_) + static_cast<size_t>(rank)) * kRequestSlotNbytes;
  }
  RequestSlotHead& head(size_t index, int rank) const {
    return *reinterpret_cast<RequestSlotHead*>(slot_address(index, rank));
  }
  std::byte* payload(size_t index, int rank) const { return slot_address(index, rank) + sizeof(RequestSlotHead); }
  Signature& signature(size_t index, int rank) const {
    return *reinterpret_cast<Signature*>(slot_address(index, rank) + sizeof(RequestSlotHead) + kInlineNbytes);
  }
  // How many rows a rank sends to each rank, in the alltoall of a request slot. Of ranks elsewhere only what they send
  // to this host is there, but for the first host. A group that is too large for an alltoall has none.
  uint64_t* splits(size_t index, int rank) const {
    const size_t n = static_cast<size_t>(size_);
    return at<uint64_t>(splits_) + (index * n + static_cast<size_t>(rank)) * n;
  }

  // It stays mapped until the process ends.
  void keep_mapped() const { mapping_.keep(); }

 private:
  ControlSegment(int size, size_t capacity);  // offsets only
  std::byte* base() const { return mapping_.data(); }
  // Of one rank: there are no more hosts than ranks. A cache line has one rank's.
  size_t link_scores_nbytes() const { return round_up(static_cast<size_t>(size_) * sizeof(LinkScore), 64); }
  size_t outbox_nbytes() const { return round_up(sizeof(Outbox) + note_count() * sizeof(Note), 64); }
  std::byte* outbox_base(int rank) const { return base() + outboxes_ + static_cast<size_t>(rank) * outbox_nbytes(); }
  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(mapping_.data() + offset);
  }

  Mapping mapping_;
  int size_;
  size_t capacity_;
  size_t header_, lines_, causes_, waits_, wait_lines_, wait_texts_, scores_, late_text_, stats_, elsewhere_,
      link_scores_, statuses_, facts_, wait_bells_, engine_bells_, progress_, hashes_, names_, marks_, request_slots_,
      entries_, claims_, outboxes_, messages_, eager_, stage_, links_, splits_, total_;
};

}  // namespace rr
