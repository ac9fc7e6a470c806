// The objects that Python holds, and the calls that give up the GIL: arguments to a request, the request to its group.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "engine/bench.h"
#include "engine/context.h"
#include "engine/gpu/device_queue.h"
#include "python_memory.h"

namespace py = pybind11;

namespace rr {

inline void interrupt() {
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// A forked child inherits the objects but neither the engine thread nor the control segments, so it only forgets them.
inline std::shared_ptr<Context> guard_fork(std::unique_ptr<Context> context) {
  const pid_t owner = ::getpid();
  return std::shared_ptr<Context>(context.release(), [owner](Context* item) {
    if (::getpid() != owner) return;
    std::optional<py::gil_scoped_release> release;  // the last holder may be a framework's thread, without the GIL
    if (Py_IsInitialized() != 0 && PyGILState_Check() != 0) release.emplace();
    std::unique_ptr<Context>(item).reset();
  });
}

// A call without the GIL. When an interpreter ends, a thread that wants the GIL back is ended by force, inside whatever
// C++ frame it is in, which ends the process with SIGABRT. So shutdown(), which an exiting process calls while threads
// may still get the GIL, waits for those that are in here; and once it has begun, calls keep the GIL: they no longer
// block.
class WithoutGil {
 public:
  explicit WithoutGil(const Context& context) {
    if (context.is_shut_down()) return;
    inside_.fetch_add(1);
    ++own_;
    released_.emplace();
  }
  ~WithoutGil() {
    if (!released_) return;
    released_.reset();
    --own_;
    inside_.fetch_sub(1);
  }
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;

  // The GIL is not held. A signal's handler may call this from inside a call of its own thread.
  static void await_others() {
    constexpr double kPatienceS = 5;  // they have been told to leave, and look around every 0.1 s at the latest
    const Deadline deadline = Deadline::after_s(kPatienceS);
    while (inside_.load() > own_ && !deadline.passed()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  inline static std::atomic<int> inside_{0};
  inline static thread_local int own_ = 0;
  std::optional<py::gil_scoped_release> released_;
};

struct PyOutput {
  OperationPtr operation;
};

struct PyGroup {
  std::shared_ptr<Context> context;
  std::shared_ptr<Group> group;
  // With the GIL. Without it another thread may remove the group: hold() it before.
  Group& get() const { return *hold(); }
  std::shared_ptr<Group> hold() const {
    if (group == nullptr) throw InvalidArgumentError("the group has been removed");
    return group;
  }
};

// Of host memory: an operation of the group. Of GPU memory: one of the queue, which submits it to the group later.
struct PyWork {
  PyGroup group;
  OperationPtr operation;
  DeviceOperationPtr device;

  DeviceQueue& queue() const { return group.context->device_queue(); }
  void wait(std::optional<double> timeout) const {
    bool in_time = true;
    {
      const WithoutGil unlocked(*group.context);
      const double timeout_s = timeout.value_or(-1.0);
      in_time = device != nullptr ? queue().wait(*device, timeout_s, interrupt)
                                  : group.get().wait(*operation, timeout_s, interrupt);
    }
    trash().empty();
    if (!in_time) throw TimeoutError("the operation is still pending after " + std::to_string(*timeout) + " s");
  }
  bool done() const {
    const WithoutGil unlocked(*group.context);
    return device != nullptr ? queue().done(*device) : group.get().poll(*operation);
  }
  void hold(uintptr_t stream) const {
    if (device == nullptr) throw InvalidArgumentError("hold: this operation is not on GPU memory");
    const bool blocks = group.context->settings().cuda_blocking && !device->is_recurring;
    if (blocks) return wait(std::nullopt);
    const WithoutGil unlocked(*group.context);
    queue().hold(*device, reinterpret_cast<Stream>(stream));
  }
  // Null before a stream has come to it.
  OperationPtr inner() const { return device != nullptr ? queue().inner(*device) : operation; }
};

struct PySegment {
  std::shared_ptr<SegmentRegistry> owner = registry();
  Segment segment;
  pid_t creator = ::getpid();
  PySegment(int fd, uint64_t uid, int region, int regions, size_t nbytes) : segment(fd, uid, region, regions, nbytes) {
    owner->add(&segment);
  }
  ~PySegment() {
    // In a forked child the registry is of no use, and may have been copied while another thread held its lock.
    if (::getpid() == creator) owner->remove(&segment);
  }
};

// From the first operation on a GPU's memory on, that is the rank's GPU.
inline void use_gpu(Context& context, int ordinal) {
  const Device* device = context.device();
  if (device == nullptr || device->ordinal() != ordinal) context.use_device(cuda_device(ordinal));
}

inline std::string name_of(const py::object& name) {
  try {
    return name.cast<std::string>();
  } catch (const py::cast_error&) {  // also of a str with a lone surrogate
    throw InvalidArgumentError("name=" + py::repr(name).cast<std::string>() +
                               ": a str of whole characters is expected");
  }
}

// The one place where a request meets the core.
inline PyWork submit(const PyGroup& group, Request& request, const py::object& name, std::unique_ptr<Held> held) {
  trash().empty();
  std::string text;
  if (!name.is_none()) {
    text = name_of(name);
    if (is_automatic_name(text)) {
      throw InvalidArgumentError("'" + text +
                                 "' is how unnamed operations on GPU memory are called; take another name");
    }
    request.name = &text;
  }
  const int ordinal = held->ordinal;
  const std::vector<Stream> streams = held->streams;
  request.keep = keep(std::move(held));
  const PyGroup members{group.context, group.hold()};
  const WithoutGil unlocked(*members.context);
  if (ordinal == -1) return {members, members.group->submit(request, interrupt), nullptr};
  use_gpu(*members.context, ordinal);
  return {members, nullptr, members.context->device_queue().submit(*members.group, request, streams)};
}

inline Request reduce_request(Kind kind, int op, double prescale, double postscale) {
  Request request;
  request.kind = kind;
  request.op = op_from_code(op);
  request.prescale = prescale;
  request.postscale = postscale;
  request.is_async = true;
  return request;
}

inline Codec codec_from(const py::object& wire) {
  return wire.is_none() ? Codec::kNone : codec_from_name(wire.cast<std::string>());
}

inline void allreduce(const PyGroup& group, py::handle src, py::handle dst, int op, double prescale, double postscale,
                      const py::object& name, const py::object& wire) {
  const Codec codec = codec_from(wire);
  const bool is_on_gpu = is_device_form(src) || is_device_form(dst);
  if (name.is_none() && !is_on_gpu) {
    Borrowed src_buffer;
    Borrowed dst_buffer;
    const TensorView in = view_of(src, dst.is(src), src_buffer.buffer);
    const TensorView out = dst.is(src) ? in : view_of(dst, true, dst_buffer.buffer);
    const std::shared_ptr<Group> members = group.hold();
    const Reduction reduction = {in.dtype, op_from_code(op), prescale, postscale, members->size()};
    const WithoutGil unlocked(*group.context);
    if (members->allreduce_quick(in, out, reduction, interrupt, codec)) return;
  }
  auto held = std::make_unique<Held>();
  Request request = reduce_request(Kind::kAllreduce, op, prescale, postscale);
  request.is_async = false;
  request.codec = codec;
  request.srcs.push_back(view_of(src, false, *held));
  request.dsts.push_back(view_of(dst, true, *held));
  const std::vector<Stream> streams = held->streams;
  const PyWork work = submit(group, request, name, std::move(held));
  if (!is_on_gpu) return work.wait(std::nullopt);
  work.hold(reinterpret_cast<uintptr_t>(streams.back()));
}

inline PyWork allreduce_async(const PyGroup& group, const py::sequence& srcs, const py::sequence& dsts, int op,
                              double prescale, double postscale, const py::object& name, const py::object& wire) {
  auto held = std::make_unique<Held>();
  Request request = reduce_request(Kind::kAllreduce, op, prescale, postscale);
  request.codec = codec_from(wire);
  for (const py::handle src : srcs) request.srcs.push_back(view_of(src, false, *held));
  for (const py::handle dst : dsts) request.dsts.push_back(view_of(dst, true, *held));
  return submit(group, request, name, std::move(held));
}

inline PyWork reduce_async(const PyGroup& group, Kind kind, py::handle src, py::handle dst, int op, double prescale,
                           double postscale, int root, const py::object& name) {
  auto held = std::make_unique<Held>();
  Request request = reduce_request(kind, op, prescale, postscale);
  request.root = root;
  request.srcs.push_back(view_of(src, false, *held));
  // On other ranks than the root a reduce does not write its output.
  request.dsts.push_back(view_of(dst, kind != Kind::kReduce || group.get().rank() == root, *held));
  return submit(group, request, name, std::move(held));
}

// src and dst may be None where the kind does not use them.
inline PyWork exchange_async(const PyGroup& group, Kind kind, const py::object& src, const py::object& dst, int root,
                             std::vector<uint64_t> splits, const py::object& name,
                             std::vector<uint64_t> expected = {}) {
  auto held = std::make_unique<Held>();
  Request request;
  request.kind = kind;
  request.root = root;
  request.is_async = true;
  request.splits = std::move(splits);
  request.expected = std::move(expected);
  if (!src.is_none()) request.srcs.push_back(view_of(src, false, *held));
  if (!dst.is_none()) request.dsts.push_back(view_of(dst, true, *held));
  return submit(group, request, name, std::move(held));
}

inline PyWork message(const PyGroup& group, py::handle buffer, int peer, int tag, bool outgoing) {
  trash().empty();
  auto held = std::make_unique<Held>();
  const TensorView view = view_of(buffer, !outgoing, *held);
  const int ordinal = held->ordinal;
  const std::vector<Stream> streams = held->streams;
  auto kept = keep(std::move(held));
  const PyGroup members{group.context, group.hold()};
  const WithoutGil unlocked(*members.context);
  Group& g = *members.group;
  if (view.place == Place::kDevice) {
    use_gpu(*members.context, ordinal);
    const DeviceTask task = outgoing ? DeviceTask::kSend : DeviceTask::kReceive;
    DeviceQueue& queue = members.context->device_queue();
    return {members, nullptr, queue.message(g, task, view, peer, tag, std::move(kept), streams)};
  }
  return {members, outgoing ? g.send(view, peer, tag, std::move(kept)) : g.receive(view, peer, tag, std::move(kept)),
          nullptr};
}

// Between arrays of one GPU, for libraries that are not asked to copy.
inline PyWork copy_on_gpu(const PyGroup& world, py::handle src, py::handle dst) {
  trash().empty();
  auto held = std::make_unique<Held>();
  const TensorView from = view_of(src, false, *held);
  const TensorView to = view_of(dst, true, *held);
  if (from.place != Place::kDevice || to.place != Place::kDevice || from.nbytes() != to.nbytes()) {
    throw InvalidArgumentError("copy_on_gpu: two arrays of one size on a GPU");
  }
  const int ordinal = held->ordinal;
  const std::vector<Stream> streams = held->streams;
  auto kept = keep(std::move(held));
  const WithoutGil unlocked(*world.context);
  use_gpu(*world.context, ordinal);
  return {world, nullptr, world.context->device_queue().copy(from, to, std::move(kept), streams)};
}

inline Kind kind_from(const std::string& text) {
#define RR_MATCH(id, upper, lower) \
  if (text == lower) return Kind::id;
  RR_KINDS(RR_MATCH)
#undef RR_MATCH
  throw InvalidArgumentError("no collective is called '" + text + "'");
}

inline BenchJob bench_job(const PyGroup& group, const std::string& kind, py::handle src, py::handle dst, int op,
                          int iters, Held& held) {
  BenchJob job;
  job.kind = kind_from(kind);
  job.src = view_of(src, true, held);
  job.dst = view_of(dst, true, held);
  if (held.ordinal != -1)
    throw UnavailableError("these figures are of host memory; benchmarks/gpu.py has those of GPUs");
  job.reduction = {job.src.dtype, op_from_code(op), 1.0, 1.0, group.get().size()};
  job.iters = iters;
  return job;
}

}  // namespace rr
