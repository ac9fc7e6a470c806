// MPI within one process and without MPI: messages are matched in order by tag, and complete when the test lets them.
// Small ones leave at once, as in the eager protocol of an MPI; the others when a receive is there.
#pragma once

#include <algorithm>
#include <climits>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "transport/mpi/mpi_library.h"

namespace rr {

class FakeMpi final : public MpiLibrary {
 public:
  static constexpr int kProcessFailed = 75;
  static constexpr int kEagerNbytes = 1024;

  ~FakeMpi() override;  // in fake_mpi.cc, so that only that file compiles what is virtual

  // What a test sets.
  bool is_initialized = true;
  bool is_finalized = false;
  bool everybody_comes = true;  // to duplicate a communicator
  bool holds_receives = false;  // a withdrawn receive does not end
  int failing = 0;              // the code of every further send, receive and test
  bool all_fail = false;        // with `failing`: all that are tested at once, not the first alone
  MpiThreads level = MpiThreads::kMultiple;
  MpiCudaCalls cuda;
  // What it sees.
  int calls_after_finalize = 0;
  int communicators = 0;
  int cancelled = 0;
  int looks = 0;  // at several messages
  size_t sends = 0;
  size_t synchronous_sends = 0;
  int largest_count = 0;
  int largest_tag = 0;
  size_t bytes_sent = 0;

  const char* abi() const override { return "fake"; }
  MpiHandle handle(MpiKind, uintptr_t value) const override { return made(value); }
  int initialized(bool& yes) override {
    yes = is_initialized;
    return 0;
  }
  int finalized(bool& yes) override {
    yes = is_finalized;
    return 0;
  }
  int query_thread(MpiThreads& threads) override {
    threads = level;
    return 0;
  }
  int comm_rank(MpiHandle, int& rank) override {
    rank = 0;
    return seen();
  }
  int comm_size(MpiHandle, int& size) override {
    size = 1;
    return seen();
  }
  int comm_set_errhandler(MpiHandle, MpiHandle) override { return seen(); }
  int comm_idup(MpiHandle, MpiHandle& duplicate, MpiHandle& request) override {
    duplicate = made(static_cast<uintptr_t>(++communicators));
    request = start({nullptr, 0, 0, false, everybody_comes});
    return seen();
  }
  int comm_free(MpiHandle&) override {
    --communicators;
    return seen();
  }

  int ialltoall(const void* src, int nbytes, void* dst, MpiHandle, MpiHandle, MpiHandle& request) override {
    std::memcpy(dst, src, static_cast<size_t>(nbytes));
    request = start({nullptr, 0, 0, false, everybody_comes});
    return seen();
  }

  int isend(const void* buffer, MpiHandle, MpiEnvelope to, MpiHandle, MpiHandle& request) override {
    return send(buffer, to, to.count <= kEagerNbytes, request);
  }
  int issend(const void* buffer, MpiHandle, MpiEnvelope to, MpiHandle, MpiHandle& request) override {
    ++synchronous_sends;
    return send(buffer, to, false, request);
  }
  int irecv(void* buffer, MpiHandle, MpiEnvelope from, MpiHandle, MpiHandle& request) override {
    if (failing != 0) return failing;
    request = start({static_cast<std::byte*>(buffer), from.count, from.tag, false, false});
    receives_[from.tag].push_back(value(request));
    match(from.tag);
    return seen();
  }
  int test(MpiHandle& request, bool& done) override {
    if (failing != 0) return failing;
    const auto found = requests_.find(value(request));
    done = found->second.done;
    if (done) requests_.erase(found);
    return seen();
  }
  int test_some(const std::vector<MpiHandle>& requests, std::vector<MpiDone>& done) override {
    ++looks;
    for (size_t i = 0; i < (all_fail ? requests.size() : 1) && failing != 0; ++i) done.push_back({i, failing});
    for (size_t i = 0; i < requests.size() && failing == 0; ++i) {
      MpiHandle request = requests[i];
      bool is_done = false;
      const bool is_cancelled = requests_.at(value(request)).is_cancelled;
      test(request, is_done);
      if (is_done) done.push_back({i, 0, is_cancelled});
    }
    return failing;
  }
  int cancel(MpiHandle& request) override {
    ++cancelled;
    Request& receive = requests_.at(value(request));
    if (receive.done || holds_receives) return seen();
    auto& posted = receives_[receive.tag];
    posted.erase(std::find(posted.begin(), posted.end(), value(request)));
    receive.done = receive.is_cancelled = true;
    return seen();
  }
  MpiCudaCalls cuda_calls() const override { return cuda; }
  std::string version() const override { return "Fake MPI 1"; }
  std::string error_string(int code) override { return "fake error " + std::to_string(code); }
  bool is_process_failure(int code) override { return code == kProcessFailed; }

  size_t requests() const { return requests_.size(); }
  // Completes the receives that were held, which is when their memory is written.
  void end_receives() {
    for (auto& [id, request] : requests_) {
      if (request.done || request.is_send) continue;
      std::memset(request.bytes, 0xff, static_cast<size_t>(request.count));
      request.done = true;
    }
    receives_.clear();
  }

 private:
  struct Request {
    std::byte* bytes;
    int count;
    int tag;
    bool is_send;
    bool done;
    bool is_cancelled = false;
  };
  struct Parcel {
    std::vector<std::byte> copy;  // of one that has left; the others are read when they are received
    const std::byte* bytes;
    size_t nbytes;
    uintptr_t request;
  };

  static MpiHandle made(uintptr_t value) {
    MpiHandle handle;
    std::memcpy(handle.object, &value, sizeof value);
    return handle;
  }
  static uintptr_t value(const MpiHandle& handle) {
    uintptr_t value = 0;
    std::memcpy(&value, handle.object, sizeof value);
    return value;
  }
  int seen() {
    calls_after_finalize += is_finalized;
    return 0;
  }
  MpiHandle start(Request request) {
    requests_[++last_] = request;
    return made(last_);
  }
  int send(const void* buffer, MpiEnvelope to, bool eager, MpiHandle& request) {
    if (failing != 0) return failing;
    ++sends;
    largest_count = std::max(largest_count, to.count);
    largest_tag = std::max(largest_tag, to.tag);
    bytes_sent += static_cast<size_t>(to.count);
    request = start({nullptr, to.count, to.tag, true, eager});
    const auto* bytes = static_cast<const std::byte*>(buffer);
    const auto nbytes = static_cast<size_t>(to.count);
    Parcel parcel = {{}, bytes, nbytes, value(request)};
    if (eager) {
      parcel.copy.assign(bytes, bytes + nbytes);
      parcel.bytes = parcel.copy.data();
    }
    parcels_[to.tag].push_back(std::move(parcel));  // the copy stays where it is
    match(to.tag);
    return seen();
  }
  void match(int tag) {
    auto& parcels = parcels_[tag];
    auto& receives = receives_[tag];
    while (!parcels.empty() && !receives.empty()) {
      Request& receive = requests_.at(receives.front());
      const Parcel& parcel = parcels.front();
      std::copy(parcel.bytes, parcel.bytes + parcel.nbytes, receive.bytes);
      receive.done = true;
      if (const auto send = requests_.find(parcel.request); send != requests_.end()) send->second.done = true;
      receives.pop_front();
      parcels.pop_front();
    }
  }

  std::map<uintptr_t, Request> requests_;
  uintptr_t last_ = 0;
  std::map<int, std::deque<Parcel>> parcels_;
  std::map<int, std::deque<uintptr_t>> receives_;
};

}  // namespace rr
