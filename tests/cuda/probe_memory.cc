// What memory can do: the attributes that matter, memory mapped piece by piece, and a peer that maps ours while streams
// are held on both sides.

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>

#include "probe.h"

namespace rr {
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

void peer(Rig& rig) {
  cu::IpcMemHandle handle = {};
  cu::DevicePtr at = 0;
  rig.check(rig.cuda->mem_alloc(&at, size_t{64} << 20), "cuMemAlloc");
  rig.check(rig.cuda->ipc_get_mem_handle(&handle, at), "cuIpcGetMemHandle");
  const cu::Stream held = rig.stream();
  rig.hold(held);
  const std::string text = hex(handle);
  std::array<char, 4096> program = {};
  if (::readlink("/proc/self/exe", program.data(), program.size() - 1) < 0) throw Error("/proc/self/exe");
  const pid_t child = ::fork();
  if (child == 0) {
    ::execl(program.data(), program.data(), "peer", text.c_str(), static_cast<char*>(nullptr));
    ::_exit(127);
  }
  int status = 0;
  const Deadline deadline = Deadline::after_s(10);
  while (::waitpid(child, &status, WNOHANG) == 0) {
    if (deadline.passed()) {
      ::kill(child, SIGKILL);
      throw TimeoutError("the other process did not end within 10 s");
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const Beside work = rig.lanes();
  const bool went_on = work.ends_within(rig.patience_s);
  rig.let_go();
  answer("peer-owner", went_on && status == 0, went_on ? "lanes of the owner go on" : "LANES of the owner STOP");
}

}  // namespace

int probe_peer(const std::string& text) {
  Rig& rig = *std::make_unique<Rig>().release();
  try {
    cu::IpcMemHandle handle = {};
    for (size_t i = 0; i < sizeof handle.reserved && 2 * i + 1 < text.size(); ++i) {
      handle.reserved[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
    }
    const cu::Stream held = rig.stream();
    rig.hold(held);
    const cu::Event behind = rig.event(held);
    auto at = std::make_shared<cu::DevicePtr>(0);
    const auto timed_call = [&rig](std::function<cu::Result()> call) {
      return Beside([&rig, call = std::move(call)] {
        const auto current = rig.device->make_current();
        rig.check(call(), "in the other process");
      });
    };
    const Beside opened = timed_call(
        [&rig, at, handle] { return rig.cuda->ipc_open_mem_handle(at.get(), handle, cu::kIpcLazyEnablePeerAccess); });
    const bool opens = opened.ends_within(rig.patience_s);
    const Beside work = rig.lanes();
    const bool went_on = work.ends_within(rig.patience_s);
    rig.let_go();
    bool good =
        opened.ends_within(rig.patience_s) && rig.passes_within(behind, rig.patience_s) && opened.error().empty();
    rig.hold(held);
    const Beside closed = timed_call([&rig, at] { return rig.cuda->ipc_close_mem_handle(*at); });
    const bool closes = closed.ends_within(kReturnS);
    rig.let_go();
    good = closed.ends_within(rig.patience_s) && closed.error().empty() && good;
    answer("peer", good && opens && went_on,
           std::string("cuIpcOpenMemHandle ") + (opens ? "returns" : "waits") + ", cuIpcCloseMemHandle " +
               (closes ? "returns" : "waits") + (went_on ? ", lanes go on" : ", LANES STOP") + " " + opened.error() +
               closed.error());
    ::_exit(good ? 0 : 1);
  } catch (const std::exception& error) {
    answer("peer", false, error.what());
  }
  ::_exit(1);
}

void add_memory_probes(std::vector<Probe>& probes) {
  probes.push_back({"attributes", attributes});
  probes.push_back({"pieces", pieces});
  probes.push_back({"peer-owner", peer});
}

}  // namespace rr
