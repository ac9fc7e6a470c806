// A Device for ranks that are threads: the memory of its "GPU" is host memory behind addresses that nobody can read or
// write, so that host code which touches device memory crashes; lanes and streams run on a thread of their own, in an
// order among each other that a seed decides, or only when the test says advance().
//
// Lanes refuse host memory that is not pinned, memory that has been released, and addresses beyond an allocation.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "cuda/device.h"
#include "fake_casts.h"
#include "fake_lanes.h"
#include "fake_memory.h"
#include "reduce_oracle.h"

namespace rr::test {

inline DeviceId fake_gpu(int number) {
  DeviceId id;
  id.uuid.fill(static_cast<uint8_t>(number + 1));
  return id;
}

struct FakeOptions {
  int ordinal = 0;
  DeviceId id = fake_gpu(0);
  uint64_t seed = 0;    // of the order in which lanes and streams come to run
  bool manual = false;  // nothing runs but in advance()
  bool exports = true;  // memory can be mapped by others
  bool imports = true;  // memory of other GPUs can be mapped here
};

class FakeDevice final : public Device {
 public:
  using Action = FakeLanes::Action;
  using Graph = FakeLanes::Graph;

  explicit FakeDevice(FakeOptions options = {})
      : options_(options),
        space_(name_of(options.ordinal), options.id, options.exports, options.imports),
        lanes_(options.seed, options.manual) {}

  // --- for tests
  // Where the bytes of device memory really are.
  static std::byte* host(const std::byte* device) {
    const auto block = FakeMemory::all().find(device);
    if (block == nullptr) throw Error("no memory of a fake GPU");
    return block->bytes->data() + (device - block->address);
  }
  // Executes up to `most` actions; how many there were to execute.
  size_t advance(size_t most = SIZE_MAX) { return lanes_.advance(most); }
  // The caller's own work on one of its streams.
  void run(Stream stream, std::function<void()> work) {
    lanes_.push(stream, [work = std::move(work)] {
      work();
      return true;
    });
  }
  // Work of a library that was given this stream, which may be a lane's.
  void enqueue(Stream stream, Action action) {
    const size_t lane = reinterpret_cast<uintptr_t>(stream) - kFirstLane;
    if (lane < lanes()) {
      lanes_.push(static_cast<Lane>(lane), std::move(action));
    } else {
      lanes_.push(stream, std::move(action));
    }
  }
  // The device that make_current() has given the calling thread.
  static FakeDevice*& current() {
    static thread_local FakeDevice* device = nullptr;
    return device;
  }
  void begin_capture(Stream stream) { lanes_.begin_capture(stream); }
  Graph end_capture(Stream stream) { return lanes_.end_capture(stream); }
  void replay(const Graph& graph, Stream stream) {
    for (const Action& action : graph) lanes_.push(stream, action);
  }
  // Everything fails from now on, as after an illegal access.
  void break_down(const std::string& why) {
    const std::lock_guard lock(mutex_);
    broken_ = why;
  }
  uint64_t launches() const { return launches_.load(); }  // move, fold, encode, decode
  uint64_t imports() const { return space_.mappings(); }
  size_t pinned_ranges() const { return space_.pinned_ranges(); }

  // --- Device
  int ordinal() const override { return options_.ordinal; }
  DeviceId id() const override { return options_.id; }
  std::string name() const override { return name_of(options_.ordinal); }

  void notify(Stream stream, void (*reached)(void*), void* argument) override {
    check();
    lanes_.push(stream, [reached, argument] {
      in_callback() = true;
      reached(argument);
      in_callback() = false;
      return true;
    });
  }
  void hold(Stream stream, const uint32_t* word, uint32_t value) override {
    check();
    if (word < words_.data() || word >= words_.data() + kWords) throw Error("hold: not one of words()");
    lanes_.push(stream,
                [word, value] { return static_cast<int32_t>(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) >= 0; });
  }
  bool is_capturing(Stream stream) override { return lanes_.is_capturing(stream); }
  uint32_t* words() override { return words_.data(); }

  void pin(std::byte* data, size_t nbytes) override {
    check();
    space_.pin(data, nbytes);
  }
  void unpin(std::byte* data) override { space_.unpin(data); }
  std::byte* allocate(size_t nbytes) override {
    check();
    return space_.allocate(nbytes);
  }
  void release(std::byte* data) override { space_.release(data); }
  DeviceExport exported(const std::byte* data, size_t nbytes, uint64_t& offset) override {
    check();
    return space_.exported(data, nbytes, offset);
  }
  std::byte* imported(const DeviceExport& peer) override {
    check();
    return space_.imported(peer);
  }
  void forget(uint64_t uid) override { space_.forget(uid); }

  void copy(Lane lane, std::byte* dst, const std::byte* src, size_t nbytes) override {
    check();
    issue(lane, [=, to = space_.resolve(dst, nbytes), from = space_.resolve(src, nbytes)] {
      if (nbytes != 0) std::memmove(used(to), used(from), nbytes);
    });
  }
  void move(Lane lane, const std::vector<DevicePart>& parts, DType from, DType to, double factor) override {
    check();
    launches_.fetch_add(1);
    std::vector<std::pair<FakeOperand, FakeOperand>> places;
    for (const DevicePart& part : parts) {
      places.emplace_back(space_.resolve(part.src, part.count * itemsize(from)),
                          space_.resolve(part.dst, part.count * itemsize(to)));
    }
    issue(lane, [=] {
      for (size_t i = 0; i < parts.size(); ++i) {
        if (parts[i].count == 0) continue;
        convert(used(places[i].first), used(places[i].second), parts[i].count, from, to, factor);
      }
    });
  }
  void fold(Lane lane, const std::vector<DeviceFold>& folds, const Reduction& reduction) override {
    check();
    launches_.fetch_add(1);
    std::vector<std::pair<std::vector<FakeOperand>, std::vector<FakeOperand>>> places;
    for (const DeviceFold& fold : folds) {
      const size_t nbytes = fold.count * itemsize(reduction.dtype);
      places.emplace_back();
      for (const std::byte* src : fold.srcs) places.back().first.push_back(space_.resolve(src, nbytes));
      for (const std::byte* dst : fold.dsts) places.back().second.push_back(space_.resolve(dst, nbytes));
    }
    issue(lane, [=] {
      for (size_t i = 0; i < folds.size(); ++i) {
        if (folds[i].count == 0) continue;
        std::vector<const void*> srcs;
        std::vector<void*> dsts;
        for (const FakeOperand& place : places[i].first) srcs.push_back(used(place));
        for (const FakeOperand& place : places[i].second) dsts.push_back(used(place));
        kernels_.reduce(reduction, srcs.data(), srcs.size(), dsts.data(), dsts.size(), folds[i].count);
      }
    });
  }
  void encode(Lane lane, Wire wire, const std::byte* src, std::byte* dst, size_t count) override {
    check();
    launches_.fetch_add(1);
    issue(lane,
          [=, from = space_.resolve(src, count * sizeof(float)), to = space_.resolve(dst, wire_nbytes(wire, count))] {
            kernels_.encode(wire, used(from), used(to), count);
          });
  }
  void decode(Lane lane, Wire wire, const std::byte* src, std::byte* dst, size_t count) override {
    check();
    launches_.fetch_add(1);
    issue(lane,
          [=, from = space_.resolve(src, wire_nbytes(wire, count)), to = space_.resolve(dst, count * sizeof(float))] {
            kernels_.decode(wire, used(from), used(to), count);
          });
  }
  Lane add_lane() override {
    check();
    return lanes_.add();
  }
  void remove_lane(Lane lane) override { lanes_.remove(lane); }
  size_t lanes() const override { return lanes_.count(); }
  Mark mark(Lane lane) override {
    check();
    return lanes_.mark(lane);
  }
  void follow(Lane lane, const Mark& mark) override {
    check();
    lanes_.push(lane, [this, mark] { return lanes_.done(mark); });
  }
  bool passed(const Mark& mark) override {
    check();
    if (!lanes_.done(mark)) {
      std::this_thread::yield();
      return false;
    }
    lanes_.see(mark);
    return true;
  }
  bool is_busy() const override { return lanes_.is_busy(); }
  Stream stream(Lane lane) const override {
    return reinterpret_cast<Stream>(kFirstLane + static_cast<uintptr_t>(lane));
  }
  std::shared_ptr<void> make_current() override {
    FakeDevice* const before = std::exchange(current(), this);
    return std::shared_ptr<void>(this, [before](void*) { current() = before; });
  }

 private:
  static constexpr uintptr_t kFirstLane = 0x1000;  // streams of the lanes

  static std::string name_of(int ordinal) { return "fake GPU " + std::to_string(ordinal); }
  static bool& in_callback() {
    static thread_local bool value = false;
    return value;
  }

  void check() const {
    if (in_callback()) std::abort();  // a host function called CUDA
    const std::lock_guard lock(mutex_);
    if (!broken_.empty()) throw InternalError(name() + ": " + broken_);
  }

  std::byte* used(const FakeOperand& place) {
    if (place.block != nullptr && place.block->is_released.load()) {
      const std::lock_guard lock(mutex_);
      broken_ = "memory was released before it was used";
    }
    return place.at;
  }

  void issue(Lane lane, std::function<void()> work) {
    lanes_.push(lane, [work = std::move(work)] {
      work();
      return true;
    });
  }

  const FakeOptions options_;
  const Kernels& kernels_ = kernels("auto");
  mutable std::mutex mutex_;
  std::string broken_;
  FakeSpace space_;
  std::atomic<uint64_t> launches_{0};
  alignas(64) std::array<uint32_t, kWords> words_{};
  FakeLanes lanes_;  // the last, so that it ends first: its actions use the rest
};

}  // namespace rr::test
