// Holds and host functions in streams: that they do what they are documented to, how long they take, and how many
// streams may be held before others stop because the hardware's queues are shared (CUDA_DEVICE_MAX_CONNECTIONS).

#include "probe.h"

namespace rr {
namespace {

double microseconds_since(int64_t begin) { return static_cast<double>(now_ns() - begin) * 1e-3; }

std::string rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f us", value);
  return text;
}

// A word that a host function raises.
struct Reached {
  std::atomic<int> times{0};
  static void raise(void* self) { static_cast<Reached*>(self)->times.fetch_add(1); }
  bool is(int wanted, double seconds) const {
    const Deadline deadline = Deadline::after_s(seconds);
    while (times.load() < wanted) {
      if (deadline.passed()) return false;
      std::this_thread::yield();
    }
    return true;
  }
};

void order(Rig& rig) {
  bool good = true;
  std::string text;
  for (const bool is_default : {false, true}) {
    const cu::Stream stream = is_default ? nullptr : rig.stream();
    Reached reached;
    double notified = 1e9, went = 1e9;
    for (int turn = 1; turn <= 5; ++turn) {
      int64_t begin = now_ns();
      rig.device->notify(stream, Reached::raise, &reached);
      good = reached.is(turn, rig.patience_s) && good;
      notified = std::min(notified, microseconds_since(begin));
      rig.hold(stream);
      const cu::Event behind = rig.event(stream);
      good = !rig.passes_within(behind, 0.02) && good;  // held
      begin = now_ns();
      rig.let_go();
      good = rig.passes_within(behind, rig.patience_s) && good;
      went = std::min(went, microseconds_since(begin));
    }
    text += std::string(is_default ? "; default stream" : "a stream") + ": a host function after " + rounded(notified) +
            ", released within " + rounded(went);
  }
  answer("hold-and-notify", good, text);
}

// How many streams may be held until our work streams, or a caller's further stream, no longer go on.
void channels(Rig& rig, bool is_urgent) {
  size_t work_streams_at_most = 0, others_at_most = 0, count = 0;
  bool work_streams_go_on = true, others_go_on = true, all_ended = true;
  std::vector<cu::Stream> held;
  for (count = 1; count <= 128 && work_streams_go_on; count *= 2) {
    while (held.size() < count) held.push_back(rig.stream(is_urgent));
    const cu::Stream other = rig.stream(is_urgent);
    std::vector<cu::Event> behind;
    for (const cu::Stream stream : held) {
      rig.hold(stream);
      behind.push_back(rig.event(stream));
    }
    const Beside work = rig.work_streams();
    work_streams_go_on = work.ends_within(rig.patience_s);
    others_go_on = others_go_on && rig.passes_within(rig.event(other), 0.1);
    if (work_streams_go_on) work_streams_at_most = count;
    if (others_go_on) others_at_most = count;
    rig.let_go();
    for (const cu::Event event : behind) all_ended = rig.passes_within(event, rig.patience_s) && all_ended;
    all_ended = work.ends_within(rig.patience_s) && all_ended;
  }
  answer(is_urgent ? "held-urgent-streams" : "held-streams", all_ended && work_streams_at_most >= 128,
         "work streams go on beside " + std::to_string(work_streams_at_most) + " held streams, another stream beside " +
             std::to_string(others_at_most) + (all_ended ? "" : "; NOT all streams went on afterwards"));
}

// A caller that runs ahead of a held stream until the driver takes no more: whether our work streams go on, and its
// notify()s.
void full_queue(Rig& rig) {
  constexpr int kLaunches = 20000;
  auto issued = std::make_shared<std::atomic<int>>(0);
  const cu::Stream held = rig.stream();
  rig.hold(held);
  const Beside caller([&rig, issued, held] {
    const auto current = rig.device->make_current();
    const auto to = reinterpret_cast<cu::DevicePtr>(rig.memory());
    const auto from = reinterpret_cast<cu::DevicePtr>(rig.host().data());
    for (int i = 0; i < kLaunches; ++i, ++*issued) {
      rig.check(rig.cuda->memcpy_async(to, from, 64, held), "cuMemcpyAsync");
    }
  });
  const bool all_taken = caller.ends_within(2 * kReturnS);
  const int at = issued->load();
  const Beside work = rig.work_streams();
  const bool went_on = work.ends_within(rig.patience_s);
  const cu::Stream other = rig.stream();
  Reached reached;
  const Beside notifying([&rig, &reached, other] {
    const auto current = rig.device->make_current();
    rig.device->notify(other, Reached::raise, &reached);
  });
  const bool notified = reached.is(1, rig.patience_s);
  rig.let_go();
  const bool ended = caller.ends_within(2 * rig.patience_s) && work.ends_within(rig.patience_s);
  answer("full-queue", went_on && notified && ended && caller.error().empty(),
         (all_taken ? "all 20000 copies taken" : "the caller blocks after " + std::to_string(at) + " copies") +
             (went_on ? ", work streams go on" : ", WORK STREAMS STOP") +
             (notified ? "" : ", NO NOTIFY of another stream") + (ended ? "" : ", STUCK for good") + caller.error());
}

// Whether a callback of somebody else's that takes its time keeps ours waiting.
void callbacks(Rig& rig) {
  static std::atomic<bool> may_end{false};
  Reached reached;
  const cu::Stream slow = rig.stream(), ours = rig.stream();
  rig.check(rig.cuda->launch_host_func(
                slow,
                [](void*) {
                  const Deadline deadline = Deadline::after_s(5);
                  while (!may_end.load() && !deadline.passed()) std::this_thread::yield();
                },
                nullptr),
            "cuLaunchHostFunc");
  rig.device->notify(ours, Reached::raise, &reached);
  const bool beside = reached.is(1, kReturnS);
  const Beside work = rig.work_streams();
  const bool went_on = work.ends_within(rig.patience_s);
  may_end.store(true);
  const bool after = reached.is(1, rig.patience_s);
  answer("slow-callback", went_on && after,
         std::string(beside ? "ours comes beside a slow one" : "ours waits for a slow one of another stream") +
             (went_on ? ", work streams go on" : ", WORK STREAMS STOP") + (after ? "" : ", and never comes"));
}

void capture(Rig& rig) {
  const std::string& library = rig.cuda->library();
  const auto begin = driver_function<cu::Stream, int>(library, "cuStreamBeginCapture_v2");
  const auto end = driver_function<cu::Stream, void**>(library, "cuStreamEndCapture");
  const auto instantiate = driver_function<void**, void*, unsigned long long>(library, "cuGraphInstantiateWithFlags");
  const auto launch = driver_function<void*, cu::Stream>(library, "cuGraphLaunch");
  const cu::Stream stream = rig.stream();
  Reached reached;
  uint32_t* const word = rig.device->words() + 1;
  void* graph = nullptr;
  void* ready = nullptr;
  rig.check(begin(stream, static_cast<int>(cu::kCaptureModeGlobal)), "cuStreamBeginCapture");
  bool good = rig.device->is_capturing(stream);
  rig.device->notify(stream, Reached::raise, &reached);
  rig.device->hold(stream, word, 1);
  const Beside beside = rig.work_streams();  // our thread's calls, in the strictest mode, while the caller's captures
  good = beside.ends_within(rig.patience_s) && beside.error().empty() && good;
  rig.check(rig.cuda->memcpy_async(reinterpret_cast<cu::DevicePtr>(rig.memory()),
                                   reinterpret_cast<cu::DevicePtr>(rig.host().data()), Rig::kNbytes, stream),
            "cuMemcpyAsync");
  rig.check(end(stream, &graph), "cuStreamEndCapture");
  rig.check(instantiate(&ready, graph, 0), "cuGraphInstantiate");
  for (int turn = 1; turn <= 3; ++turn) {
    __atomic_store_n(word, 0u, __ATOMIC_RELEASE);
    rig.check(launch(ready, stream), "cuGraphLaunch");
    const cu::Event behind = rig.event(stream);
    good = reached.is(turn, rig.patience_s) && good;
    good = !rig.passes_within(behind, 0.02) && good;
    const Beside work = rig.work_streams();
    good = work.ends_within(rig.patience_s) && good;
    __atomic_store_n(word, 1u, __ATOMIC_RELEASE);
    good = rig.passes_within(behind, rig.patience_s) && good;
  }
  answer("capture", good,
         std::to_string(reached.times.load()) + " of 3 replays notified" +
             (beside.error().empty() ? "" : "; work streams while capturing: " + beside.error()));
}

}  // namespace

void add_stream_probes(std::vector<Probe>& probes) {
  probes.push_back({"hold-and-notify", order});
  probes.push_back({"held-streams", [](Rig& rig) { channels(rig, false); }});
  probes.push_back({"held-urgent-streams", [](Rig& rig) { channels(rig, true); }});
  probes.push_back({"full-queue", full_queue});
  probes.push_back({"slow-callback", callbacks});
  probes.push_back({"capture", capture});
}

}  // namespace rr
