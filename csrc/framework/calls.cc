#include "framework/calls.h"

#include <algorithm>
#include <atomic>
#include <cctype>
#include <optional>
#include <utility>

#include "base/never_destroyed.h"
#include "base/poll.h"

namespace rr {
namespace {

// The engine looks around four times a second, and lets go of what has failed; a copy that is under way may take
// longer, and all of this process may be stopped meanwhile.
constexpr double kLetGoS = 60;

constexpr const char* kStands = "What it has submitted stands";

std::string capitalized(const char* word) {
  std::string text = word;
  text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

std::string described(const Call& call) {
  return name(call.request.kind) + (call.name.empty() ? "" : " '" + call.name + "'");
}

thread_local Calls::Framework kernel_of = Calls::Framework::kNone;
thread_local bool is_alone = false;      // see Calls::set_alone()
std::atomic<bool> threads_noted{false};  // see Calls::note_threads()

}  // namespace

Failure failure_of(const std::exception_ptr& error) {
  const auto described = [](ErrorCode code, const char* text) {
    return Failure{code, std::string(public_name(code)) + ": " + text};
  };
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return described(code_of(e), e.what());
  }
}

Calls::Calls() : table_(std::make_unique<Table>()) {
  table_->absence = "ringreduce has not been initialized; use ringreduce.init().";
}

Calls::~Calls() = default;

Calls& Calls::of_process() {
  static auto& instance = never_destroyed<Calls>();
  return instance;
}

void Calls::start(const Position& place) {
  const std::lock_guard lock(table_->mutex);
  table_->place = place;
}

void Calls::enter(int process_set, std::vector<int> ranks, std::weak_ptr<Context> context, std::weak_ptr<Group> group) {
  const bool member = !group.expired();
  const std::lock_guard lock(table_->mutex);
  table_->entries[process_set] = {std::move(ranks), std::move(context), std::move(group), member};
}

void Calls::leave(int process_set) {
  const std::lock_guard lock(table_->mutex);
  table_->entries.erase(process_set);
}

void Calls::end(const std::string& absence) {
  const std::lock_guard lock(table_->mutex);
  table_->entries.clear();
  table_->absence = absence;
}

// The lock may have been copied while another thread held it, and the groups belong to the parent.
void Calls::forget_after_fork(const std::string& absence) {
  left_.push_back(std::move(table_));
  table_ = std::make_unique<Table>();
  table_->absence = absence;
  Inside::forget_after_fork();
}

bool Calls::drain(double timeout_s) { return Inside::await_others(timeout_s); }

Calls::Entry Calls::entry(int process_set, bool needs_job) const {
  const std::lock_guard lock(table_->mutex);
  if (needs_job && table_->entries.count(0) == 0) throw NotInitializedError(table_->absence);
  const auto found = table_->entries.find(process_set);
  if (found == table_->entries.end()) {
    throw InvalidArgumentError("Process set provided does not exist, or has not been registered.");
  }
  return found->second;
}

Calls::Member Calls::member(int process_set, const char* call) const {
  const Entry known = entry(process_set);
  if (!known.member) {
    throw InvalidArgumentError(capitalized(call) + ": Rank " + std::to_string(place().rank) +
                               " is not a member of the provided process set.");
  }
  Member member = {known.context.lock(), known.group.lock(), known.ranks};
  if (member.context == nullptr || member.group == nullptr) {
    throw ShutdownError(capitalized(call) + ": the job or the process set has ended.");
  }
  return member;
}

OperationPtr Calls::submit(const Call& call, const Member& member, bool is_async, Interrupt interrupt) {
  Request request = call.request;
  request.is_async = is_async;
  if (!call.name.empty()) request.name = &call.name;
  if (request.root != -1) {
    const auto at = std::find(member.ranks.begin(), member.ranks.end(), request.root);
    if (at == member.ranks.end()) {
      throw InvalidArgumentError(std::string(name(request.kind)) + " received invalid root rank " +
                                 std::to_string(request.root) + " for provided process set; members: [" +
                                 list_of(member.ranks) + "]");
    }
    request.root = static_cast<int>(at - member.ranks.begin());
  }
  return member.group->submit(request, interrupt);
}

// An operation that failed under its waiter may still be in the hands of another thread, which reads and writes the
// caller's memory: in those of the engine, that sees the failure a little later.
void Calls::abandon(const Member& member, const OperationPtr& operation, Deadline deadline) {
  const auto is_let_go = [&] {
    if (operation->state.load(std::memory_order_acquire) != State::kPending) return true;
    try {
      member.context->try_progress();
      member.group->poll(*operation);
    } catch (const std::exception&) {
      return false;  // of another operation, or what has failed this one
    }
    return operation->quick;  // it is only touched by the poll, under a lock
  };
  poll_until(is_let_go, deadline);
}

// here: from before the wait. The job may have ended meanwhile, and the operations' memory is to be kept all the same.
void Calls::interrupted(const Position& here, const std::string& what, const char* by, const std::string& outcome,
                        std::vector<OperationPtr> operations) {
  throw InterruptedCall("Interrupted: rank " + std::to_string(here.rank) + "/" + std::to_string(here.size) +
                            " waited for other ranks in " + what + " when " + by + " came. " + outcome +
                            "; end the process, or call ringreduce.shutdown()",
                        std::move(operations));
}

std::vector<OperationPtr> Calls::run(const std::vector<Call>& calls, Interrupt interrupt, bool can_keep) {
  const Inside inside;
  std::vector<Member> members;
  for (const Call& call : calls) members.push_back(member(call.process_set, rr::name(call.request.kind)));
  const Position here = place();
  const SignalWatch watch;  // after what a forked child fails at: another thread may have had the watch's lock
  std::vector<OperationPtr> operations;
  std::exception_ptr error;
  std::optional<Deadline> let_go;  // one for all
  const auto abandon_from = [&](size_t first, size_t end) {
    if (!let_go) let_go = Deadline::after_s(kLetGoS);
    for (size_t i = first; i < end; ++i) abandon(members[i], operations[i], *let_go);
  };
  const auto end_interrupted = [&](const Call& call, const Interrupted& signal) {
    const std::string what = described(call);
    if (can_keep) interrupted(here, what, signal.what(), kStands, std::move(operations));
    members[0].context->fail_as_lost(std::string(signal.what()) + " ended its wait in " + what);
    abandon_from(0, operations.size());
    interrupted(here, what, signal.what(), "The job has failed with that", {});
  };
  try {
    for (size_t i = 0; i < calls.size(); ++i) {
      operations.push_back(submit(calls[i], members[i], calls.size() > 1, interrupt));
    }
  } catch (const Interrupted& signal) {
    end_interrupted(calls[operations.size()], signal);
  } catch (...) {
    error = std::current_exception();
  }
  for (size_t i = 0; i < operations.size(); ++i) {
    try {
      members[i].group->wait(*operations[i], -1, interrupt);
    } catch (const Interrupted& signal) {
      end_interrupted(calls[i], signal);
    } catch (...) {
      if (error == nullptr) error = std::current_exception();
      abandon_from(i, i + 1);
    }
  }
  if (error != nullptr) std::rethrow_exception(error);
  return operations;
}

int Calls::join(int process_set, Interrupt interrupt) {
  const Inside inside;
  const Member joining = member(process_set, "join");
  const Position here = place();
  const SignalWatch watch;
  try {
    return joining.ranks[static_cast<size_t>(joining.group->join(interrupt))];
  } catch (const Interrupted& signal) {
    interrupted(here, "join", signal.what(), kStands, {});
  }
}

Calls::InKernel::InKernel(Framework framework) : before_(std::exchange(kernel_of, framework)) {}
Calls::InKernel::~InKernel() { kernel_of = before_; }

bool Calls::could_others_call() {
  switch (kernel_of) {
    case Framework::kTensorFlow:
      return !is_alone;
    case Framework::kJax:
      return threads_noted.load();
    case Framework::kNone:
      break;
  }
  return false;
}

void Calls::set_alone(bool alone) { is_alone = alone; }

void Calls::note_threads(bool has_others) {
  if (has_others) threads_noted.store(true);
}

Position Calls::place() const {
  const std::lock_guard lock(table_->mutex);
  if (table_->entries.count(0) == 0) throw NotInitializedError(table_->absence);
  return table_->place;
}

int Calls::size(int process_set) const { return static_cast<int>(entry(process_set).ranks.size()); }

int Calls::rank(int process_set) const { return member(process_set, "rank").group->rank(); }

bool Calls::included(int process_set) const { return entry(process_set).member; }

}  // namespace rr
