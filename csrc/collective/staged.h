// Collectives on private memory of one host, through the staging area: rounds of put (copy in), fold (reduce the own
// segment in rank order) and take (copy out), pipelined over the slots of the stage.
//
// Memory of a GPU goes the same way: put and take issue copies to its work streams and are done when a mark has passed,
// so that as many rounds are under way as the stage has slots, in both directions of the bus. The CPU folds, in place
// in the own slot, so the bits are those of host memory. Bound: n S / bandwidth of the bus, each way, for n ranks that
// share it.
#pragma once

#include <algorithm>
#include <atomic>
#include <vector>

#include "base/clock.h"
#include "collective/algorithm.h"

namespace rr {

// Runs the rounds of a job; what a round moves is the subclass's. See Stage for the counters.
class Staged : public Algorithm {
 public:
  Step step() final;
  bool needs(int rank) const final;

 protected:
  // round_nbytes: what a round writes into a slot, at most; the same on all ranks.
  Staged(Team team, size_t rounds, size_t round_nbytes, bool folds);
  virtual void put(size_t round) = 0;
  virtual void fold(size_t) {}
  virtual void take(size_t round) = 0;
  // Whether the round may be put now; asked in order.
  virtual bool may_put(size_t) { return true; }
  // Members whose put this rank's take (or fold) reads; all of them unless said otherwise.
  virtual bool is_source(int) const { return true; }

  std::byte* slot(int member, size_t round) const {
    const uint64_t n = team_.first_round + round;
    return team_.stage.slot(team_.members[static_cast<size_t>(member)], n) +
           n / team_.stage.slot_count % turns_ * part_;
  }
  // With operands on a GPU the copies of a put or take are issued together when it returns. tensor: which of the job's
  // tensors it is.
  void copy_in(std::byte* slot, const std::byte* src, size_t nbytes, size_t tensor);
  void copy_out(std::byte* dst, const std::byte* slot, size_t nbytes, size_t tensor, bool streams = false);
  // The same of this rank's own block, which no slot has.
  void copy_own(std::byte* dst, const std::byte* src, size_t nbytes, size_t tensor, bool streams);
  // work(begin, nbytes, streams) of memory in a slot: of all of it, in the way in which this rank writes now; or, in a
  // round that compares, page by page and timed. streams: whether it is, or is to be, written past the caches.
  template <class Work>
  void in_slot(const std::byte* at, size_t nbytes, Work work);
  bool on_device() const { return team_.device != nullptr; }
  size_t folded() const { return fold_; }

  Team team_;
  size_t rounds_;

 private:
  // A page of a slot, on all ranks the same.
  static constexpr size_t kPageNbytes = 4096;

  void begin(StageWriter::Phase phase, size_t round);
  bool peers_reached(std::atomic<uint64_t> Progress::*counter, size_t round) const;
  bool slot_is_free(size_t round) const;
  void add_part(std::byte* dst, const std::byte* src, size_t nbytes, size_t tensor);
  void issue(WorkStream work_stream, std::vector<Mark>& marks);
  bool land(std::vector<Mark>& marks) const;
  void record_put();
  void record_take();

  bool folds_;
  // What is being done, to which of the group's rounds, and whether that compares.
  StageWriter::Phase phase_ = StageWriter::Phase::kPut;
  uint64_t round_ = 0;
  bool compares_ = false;
  size_t part_;   // bytes of a slot that a round uses
  size_t turns_;  // such parts in a slot, used in turn
  // Rounds begun, and done; in host memory these are the same.
  size_t putting_ = 0;
  size_t put_ = 0;
  size_t fold_ = 0;
  size_t taking_ = 0;
  size_t take_ = 0;
  std::vector<Mark> puts_;   // of rounds put_ to putting_
  std::vector<Mark> takes_;  // likewise
  std::vector<DevicePart> parts_;
  size_t last_tensor_ = 0;  // of parts_
};

template <class Work>
void Staged::in_slot(const std::byte* at, size_t nbytes, Work work) {
  if (!compares_) return work(size_t{0}, nbytes, team_.writer->streams());
  const size_t offset = static_cast<size_t>(at - team_.stage.slots) % team_.stage.slot_stride;
  for (size_t begin = 0; begin < nbytes;) {
    const size_t page = (offset + begin) / kPageNbytes;
    const size_t n = std::min(nbytes - begin, (page + 1) * kPageNbytes - (offset + begin));
    const bool streams = StageWriter::is_streamed(round_, page);
    const int64_t start = now_ns();
    work(begin, n, streams);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // till the stores are done, not only issued
    team_.writer->note(phase_, streams, now_ns() - start, n);
    begin += n;
  }
}

// A rank without a part in a job accounts for its rounds.
void skip_rounds(const Stage& stage, int rank, size_t first_round, size_t rounds);

enum class ReduceShape { kAllreduce, kReduce, kReduceScatter };

struct ReduceJob {
  ReduceShape shape = ReduceShape::kAllreduce;
  std::vector<Piece> pieces;  // kReduceScatter: all have one dst, which holds this member's elements only
  Reduction reduction;
  int root = 0;              // member index, kReduce
  std::vector<Range> owned;  // kReduceScatter: elements of each member
  // kReduceScatter of float16 in host memory: dst is float32, in which the sums are not rounded.
  bool is_to_float = false;
  size_t element_count = 0;  // sum over pieces
};
size_t rounds_of(const ReduceJob& job, const Stage& stage);
std::unique_ptr<Algorithm> two_shot(Team team, ReduceJob job);

// Data movement: every member stages chunks of `blocks` blocks in each of its slots, and others take them.
struct ExchangeJob {
  struct Outgoing {
    const std::byte* src = nullptr;
    size_t nbytes = 0;
  };
  struct Incoming {
    int member = 0;
    int block = 0;
    std::byte* dst = nullptr;
    size_t nbytes = 0;
    size_t src_offset = 0;  // where the block lies in the member's input
  };
  int blocks = 1;                  // that a slot has room for: the most that a member sends
  std::vector<Outgoing> outgoing;  // by block; empty for a member that sends nothing
  std::vector<Incoming> incoming;  // a member's own block is copied without staging
  int own_block = -1;              // the outgoing one that only this member takes; -1: none
  size_t largest_nbytes = 0;       // largest block of any member, the same on all
  std::vector<bool> sources;       // by member: whether it stages anything
  std::vector<bool> takers;        // by member, with one block: whether it takes anything; empty: all do
};
size_t rounds_of(const ExchangeJob& job, const Stage& stage);
std::unique_ptr<Algorithm> exchange(Team team, ExchangeJob job);

}  // namespace rr
