#include "fake_device.h"

#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "base/errors.h"
#include "fake_casts.h"

namespace rr::test {
namespace {

std::string name_of(int ordinal) { return "fake GPU " + std::to_string(ordinal); }

bool& in_callback() {
  static thread_local bool value = false;
  return value;
}

}  // namespace

FakeDevice::FakeDevice(FakeOptions options)
    : options_(options),
      space_(name_of(options.ordinal), options.id, options.exports, options.imports),
      lanes_(options.seed, options.manual) {}

FakeDevice::~FakeDevice() = default;

std::byte* FakeDevice::host(const std::byte* device) {
  const auto block = FakeMemory::all().find(device);
  if (block == nullptr) throw Error("no memory of a fake GPU");
  return block->bytes->data() + (device - block->address);
}

size_t FakeDevice::advance(size_t most) { return lanes_.advance(most); }

void FakeDevice::run(Stream stream, std::function<void()> work) {
  lanes_.push(stream, [work = std::move(work)] {
    work();
    return true;
  });
}

void FakeDevice::enqueue(Stream stream, Action action) {
  const size_t lane = reinterpret_cast<uintptr_t>(stream) - kFirstLane;
  if (lane < lanes()) {
    lanes_.push(static_cast<Lane>(lane), std::move(action));
  } else {
    lanes_.push(stream, std::move(action));
  }
}

FakeDevice*& FakeDevice::current() {
  static thread_local FakeDevice* device = nullptr;
  return device;
}

void FakeDevice::replay(const Graph& graph, Stream stream) {
  for (const Action& action : graph) lanes_.push(stream, action);
}

void FakeDevice::break_down(const std::string& why) {
  const std::lock_guard lock(mutex_);
  broken_ = why;
}

std::string FakeDevice::name() const { return name_of(options_.ordinal); }

void FakeDevice::notify(Stream stream, void (*reached)(void*), void* argument) {
  check();
  lanes_.push(stream, [reached, argument] {
    in_callback() = true;
    reached(argument);
    in_callback() = false;
    return true;
  });
}

void FakeDevice::hold(Stream stream, const uint32_t* word, uint32_t value) {
  check();
  if (word < words_.data() || word >= words_.data() + kWords) throw Error("hold: not one of words()");
  lanes_.push(stream,
              [word, value] { return static_cast<int32_t>(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) >= 0; });
}

void FakeDevice::pin(std::byte* data, size_t nbytes) {
  check();
  space_.pin(data, nbytes);
}

std::byte* FakeDevice::allocate(size_t nbytes) {
  check();
  return space_.allocate(nbytes);
}

DeviceExport FakeDevice::exported(const std::byte* data, size_t nbytes, uint64_t& offset) {
  check();
  return space_.exported(data, nbytes, offset);
}

std::byte* FakeDevice::imported(const DeviceExport& peer) {
  check();
  return space_.imported(peer);
}

void FakeDevice::copy(Lane lane, std::byte* dst, const std::byte* src, size_t nbytes) {
  check();
  issue(lane, [=, to = space_.resolve(dst, nbytes), from = space_.resolve(src, nbytes)] {
    if (nbytes != 0) std::memmove(used(to), used(from), nbytes);
  });
}

void FakeDevice::move(Lane lane, const std::vector<DevicePart>& parts, DType from, DType to, double factor) {
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

void FakeDevice::fold(Lane lane, const std::vector<DeviceFold>& folds, const Reduction& reduction) {
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

void FakeDevice::encode(Lane lane, Wire wire, const std::byte* src, std::byte* dst, size_t count) {
  check();
  launches_.fetch_add(1);
  issue(lane,
        [=, from = space_.resolve(src, count * sizeof(float)), to = space_.resolve(dst, wire_nbytes(wire, count))] {
          kernels_.encode(wire, used(from), used(to), count);
        });
}

void FakeDevice::decode(Lane lane, Wire wire, const std::byte* src, std::byte* dst, size_t count) {
  check();
  launches_.fetch_add(1);
  issue(lane,
        [=, from = space_.resolve(src, wire_nbytes(wire, count)), to = space_.resolve(dst, count * sizeof(float))] {
          kernels_.decode(wire, used(from), used(to), count);
        });
}

Lane FakeDevice::add_lane() {
  check();
  return lanes_.add();
}

Mark FakeDevice::mark(Lane lane) {
  check();
  return lanes_.mark(lane);
}

void FakeDevice::follow(Lane lane, const Mark& mark) {
  check();
  lanes_.push(lane, [this, mark] { return lanes_.done(mark); });
}

bool FakeDevice::passed(const Mark& mark) {
  check();
  if (!lanes_.done(mark)) {
    std::this_thread::yield();
    return false;
  }
  lanes_.see(mark);
  return true;
}

Stream FakeDevice::stream(Lane lane) const {
  return reinterpret_cast<Stream>(kFirstLane + static_cast<uintptr_t>(lane));
}

std::shared_ptr<void> FakeDevice::make_current() {
  FakeDevice* const before = std::exchange(current(), this);
  return std::shared_ptr<void>(this, [before](void*) { current() = before; });
}

void FakeDevice::check() const {
  if (in_callback()) std::abort();  // a host function called CUDA
  const std::lock_guard lock(mutex_);
  if (!broken_.empty()) throw InternalError(name() + ": " + broken_);
}

std::byte* FakeDevice::used(const FakeOperand& place) {
  if (place.block != nullptr && place.block->is_released.load()) {
    const std::lock_guard lock(mutex_);
    broken_ = "memory was released before it was used";
  }
  return place.at;
}

void FakeDevice::issue(Lane lane, std::function<void()> work) {
  lanes_.push(lane, [work = std::move(work)] {
    work();
    return true;
  });
}

}  // namespace rr::test
