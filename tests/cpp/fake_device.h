// A Device for ranks that are threads: the memory of its "GPU" is host memory behind addresses that nobody can read or
// write, so that host code which touches device memory crashes; lanes and streams run on a thread of their own, in an
// order among each other that a seed decides, or only when the test says advance().
//
// Lanes refuse host memory that is not pinned, memory that has been released, and addresses beyond an allocation.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "cuda/device.h"
#include "reduce_oracle.h"

namespace rr::test {

// An allocation. Its address begins a range without access rights; the bytes are elsewhere.
struct FakeBlock {
  std::byte* address = nullptr;
  size_t nbytes = 0;
  uint64_t uid = 0;
  DeviceId device;
  std::shared_ptr<std::vector<std::byte>> bytes;
  std::atomic<bool> is_released{false};

  FakeBlock(size_t size, uint64_t number, DeviceId id, std::shared_ptr<std::vector<std::byte>> memory)
      : nbytes(size), uid(number), device(id), bytes(std::move(memory)) {
    void* at = ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw Error(with_errno("mmap of a fake GPU's memory"));
    address = static_cast<std::byte*>(at);
  }
  ~FakeBlock() { ::munmap(address, nbytes); }
  FakeBlock(const FakeBlock&) = delete;
  FakeBlock& operator=(const FakeBlock&) = delete;
};

// Allocations and mappings of all fake GPUs of the process, by address.
class FakeMemory {
 public:
  static FakeMemory& all() {
    static FakeMemory memory;
    return memory;
  }
  std::shared_ptr<FakeBlock> add(size_t nbytes, DeviceId device, const FakeBlock* same = nullptr) {
    const std::lock_guard lock(mutex_);
    auto bytes = same != nullptr ? same->bytes : std::make_shared<std::vector<std::byte>>(nbytes);
    auto block = std::make_shared<FakeBlock>(nbytes, same != nullptr ? same->uid : ++uids_, device, std::move(bytes));
    blocks_[reinterpret_cast<uintptr_t>(block->address)] = block;
    if (same == nullptr) owners_[block->uid] = block;
    return block;
  }
  void remove(const FakeBlock& block) {
    const std::lock_guard lock(mutex_);
    if (const auto owner = owners_.find(block.uid); owner != owners_.end() && owner->second.get() == &block) {
      owners_.erase(owner);
    }
    blocks_.erase(reinterpret_cast<uintptr_t>(block.address));
  }
  std::shared_ptr<FakeBlock> find(const void* at) {
    const std::lock_guard lock(mutex_);
    auto next = blocks_.upper_bound(reinterpret_cast<uintptr_t>(at));
    if (next == blocks_.begin()) return nullptr;
    const auto& block = std::prev(next)->second;
    return static_cast<const std::byte*>(at) < block->address + block->nbytes ? block : nullptr;
  }
  std::shared_ptr<FakeBlock> owner(uint64_t uid) {
    const std::lock_guard lock(mutex_);
    const auto known = owners_.find(uid);
    return known == owners_.end() ? nullptr : known->second;
  }

 private:
  std::mutex mutex_;
  std::map<uintptr_t, std::shared_ptr<FakeBlock>> blocks_;
  std::map<uint64_t, std::shared_ptr<FakeBlock>> owners_;
  uint64_t uids_ = 0;
};

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
  using Action = std::function<bool()>;  // false: cannot be done yet, come again
  using Graph = std::vector<Action>;

  explicit FakeDevice(FakeOptions options = {}) : options_(options), random_(options.seed) {
    if (!options_.manual) runner_ = std::thread([this] { run(); });
  }
  ~FakeDevice() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    if (runner_.joinable()) runner_.join();
    for (auto& [address, block] : owned_) FakeMemory::all().remove(*block);
    for (auto& [uid, block] : imported_) FakeMemory::all().remove(*block);
  }

  // --- for tests
  // Where the bytes of device memory really are.
  static std::byte* host(const std::byte* device) {
    const auto block = FakeMemory::all().find(device);
    if (block == nullptr) throw Error("no memory of a fake GPU");
    return block->bytes->data() + (device - block->address);
  }
  // Executes up to `most` actions; how many there were to execute.
  size_t advance(size_t most = SIZE_MAX) {
    size_t done = 0;
    while (done < most && run_one()) ++done;
    return done;
  }
  // The caller's own work on one of its streams.
  void run(Stream stream, std::function<void()> work) {
    push(streams_, stream, [work = std::move(work)] {
      work();
      return true;
    });
  }
  // Work of a library that was given this stream, which may be a lane's.
  void enqueue(Stream stream, Action action) {
    const size_t lane = reinterpret_cast<uintptr_t>(stream) - kFirstLane;
    if (lane < lanes()) {
      push_lane(static_cast<Lane>(lane), std::move(action));
    } else {
      push(streams_, stream, std::move(action));
    }
  }
  // The device that make_current() has given the calling thread.
  static FakeDevice*& current() {
    static thread_local FakeDevice* device = nullptr;
    return device;
  }
  void begin_capture(Stream stream) {
    const std::lock_guard lock(mutex_);
    captures_[stream] = {};
  }
  Graph end_capture(Stream stream) {
    const std::lock_guard lock(mutex_);
    Graph graph = std::move(captures_[stream]);
    captures_.erase(stream);
    return graph;
  }
  void replay(const Graph& graph, Stream stream) {
    for (const Action& action : graph) push(streams_, stream, action);
  }
  // Everything fails from now on, as after an illegal access.
  void break_down(const std::string& why) {
    const std::lock_guard lock(mutex_);
    broken_ = why;
  }
  uint64_t launches() const { return launches_.load(); }  // move, fold, encode, decode
  uint64_t imports() const { return imports_.load(); }
  size_t pinned_ranges() {
    const std::lock_guard lock(mutex_);
    return pinned_.size();
  }

  // --- Device
  int ordinal() const override { return options_.ordinal; }
  DeviceId id() const override { return options_.id; }
  std::string name() const override { return "fake GPU " + std::to_string(options_.ordinal); }

  void notify(Stream stream, void (*reached)(void*), void* argument) override {
    check();
    push(streams_, stream, [reached, argument] {
      in_callback() = true;
      reached(argument);
      in_callback() = false;
      return true;
    });
  }
  void hold(Stream stream, const uint32_t* word, uint32_t value) override {
    check();
    if (word < words_.data() || word >= words_.data() + kWords) throw Error("hold: not one of words()");
    push(streams_, stream,
         [word, value] { return static_cast<int32_t>(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) >= 0; });
  }
  bool is_capturing(Stream stream) override {
    const std::lock_guard lock(mutex_);
    return captures_.count(stream) != 0;
  }
  uint32_t* words() override { return words_.data(); }

  void pin(std::byte* data, size_t nbytes) override {
    check();
    if (reinterpret_cast<uintptr_t>(data) % 4096 != 0) throw Error("pin: not the beginning of a page");
    const std::lock_guard lock(mutex_);
    pinned_[reinterpret_cast<uintptr_t>(data)] = nbytes;
  }
  void unpin(std::byte* data) override {
    const std::lock_guard lock(mutex_);
    if (pinned_.erase(reinterpret_cast<uintptr_t>(data)) == 0) throw Error("unpin: not pinned");
  }
  std::byte* allocate(size_t nbytes) override {
    check();
    auto block = FakeMemory::all().add(nbytes == 0 ? 1 : nbytes, options_.id);
    const std::lock_guard lock(mutex_);
    owned_[block->address] = block;
    return block->address;
  }
  void release(std::byte* data) override {
    const std::lock_guard lock(mutex_);
    const auto block = owned_.find(data);
    if (block == owned_.end()) throw Error("release: no allocation begins there");
    block->second->is_released.store(true);
    FakeMemory::all().remove(*block->second);
    owned_.erase(block);
  }
  DeviceExport exported(const std::byte* data, size_t nbytes, uint64_t& offset) override {
    check();
    const auto block = FakeMemory::all().find(data);
    if (block == nullptr) throw InvalidArgumentError("exported: no memory of a fake GPU");
    offset = static_cast<uint64_t>(data - block->address);
    if (offset + nbytes > block->nbytes) throw InvalidArgumentError("exported: beyond the allocation");
    DeviceExport memory;
    memory.uid = options_.exports ? block->uid : 0;
    memory.nbytes = block->nbytes;
    memory.device = block->device;
    return memory;
  }
  std::byte* imported(const DeviceExport& peer) override {
    check();
    if (peer.uid == 0) throw InternalError(name() + ": an allocation that cannot be mapped");
    if (!(peer.device == options_.id) && !options_.imports) {
      throw InternalError(name() + ": cuIpcOpenMemHandle: peer access is not supported between these two devices");
    }
    const std::lock_guard lock(mutex_);
    if (const auto known = imported_.find(peer.uid); known != imported_.end()) return known->second->address;
    const auto owner = FakeMemory::all().owner(peer.uid);
    if (owner == nullptr) throw InternalError(name() + ": cuIpcOpenMemHandle: invalid resource handle");
    imports_.fetch_add(1);
    auto mapping = FakeMemory::all().add(owner->nbytes, owner->device, owner.get());
    imported_[peer.uid] = mapping;
    return mapping->address;
  }
  void forget(uint64_t uid) override {
    const std::lock_guard lock(mutex_);
    const auto known = imported_.find(uid);
    if (known == imported_.end()) return;
    known->second->is_released.store(true);
    FakeMemory::all().remove(*known->second);
    imported_.erase(known);
  }

  void copy(Lane lane, std::byte* dst, const std::byte* src, size_t nbytes) override {
    check();
    issue(lane, [=, to = resolve(dst, nbytes), from = resolve(src, nbytes)] {
      if (nbytes != 0) std::memmove(used(to), used(from), nbytes);
    });
  }
  void move(Lane lane, const std::vector<DevicePart>& parts, DType from, DType to, double factor) override {
    check();
    launches_.fetch_add(1);
    std::vector<std::pair<Operand, Operand>> places;
    for (const DevicePart& part : parts) {
      places.emplace_back(resolve(part.src, part.count * itemsize(from)), resolve(part.dst, part.count * itemsize(to)));
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
    std::vector<std::pair<std::vector<Operand>, std::vector<Operand>>> places;
    for (const DeviceFold& fold : folds) {
      const size_t nbytes = fold.count * itemsize(reduction.dtype);
      places.emplace_back();
      for (const std::byte* src : fold.srcs) places.back().first.push_back(resolve(src, nbytes));
      for (const std::byte* dst : fold.dsts) places.back().second.push_back(resolve(dst, nbytes));
    }
    issue(lane, [=] {
      for (size_t i = 0; i < folds.size(); ++i) {
        if (folds[i].count == 0) continue;
        std::vector<const void*> srcs;
        std::vector<void*> dsts;
        for (const Operand& place : places[i].first) srcs.push_back(used(place));
        for (const Operand& place : places[i].second) dsts.push_back(used(place));
        kernels_.reduce(reduction, srcs.data(), srcs.size(), dsts.data(), dsts.size(), folds[i].count);
      }
    });
  }
  void encode(Lane lane, Wire wire, const std::byte* src, std::byte* dst, size_t count) override {
    check();
    launches_.fetch_add(1);
    issue(lane, [=, from = resolve(src, count * sizeof(float)), to = resolve(dst, wire_nbytes(wire, count))] {
      kernels_.encode(wire, used(from), used(to), count);
    });
  }
  void decode(Lane lane, Wire wire, const std::byte* src, std::byte* dst, size_t count) override {
    check();
    launches_.fetch_add(1);
    issue(lane, [=, from = resolve(src, wire_nbytes(wire, count)), to = resolve(dst, count * sizeof(float))] {
      kernels_.decode(wire, used(from), used(to), count);
    });
  }
  Lane add_lane() override {
    check();
    const std::lock_guard lock(mutex_);
    if (!spare_lanes_.empty()) {
      const Lane lane = spare_lanes_.back();
      spare_lanes_.pop_back();
      return lane;
    }
    lanes_.emplace_back();
    return static_cast<Lane>(lanes_.size() - 1);
  }
  void remove_lane(Lane lane) override {
    const std::lock_guard lock(mutex_);
    spare_lanes_.push_back(lane);
  }
  size_t lanes() const override {
    const std::lock_guard lock(mutex_);
    return lanes_.size();
  }
  Mark mark(Lane lane) override {
    check();
    const std::lock_guard lock(mutex_);
    LaneState& state = lanes_[static_cast<size_t>(lane)];
    state.marked = state.issued;
    return {lane, state.issued};
  }
  void follow(Lane lane, const Mark& mark) override {
    check();
    push_lane(lane, [this, mark] { return done(mark); });
  }
  bool passed(const Mark& mark) override {
    check();
    if (!done(mark)) {
      std::this_thread::yield();
      return false;
    }
    const std::lock_guard lock(mutex_);
    LaneState& state = lanes_[static_cast<size_t>(mark.lane)];
    state.seen = std::max(state.seen, mark.number);
    return true;
  }
  bool is_busy() const override {
    const std::lock_guard lock(mutex_);
    for (const LaneState& state : lanes_) {
      if (state.seen < state.marked) return true;
    }
    return false;
  }
  Stream stream(Lane lane) const override {
    return reinterpret_cast<Stream>(kFirstLane + static_cast<uintptr_t>(lane));
  }
  std::shared_ptr<void> make_current() override {
    FakeDevice* const before = std::exchange(current(), this);
    return std::shared_ptr<void>(this, [before](void*) { current() = before; });
  }

 private:
  static constexpr uintptr_t kFirstLane = 0x1000;  // streams of the lanes
  using Queue = std::deque<Action>;
  struct LaneState {
    Queue queue;
    uint64_t issued = 0, done = 0, marked = 0, seen = 0;
  };
  // Memory that an action works on; block null: pinned host memory.
  struct Operand {
    std::byte* at = nullptr;
    std::shared_ptr<FakeBlock> block;
  };

  static bool& in_callback() {
    static thread_local bool value = false;
    return value;
  }

  void check() const {
    if (in_callback()) std::abort();  // a host function called CUDA
    const std::lock_guard lock(mutex_);
    if (!broken_.empty()) throw InternalError(name() + ": " + broken_);
  }

  Operand resolve(const std::byte* data, size_t nbytes) {
    if (nbytes == 0) return {};
    if (auto block = FakeMemory::all().find(data)) {
      const size_t offset = static_cast<size_t>(data - block->address);
      if (offset + nbytes > block->nbytes) throw InternalError(name() + ": beyond an allocation");
      return {block->bytes->data() + offset, block};
    }
    const std::lock_guard lock(mutex_);
    const auto at = reinterpret_cast<uintptr_t>(data);
    auto next = pinned_.upper_bound(at);
    if (next == pinned_.begin() || at + nbytes > std::prev(next)->first + std::prev(next)->second) {
      throw InternalError(name() + ": neither memory of the GPU nor pinned");
    }
    return {const_cast<std::byte*>(data), nullptr};
  }

  std::byte* used(const Operand& place) {
    if (place.block != nullptr && place.block->is_released.load()) {
      const std::lock_guard lock(mutex_);
      broken_ = "memory was released before it was used";
    }
    return place.at;
  }

  static double read(const std::byte* at, DType dtype) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(at);
    switch (dtype) {
      case DType::kFloat16:
        return static_cast<double>(rr_test::decode(rr_test::kFp16, rr_test::load<uint16_t>(bytes)));
      case DType::kBFloat16:
        return static_cast<double>(rr_test::decode(rr_test::kBf16, rr_test::load<uint16_t>(bytes)));
      case DType::kFloat32:
        return static_cast<double>(rr_test::load<float>(bytes));
      case DType::kFloat64:
        return rr_test::load<double>(bytes);
      default:
        throw InvalidArgumentError("the fake GPU casts floating point only");
    }
  }
  static void write(std::byte* at, DType dtype, double value) {
    const auto narrow = static_cast<float>(value);
    if (dtype == DType::kFloat64) {
      std::memcpy(at, &value, sizeof value);
    } else if (dtype == DType::kFloat32) {
      std::memcpy(at, &narrow, sizeof narrow);
    } else {
      const uint16_t bits = rr_test::encode(dtype == DType::kFloat16 ? rr_test::kFp16 : rr_test::kBf16, narrow);
      std::memcpy(at, &bits, sizeof bits);
    }
  }
  static void convert(const std::byte* src, std::byte* dst, size_t count, DType from, DType to, double factor) {
    if (from == to && factor == 1.0) {
      std::memmove(dst, src, count * itemsize(from));
      return;
    }
    const bool is_double = from == DType::kFloat64 || to == DType::kFloat64;
    for (size_t i = 0; i < count; ++i) {
      const double value = read(src + i * itemsize(from), from);
      const double scaled =
          is_double ? value * factor : static_cast<double>(static_cast<float>(value) * static_cast<float>(factor));
      write(dst + i * itemsize(to), to, scaled);
    }
  }

  bool done(const Mark& mark) const {
    const std::lock_guard lock(mutex_);
    return lanes_[static_cast<size_t>(mark.lane)].done >= mark.number;
  }
  void issue(Lane lane, std::function<void()> work) {
    push_lane(lane, [work = std::move(work)] {
      work();
      return true;
    });
  }
  void push_lane(Lane lane, Action action) {
    {
      const std::lock_guard lock(mutex_);
      LaneState& state = lanes_[static_cast<size_t>(lane)];
      state.queue.push_back(std::move(action));
      ++state.issued;
    }
    wake_.notify_one();
  }
  void push(std::map<Stream, Queue>& queues, Stream stream, Action action) {
    {
      const std::lock_guard lock(mutex_);
      const auto capture = captures_.find(stream);
      (capture != captures_.end() ? static_cast<void>(capture->second.push_back(std::move(action)))
                                  : static_cast<void>(queues[stream].push_back(std::move(action))));
    }
    wake_.notify_one();
  }

  // Executes the first action of one queue, whichever can go on; false when none can.
  bool run_one() {
    std::vector<std::pair<Queue*, LaneState*>> ready;
    {
      const std::lock_guard lock(mutex_);
      for (LaneState& state : lanes_) {
        if (!state.queue.empty()) ready.emplace_back(&state.queue, &state);
      }
      for (auto& [stream, queue] : streams_) {
        if (!queue.empty()) ready.emplace_back(&queue, nullptr);
      }
    }
    std::shuffle(ready.begin(), ready.end(), random_);
    for (auto& [queue, state] : ready) {
      Action action;
      {
        const std::lock_guard lock(mutex_);
        action = queue->front();
      }
      if (!action()) continue;
      const std::lock_guard lock(mutex_);
      queue->pop_front();
      if (state != nullptr) ++state->done;
      return true;
    }
    return false;
  }

  void run() {
    for (;;) {
      if (run_one()) continue;
      std::unique_lock lock(mutex_);
      if (stop_) return;
      wake_.wait_for(lock, std::chrono::microseconds(50));  // words are written without a word to the device
    }
  }

  const FakeOptions options_;
  const Kernels& kernels_ = kernels("auto");
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::mt19937_64 random_;
  std::deque<LaneState> lanes_ = std::deque<LaneState>(kLanes);  // grows while the runner is at one of them
  std::vector<Lane> spare_lanes_;
  std::map<Stream, Queue> streams_;
  std::map<Stream, Graph> captures_;
  std::map<uintptr_t, size_t> pinned_;
  std::map<std::byte*, std::shared_ptr<FakeBlock>> owned_;
  std::map<uint64_t, std::shared_ptr<FakeBlock>> imported_;
  std::string broken_;
  std::atomic<uint64_t> launches_{0};
  std::atomic<uint64_t> imports_{0};
  alignas(64) std::array<uint32_t, kWords> words_{};
  bool stop_ = false;
  std::thread runner_;
};

}  // namespace rr::test
