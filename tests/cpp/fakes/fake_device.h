// A Device for ranks that are threads: the memory of its "GPU" is host memory behind addresses that nobody can read or
// write, so that host code which touches device memory crashes; work streams and streams run on a thread of their own,
// in an order among each other that a seed decides, or only when the test says advance().
//
// Work streams refuse host memory that is not pinned, memory that has been released, and addresses beyond an
// allocation.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fakes/fake_memory.h"
#include "fakes/fake_work_streams.h"
#include "gpu/device.h"
#include "support/reduce_oracle.h"

namespace rr::test {

inline DeviceId fake_gpu(int number) {
  DeviceId id;
  id.uuid.fill(static_cast<uint8_t>(number + 1));
  return id;
}

struct FakeOptions {
  int ordinal = 0;
  DeviceId id = fake_gpu(0);
  uint64_t seed = 0;    // of the order in which work streams and streams come to run
  bool manual = false;  // nothing runs but in advance()
  bool exports = true;  // memory can be mapped by others
  bool imports = true;  // memory of other GPUs can be mapped here
};

class FakeDevice final : public Device {
 public:
  using Action = FakeWorkStreams::Action;

  explicit FakeDevice(FakeOptions options = {});
  ~FakeDevice() override;

  // --- for tests
  // Where the bytes of device memory really are.
  static std::byte* host(const std::byte* device);
  // Executes up to `most` actions; how many there were to execute.
  size_t advance(size_t most = SIZE_MAX);
  // The caller's own work on one of its streams.
  void run(Stream stream, std::function<void()> work);
  // Work of a library that was given this stream, which may be a work stream's.
  void enqueue(Stream stream, Action action);
  // The device that make_current() has given the calling thread.
  static FakeDevice*& current();
  void begin_capture(Stream stream) { work_streams_.begin_capture(stream); }
  void end_capture(Stream stream) { work_streams_.end_capture(stream); }
  // Everything fails from now on, as after an illegal access.
  void break_down(const std::string& why);
  // Device memory is to be had only where something may be freed for it.
  void fill() { is_full_.store(true); }
  uint64_t launches() const { return launches_.load(); }  // move, fold, encode, decode
  uint64_t imports() const { return space_.mappings(); }
  size_t pinned_ranges() const { return space_.pinned_ranges(); }

  // --- Device
  int ordinal() const override { return options_.ordinal; }
  DeviceId id() const override { return options_.id; }
  std::string name() const override;

  std::unique_ptr<StreamPoint> record(Stream stream) override;
  bool is_capturing(Stream stream) override { return work_streams_.is_capturing(stream); }

  void pin(std::byte* data, size_t nbytes) override;
  void unpin(std::byte* data) override { space_.unpin(data); }
  std::byte* allocate(size_t nbytes) override;
  std::byte* allocate_locked(size_t nbytes) override;
  void release(std::byte* data) override { space_.release(data); }
  void free_released() override { forgotten_ = 0; }
  size_t released_nbytes() override { return 0; }
  DeviceExport exported(const std::byte* data, size_t nbytes, uint64_t& offset, std::shared_ptr<void>& keep) override;
  void set_exports(bool exports) { space_.set_exports(exports); }  // what is asked for from now on
  std::byte* imported(const DeviceExport& peer) override;
  void forget(uint64_t uid) override {
    space_.forget(uid);
    ++forgotten_;
  }
  size_t forgotten() override { return forgotten_.load(); }

  void copy(WorkStream work_stream, std::byte* dst, const std::byte* src, size_t nbytes) override;
  void move(WorkStream work_stream, const std::vector<DevicePart>& parts, DType from, DType to, double factor) override;
  void fold(WorkStream work_stream, const std::vector<DeviceFold>& folds, const Reduction& reduction) override;
  void encode(WorkStream work_stream, Codec codec, const std::byte* src, std::byte* dst, size_t count) override;
  void decode(WorkStream work_stream, Codec codec, const std::byte* src, std::byte* dst, size_t count) override;
  WorkStream add_work_stream() override;
  void remove_work_stream(WorkStream work_stream) override { work_streams_.remove(work_stream); }
  size_t work_streams() const override { return work_streams_.count(); }
  Mark mark(WorkStream work_stream) override;
  void follow(WorkStream work_stream, const Mark& mark) override;
  bool passed(const Mark& mark) override;
  bool is_busy() const override { return work_streams_.is_busy(); }
  Stream stream(WorkStream work_stream) const override;
  std::shared_ptr<void> make_current() override;

 private:
  static constexpr uintptr_t kFirstWorkStream = 0x1000;  // streams of the work streams

  class Point;
  void check() const;
  std::byte* used(const FakeOperand& place);
  void issue(WorkStream work_stream, std::function<void()> work);

  const FakeOptions options_;
  const Kernels& kernels_ = kernels("auto");
  mutable std::mutex mutex_;
  std::string broken_;
  FakeSpace space_;
  std::atomic<size_t> forgotten_{0};
  std::atomic<uint64_t> launches_{0};
  std::atomic<bool> is_full_{false};
  FakeWorkStreams work_streams_;  // the last, so that it ends first: its actions use the rest
};

}  // namespace rr::test
