#include "transport/mpi/mpi_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/errors.h"

namespace rr {
namespace {

constexpr size_t kAlignment = 64;
constexpr auto kNap = std::chrono::microseconds(50);  // between two looks at something that takes a peer's time
constexpr int64_t kInterruptEveryNs = 50'000'000;
constexpr int64_t kSweepNs = 5'000;  // looks that come closer together than this share one

}  // namespace

MpiMessage::MpiMessage(size_t size)
    : memory(static_cast<std::byte*>(
                 std::aligned_alloc(kAlignment, (size + 2 * kAlignment - kHeaderNbytes) / kAlignment * kAlignment)),
             [](std::byte* bytes) { std::free(bytes); }),
      nbytes(size) {
  if (size > INT_MAX) throw InvalidArgumentError("MPI: a message has at most 2^31 - 1 bytes");
  if (memory == nullptr) throw std::bad_alloc();
}

MpiMessage::MpiMessage(std::byte* data, size_t size, std::shared_ptr<void> holder)
    : memory(nullptr, [](std::byte*) {}), nbytes(size), elsewhere(data), keep(std::move(holder)) {
  if (size > INT_MAX) throw InvalidArgumentError("MPI: a message has at most 2^31 - 1 bytes");
}

MpiCommunicator::MpiCommunicator(std::shared_ptr<MpiLibrary> library, uintptr_t comm, uintptr_t byte,
                                 uintptr_t errors_return, double timeout_s, void (*interrupt)(), int tag_ub)
    : library_(std::move(library)),
      byte_(library_->handle(MpiKind::kDatatype, byte)),
      tag_ub_(tag_ub),
      owner_(::getpid()) {
  bool initialized = false;
  check(library_->initialized(initialized), "MPI_Initialized");
  if (!initialized) {
    throw UnavailableError(
        "MPI has not been initialised: call MPI.Init_thread() first, or leave mpi4py.rc.initialize alone");
  }
  check_finalized();
  check(library_->query_thread(threads_), "MPI_Query_thread");
  if (threads_ == MpiThreads::kSingle) {
    throw UnavailableError(
        "MPI was initialised with MPI_THREAD_SINGLE, for a process of one thread, and ringreduce has one of its own. "
        "Before mpi4py.MPI is imported, leave mpi4py.rc.threads alone and set mpi4py.rc.thread_level = \"serialized\"");
  }
  duplicate(library_->handle(MpiKind::kComm, comm), timeout_s, interrupt);
  const std::lock_guard<std::mutex> lock(library_->mutex());
  check(library_->comm_set_errhandler(comm_, library_->handle(MpiKind::kErrhandler, errors_return)),
        "MPI_Comm_set_errhandler");
  check(library_->comm_rank(comm_, rank_), "MPI_Comm_rank");
  check(library_->comm_size(comm_, size_), "MPI_Comm_size");
  sent_.resize(static_cast<size_t>(size_));
  received_.resize(static_cast<size_t>(size_));
}

void MpiCommunicator::duplicate(const MpiHandle& comm, double timeout_s, void (*interrupt)()) {
  struct Duplication {
    MpiHandle comm;
    MpiHandle request;
  };
  const auto duplication = std::make_shared<Duplication>();
  {
    const std::lock_guard<std::mutex> lock(library_->mutex());
    check(library_->comm_idup(comm, duplication->comm, duplication->request), "MPI_Comm_idup");
  }
  const Deadline deadline = Deadline::after_s(timeout_s);
  int64_t asked_ns = now_ns();
  for (;;) {
    try {
      bool done = false;
      {
        const std::lock_guard<std::mutex> lock(library_->mutex());
        check(library_->test(duplication->request, done), "MPI_Test of MPI_Comm_idup");
      }
      if (done) break;
      if (deadline.passed()) {
        throw TimeoutError("MPI: not all ranks have joined the communicator within " + std::to_string(timeout_s) +
                           " s; creating one is collective");
      }
      if (now_ns() - asked_ns > kInterruptEveryNs) {
        asked_ns = now_ns();
        interrupt();
      }
    } catch (...) {
      const std::lock_guard<std::mutex> lock(library_->mutex());
      library_->leave(duplication);  // a late rank completes it, and MPI writes there
      throw;
    }
    std::this_thread::sleep_for(kNap);
  }
  comm_ = duplication->comm;
}

std::string MpiCommunicator::where() const {
  return std::string("MPI (") + library_->abi() + "), rank " + std::to_string(rank_) + "/" + std::to_string(size_) +
         ": ";
}

void MpiCommunicator::check(int code, const std::string& call) const {
  if (code == 0) return;
  const std::string text = where() + call + " failed: " + library_->error_string(code);
  if (library_->is_process_failure(code)) throw PeerLostError(text);
  throw InternalError(text);
}

void MpiCommunicator::check_finalized() const {
  bool finalized = false;
  check(library_->finalized(finalized), "MPI_Finalized");
  if (finalized)
    throw ShutdownError(where() + "MPI_Finalize has been called; nothing can be sent or received any more");
}

void MpiCommunicator::require_open() const {
  check_finalized();
  if (closed_) throw ShutdownError(where() + "the communicator has been closed, as at the end of the job");
}

void MpiCommunicator::send(const MpiMessagePtr& message, size_t nbytes, int peer, int tag, bool synchronous) {
  const std::lock_guard<std::mutex> lock(library_->mutex());
  require_open();
  const auto call = synchronous ? &MpiLibrary::issend : &MpiLibrary::isend;
  message->envelope = {static_cast<int>(nbytes), peer, tag};
  const int code = ((*library_).*call)(message->begin(), byte_, message->envelope, comm_, message->request);
  started(message, State::kSending, code, synchronous ? "MPI_Issend" : "MPI_Isend");
}

void MpiCommunicator::receive(const MpiMessagePtr& message, int peer, int tag) {
  const std::lock_guard<std::mutex> lock(library_->mutex());
  try {
    require_open();
    message->envelope = {static_cast<int>(message->nbytes), peer, tag};
    const int code = library_->irecv(message->begin(), byte_, message->envelope, comm_, message->request);
    started(message, State::kReceiving, code, "MPI_Irecv");
  } catch (const Error&) {
    message->failure = std::current_exception();  // what is in its memory has not come
    throw;
  }
}

void MpiCommunicator::started(const MpiMessagePtr& message, State state, int code, const char* call) {
  const MpiEnvelope& to = message->envelope;
  check(code, call + (" of " + std::to_string(to.count)) + " bytes, peer " + std::to_string(to.peer) + ", tag " +
                  std::to_string(to.tag) + ",");
  message->state = state;
  sending_ += state == State::kSending;
  sent_[static_cast<size_t>(to.peer)] += state == State::kSending;
  has_news_ = true;
  message->place = pending_.size();
  pending_.push_back(message);
}

void MpiCommunicator::remove(const MpiMessagePtr& message) {
  sending_ -= message->state == State::kSending;
  withdrawn_ -= message->state == State::kWithdrawn;
  message->state = State::kIdle;
  const size_t place = message->place;
  pending_[place].swap(pending_.back());
  pending_[place]->place = place;
  pending_.pop_back();
}

void MpiCommunicator::ended(const MpiMessagePtr& message, const MpiDone& how) {
  const State state = message->state;
  const MpiEnvelope& envelope = message->envelope;
  remove(message);
  if (how.code == 0) {
    received_[static_cast<size_t>(envelope.peer)] += state != State::kSending && !how.is_cancelled;
    if (how.is_cancelled) {  // what is in its memory has not come
      message->failure = std::make_exception_ptr(ShutdownError(where() + "the receive has been taken back"));
    }
    return;
  }
  library_->leave(message);  // nothing says that MPI is through with it
  if (state == State::kWithdrawn) return;
  try {
    check(how.code, std::string("MPI_Testsome of a message ") + (state == State::kSending ? "to" : "from") + " peer " +
                        std::to_string(envelope.peer) + ", tag " + std::to_string(envelope.tag) + ",");
  } catch (const Error&) {
    message->failure = std::current_exception();
    if (unheard_ == nullptr) unheard_ = message->failure;
  }
}

// One call for all messages, because in each MPI looks at all its connections: with four hosts there are about thirty,
// and one by one they took a third of a core while nothing came.
void MpiCommunicator::sweep() {
  swept_ns_ = now_ns();
  has_news_ = false;
  if (pending_.empty()) return;
  requests_.clear();
  done_.clear();
  for (const MpiMessagePtr& message : pending_) requests_.push_back(message->request);
  const int code = library_->test_some(requests_, done_);
  const std::vector<MpiMessagePtr> messages = done_.empty() ? std::vector<MpiMessagePtr>() : pending_;
  for (const MpiDone& done : done_) ended(messages[done.index], done);
  // Otherwise the code says that a message has failed which nobody wants any more.
  const auto has_failed = [](const MpiDone& done) { return done.code != 0; };
  if (std::none_of(done_.begin(), done_.end(), has_failed)) check(code, "MPI_Testsome");
}

bool MpiCommunicator::is_stale() const { return has_news_ || now_ns() - swept_ns_ >= kSweepNs; }

void MpiCommunicator::throw_unheard() {
  if (unheard_ != nullptr) std::rethrow_exception(std::exchange(unheard_, nullptr));
}

// The failure of another message is for who tests that one, or for progress(): the caller's peer has not failed.
bool MpiCommunicator::test(const MpiMessagePtr& message) {
  const std::lock_guard<std::mutex> lock(library_->mutex());
  const bool is_looked_at = message->failure == nullptr && message->state != State::kIdle;
  if (is_looked_at) require_open();
  if (is_looked_at && is_stale()) sweep();
  if (message->failure == nullptr) return message->state == State::kIdle;
  if (unheard_ == message->failure) unheard_ = nullptr;
  std::rethrow_exception(message->failure);
}

void MpiCommunicator::withdraw(const MpiMessagePtr& message) noexcept {
  if (::getpid() != owner_) return;
  const std::lock_guard<std::mutex> lock(library_->mutex());
  if (message->failure != nullptr && unheard_ == message->failure) unheard_ = nullptr;
  if (message->state != State::kReceiving) return;
  try {
    require_open();
    message->state = State::kWithdrawn;
    ++withdrawn_;
    check(library_->cancel(message->request), "MPI_Cancel");
  } catch (const Error&) {
    return;  // the end of a receive that nobody wants: its memory stays, in pending_ or left to MPI
  }
  try {
    sweep();
  } catch (const Error&) {
    if (unheard_ == nullptr) unheard_ = std::current_exception();
  }
}

bool MpiCommunicator::progress() {
  const std::lock_guard<std::mutex> lock(library_->mutex());
  throw_unheard();
  if (sending_ + withdrawn_ == 0) return false;
  require_open();
  if (is_stale()) sweep();
  throw_unheard();
  return sending_ != 0;
}

// Unlocks for naps, so that other communicators go on.
bool MpiCommunicator::drain(std::unique_lock<std::mutex>& lock, double drain_s) {
  check_finalized();
  for (const MpiMessagePtr& message : pending_) {
    if (message->state != State::kReceiving) continue;
    message->state = State::kWithdrawn;
    ++withdrawn_;
    check(library_->cancel(message->request), "MPI_Cancel");
  }
  const Deadline deadline = Deadline::after_s(drain_s);
  const auto waits = [&] {
    if (drain_s <= 0 || deadline.passed()) return false;
    lock.unlock();
    std::this_thread::sleep_for(kNap);
    lock.lock();
    check_finalized();
    return true;
  };
  check_finalized();
  sweep();
  throw_unheard();
  while (!pending_.empty()) {
    if (!waits()) return false;
    sweep();
    throw_unheard();
  }
  if (drain_s <= 0) return false;
  // Until all ranks have come to this point, or time is up. A rank that is alone in MPI_Finalize no longer helps the
  // others to be rid of their messages, and MPICH 4.0.2 then waits for ever.
  struct Exchange {
    std::vector<uint64_t> sent;
    std::vector<uint64_t> sent_here;  // by the others
    MpiHandle request;
  };
  const auto exchange = std::make_shared<Exchange>();
  exchange->sent = sent_;
  exchange->sent_here.resize(sent_.size());
  try {
    check(library_->ialltoall(exchange->sent.data(), sizeof(uint64_t), exchange->sent_here.data(), byte_, comm_,
                              exchange->request),
          "MPI_Ialltoall");
    for (bool is_done = false;;) {
      check(library_->test(exchange->request, is_done), "MPI_Test of MPI_Ialltoall");
      if (is_done) return exchange->sent_here == received_;
      if (!waits()) break;
    }
  } catch (const Error&) {
    library_->leave(exchange);
    throw;
  }
  library_->leave(exchange);  // a late rank completes it, and MPI writes there
  return false;
}

void MpiCommunicator::close(double drain_s) noexcept {
  if (::getpid() != owner_) return;
  std::unique_lock<std::mutex> lock(library_->mutex());
  if (closed_) return;
  closed_ = true;
  try {
    // What is not through is MPI's for ever; after an error nobody can tell.
    if (drain(lock, drain_s)) check(library_->comm_free(comm_), "MPI_Comm_free");
  } catch (const Error&) {
    // The job is at its end: whoever waits for these messages learns of it from the peer that has gone.
  }
  if (!pending_.empty()) library_->leave(std::make_shared<std::vector<MpiMessagePtr>>(std::move(pending_)));
  pending_.clear();
  sending_ = withdrawn_ = 0;
}

}  // namespace rr
