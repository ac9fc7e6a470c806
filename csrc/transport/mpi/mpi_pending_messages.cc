#include "transport/mpi/mpi_pending_messages.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/errors.h"

namespace rr {
namespace {

constexpr int64_t kSweepNs = 5'000;  // looks that come closer together than this share one

}  // namespace

void MpiPendingMessages::count_peers(int size) {
  sent_.resize(static_cast<size_t>(size));
  received_.resize(static_cast<size_t>(size));
}

void MpiPendingMessages::add(const MpiMessagePtr& message, State state, int code, const char* call) {
  const MpiEnvelope& to = message->envelope;
  errors_.check(code, call + (" of " + std::to_string(to.count)) + " bytes, peer " + std::to_string(to.peer) +
                          ", tag " + std::to_string(to.tag) + ",");
  message->state = state;
  sending_ += state == State::kSending;
  sent_[static_cast<size_t>(to.peer)] += state == State::kSending;
  has_news_ = true;
  message->place = messages_.size();
  messages_.push_back(message);
}

void MpiPendingMessages::remove(const MpiMessagePtr& message) {
  sending_ -= message->state == State::kSending;
  abandoned_ -= message->state == State::kSending && message->until_ns != 0;
  withdrawn_ -= message->state == State::kWithdrawn;
  message->state = State::kIdle;
  const size_t place = message->place;
  messages_[place].swap(messages_.back());
  messages_[place]->place = place;
  messages_.pop_back();
}

void MpiPendingMessages::ended(const MpiMessagePtr& message, const MpiDone& how) {
  const State state = message->state;
  const bool is_receive = state == State::kReceiving || state == State::kWithdrawn;
  const MpiEnvelope& envelope = message->envelope;
  remove(message);
  if (how.code == 0) {
    received_[static_cast<size_t>(envelope.peer)] += is_receive && !how.is_cancelled;
    if (how.is_cancelled) {  // what is in its memory has not come
      message->failure = std::make_exception_ptr(ShutdownError(errors_.where() + "the receive has been taken back"));
    }
    return;
  }
  library_.leave(message);  // nothing says that MPI is through with it
  if (state == State::kWithdrawn || state == State::kGivenUp) return;
  try {
    errors_.check(how.code, std::string("MPI_Testsome of a message ") + (is_receive ? "from" : "to") + " peer " +
                                std::to_string(envelope.peer) + ", tag " + std::to_string(envelope.tag) + ",");
  } catch (const Error&) {
    message->failure = std::current_exception();
    keep_unheard(message->failure);
  }
}

// One call for all messages, because in each MPI looks at all its connections: with four hosts there are about thirty,
// and one by one they took a third of a core while nothing came.
void MpiPendingMessages::sweep() {
  swept_ns_ = now_ns();
  has_news_ = false;
  if (messages_.empty()) return;
  requests_.clear();
  done_.clear();
  for (const MpiMessagePtr& message : messages_) requests_.push_back(message->request);
  const int code = library_.test_some(requests_, done_);
  const std::vector<MpiMessagePtr> messages = done_.empty() ? std::vector<MpiMessagePtr>() : messages_;
  for (const MpiDone& done : done_) ended(messages[done.index], done);
  // Otherwise the code says that a message has failed which nobody wants any more.
  const auto has_failed = [](const MpiDone& done) { return done.code != 0; };
  if (std::none_of(done_.begin(), done_.end(), has_failed)) errors_.check(code, "MPI_Testsome");
}

void MpiPendingMessages::sweep_if_stale() {
  if (has_news_ || now_ns() - swept_ns_ >= kSweepNs) sweep();
}

void MpiPendingMessages::cancel(const MpiMessagePtr& message) {
  message->state = State::kWithdrawn;
  ++withdrawn_;
  errors_.check(library_.cancel(message->request), "MPI_Cancel");
}

void MpiPendingMessages::cancel_receives() {
  for (const MpiMessagePtr& message : messages_) {
    if (message->state == State::kReceiving) cancel(message);
  }
}

void MpiPendingMessages::abandon(MpiMessage& message, int64_t until_ns) {
  if (message.state != State::kSending) return;
  message.until_ns = until_ns;
  ++abandoned_;
}

// MPI still has it, with its memory: a peer that was late may take it.
void MpiPendingMessages::give_up_abandoned(int64_t at_ns) {
  if (abandoned_ == 0) return;
  for (const MpiMessagePtr& message : messages_) {
    if (message->state != State::kSending || message->until_ns == 0 || message->until_ns > at_ns) continue;
    message->state = State::kGivenUp;
    --sending_;
    --abandoned_;
  }
}

void MpiPendingMessages::leave_to_mpi() {
  if (!messages_.empty()) library_.leave(std::make_shared<std::vector<MpiMessagePtr>>(std::move(messages_)));
  messages_.clear();
  sending_ = abandoned_ = withdrawn_ = 0;
}

void MpiPendingMessages::throw_unheard() {
  if (unheard_ != nullptr) std::rethrow_exception(std::exchange(unheard_, nullptr));
}

void MpiPendingMessages::keep_unheard(const std::exception_ptr& failure) {
  if (unheard_ == nullptr) unheard_ = failure;
}

void MpiPendingMessages::forget_unheard(const MpiMessage& message) {
  if (message.failure != nullptr && unheard_ == message.failure) unheard_ = nullptr;
}

}  // namespace rr
