// The GPU of a rank: which one, the queue of what is ordered after its streams, NCCL, and what its work streams may
// still work on though nobody waits for the result.
#pragma once

#include <atomic>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <vector>

#include "planner/resources.h"

namespace rr {

class Context;
class DeviceQueue;

class RankDevice final : public DeviceResources {
 public:
  // executor: the context's lock. messages: the network's; null without.
  RankDevice(Context& context, std::mutex& executor, const std::shared_ptr<DeviceMessages>& messages);
  ~RankDevice();
  RankDevice(const RankDevice&) = delete;
  RankDevice& operator=(const RankDevice&) = delete;

  // Sets the GPU, at the first operation on its memory; a later call with the same one does nothing. Throws
  // InvalidArgumentError where the rank has another one.
  void use(std::shared_ptr<Device> device);
  Device* device() const override { return device_.load(std::memory_order_acquire); }  // null before use()
  std::shared_ptr<Device> shared_device() const override { return device() != nullptr ? owner_ : nullptr; }
  const std::shared_ptr<DeviceMessages>& device_messages() const override { return messages_; }
  std::shared_ptr<const NcclLibrary> nccl() override;
  // For operations on its memory. Throws InvalidArgumentError before use().
  DeviceQueue& queue() const;
  // Calls work(the GPU) unless another thread is at work; then it returns false. Not to be called before use().
  bool with_work_streams(const std::function<void(Device&)>& work);
  // Keeps memory until the mark has passed. Takes the executor lock.
  void keep(std::shared_ptr<void> memory, const Mark& mark);
  // Whether work streams are at work, which ring no bell.
  bool is_busy() const { return is_busy_.load(std::memory_order_relaxed); }
  // Executor lock held.
  const std::shared_ptr<DeviceMappings>& device_mappings() const override { return mappings_; }
  void abandon(std::unique_ptr<Algorithm> algorithm, const std::vector<OperationPtr>& operations,
               bool to_the_end) override;

 private:
  friend class Groups;  // which holds the executor lock
  // Of what was abandoned: lets go of what work streams have come to the end of.
  void forget_passed();
  void note_busy(bool is_busy) { is_busy_.store(is_busy, std::memory_order_relaxed); }
  // waits_for_peers: a kernel of some group's may be waiting for other ranks.
  void trim_mappings(bool waits_for_peers);
  // Waits for work streams: what they still copy to and from goes away next.
  void drain();

  struct Abandoned {
    bool to_the_end = false;
    std::vector<Mark> marks;
    std::unique_ptr<Algorithm> algorithm;
    std::vector<OperationPtr> operations;
    std::vector<std::shared_ptr<void>> keeps;
  };

  Context& context_;
  std::mutex& executor_;
  const std::shared_ptr<DeviceMessages>& messages_;
  std::shared_ptr<Device> owner_;
  std::atomic<Device*> device_{nullptr};  // set once
  std::shared_ptr<DeviceMappings> mappings_;
  std::future<void> closing_;  // of what has been forgotten
  std::mutex nccl_mutex_;
  std::shared_ptr<const NcclLibrary> nccl_;
  bool has_looked_for_nccl_ = false;
  std::unique_ptr<DeviceQueue> queue_;  // set once, before device_
  std::vector<Abandoned> abandoned_;
  std::atomic<bool> is_busy_{false};
};

}  // namespace rr
