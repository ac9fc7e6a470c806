// What memory can do: the attributes that matter, memory mapped piece by piece, and a peer that maps ours.

#include <unistd.h>

#include <cstring>

#include "gpu/survey.h"
#include "probe.h"

namespace rr {

std::string Rig::beside_work(const std::function<void()>& call) {
  constexpr int kCopies = 800;
  const size_t nbytes = cuda->needs_image() ? size_t{256} << 20 : kNbytes;  // 0.13 ms a copy at 4 TB/s
  const DeviceMemory pair(*device, 2 * nbytes);
  for (int i = 0; i < kCopies; ++i) device->copy(WorkStream::kCompute, pair.data() + nbytes, pair.data(), nbytes);
  const Mark last = device->mark(WorkStream::kCompute);
  const auto ms_since = [](int64_t begin) { return static_cast<double>(now_ns() - begin) * 1e-6; };
  const bool was_busy = !device->passed(last);
  const int64_t begin = now_ns();
  call();
  const double took = ms_since(begin);
  const bool is_busy = !device->passed(last);
  await(*device, WorkStream::kCompute);
  char text[160];
  std::snprintf(text, sizeof text, "%s after %.2f ms of %.2f, the GPU %s",
                was_busy ? "returned" : "NOT TRIED: returned", took, ms_since(begin),
                is_busy ? "still at work" : "idle");
  return text;
}

namespace {

void attributes(Rig& rig) {
  static constexpr std::pair<const char*, int> kAsked[] = {
      {"compute mode", 20},       {"copy engines", 40},    {"pageable access", 88}, {"host pointers registered", 91},
      {"host register", 99},      {"virtual memory", 102}, {"posix fds", 103},      {"memory pools", 115},
      {"64-bit memory ops", 122},
  };
  std::string text =
      "CUDA " + rig.cuda->version() + (rig.cuda->func_load != nullptr ? ", cuFuncLoad" : ", no cuFuncLoad");
  bool good = rig.cuda->func_load != nullptr;
  for (const auto& [name, which] : kAsked) {
    int value = -1;
    rig.cuda->device_get_attribute(&value, which, rig.device->ordinal());
    text += std::string(", ") + name + " " + std::to_string(value);
    if (which == static_cast<int>(cu::kAttributeHostPointerForRegistered)) good = good && value == 1;
  }
  const auto at = reinterpret_cast<cu::DevicePtr>(rig.memory());
  uint64_t legacy = 0;
  rig.check(rig.cuda->pointer_get_attribute(&legacy, static_cast<int>(cu::kPointerLegacyIpcCapable), at),
            "cuPointerGetAttribute(IS_LEGACY_CUDA_IPC_CAPABLE)");
  good = good && legacy != 0;
  answer("attributes", good, text + ", legacy IPC " + std::to_string(legacy));
}

// Which GPU an address is on, asked by a thread that has no context, as for arrays of other libraries.
void without_context(Rig& rig) {
  int found = -1;
  cu::Result result = cu::kUnknown;
  const Beside asked([&] {
    int ordinal = -1;
    result = rig.cuda->pointer_get_attribute(&ordinal, static_cast<int>(cu::kPointerDeviceOrdinal),
                                             reinterpret_cast<cu::DevicePtr>(rig.memory()));
    found = gpu_of(rig.memory());
  });
  const bool returned = asked.ends_within(rig.patience_s);
  answer("without-context", returned && asked.error().empty() && found == rig.device->ordinal(),
         returned ? "GPU " + std::to_string(found) + "; cuPointerGetAttribute by itself: " + rig.cuda->text(result) +
                        " " + asked.error()
                  : "it did not return");
}

// Two pieces side by side, as torch's expandable segments have them: what the driver says of each.
void pieces(Rig& rig) {
  const std::string& library = rig.cuda->library();
  const auto create =
      driver_function<cu::MemHandle*, size_t, const cu::MemAllocationProp*, unsigned long long>(library, "cuMemCreate");
  const size_t nbytes = size_t{4} << 20;
  cu::MemAllocationProp prop = {};
  prop.type = static_cast<int>(cu::kAllocationTypePinned);
  prop.requested_handle_types = static_cast<int>(cu::kHandleTypePosixFd);
  prop.location = {static_cast<int>(cu::kLocationTypeDevice), rig.device->ordinal()};
  cu::DevicePtr base = 0;
  rig.check(rig.cuda->mem_address_reserve(&base, 2 * nbytes, 0, 0, 0), "cuMemAddressReserve");
  for (const size_t at : {size_t{0}, nbytes}) {
    cu::MemHandle handle = 0;
    rig.check(create(&handle, nbytes, &prop, 0), "cuMemCreate");
    rig.check(rig.cuda->mem_map(base + at, nbytes, 0, handle, 0), "cuMemMap");
    rig.check(rig.cuda->mem_release(handle), "cuMemRelease");
  }
  const cu::MemAccessDesc access = {prop.location, static_cast<int>(cu::kAccessReadWrite)};
  rig.check(rig.cuda->mem_set_access(base, 2 * nbytes, &access, 1), "cuMemSetAccess");
  bool good = true;
  std::string text;
  uint64_t ids[2] = {};
  for (const size_t at : {size_t{0}, nbytes}) {
    cu::DevicePtr begin = 0;
    size_t length = 0;
    uint64_t types = 0;
    rig.check(rig.cuda->mem_get_address_range(&begin, &length, base + at + 100), "cuMemGetAddressRange");
    rig.check(rig.cuda->pointer_get_attribute(&ids[at / nbytes], static_cast<int>(cu::kPointerBufferId), base + at),
              "cuPointerGetAttribute(BUFFER_ID)");
    rig.check(rig.cuda->pointer_get_attribute(&types, static_cast<int>(cu::kPointerAllowedHandleTypes), base + at),
              "cuPointerGetAttribute(ALLOWED_HANDLE_TYPES)");
    cu::MemHandle handle = 0;
    rig.check(rig.cuda->mem_retain_allocation_handle(&handle, reinterpret_cast<void*>(base + at)),
              "cuMemRetainAllocationHandle");
    int fd = -1;
    rig.check(rig.cuda->mem_export_to_shareable_handle(&fd, handle, static_cast<int>(cu::kHandleTypePosixFd), 0),
              "cuMemExportToShareableHandle");
    good = good && begin == base + at && length == nbytes && (types & cu::kHandleTypePosixFd) != 0 && fd >= 0;
    text += (at == 0 ? "piece at +" : "; piece at +") + std::to_string(begin - base) + " of " + std::to_string(length) +
            " bytes, handle types " + std::to_string(types);
  }
  good = good && ids[0] != ids[1];
  answer("pieces", good, text + (ids[0] != ids[1] ? "" : "; ONE buffer id for both"));
}

std::string hex(const cu::IpcMemHandle& handle) {
  std::string text;
  for (const char byte : handle.reserved) {
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
    text += digits;
  }
  return text;
}

cu::IpcMemHandle unhex(const std::string& text) {
  cu::IpcMemHandle handle = {};
  for (size_t i = 0; i < sizeof handle.reserved && 2 * i + 1 < text.size(); ++i) {
    handle.reserved[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return handle;
}

// Whether what gives memory back waits until the GPU is idle.
void giving_back(Rig& rig) {
  std::byte* const host = pages(Rig::kNbytes);
  rig.device->pin(host, Rig::kNbytes);
  const std::string unpin = rig.beside_work([&] { rig.device->unpin(host); });
  std::byte* const memory = rig.device->allocate(Rig::kNbytes);
  rig.device->release(memory);
  const std::string free = rig.beside_work([&] { rig.device->free_released(); });
  answer("giving-back", true, "cuMemHostUnregister " + unpin + "; cuMemFree " + free);
}

// Small allocations, as CuPy's pool makes them, lie in one block of the driver's; a peer opens a handle of each.
void small_peer(Rig& rig) {
  std::vector<std::string> words = {"peer-small"};
  for (uint32_t number = 1; number <= 3; ++number) {
    cu::IpcMemHandle handle = {};
    cu::DevicePtr at = 0;
    rig.check(rig.cuda->mem_alloc(&at, 1024), "cuMemAlloc");
    *rig.host().as<uint32_t>() = number;
    to_device(*rig.device, reinterpret_cast<std::byte*>(at), rig.host().data(), sizeof number);
    rig.check(rig.cuda->ipc_get_mem_handle(&handle, at), "cuIpcGetMemHandle");
    words.push_back(hex(handle));
  }
  OtherProcess other(words);
  if (const int status = other.status(); status != 0) {
    return answer("peer-small", false, "status " + std::to_string(status) + " of the other process");
  }
  std::printf("%s", other.rest().c_str());
  std::fflush(stdout);
}

// Whether a peer can map memory at an address where it still maps what was freed there; and whether mapping waits until
// the GPU is idle.
void stale_peer(Rig& rig) {
  OtherProcess other({"peer-stale"});
  char seen = 0;
  cu::DevicePtr first = 0;
  bool is_same = true;
  for (uint32_t number = 1; number <= 2; ++number) {
    cu::IpcMemHandle handle = {};
    cu::DevicePtr at = 0;
    rig.check(rig.cuda->mem_alloc(&at, Rig::kStaleNbytes), "cuMemAlloc");
    *rig.host().as<uint32_t>() = number;
    to_device(*rig.device, reinterpret_cast<std::byte*>(at), rig.host().data(), sizeof number);
    rig.check(rig.cuda->ipc_get_mem_handle(&handle, at), "cuIpcGetMemHandle");
    is_same = number == 1 || at == first;
    first = at;
    other.write(&handle, sizeof handle);
    if (number == 2) break;
    other.read(&seen, 1);
    rig.check(rig.cuda->mem_free(at), "cuMemFree");
  }
  if (!is_same) answer("peer-stale-address", true, "the driver gave another address");
  if (const int status = other.status(); status != 0) {
    return answer("peer-stale", false, "status " + std::to_string(status) + " of the other process");
  }
  std::printf("%s", other.rest().c_str());
  std::fflush(stdout);
}

}  // namespace

int probe_stale_peer() {
  Rig& rig = *std::make_unique<Rig>().release();
  std::string text, opening;
  bool good = true;
  for (uint32_t number = 1; number <= 2; ++number) {
    cu::IpcMemHandle handle = {};
    if (::read(0, &handle, sizeof handle) != static_cast<ssize_t>(sizeof handle)) ::_exit(1);
    cu::DevicePtr at = 0;
    cu::Result result = cu::kUnknown;
    const auto open = [&] { result = rig.cuda->ipc_open_mem_handle(&at, handle, cu::kIpcLazyEnablePeerAccess); };
    if (number == 1) {
      open();
    } else {
      opening = rig.beside_work(open);
    }
    uint32_t found = 0;
    if (result == cu::kSuccess) {
      to_host(*rig.device, rig.host().data(), reinterpret_cast<const std::byte*>(at), sizeof found);
      found = *rig.host().as<uint32_t>();
    }
    good = good && found == number;
    text += (number == 1 ? "" : "; beside the stale mapping: ") + rig.cuda->text(result) + ", " + std::to_string(found);
    if (number == 2) answer("peer-stale", true, (good ? "" : "NOT so: ") + text);
    if (number == 2) answer("peer-open", true, "cuIpcOpenMemHandle " + opening);
    if (number == 1 && ::write(1, "o", 1) != 1) ::_exit(1);
  }
  ::_exit(0);
}

int probe_small_peer(const std::vector<std::string>& handles) {
  Rig& rig = *std::make_unique<Rig>().release();
  bool good = true;
  std::string text;
  cu::DevicePtr last = 0;
  try {
    uint32_t number = 0;
    for (const std::string& handle : handles) {
      cu::DevicePtr at = 0;
      rig.check(rig.cuda->ipc_open_mem_handle(&at, unhex(handle), cu::kIpcLazyEnablePeerAccess),
                ("cuIpcOpenMemHandle of number " + std::to_string(++number)).c_str());
      to_host(*rig.device, rig.host().data(), reinterpret_cast<const std::byte*>(at), sizeof number);
      const uint32_t found = *rig.host().as<uint32_t>();
      good = good && found == number;
      last = at;
      text += (text.empty() ? "" : ", ") + std::to_string(found) + " in allocation " + std::to_string(number);
    }
  } catch (const std::exception& error) {
    good = false;
    text += error.what();
  }
  answer("peer-small", good, text);
  try {
    const std::string close =
        rig.beside_work([&] { rig.check(rig.cuda->ipc_close_mem_handle(last), "cuIpcCloseMemHandle"); });
    answer("peer-close", true, "cuIpcCloseMemHandle " + close);
  } catch (const std::exception& error) {
    answer("peer-close", false, error.what());
  }
  ::_exit(0);
}

void add_memory_probes(std::vector<Probe>& probes) {
  probes.push_back({"attributes", attributes});
  probes.push_back({"without-context", without_context});
  probes.push_back({"pieces", pieces});
  probes.push_back({"peer-small", small_peer});
  probes.push_back({"peer-stale", stale_peer});
  probes.push_back({"giving-back", giving_back});
}

}  // namespace rr
