// Which calls of the driver wait for a stream that is held, and whether our work streams go on meanwhile. A caller's
// thread may make any of them while its stream is held for an operation of ours; ours makes those that have to return.

#include <sys/mman.h>

#include "gpu/cuda/launch/image.h"
#include "gpu/cuda/launch/tables.h"
#include "probe.h"

namespace rr {
namespace {

using Call = std::function<cu::Result()>;  // made before the stream is held, called after

struct Asked {
  const char* name;
  bool must_return;  // our own thread calls it while callers' streams may be held
  std::function<Call(Rig&)> prepare;
};

constexpr size_t kNbytes = size_t{64} << 20;

cu::DevicePtr device_memory(Rig& rig) {
  cu::DevicePtr at = 0;
  rig.check(rig.cuda->mem_alloc(&at, kNbytes), "cuMemAlloc");
  return at;
}

void* pages() {
  void* const at = ::mmap(nullptr, kNbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  return at;
}

cu::Module module_of(Rig& rig) {
  cu::Module loaded = nullptr;
  static constexpr char kNone[1] = {};
  const void* const image = kernel_image() != nullptr ? kernel_image() : kNone;
  rig.check(rig.cuda->module_load_data(&loaded, image), "cuModuleLoadData");
  return loaded;
}

// The first launch of a kernel that nobody has loaded: what lazy loading puts off until then.
Call first_launch(Rig& rig) {
  const std::vector<DevicePart> parts = {{rig.memory(), rig.memory() + Rig::kNbytes, Rig::kNbytes / 4}};
  const Launch launch = move_launch(parts, DType::kFloat32, DType::kFloat16, 1.0, 4);
  cu::Function function = nullptr;
  rig.check(rig.cuda->module_get_function(&function, module_of(rig), launch.kernel), "cuModuleGetFunction");
  return [&rig, launch, function, stream = rig.stream()] {
    LaunchArgument argument = launch.argument(nullptr);
    void* parameters[] = {&argument};
    return rig.cuda->launch_kernel(function, launch.grid, 1, 1, launch.block, 1, 1, 0, stream, parameters, nullptr);
  };
}

const std::vector<Asked>& calls() {
  static const std::vector<Asked> all = {
      {"cuCtxSynchronize", false,
       [](Rig& rig) -> Call { return driver_function<>(rig.cuda->library(), "cuCtxSynchronize"); }},
      {"cuMemAlloc", true,
       [](Rig& rig) -> Call {
         return [&rig] {
           cu::DevicePtr at = 0;
           return rig.cuda->mem_alloc(&at, kNbytes);
         };
       }},
      {"cuMemFree", false,
       [](Rig& rig) -> Call { return [&rig, at = device_memory(rig)] { return rig.cuda->mem_free(at); }; }},
      {"cuMemHostAlloc", true,
       [](Rig& rig) -> Call {
         return [&rig] {
           void* at = nullptr;
           return rig.cuda->mem_host_alloc(&at, kNbytes, cu::kHostAllocPortable);
         };
       }},
      {"cuMemFreeHost", false,
       [](Rig& rig) -> Call {
         void* at = nullptr;
         rig.check(rig.cuda->mem_host_alloc(&at, kNbytes, cu::kHostAllocPortable), "cuMemHostAlloc");
         return [&rig, at] { return rig.cuda->mem_free_host(at); };
       }},
      {"cuMemHostRegister", true,
       [](Rig& rig) -> Call {
         return [&rig, at = pages()] {
           return rig.cuda->mem_host_register(at, kNbytes, cu::kHostRegisterPortable | cu::kHostRegisterDevicemap);
         };
       }},
      {"cuMemHostUnregister", false,
       [](Rig& rig) -> Call {
         void* const at = pages();
         rig.check(rig.cuda->mem_host_register(at, kNbytes, cu::kHostRegisterPortable), "cuMemHostRegister");
         return [&rig, at] { return rig.cuda->mem_host_unregister(at); };
       }},
      {"cuMemcpyAsync-pageable", false,
       [](Rig& rig) -> Call {
         return [&rig, from = pages(), to = device_memory(rig), stream = rig.stream()] {
           return rig.cuda->memcpy_async(to, reinterpret_cast<cu::DevicePtr>(from), kNbytes, stream);
         };
       }},
      {"cuIpcGetMemHandle", true,
       [](Rig& rig) -> Call {
         return [&rig, at = device_memory(rig)] {
           cu::IpcMemHandle handle = {};
           return rig.cuda->ipc_get_mem_handle(&handle, at);
         };
       }},
      {"cuPointerGetAttribute", true,
       [](Rig& rig) -> Call {
         return [&rig, at = device_memory(rig)] {
           unsigned long long id = 0;
           return rig.cuda->pointer_get_attribute(&id, static_cast<int>(cu::kPointerBufferId), at);
         };
       }},
      {"cuModuleLoadData", false, [](Rig& rig) -> Call { return [&rig] { return module_of(rig), cu::kSuccess; }; }},
      {"cuModuleUnload", false,
       [](Rig& rig) -> Call { return [&rig, loaded = module_of(rig)] { return rig.cuda->module_unload(loaded); }; }},
      {"cuLaunchKernel-first", false, first_launch},
      {"cuStreamCreate", false, [](Rig& rig) -> Call { return [&rig] { return rig.stream(), cu::kSuccess; }; }},
      {"cuStreamDestroy", false,
       [](Rig& rig) -> Call { return [&rig, made = rig.stream()] { return rig.cuda->stream_destroy(made); }; }},
      {"cuEventCreate", true,
       [](Rig& rig) -> Call {
         return [&rig] {
           cu::Event made = nullptr;
           return rig.cuda->event_create(&made, cu::kEventDisableTiming);
         };
       }},
      {"cuDevicePrimaryCtxRetain", true,
       [](Rig& rig) -> Call {
         return [&rig] {
           cu::Context context = nullptr;
           return rig.cuda->device_primary_ctx_retain(&context, 0);
         };
       }},
  };
  return all;
}

// With the default stream held, as torch's own is, and with another one.
void ask(Rig& rig, const Asked& asked, const std::string& name) {
  bool good = true;
  std::string text;
  for (const bool is_default : {false, true}) {
    const cu::Stream held = is_default ? nullptr : rig.stream();
    const Call call = asked.prepare(rig);
    const Beside warm = rig.work_streams();
    if (!warm.ends_within(20)) throw TimeoutError("work streams did not even go on while nothing was held");
    auto result = std::make_shared<std::atomic<int>>(cu::kSuccess);
    rig.hold(held);
    const cu::Event behind = rig.event(held);
    const Beside called([&rig, call, result] {
      const auto current = rig.device->make_current();
      result->store(call());
    });
    const bool returned = called.ends_within(asked.must_return ? rig.patience_s : kReturnS);
    const Beside work = rig.work_streams();
    const bool went_on = work.ends_within(rig.patience_s);
    const bool was_held = !rig.passes_within(behind, 0.001);
    rig.let_go();
    const bool ended = called.ends_within(rig.patience_s) && work.ends_within(rig.patience_s) &&
                       rig.passes_within(behind, rig.patience_s);
    text += std::string(text.empty() ? "" : "; ") + (is_default ? "default stream held: " : "a stream held: ") +
            (returned ? "returns" : "waits") + (went_on ? ", work streams go on" : ", WORK STREAMS STOP") +
            (was_held ? "" : ", THE HOLD HELD NOTHING") + (ended ? "" : ", STUCK for good");
    if (result->load() != cu::kSuccess) text += ", " + rig.cuda->text(result->load());
    if (!called.error().empty()) text += ", " + called.error();
    if (!work.error().empty()) text += ", work streams: " + work.error();
    good = good && went_on && was_held && ended && (returned || !asked.must_return) && work.error().empty() &&
           called.error().empty() && result->load() == cu::kSuccess;
    if (!ended) break;
  }
  answer(name, good, text + (asked.must_return ? " (must return)" : ""));
}

}  // namespace

void add_call_probes(std::vector<Probe>& probes) {
  for (const Asked& asked : calls()) {
    const std::string name = std::string("call-") + asked.name;
    probes.push_back({name, [&asked, name](Rig& rig) { ask(rig, asked, name); }});
  }
}

}  // namespace rr
