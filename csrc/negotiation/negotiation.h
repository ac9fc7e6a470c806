// The negotiation: ranks announce operations in request slots, whoever sees a complete one appends it to the log, and
// the log is the order in which every rank executes. No rank ever waits in here for another one's request.
//
// An operation is complete when every rank has announced it or has joined. Who announces is here; the parts read the
// requests, keep the log, join, and find deadlocks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "negotiation/deadlock.h"
#include "negotiation/join.h"
#include "negotiation/names.h"
#include "negotiation/notes.h"
#include "negotiation/operation_log.h"
#include "negotiation/requests.h"
#include "negotiation/segment/group_segment.h"

namespace rr {

class Negotiation {
 public:
  // See GroupSegment, Requests and OperationLog for the parameters. hosts: on several, only the first host's ranks
  // append, in its log, which the others repeat.
  Negotiation(const ControlSegment& control, int rank, const std::vector<int>& world_ranks, const Hosts& hosts,
              Bells bells, Algo forced, size_t fusion_threshold, std::function<void()> give_up,
              std::string gpu_path = "auto");
  Negotiation(const Negotiation&) = delete;
  Negotiation& operator=(const Negotiation&) = delete;

  const GroupSegment& segment() const { return segment_; }
  const Names& names() const { return names_; }
  const Requests& requests() const { return requests_; }
  const Notes& notes() const { return notes_; }
  OperationLog& log() { return log_; }
  Joins& joins() { return joins_; }
  Deadlock& deadlock() { return deadlock_; }
  const Deadlock& deadlock() const { return deadlock_; }

  // Writes this rank's request. The caller makes sure that the request slot is free (named: by waiting for the previous
  // generation, unnamed: by the peers' watermarks).
  Ticket announce_unnamed(uint64_t counter, const Signature& signature, const void* payload, size_t nbytes);
  // Also appends the operation when this request completes it and `logged`; log_full: append() has to be tried again.
  // The ticket's tag is 0, and nothing announced, when there is no room: all names are in flight, a rank that has
  // joined still reads the request slot, or the leader has too many notes to read.
  Ticket announce_named(const std::string& name, const Signature& signature, const void* payload, size_t nbytes,
                        bool logged, bool& log_full);
  // This rank has ended a named operation.
  void publish_consumed(Ticket named) const;
  // What a rank has announced last under a name, as stored in the table; tag 0 if nothing. Claims no slot for the name.
  Ticket latest_named(const std::string& stored_name, int rank);
  // The names that begin so under which a rank has announced an operation that this one has not.
  std::vector<std::string> announced_alone(int rank, const std::string& prefix);

  // --- on several hosts, of ranks elsewhere, by the leader of a host. What they announce is written as if they were
  // here.
  struct Recorded {
    int rank = 0;
    Signature signature;
    const void* payload = nullptr;
    size_t nbytes = 0;
    const std::vector<int>* columns = nullptr;  // of an alltoall's splits, where the payload has only those
  };
  // Under a name, the next operation of each of the ranks. All of them are the same operation here, whose ticket is
  // returned. Its tag is 0, and nothing written, where there is no room: all names are in flight, or a rank here that
  // has joined still reads the request slot.
  Ticket record_named(const std::string& name, const std::vector<Recorded>& requests);
  // As part of this operation; false where there is no room.
  bool record(Ticket ticket, const std::vector<Recorded>& requests);

 private:
  // This rank's request, and the note of it.
  void announce(Ticket ticket, const Signature& signature, const void* payload, size_t nbytes);
  void fill_request(int rank, Ticket ticket, const Signature& signature, const void* payload, size_t nbytes);
  void show_request(int rank, Ticket ticket);
  bool write_requests(Ticket ticket, const std::vector<Recorded>& requests);

  const GroupSegment segment_;
  const ControlSegment& control_;
  Names names_;
  Notes notes_;
  Requests requests_;
  OperationLog log_;
  Joins joins_;
  Deadlock deadlock_;
};

}  // namespace rr
