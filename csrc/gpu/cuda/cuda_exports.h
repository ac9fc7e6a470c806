// Device memory of this process for peers on the same host to map.
//
// What cuMemAlloc gave goes by a CUDA IPC handle. What was mapped piece by piece (torch's expandable segments) goes by
// file descriptors, one a piece; `fd` of the export is a memory file that lists them (cuda_pieces.h).
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "gpu/cuda/cuda_context.h"
#include "os/fd.h"

namespace rr {

// A number that no other process has, in whatever pid namespace.
uint64_t process_number();

// From any thread, with the context current.
class CudaExports {
 public:
  // Exported at a time; of those that nobody keeps, the least recently asked for make room. Each piece costs a
  // descriptor, of which a process usually has 1024.
  static constexpr size_t kExports = 1024;
  static constexpr size_t kDescriptors = 512;

  explicit CudaExports(const CudaContext& context, size_t descriptors = kDescriptors)
      : context_(context), descriptors_(descriptors) {}

  // As Device::exported. uid is 0 for memory that cannot be mapped by others, now or ever; why is logged once.
  DeviceExport exported(const std::byte* data, size_t nbytes, uint64_t& offset, std::shared_ptr<void>& keep);

 private:
  struct Piece {
    cu::DevicePtr base = 0;
    size_t nbytes = 0;
    uint64_t id = 0;
  };
  struct Kept {
    DeviceExport made;
    Piece first;
    std::vector<Fd> fds;
    bool has_room = true;  // else another try may have it
    uint64_t touched = 0;
  };
  using KeptPtr = std::shared_ptr<Kept>;
  // Whether anybody keeps it: mutex_ is held, and who keeps it has got it from here.
  static bool is_in_use(const KeptPtr& kept) { return kept.use_count() > 1; }
  std::vector<Piece> pieces_of(cu::DevicePtr data, size_t nbytes) const;
  uint64_t attribute_of(cu::DevicePtr at, unsigned attribute, const char* doing) const;
  uint64_t id_of(cu::DevicePtr at) const;  // 0: there is no allocation any more
  KeptPtr made(const std::vector<Piece>& pieces, uint64_t uid);
  bool fill_handle(const Piece& piece, DeviceExport& out);
  bool fill_descriptors(const std::vector<Piece>& pieces, Kept& kept);
  bool make_room(size_t descriptors);
  void not_exportable(const std::string& why);

  const CudaContext& context_;
  const size_t descriptors_;  // at most
  std::mutex mutex_;
  std::map<uint64_t, KeptPtr> kept_;  // by uid
  uint64_t clock_ = 0;
  bool has_logged_ = false;
};

}  // namespace rr
