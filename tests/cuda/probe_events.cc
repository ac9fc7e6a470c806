// Events: that one on a caller's stream is asked without waiting, and what ordering ranks by events of each other's
// processes would rest on.

#include <unistd.h>

#include "probe.h"

namespace rr {
namespace {

constexpr unsigned kInterprocess = 4;  // CU_EVENT_INTERPROCESS
constexpr double kReleaseS = 5;

struct EventHandle {
  char reserved[64];
};

// An event that another process can open, and its handle.
struct Exported {
  explicit Exported(Rig& rig) {
    const auto get = driver_function<EventHandle*, cu::Event>(rig.cuda->library(), "cuIpcGetEventHandle");
    rig.check(rig.cuda->event_create(&event, cu::kEventDisableTiming | kInterprocess), "cuEventCreate");
    rig.check(get(&handle, event), "cuIpcGetEventHandle");
  }
  cu::Event event = nullptr;
  EventHandle handle = {};
};

std::string rounded(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f us", seconds * 1e6);
  return text;
}

// The queue's thread asks for the events of callers' streams again and again, while those are at work.
void point(Rig& rig) {
  const cu::Stream busy = rig.stream();
  rig.hold(busy);
  const auto recorded = rig.device->record(busy);
  double slowest = 0, sum = 0;
  bool early = false;
  constexpr int kTimes = 1000;
  for (int i = 0; i < kTimes; ++i) {
    const int64_t begin = now_ns();
    early = recorded->passed() || early;
    const double took = static_cast<double>(now_ns() - begin) * 1e-9;
    slowest = std::max(slowest, took);
    sum += took;
  }
  rig.let_go();
  const int64_t begin = now_ns();
  const Deadline deadline = Deadline::after_s(rig.patience_s);
  bool passed = false;
  while (!(passed = recorded->passed()) && !deadline.passed()) continue;
  answer("point", passed && !early,
         "a look takes " + rounded(sum / kTimes) + ", at most " + rounded(slowest) + "; seen " +
             rounded(static_cast<double>(now_ns() - begin) * 1e-9) + " after its stream may go on");
}

// Whether a stream here waits for what a stream of another process is at, and what becomes of it if that one is killed.
void peer_event(Rig& rig) {
  if (!rig.cuda->needs_image()) return answer("peer-event", true, "not asked: the tests' driver has no such events");
  const auto open = driver_function<cu::Event*, EventHandle>(rig.cuda->library(), "cuIpcOpenEventHandle");
  for (const bool dies : {false, true}) {
    OtherProcess other({"peer-event"});
    EventHandle handle = {};
    other.read(&handle, sizeof handle);  // recorded on a held stream by then
    cu::Event theirs = nullptr;
    rig.check(open(&theirs, handle), "cuIpcOpenEventHandle");
    const cu::Stream waits = rig.stream();
    rig.check(rig.cuda->stream_wait_event(waits, theirs, 0), "cuStreamWaitEvent");
    const cu::Event behind = rig.event(waits);
    const bool early = rig.passes_within(behind, 0.2);
    const int64_t begin = now_ns();
    if (dies) {
      other.kill();
    } else {
      other.write("g", 1);
    }
    std::string failed;
    bool released = false;
    try {
      released = rig.passes_within(behind, kReleaseS);
    } catch (const Error& error) {
      failed = error.what();
    }
    const std::string after = rounded(static_cast<double>(now_ns() - begin) * 1e-9);
    answer(dies ? "peer-event-dead" : "peer-event", !early && (released || dies),
           (early ? "the stream did NOT wait" : "the stream waits") + std::string(", released ") +
               (released ? "after " + after : "NEVER") + (dies ? " when the other process was killed " : " ") + failed);
  }
}

}  // namespace

int probe_peer_event() {
  Rig& rig = *std::make_unique<Rig>().release();
  const Exported exported(rig);
  const cu::Stream held = rig.stream();
  rig.hold(held);
  rig.check(rig.cuda->event_record(exported.event, held), "cuEventRecord");
  if (::write(1, &exported.handle, sizeof exported.handle) != static_cast<ssize_t>(sizeof exported.handle)) return 1;
  char byte = 0;
  if (::read(0, &byte, 1) != 1) ::_exit(1);
  rig.let_go();
  rig.passes_within(exported.event, kReleaseS);
  if (::read(0, &byte, 1) < 0) ::_exit(1);  // until nobody needs the event any more
  ::_exit(0);
}

void add_event_probes(std::vector<Probe>& probes) {
  probes.push_back({"point", point});
  probes.push_back({"peer-event", peer_event});
}

}  // namespace rr
