// Questions that only a GPU answers: what the driver's documentation leaves open and the package relies on. Each is
// asked by a process of its own (rr_gpu probe NAME), because the answer may be that the driver never comes back.
#pragma once

#include <dlfcn.h>
#include <sys/types.h>

#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/config.h"
#include "bench_gpu.h"
#include "gpu/cuda/driver.h"
#include "os/fd.h"

namespace rr {

// A function of the driver that the package itself does not call. Throws UnavailableError.
template <class... Args>
auto driver_function(const std::string& library, const char* symbol) {
  void* const loaded = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  auto* const found = loaded == nullptr ? nullptr : reinterpret_cast<cu::Result (*)(Args...)>(::dlsym(loaded, symbol));
  if (found == nullptr) throw UnavailableError(library + " has no " + symbol);
  return found;
}

// Work in a thread of its own, which may never end: whoever made it leaves the process by _exit().
class Beside {
 public:
  explicit Beside(std::function<void()> work) : state_(std::make_shared<State>()) {
    std::thread([state = state_, work = std::move(work)] {
      try {
        work();
      } catch (const std::exception& error) {
        state->error = error.what();
      }
      state->is_over.store(true);
    }).detach();
  }
  bool ends_within(double seconds) const {
    const Deadline deadline = Deadline::after_s(seconds);
    while (!state_->is_over.load()) {
      if (deadline.passed()) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return true;
  }
  // What went wrong in it, once it has ended.
  const std::string& error() const { return state_->error; }

 private:
  struct State {
    std::atomic<bool> is_over{false};
    std::string error;
  };
  std::shared_ptr<State> state_;
};

// The GPU with our work streams, the driver under it, and streams of a caller.
class Rig {
 public:
  Rig()
      : device(cuda_device(0)),
        cuda(CudaDriver::open(Settings::from_environment().cuda_library)),
        patience_s(cuda->needs_image() ? 2 : 15),
        current_(device->make_current()),
        host_(std::make_unique<HostMemory>(*device, kNbytes)),
        word_(std::make_unique<HostMemory>(*device, 4096)),
        memory_(device->allocate(2 * kNbytes)) {}

  void check(cu::Result result, const char* call) const {
    if (result != cu::kSuccess) throw InternalError(std::string(call) + ": " + cuda->text(result));
  }
  cu::Stream stream() {
    cu::Stream made = nullptr;
    check(cuda->stream_create_with_priority(&made, cu::kStreamNonBlocking, 0), "cuStreamCreateWithPriority");
    return made;
  }
  // The stream goes no further until let_go().
  void hold(cu::Stream stream) {
    constexpr unsigned kAtLeast = 0;  // CU_STREAM_WAIT_VALUE_GEQ
    const auto wait =
        driver_function<cu::Stream, cu::DevicePtr, uint32_t, unsigned>(cuda->library(), "cuStreamWaitValue32_v2");
    check(wait(stream, reinterpret_cast<cu::DevicePtr>(word()), turn_ + 1, kAtLeast), "cuStreamWaitValue32");
  }
  void let_go() { __atomic_store_n(word(), ++turn_, __ATOMIC_RELEASE); }
  cu::Event event(cu::Stream stream) {
    cu::Event made = nullptr;
    check(cuda->event_create(&made, cu::kEventDisableTiming), "cuEventCreate");
    check(cuda->event_record(made, stream), "cuEventRecord");
    return made;
  }
  bool passes_within(cu::Event event, double seconds) {
    const Deadline deadline = Deadline::after_s(seconds);
    for (;;) {
      const auto result = cuda->event_query(event);
      if (result == cu::kSuccess) return true;
      if (result != cu::kNotReady) check(result, "cuEventQuery");
      if (deadline.passed()) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
  // How long a call takes while the GPU has some 100 ms of copies to make, as text.
  std::string beside_work(const std::function<void()>& call);
  HostMemory& host() { return *host_; }
  std::byte* memory() { return memory_; }
  static constexpr size_t kNbytes = size_t{1} << 20;
  static constexpr size_t kStaleNbytes = size_t{64} << 20;  // not from a block that the driver keeps

  std::shared_ptr<Device> device;
  std::shared_ptr<const CudaDriver> cuda;
  // For a few small copies and a launch; the tests' driver runs on processors that others use.
  const double patience_s;

 private:
  std::shared_ptr<void> current_;
  uint32_t* word() const { return word_->as<uint32_t>(); }

  std::unique_ptr<HostMemory> host_;
  std::unique_ptr<HostMemory> word_;
  std::byte* memory_;
  uint32_t turn_ = 0;
};

// This program as another process, with pipes from and to it; killed and awaited at the end.
class OtherProcess {
 public:
  explicit OtherProcess(std::vector<std::string> words);
  ~OtherProcess();
  OtherProcess(const OtherProcess&) = delete;
  OtherProcess& operator=(const OtherProcess&) = delete;
  // All of it, or they throw Error.
  void read(void* data, size_t nbytes) const;
  void write(const void* data, size_t nbytes) const;
  std::string rest() const;  // what it still says; to be called once it has ended
  int status();              // once it has ended; throws TimeoutError after 15 s
  void kill();               // and awaits its end

 private:
  pid_t pid_ = -1;
  Fd from_;
  Fd to_;
};

// One line of JSON. good: what the package relies on holds.
inline void answer(const std::string& name, bool good, const std::string& text) {
  std::string clean;
  for (const char c : text) clean += c == '"' || c == '\\' || c == '\n' ? ' ' : c;
  std::printf("{\"what\": \"probe\", \"name\": \"%s\", \"good\": %s, \"answer\": \"%s\"}\n", name.c_str(),
              good ? "true" : "false", clean.c_str());
  std::fflush(stdout);
}

struct Probe {
  std::string name;
  std::function<void(Rig&)> run;
};
void add_event_probes(std::vector<Probe>& probes);   // probe_events.cc: of callers' streams, and of other processes
void add_memory_probes(std::vector<Probe>& probes);  // probe_memory.cc: attributes, pieces, peers

// Without a name: lists them, a line each. Never returns after a probe: what it leaves behind may hang.
int probe(const std::string& name);
// The other processes of the probes that need one.
int probe_peer_event();                                         // records an event, and lets go when it is told
int probe_small_peer(const std::vector<std::string>& handles);  // reads what is in each
int probe_stale_peer();                                         // maps one piece of memory, then another

}  // namespace rr
