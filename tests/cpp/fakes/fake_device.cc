#include "fakes/fake_device.h"

#include <cstring>
#include <thread>
#include <utility>

#include "base/errors.h"
#include "fakes/fake_casts.h"

namespace rr::test {
namespace {

std::string name_of(int ordinal) { return "fake GPU " + std::to_string(ordinal); }

}  // namespace

FakeDevice::FakeDevice(FakeOptions options)
    : options_(options),
      space_(name_of(options.ordinal), options.id, options.exports, options.imports),
      work_streams_(options.seed, options.manual) {}

FakeDevice::~FakeDevice() = default;

std::byte* FakeDevice::host(const std::byte* device) {
  const auto block = FakeMemory::all().find(device);
  if (block == nullptr) throw Error("no memory of a fake GPU");
  return block->bytes->data() + (device - block->address);
}

size_t FakeDevice::advance(size_t most) { return work_streams_.advance(most); }

void FakeDevice::run(Stream stream, std::function<void()> work) {
  work_streams_.push(stream, [work = std::move(work)] {
    work();
    return true;
  });
}

void FakeDevice::enqueue(Stream stream, Action action) {
  const size_t work_stream = reinterpret_cast<uintptr_t>(stream) - kFirstWorkStream;
  if (work_stream < work_streams()) {
    work_streams_.push(static_cast<WorkStream>(work_stream), std::move(action));
  } else {
    work_streams_.push(stream, std::move(action));
  }
}

FakeDevice*& FakeDevice::current() {
  static thread_local FakeDevice* device = nullptr;
  return device;
}

void FakeDevice::break_down(const std::string& why) {
  const std::lock_guard lock(mutex_);
  broken_ = why;
}

std::string FakeDevice::name() const { return name_of(options_.ordinal); }

class FakeDevice::Point final : public StreamPoint {
 public:
  Point(const FakeDevice& device, std::shared_ptr<std::atomic<bool>> is_reached)
      : device_(device), is_reached_(std::move(is_reached)) {}
  bool passed() override {
    device_.check();
    return is_reached_->load();
  }

 private:
  const FakeDevice& device_;
  const std::shared_ptr<std::atomic<bool>> is_reached_;
};

std::unique_ptr<StreamPoint> FakeDevice::record(Stream stream) {
  check();
  auto is_reached = std::make_shared<std::atomic<bool>>(false);
  run(stream, [is_reached] { is_reached->store(true); });
  return std::make_unique<Point>(*this, std::move(is_reached));
}

void FakeDevice::pin(std::byte* data, size_t nbytes) {
  check();
  space_.pin(data, nbytes);
}

std::byte* FakeDevice::allocate(size_t nbytes) {
  check();
  return space_.allocate(nbytes);
}

std::byte* FakeDevice::allocate_locked(size_t nbytes) {
  if (is_full_.load() && waits_for_peers()) throw DeviceBusyError(name() + " is full");
  return allocate(nbytes);
}

DeviceExport FakeDevice::exported(const std::byte* data, size_t nbytes, uint64_t& offset, std::shared_ptr<void>& keep) {
  check();
  return space_.exported(data, nbytes, offset, keep);
}

std::byte* FakeDevice::imported(const DeviceExport& peer) {
  check();
  return space_.imported(peer);
}

void FakeDevice::copy(WorkStream work_stream, std::byte* dst, const std::byte* src, size_t nbytes) {
  check();
  issue(work_stream, [=, to = space_.resolve(dst, nbytes), from = space_.resolve(src, nbytes)] {
    if (nbytes != 0) std::memmove(used(to), used(from), nbytes);
  });
}

void FakeDevice::move(WorkStream work_stream, const std::vector<DevicePart>& parts, DType from, DType to,
                      double factor) {
  check();
  launches_.fetch_add(1);
  std::vector<std::pair<FakeOperand, FakeOperand>> places;
  for (const DevicePart& part : parts) {
    places.emplace_back(space_.resolve(part.src, part.count * itemsize(from)),
                        space_.resolve(part.dst, part.count * itemsize(to)));
  }
  issue(work_stream, [=] {
    for (size_t i = 0; i < parts.size(); ++i) {
      if (parts[i].count == 0) continue;
      convert(used(places[i].first), used(places[i].second), parts[i].count, from, to, factor);
    }
  });
}

void FakeDevice::fold(WorkStream work_stream, const std::vector<DeviceFold>& folds, const Reduction& reduction) {
  check();
  launches_.fetch_add(1);
  std::vector<std::pair<std::vector<FakeOperand>, std::vector<FakeOperand>>> places;
  for (const DeviceFold& fold : folds) {
    const size_t nbytes = fold.count * itemsize(reduction.dtype);
    places.emplace_back();
    for (const std::byte* src : fold.srcs) places.back().first.push_back(space_.resolve(src, nbytes));
    for (const std::byte* dst : fold.dsts) places.back().second.push_back(space_.resolve(dst, nbytes));
  }
  issue(work_stream, [=] {
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

void FakeDevice::encode(WorkStream work_stream, Codec codec, const std::byte* src, std::byte* dst, size_t count) {
  check();
  launches_.fetch_add(1);
  issue(work_stream,
        [=, from = space_.resolve(src, count * sizeof(float)), to = space_.resolve(dst, codec_nbytes(codec, count))] {
          kernels_.encode(codec, used(from), used(to), count);
        });
}

void FakeDevice::decode(WorkStream work_stream, Codec codec, const std::byte* src, std::byte* dst, size_t count) {
  check();
  launches_.fetch_add(1);
  issue(work_stream,
        [=, from = space_.resolve(src, codec_nbytes(codec, count)), to = space_.resolve(dst, count * sizeof(float))] {
          kernels_.decode(codec, used(from), used(to), count);
        });
}

WorkStream FakeDevice::add_work_stream() {
  check();
  return work_streams_.add();
}

Mark FakeDevice::mark(WorkStream work_stream) {
  check();
  return work_streams_.mark(work_stream);
}

void FakeDevice::follow(WorkStream work_stream, const Mark& mark) {
  check();
  work_streams_.push(work_stream, [this, mark] { return work_streams_.done(mark); });
}

bool FakeDevice::passed(const Mark& mark) {
  check();
  if (!work_streams_.done(mark)) {
    std::this_thread::yield();
    return false;
  }
  work_streams_.see(mark);
  return true;
}

Stream FakeDevice::stream(WorkStream work_stream) const {
  return reinterpret_cast<Stream>(kFirstWorkStream + static_cast<uintptr_t>(work_stream));
}

std::shared_ptr<void> FakeDevice::make_current() {
  FakeDevice* const before = std::exchange(current(), this);
  return std::shared_ptr<void>(this, [before](void*) { current() = before; });
}

void FakeDevice::check() const {
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

void FakeDevice::issue(WorkStream work_stream, std::function<void()> work) {
  work_streams_.push(work_stream, [work = std::move(work)] {
    work();
    return true;
  });
}

}  // namespace rr::test
