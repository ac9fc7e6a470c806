// What the parts of a group that submit, wait and look around share.
#pragma once

#include <atomic>
#include <exception>
#include <functional>
#include <string>

#include "base/guarded.h"
#include "engine/group/members.h"
#include "negotiation/segment/failure.h"
#include "operations/submitted.h"

namespace rr {

class Context;
using Interrupt = void (*)();  // called now and then while a call blocks; may throw

struct GroupParts {
  using Locked = Guarded<Submitted>::Access;

  Context& context;
  const Resources& from;
  Negotiation& negotiation;
  const Members& members;
  Guarded<Submitted>& submitted;
  const std::function<bool()> has_work;  // Group::has_work()
  const std::function<bool()> is_busy;   // Group::is_busy()

  bool ranks_outnumber_cores = false;   // of the ranks of this host; known once all are there
  std::atomic<bool> is_removed{false};  // written under the lock of submitted

  const ControlSegment& control() const { return from.control; }
  // The error says where this rank is, and in which operation, whichever rank has found the failure.
  void throw_if_failed() const {
    if (has_failed(control())) throw_failure(control(), from.here() + "]");
  }
  void throw_if_failed(const Operation& operation) const {
    if (has_failed(control())) throw_failure(control(), from.where(operation));
  }
  void throw_if_failed(Kind kind, const std::string* name) const {  // the call has no number yet
    if (has_failed(control())) throw_failure(control(), from.here() + ", " + called(kind, name) + "]");
  }
  void throw_if_removed() const;
  // throw_if_failed(), throw_if_removed(), and where this rank has shut down.
  void throw_if_over() const;
  // What is not one operation's fault ends the group; every rank hears of it.
  void fail(const std::exception& error) const;
};

}  // namespace rr
