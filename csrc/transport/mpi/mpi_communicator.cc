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

constexpr auto kNap = std::chrono::microseconds(50);  // between two looks at something that takes a peer's time
constexpr int64_t kInterruptEveryNs = 50'000'000;

}  // namespace

MpiCommunicator::MpiCommunicator(std::shared_ptr<MpiLibrary> library, uintptr_t comm, uintptr_t byte,
                                 uintptr_t errors_return, double timeout_s, void (*interrupt)(), int tag_ub)
    : library_(std::move(library)),
      errors_(*library_),
      byte_(library_->handle(MpiKind::kDatatype, byte)),
      tag_ub_(tag_ub),
      owner_(::getpid()),
      pending_(*library_, errors_) {
  bool initialized = false;
  errors_.check(library_->initialized(initialized), "MPI_Initialized");
  if (!initialized) {
    throw UnavailableError(
        "MPI has not been initialised: call MPI.Init_thread() first, or leave mpi4py.rc.initialize alone");
  }
  errors_.check_finalized();
  errors_.check(library_->query_thread(threads_), "MPI_Query_thread");
  if (threads_ == MpiThreads::kSingle) {
    throw UnavailableError(
        "MPI was initialised with MPI_THREAD_SINGLE, for a process of one thread, and ringreduce has one of its own. "
        "Before mpi4py.MPI is imported, leave mpi4py.rc.threads alone and set mpi4py.rc.thread_level = \"serialized\"");
  }
  duplicate(library_->handle(MpiKind::kComm, comm), timeout_s, interrupt);
  const std::lock_guard<std::mutex> lock(library_->mutex());
  errors_.check(library_->comm_set_errhandler(comm_, library_->handle(MpiKind::kErrhandler, errors_return)),
                "MPI_Comm_set_errhandler");
  errors_.check(library_->comm_rank(comm_, rank_), "MPI_Comm_rank");
  errors_.check(library_->comm_size(comm_, size_), "MPI_Comm_size");
  errors_.name_rank(rank_, size_);
  pending_.count_peers(size_);
}

void MpiCommunicator::duplicate(const MpiHandle& comm, double timeout_s, void (*interrupt)()) {
  struct Duplication {
    MpiHandle comm;
    MpiHandle request;
  };
  const auto duplication = std::make_shared<Duplication>();
  {
    const std::lock_guard<std::mutex> lock(library_->mutex());
    errors_.check(library_->comm_idup(comm, duplication->comm, duplication->request), "MPI_Comm_idup");
  }
  const Deadline deadline = Deadline::after_s(timeout_s);
  int64_t asked_ns = now_ns();
  for (;;) {
    try {
      bool done = false;
      {
        const std::lock_guard<std::mutex> lock(library_->mutex());
        errors_.check(library_->test(duplication->request, done), "MPI_Test of MPI_Comm_idup");
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

void MpiCommunicator::require_open() const {
  errors_.check_finalized();
  if (closed_) throw ShutdownError(errors_.where() + "the communicator has been closed, as at the end of the job");
}

void MpiCommunicator::send(const MpiMessagePtr& message, size_t nbytes, int peer, int tag, bool synchronous) {
  const std::lock_guard<std::mutex> lock(library_->mutex());
  require_open();
  const auto call = synchronous ? &MpiLibrary::issend : &MpiLibrary::isend;
  message->envelope = {static_cast<int>(nbytes), peer, tag};
  const int code = ((*library_).*call)(message->begin(), byte_, message->envelope, comm_, message->request);
  pending_.add(message, MpiMessage::State::kSending, code, synchronous ? "MPI_Issend" : "MPI_Isend");
}

void MpiCommunicator::receive(const MpiMessagePtr& message, int peer, int tag) {
  const std::lock_guard<std::mutex> lock(library_->mutex());
  try {
    require_open();
    message->envelope = {static_cast<int>(message->nbytes), peer, tag};
    const int code = library_->irecv(message->begin(), byte_, message->envelope, comm_, message->request);
    pending_.add(message, MpiMessage::State::kReceiving, code, "MPI_Irecv");
  } catch (const Error&) {
    message->failure = std::current_exception();  // what is in its memory has not come
    throw;
  }
}

// The failure of another message is for who tests that one, or for progress(): the caller's peer has not failed.
bool MpiCommunicator::test(const MpiMessagePtr& message) {
  const std::lock_guard<std::mutex> lock(library_->mutex());
  const bool is_looked_at = message->failure == nullptr && message->state != MpiMessage::State::kIdle;
  if (is_looked_at) require_open();
  if (is_looked_at) pending_.sweep_if_stale();
  if (message->failure == nullptr) return message->state == MpiMessage::State::kIdle;
  pending_.forget_unheard(*message);
  std::rethrow_exception(message->failure);
}

void MpiCommunicator::withdraw(const MpiMessagePtr& message) noexcept {
  if (::getpid() != owner_) return;
  const std::lock_guard<std::mutex> lock(library_->mutex());
  pending_.forget_unheard(*message);
  if (message->state != MpiMessage::State::kReceiving) return;
  try {
    require_open();
    pending_.cancel(message);
  } catch (const std::exception&) {
    return;  // the end of a receive that nobody wants: its memory stays, in pending_ or left to MPI
  }
  try {
    pending_.sweep();
  } catch (const std::exception&) {
    pending_.keep_unheard(std::current_exception());
  }
}

void MpiCommunicator::abandon(const MpiMessagePtr& message) noexcept {
  if (::getpid() != owner_) return;
  const std::lock_guard<std::mutex> lock(library_->mutex());
  pending_.forget_unheard(*message);
  pending_.abandon(*message, now_ns() + static_cast<int64_t>(kDrainS * 1e9));
}

bool MpiCommunicator::progress() {
  const std::lock_guard<std::mutex> lock(library_->mutex());
  pending_.throw_unheard();
  if (!pending_.needs_progress()) return false;
  require_open();
  pending_.sweep_if_stale();
  pending_.throw_unheard();
  pending_.give_up_abandoned(now_ns());
  return pending_.is_any_sending();
}

// Unlocks for naps, so that other communicators go on.
bool MpiCommunicator::drain(std::unique_lock<std::mutex>& lock, double drain_s) {
  errors_.check_finalized();
  pending_.cancel_receives();
  const Deadline deadline = Deadline::after_s(drain_s);
  const auto waits = [&] {
    if (drain_s <= 0 || deadline.passed()) return false;
    lock.unlock();
    std::this_thread::sleep_for(kNap);
    lock.lock();
    errors_.check_finalized();
    return true;
  };
  errors_.check_finalized();
  pending_.sweep();
  pending_.throw_unheard();
  while (!pending_.empty()) {
    if (!waits()) return false;
    pending_.sweep();
    pending_.throw_unheard();
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
  exchange->sent = pending_.sent();
  exchange->sent_here.resize(exchange->sent.size());
  try {
    errors_.check(library_->ialltoall(exchange->sent.data(), sizeof(uint64_t), exchange->sent_here.data(), byte_, comm_,
                                      exchange->request),
                  "MPI_Ialltoall");
    for (bool is_done = false;;) {
      errors_.check(library_->test(exchange->request, is_done), "MPI_Test of MPI_Ialltoall");
      if (is_done) return exchange->sent_here == pending_.received();
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
    if (drain(lock, drain_s)) errors_.check(library_->comm_free(comm_), "MPI_Comm_free");
  } catch (const std::exception&) {
    // The job is at its end: whoever waits for these messages learns of it from the peer that has gone.
  }
  pending_.leave_to_mpi();
}

}  // namespace rr
