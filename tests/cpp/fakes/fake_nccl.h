// The fake NCCL (tests/fake_nccl) for ranks that are threads, on fake devices; and ranks that have what an algorithm
// needs of a group, without one.
#pragma once

#include <dlfcn.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "../fake_nccl/fake_nccl.h"
#include "base/clock.h"
#include "base/errors.h"
#include "collective/gpu/nccl_path.h"
#include "fakes/fake_device.h"
#include "fakes/fake_library.h"
#include "support/ranks.h"

namespace rr::test {

// The library with its hooks, and a folder for its data. One at a time.
class FakeNccl {
 public:
  explicit FakeNccl(const std::string& path = fake_nccl_library()) : library(nccl_library(path)) {
    char name[] = "/tmp/rr_fake_nccl_XXXXXX";
    if (::mkdtemp(name) == nullptr) throw Error(with_errno("mkdtemp"));
    folder_ = name;
    ::setenv("FAKE_NCCL_DIR", name, 1);
    find(path, "fake_nccl_fail", fail);
    find(path, "fake_nccl_block_abort", block_abort);
    find(path, "fake_nccl_counts", counts);
    find(path, "fake_nccl_hooks", hooks_);
    const FakeNcclHooks hooks = {
        [] { return static_cast<void*>(FakeDevice::current()); },
        [](const void* address) {
          return static_cast<void*>(FakeDevice::host(static_cast<const std::byte*>(address)));
        },
        [](void* device, void* stream, bool (*action)(void*), void (*free)(void*), void* argument) {
          const auto owned = std::shared_ptr<void>(argument, free);
          static_cast<FakeDevice*>(device)->enqueue(stream, [action, owned] { return action(owned.get()); });
        }};
    hooks_(&hooks);
  }
  ~FakeNccl() {
    hooks_(nullptr);
    ::unsetenv("FAKE_NCCL_DIR");
    std::filesystem::remove_all(folder_);
  }
  FakeNccl(const FakeNccl&) = delete;
  // Data that nobody has cleared away.
  bool left_files() const {
    for (const auto& file : std::filesystem::directory_iterator(folder_)) {
      if (file.path().filename().string().find("-end-") == std::string::npos) return true;
    }
    return false;
  }

  const std::shared_ptr<const NcclLibrary> library;
  void (*fail)(int rank, int operation, int code) = nullptr;
  void (*block_abort)(bool blocks) = nullptr;
  FakeNcclCounts (*counts)() = nullptr;

 private:
  template <class Function>
  static void find(const std::string& path, const char* symbol, Function& function) {
    void* handle = ::dlopen(path.c_str(), RTLD_NOW | RTLD_NOLOAD);
    function = reinterpret_cast<Function>(::dlsym(handle, symbol));
    ::dlclose(handle);
    if (function == nullptr) throw Error(std::string("the fake NCCL has no ") + symbol);
  }
  void (*hooks_)(const FakeNcclHooks*) = nullptr;
  std::string folder_;
};

// The memory of the links between ranks that are threads.
class NcclWires {
 public:
  static constexpr size_t kCapacity = 4096;
  explicit NcclWires(int size) : bells_(static_cast<size_t>(size)) {
    for (int i = 0; i < size * size; ++i) {
      memory_.push_back(std::vector<Line>(shm_link_nbytes(kCapacity) / sizeof(Line) + 1));
    }
  }
  std::unique_ptr<Link> link(int from, int to) {
    return shm_link(at(from, to), at(to, from), kCapacity, bells_[static_cast<size_t>(to)]);
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64] = {};
  };
  std::byte* at(int from, int to) {
    return memory_[static_cast<size_t>(from) * bells_.size() + static_cast<size_t>(to)].front().bytes;
  }
  std::vector<Bell> bells_;
  std::vector<std::vector<Line>> memory_;
};

// One rank of a few that are threads, each with a GPU of its own.
struct NcclRank {
  int rank;
  int size;
  FakeDevice device;
  std::vector<std::unique_ptr<Link>> links;
  Log log{LogLevel::kFatal, 0};
  std::shared_ptr<NcclTeams> teams;

  NcclRank(std::shared_ptr<const NcclLibrary> library, NcclWires& loopback, int me, int count)
      : rank(me),
        size(count),
        device(FakeOptions{me, fake_gpu(me), static_cast<uint64_t>(me), false, true, true}),
        teams(std::make_shared<NcclTeams>(std::move(library), device, log,
                                          "rank " + std::to_string(me) + "/" + std::to_string(count))) {
    for (int r = 0; r < count; ++r) links.push_back(r == me ? nullptr : loopback.link(me, r));
  }
  Team team(const std::vector<int>& members) {
    Team team;
    team.members = members;
    for (size_t i = 0; i < members.size(); ++i) {
      if (members[i] == rank) team.me = static_cast<int>(i);
    }
    for (auto& link : links) team.links.push_back(link.get());
    return team;
  }
  Team everyone() {
    std::vector<int> members;
    for (int r = 0; r < size; ++r) members.push_back(r);
    return team(members);
  }
};

}  // namespace rr::test
