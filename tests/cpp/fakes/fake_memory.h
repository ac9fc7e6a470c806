// The memory of fake GPUs: bytes of the host behind addresses that nobody can read or write.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/never_destroyed.h"
#include "gpu/device.h"

namespace rr::test {

// An allocation. Its address begins a range without access rights; the bytes are elsewhere.
struct FakeBlock {
  std::byte* address = nullptr;
  size_t nbytes = 0;
  uint64_t uid = 0;
  DeviceId device;
  std::shared_ptr<std::vector<std::byte>> bytes;
  std::atomic<bool> is_released{false};
  std::atomic<int> keepers{0};  // of its exports

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
    static auto& memory = never_destroyed<FakeMemory>();
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

// Memory that an action works on; block null: pinned host memory.
struct FakeOperand {
  std::byte* at = nullptr;
  std::shared_ptr<FakeBlock> block;
};

// What one fake GPU knows of memory: its own, that of others which it has mapped, and what of the host's is pinned.
class FakeSpace {
 public:
  // name: for messages. exports: its memory can be mapped by others. imports: it can map that of other GPUs.
  FakeSpace(std::string name, DeviceId id, bool exports, bool imports)
      : name_(std::move(name)), id_(id), exports_(exports), imports_(imports) {}
  ~FakeSpace() {
    for (auto& [address, block] : owned_) FakeMemory::all().remove(*block);
    for (auto& [uid, block] : imported_) FakeMemory::all().remove(*block);
  }
  FakeSpace(const FakeSpace&) = delete;
  FakeSpace& operator=(const FakeSpace&) = delete;

  void set_exports(bool exports) { exports_ = exports; }

  void pin(std::byte* data, size_t nbytes) {
    if (reinterpret_cast<uintptr_t>(data) % 4096 != 0) throw Error("pin: not the beginning of a page");
    const std::lock_guard lock(mutex_);
    pinned_[reinterpret_cast<uintptr_t>(data)] = nbytes;
  }
  void unpin(std::byte* data) {
    const std::lock_guard lock(mutex_);
    if (pinned_.erase(reinterpret_cast<uintptr_t>(data)) == 0) throw Error("unpin: not pinned");
  }
  std::byte* allocate(size_t nbytes) {
    auto block = FakeMemory::all().add(nbytes == 0 ? 1 : nbytes, id_);
    const std::lock_guard lock(mutex_);
    owned_[block->address] = block;
    return block->address;
  }
  void release(std::byte* data) {
    const std::lock_guard lock(mutex_);
    const auto block = owned_.find(data);
    if (block == owned_.end()) throw Error("release: no allocation begins there");
    block->second->is_released.store(true);
    FakeMemory::all().remove(*block->second);
    owned_.erase(block);
  }
  DeviceExport exported(const std::byte* data, size_t nbytes, uint64_t& offset, std::shared_ptr<void>& keep) {
    const auto block = FakeMemory::all().find(data);
    if (block == nullptr) throw InvalidArgumentError("exported: no memory of a fake GPU");
    offset = static_cast<uint64_t>(data - block->address);
    if (offset + nbytes > block->nbytes) throw InvalidArgumentError("exported: beyond the allocation");
    DeviceExport memory;
    memory.uid = exports_ ? block->uid : 0;
    memory.nbytes = block->nbytes;
    memory.device = block->device;
    block->keepers.fetch_add(1);
    keep = std::shared_ptr<void>(block.get(), [block](void*) { block->keepers.fetch_sub(1); });
    return memory;
  }
  std::byte* imported(const DeviceExport& peer) {
    if (peer.uid == 0) throw InternalError(name_ + ": an allocation that cannot be mapped");
    if (!(peer.device == id_) && !imports_) {
      throw InternalError(name_ + ": cuIpcOpenMemHandle: peer access is not supported between these two devices");
    }
    const std::lock_guard lock(mutex_);
    if (const auto known = imported_.find(peer.uid); known != imported_.end()) return known->second->address;
    const auto owner = FakeMemory::all().owner(peer.uid);
    if (owner == nullptr) throw InternalError(name_ + ": cuIpcOpenMemHandle: invalid resource handle");
    if (owner->keepers.load() == 0) throw InternalError(name_ + ": an export that nobody keeps any more");
    ++mappings_;
    auto mapping = FakeMemory::all().add(owner->nbytes, owner->device, owner.get());
    imported_[peer.uid] = mapping;
    return mapping->address;
  }
  void forget(uint64_t uid) {
    const std::lock_guard lock(mutex_);
    const auto known = imported_.find(uid);
    if (known == imported_.end()) return;
    known->second->is_released.store(true);
    FakeMemory::all().remove(*known->second);
    imported_.erase(known);
  }

  // Throws InternalError for what is neither memory of a fake GPU nor pinned, as a whole.
  FakeOperand resolve(const std::byte* data, size_t nbytes) {
    if (nbytes == 0) return {};
    if (auto block = FakeMemory::all().find(data)) {
      const size_t offset = static_cast<size_t>(data - block->address);
      if (offset + nbytes > block->nbytes) throw InternalError(name_ + ": beyond an allocation");
      return {block->bytes->data() + offset, block};
    }
    const std::lock_guard lock(mutex_);
    const auto at = reinterpret_cast<uintptr_t>(data);
    auto next = pinned_.upper_bound(at);
    if (next == pinned_.begin() || at + nbytes > std::prev(next)->first + std::prev(next)->second) {
      throw InternalError(name_ + ": neither memory of the GPU nor pinned");
    }
    return {const_cast<std::byte*>(data), nullptr};
  }
  size_t pinned_ranges() const {
    const std::lock_guard lock(mutex_);
    return pinned_.size();
  }
  // How often another's allocation has been mapped.
  uint64_t mappings() const { return mappings_.load(); }

 private:
  const std::string name_;
  const DeviceId id_;
  std::atomic<bool> exports_;
  const bool imports_;
  mutable std::mutex mutex_;  // of the maps
  std::map<uintptr_t, size_t> pinned_;
  std::map<std::byte*, std::shared_ptr<FakeBlock>> owned_;
  std::map<uint64_t, std::shared_ptr<FakeBlock>> imported_;
  std::atomic<uint64_t> mappings_{0};
};

}  // namespace rr::test
