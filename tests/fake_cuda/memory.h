// Memory that the fake driver knows. That of a device is a memory file, mapped here at the address that is its device
// pointer; other processes open the file through /proc, or get its descriptor, as with CUDA's two kinds of IPC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "os/fd.h"
#include "state.h"

namespace fake {

enum class Kind {
  kLegacy,      // cuMemAlloc
  kPool,        // cuMemAllocAsync: nobody else can map it
  kMapped,      // cuMemMap
  kImported,    // cuIpcOpenMemHandle
  kHost,        // cuMemHostAlloc
  kRegistered,  // cuMemHostRegister
};

// A file of device memory: what cuMemCreate makes, and what lies behind every other kind.
struct File {
  rr::Fd fd;
  size_t nbytes = 0;
  int ordinal = 0;
  bool is_exportable = true;
};

struct Block {
  Kind kind = Kind::kLegacy;
  uintptr_t base = 0;
  size_t nbytes = 0;  // as asked for; whole pages are mapped
  int ordinal = 0;
  uint64_t id = 0;
  std::shared_ptr<File> file;  // null for host memory
  int users = 1;               // kImported
  bool is_accessible = true;   // kMapped: cuMemSetAccess has been called
};

inline constexpr const char* kFileName = "fake-gpu-memory-";  // and the ordinal
constexpr size_t kGranularity = size_t{2} << 20;
size_t whole_pages(size_t nbytes);
std::shared_ptr<File> new_file(size_t nbytes, int ordinal, bool is_exportable);
bool peers_allowed();  // FAKE_CUDA_PEER, default 1

// All below lock the registry.
std::optional<Block> block_at(uintptr_t address);  // that the address lies in
// A new id. False: it overlaps another.
bool add_block(Block block);
bool remove_block(uintptr_t base, Kind kind);  // false: there is none
// Applies `change` to the block that begins there.
bool change_block(uintptr_t base, void (*change)(Block&, int), int argument);
// Device memory in use, against FAKE_CUDA_MEMORY (bytes of a device; 0: no limit).
bool fits(int ordinal, size_t nbytes);
// What two pointers of a copy are: device or pinned memory, within one block; else pageable, or freed.
enum class Reach { kDevice, kStaged, kPageable, kBeyond };
Reach reach(uintptr_t address, size_t nbytes);

}  // namespace fake
