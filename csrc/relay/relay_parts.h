// What the parts of a host's relay share.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "relay/decisions.h"
#include "relay/leader_links.h"
#include "relay/own_requests.h"
#include "relay/sequencer.h"

namespace rr {

struct RelayParts {
  RelayParts(const ControlSegment& control_segment, const Hosts& all_hosts, Negotiation& leaders_negotiation,
             std::vector<std::unique_ptr<Link>> leader_links, double late_s)
      : control(control_segment),
        hosts(all_hosts),
        negotiation(leaders_negotiation),
        links(std::move(leader_links)),
        own_requests(control, hosts, negotiation, links, late_s),
        sequencer(control, hosts, negotiation, own_requests, links),
        decisions(control, hosts, negotiation, own_requests, links) {}
  RelayParts(const RelayParts&) = delete;
  RelayParts& operator=(const RelayParts&) = delete;

  const ControlSegment& control;
  const Hosts& hosts;
  Negotiation& negotiation;
  LeaderLinks links;
  OwnRequests own_requests;
  Sequencer sequencer;           // of the first host
  Decisions decisions;           // of the others
  Phase phase = Phase::kNone;    // the point that this host has said it has come to
  bool is_failure_told = false;  // all leaders know that the group has failed
  uint64_t notes_passed_on = 0;  // of the ranks here

  // Whether all that the ranks here have announced has been put into the links.
  bool are_notes_passed_on() const { return notes_passed_on == control.header().notes.load(); }

  bool all_are_at(Phase which) const {
    return phase == which &&
           !links.any_of([&](const LeaderConnection& connection) { return connection.phase != which; });
  }
  // What came too early may be taken up now, and the ranks here are told who left meanwhile.
  void leave_phase() {
    phase = Phase::kNone;
    for (int host = 0; host < links.count(); ++host) {
      LeaderConnection& connection = links[host];
      connection.phase = Phase::kNone;
      for (const auto& [rank, attendance] : connection.left_after) {
        control.line(rank).attendance.store(attendance, std::memory_order_release);
      }
      connection.left_after.clear();
    }
  }
};

}  // namespace rr
