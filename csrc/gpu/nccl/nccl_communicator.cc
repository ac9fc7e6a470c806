#include "gpu/nccl/nccl_communicator.h"

#include <unistd.h>

#include <chrono>
#include <exception>
#include <functional>
#include <future>

#include "base/errors.h"
#include "base/poll.h"
#include "os/thread.h"

namespace rr {
namespace {

constexpr int kShrinkDefault = 0;  // NCCL_SHRINK_DEFAULT: nothing is under way
// NCCL notices a broken connection at once, but not whose. The watch over the processes, which can say, needs up to
// 0.25 s; this long it has the word.
constexpr int64_t kRemoteGraceNs = 1'000'000'000;

// Runs work on a thread of its own. False when it takes longer; then the thread is left to it.
bool within(double seconds, const std::function<void()>& work) {
  return start_detached(work).wait_for(std::chrono::duration<double>(seconds)) == std::future_status::ready;
}

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<const NcclLibrary> library, const NcclUniqueId& id, int rank,
                                   int size, std::string where)
    : library_(std::move(library)), where_(std::move(where)), owner_(::getpid()) {
  NcclConfig config;
  check(library_->CommInitRankConfig(&state_->handle, size, id, rank, &config), "ncclCommInitRankConfig");
}

NcclCommunicator::NcclCommunicator(NcclCommunicator& parent, std::vector<int> excluded)
    : library_(parent.library_), parent_(&parent), where_(parent.where_), owner_(::getpid()) {
  state_->excluded = std::move(excluded);
  parent.state_->shrunk.push_back(state_);
  check(library_->CommShrink(parent.handle(), state_->excluded.data(), static_cast<int>(state_->excluded.size()),
                             &state_->handle, nullptr, kShrinkDefault),
        "ncclCommShrink");
}

void NcclCommunicator::check(NcclResult code, const std::string& call) const {
  if (code == NcclResult::kSuccess || code == NcclResult::kInProgress) return;
  const std::string text = library_->name() + ", " + where_ + ": " + call +
                           " failed: " + library_->error(code, handle()) +
                           "; NCCL_DEBUG=WARN says more, RINGREDUCE_GPU_PATH=ipc or staged goes without NCCL";
  if (code == NcclResult::kRemoteError) throw PeerLostError(text);
  throw InternalError(text);
}

bool NcclCommunicator::settled() {
  if (parent_ != nullptr) {
    if (!parent_->settled()) return false;
    parent_ = nullptr;
  }
  if (handle() == nullptr) throw InternalError(library_->name() + ", " + where_ + ": NCCL has made no communicator");
  NcclResult state = NcclResult::kSuccess;
  check(library_->CommGetAsyncError(handle(), &state), "ncclCommGetAsyncError");
  if (state == NcclResult::kRemoteError) {
    if (remote_error_ns_ == 0) remote_error_ns_ = now_ns();
    if (now_ns() - remote_error_ns_ < kRemoteGraceNs) return false;
  }
  check(state, "an operation");
  return state == NcclResult::kSuccess;
}

std::string NcclCommunicator::abort(double most_s) noexcept { return end(0, most_s); }

std::string NcclCommunicator::close(double drain_s) noexcept { return end(drain_s, kAbortS); }

std::string NcclCommunicator::end(double drain_s, double abort_s) noexcept {
  if (ended_) return "";
  ended_ = true;
  if (owner_ != ::getpid() || handle() == nullptr) return "";  // a forked child has none of NCCL's threads
  const auto said = std::make_shared<std::string>();
  const auto work = [library = library_, state_of = state_, comm = handle(), drain_s, said] {
    if (drain_s > 0) {
      NcclResult state = library->CommFinalize(comm);
      const auto is_finalized = [&] {
        if (state != NcclResult::kInProgress) return true;
        return library->CommGetAsyncError(comm, &state) != NcclResult::kSuccess || state != NcclResult::kInProgress;
      };
      poll_until(is_finalized, Deadline::after_s(drain_s));
      if (state == NcclResult::kSuccess) {
        library->CommDestroy(comm);
        return;
      }
      *said = "the other ranks did not end it within " + std::to_string(drain_s) + " s, so it was aborted";
    }
    const NcclResult code = library->CommAbort(comm);
    if (code != NcclResult::kSuccess) *said = "ncclCommAbort failed: " + library->error(code, nullptr);
  };
  try {
    if (within(drain_s + abort_s, work)) return said->empty() ? "" : where_ + ": " + *said;
    return where_ + ": ncclCommAbort takes longer than " + std::to_string(abort_s) + " s; it is left alone";
  } catch (const std::exception& error) {  // no thread to be had
    return where_ + ": a communicator of NCCL's is left behind: " + error.what();
  }
}

}  // namespace rr
