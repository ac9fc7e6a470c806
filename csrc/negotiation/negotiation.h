// The negotiation: ranks announce operations in request slots, whoever sees a complete one appends it to the log, and
// the log is the order in which every rank executes. No rank ever waits in here for another one's request.
//
// An operation is complete when every rank has announced it or has joined. Only complete operations enter the log, so
// any order of submission on any rank is right. Log entries are buckets: open entries take further fusible members; an
// entry is closed once, by whoever first wants to execute it, and only closed entries run.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "collective/gpu/gpu_path.h"
#include "negotiation/control_segment.h"
#include "negotiation/failure.h"
#include "negotiation/hosts.h"
#include "negotiation/names.h"

namespace rr {

struct Ticket {
  uint64_t request_slot = 0;
  uint64_t tag = 0;
  bool is_named() const { return request_slot >= kUnnamedSlots; }
  static Ticket unnamed(uint64_t counter) { return {counter % kUnnamedSlots, counter + 1}; }
};

// The counters of the two bells of each member, by group rank. They live in the world's segment, so that a rank in
// several groups sleeps in one place.
struct Bells {
  std::vector<Bell*> wait;
  std::vector<Bell*> engine;
};

struct JoinResult {
  int last_joined = 0;
  uint64_t unnamed = 0;  // every rank's counter continues here
};

class Negotiation {
 public:
  // give_up throws when the group has failed; it is called while waiting for the group's lock.
  // forced and fusion_threshold must be the same on all ranks to be of use, but need not be for correct results.
  // world_ranks: by group rank, for messages. hosts: on several, only the first host's ranks append, in its log, which
  // the others repeat.
  Negotiation(const ControlSegment& control, int rank, const std::vector<int>& world_ranks, const Hosts& hosts,
              Bells bells, Algo forced, size_t fusion_threshold, std::function<void()> give_up,
              std::string gpu_path = "auto");

  // Writes this rank's request. The caller makes sure that the request slot is free (named: by waiting for the previous
  // generation, unnamed: by the peers' watermarks).
  Ticket announce_unnamed(uint64_t counter, const Signature& signature, const void* payload, size_t nbytes);
  // Also appends the operation when this request completes it and `logged`; log_full: append() has to be tried again.
  // The ticket's tag is 0, and nothing announced, when there is no room: all names are in flight, a rank that has
  // joined still reads the request slot, or the leader has too many notes to read.
  Ticket announce_named(const std::string& name, const Signature& signature, const void* payload, size_t nbytes,
                        bool logged, bool& log_full);

  // Whether every rank has announced the operation or joined; participants are those who announced it.
  bool complete(Ticket ticket, RankMask* participants = nullptr) const;
  // Whether it is known for good how a complete operation ends. On one host: at once. On several hosts all must refuse
  // an operation between the same two entries of the log, so a rank that sees that the requests differ waits until the
  // first host says so. Ranks that have all announced a quick operation see by themselves that they differ.
  bool is_settled(Ticket ticket, RankMask* participants = nullptr) const;
  // Whether a complete operation can be executed: the requests agree, and no rank that it cannot do without has
  // joined. A function of the request slots alone, so every participant comes to the same verdict by itself.
  bool feasible(Ticket ticket, const RankMask& participants) const;
  // Why it is not, in words.
  std::string mismatch(Ticket ticket, const RankMask& participants) const;
  std::vector<int> missing(Ticket ticket) const;

  // Appends a complete, feasible operation unless somebody has; false when the log is full for now (execute, then try
  // again).
  bool append(Ticket ticket);
  // Whether an operation ends from the request slots and never enters the log.
  bool is_quick(const Signature& signature, bool is_named) const { return control_.is_quick(signature, is_named); }
  // Repeats an entry of the first host's log; false while there is no room.
  bool repeat(const std::vector<Ticket>& members, uint32_t algorithm, const RankMask& participants);

  // --- on several hosts, of ranks elsewhere, by the leader of a host. What they announce is written as if they were
  // here.
  // Under a name, the next operation of each of the ranks. All of them are the same operation here, whose ticket is
  // returned. Its tag is 0, and nothing written, where there is no room: all names are in flight, or a rank here that
  // has joined still reads the request slot.
  struct Recorded {
    int rank = 0;
    Signature signature;
    const void* payload = nullptr;
    size_t nbytes = 0;
  };
  Ticket record_named(const std::string& name, const std::vector<Recorded>& requests);
  // As part of this operation; false where there is no room.
  bool record(Ticket ticket, const std::vector<Recorded>& requests);
  // stamp: of the rank's own host (RankLine::joined); nothing: this is the host, which makes it.
  uint64_t record_join(int rank, uint64_t unnamed_counter, std::optional<uint32_t> stamp);
  // Whether every rank of this host has announced the operation or joined; participants are those of this host.
  bool complete_here(Ticket ticket, RankMask* participants) const;
  bool has_announced(Ticket ticket, int rank) const {
    return control_.head(ticket.request_slot, rank).tag.load(std::memory_order_acquire) == ticket.tag;
  }
  // Whether a rank has announced it, or, in the same request slot, what comes after it.
  bool has_announced_since(Ticket ticket, int rank) const {
    return control_.head(ticket.request_slot, rank).tag.load(std::memory_order_acquire) >= ticket.tag;
  }
  // Every participant ends the operation with an error. The first host's leader says so to the other leaders before.
  void refuse(Ticket ticket);
  // Whether a rank has announced something else in the request slot since: then the operation is over.
  bool is_overwritten(Ticket ticket) const;
  bool is_appended(Ticket ticket) const { return mark_of(ticket) == ticket.tag; }
  bool is_refused(Ticket ticket) const { return mark_of(ticket) == (ticket.tag | kRefused); }
  bool is_decided(Ticket ticket) const { return control_.is_decided(ticket.request_slot, ticket.tag); }
  // Those of the participants that have announced the operation for the log.
  std::vector<int> logged_of(Ticket ticket, const RankMask& participants) const;
  int world_rank(int rank) const { return world_ranks_[static_cast<size_t>(rank)]; }
  // What a rank has announced last under a name, as stored in the table; tag 0 if nothing. Claims no slot for the name.
  Ticket latest_named(const std::string& stored_name, int rank);
  // The names that begin so under which a rank has announced an operation that this one has not.
  std::vector<std::string> announced_alone(int rank, const std::string& prefix);
  // How a bucket on GPUs travels, and why. The group's lock is held, or the entry is closed.
  GpuPath gpu_path_of(const Entry& entry) const;
  // Closes an open entry and writes the algorithm that every rank will run. No effect on a closed one.
  void close(Entry& entry);

  // Marks this rank as joined. Returns the epoch that ends when every rank has joined and drained.
  uint64_t join(uint64_t unnamed_counter);
  // This rank has nothing pending any more; on one host the last one to say so finishes the epoch.
  void drained();
  void finish_join();
  bool join_finished(uint64_t epoch) const;
  JoinResult join_result(uint64_t epoch) const;

  // Tells the others that this rank's only thread waits for an operation and can announce nothing else.
  void block(Ticket ticket, uint64_t unnamed_counter);
  // Another thread of this rank has appeared, which may announce what is missing. False: not while is_frozen().
  bool lift_block();
  // Returns what withdrawn() says at that moment; a verdict comes before it or not at all. Null while is_frozen(),
  // unless at_once.
  std::optional<bool> unblock(bool at_once);
  bool is_frozen() const { return control_.header().frozen.load(std::memory_order_acquire) != 0; }
  // True after a verdict that this rank's blocked operation can never complete; its request is withdrawn.
  bool withdrawn() const;
  // What a rank is blocked on; tag 0: it is not, as far as this host knows.
  Ticket blocked_on(int rank) const;
  // On one host: if every rank is blocked (or has joined) and none of their operations is complete, withdraws them all.
  void detect_deadlock();

  // The same on several hosts: what the first host has found. It holds its ranks while it asks the others. Null if not
  // all ranks are stuck.
  struct Stuck {
    std::string text;
    uint64_t unnamed = 0;          // every rank's counter continues there
    std::vector<uint64_t> epochs;  // of the ranks' blocks
  };
  std::optional<Stuck> freeze_if_stuck();
  // Holds the ranks of this host; false if one of them has moved since.
  bool freeze(const std::vector<uint64_t>& epochs);
  void thaw();
  void withdraw(const std::string& text, uint64_t unnamed);

  std::string withdraw_text() const { return control_.header().withdraw_text; }
  uint64_t withdraw_unnamed() const { return control_.header().withdraw_unnamed; }

  bool has_idle_name() const { return names_.has_room(); }
  // Whether this rank may announce in the request slot: there is room for a note to the leader, and the leader has
  // passed on what was announced in the slot before.
  bool has_note_room(uint64_t request_slot) const;
  // A note names the request slot, and the leader reads it there: until then what is there has to stay. The ranks that
  // take part show by their own requests that it has been passed on; those that have joined do not.
  bool is_passed_on(uint64_t request_slot) const {
    return note_positions_.empty() ||
           control_.outbox(rank_).read.load(std::memory_order_acquire) >= note_positions_[request_slot];
  }
  void publish_consumed_named(Ticket ticket) const;
  void ring_waiters() const;  // everybody but this rank
  void ring_all() const;      // waiters and engines, this rank's too
  void ring_engines(const RankMask& mask) const;
  std::string name_of(Ticket ticket) const;
  std::string stored_name(Ticket ticket) const;  // of a named operation

  // Under the group's lock.
  template <class Fn>
  auto locked(Fn fn) {
    const SharedLockGuard guard(control_.header().lock, give_up_);
    return fn();
  }

 private:
  void write_request(int rank, Ticket ticket, const Signature& signature, const void* payload, size_t nbytes);
  uint64_t mark_of(Ticket ticket) const {
    return control_.append_mark(ticket.request_slot).load(std::memory_order_acquire);
  }
  bool write_requests(Ticket ticket, const std::vector<Recorded>& requests);
  uint64_t largest_unnamed() const;
  int last_joined() const;
  std::string describe_stuck() const;
  void withdraw_blocked(const std::string& text, uint64_t unnamed);
  bool has_been_read(Ticket ticket) const;
  bool append_locked(Ticket ticket, const RankMask& participants);
  bool fusible(const Entry& entry, const Signature& one, const RankMask& participants, bool registered) const;
  bool registered(Ticket ticket, const RankMask& participants) const;
  DeviceTeam device_team(Ticket ticket, const RankMask& participants) const;
  Entry* open_entry();
  void leave_note(Ticket ticket);
  void close_locked(Entry& entry) const;

  const ControlSegment& control_;
  int rank_;
  const std::vector<int>& world_ranks_;
  const Hosts& hosts_;
  Bells bells_;
  Algo forced_;
  size_t threshold_;
  std::function<void()> give_up_;
  std::string gpu_path_;
  Names names_;
  std::vector<uint64_t> note_positions_;  // by request slot: notes left up to this rank's last request there
};

}  // namespace rr
