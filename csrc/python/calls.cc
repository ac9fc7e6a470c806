#include "python/calls.h"

#include <climits>
#include <optional>
#include <utility>

namespace rr {
namespace {

std::string name_of(const py::object& name) {
  try {
    return name.cast<std::string>();
  } catch (const py::cast_error&) {  // also of a str with a lone surrogate
    throw InvalidArgumentError("name=" + py::repr(name).cast<std::string>() +
                               ": a str of whole characters is expected");
  }
}

double factor_from(py::handle value, const char* argument) {
  const double factor = PyFloat_AsDouble(value.ptr());
  if (factor != -1.0 || PyErr_Occurred() == nullptr) return factor;
  const bool is_too_large = PyErr_ExceptionMatches(PyExc_OverflowError) != 0;
  if (!is_too_large && PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw py::error_already_set();
  PyErr_Clear();
  if (is_too_large) throw InvalidArgumentError(std::string(argument) + ": the number is too large for a float");
  throw InvalidArgumentError(std::string(argument) + "=" + py::repr(value).cast<std::string>() +
                             ": a number is expected");
}

int tag_from(py::handle value) {
  const auto number = py::reinterpret_steal<py::object>(PyNumber_Index(value.ptr()));
  int overflow = 0;
  long long tag = 0;
  if (number) {
    tag = PyLong_AsLongLongAndOverflow(number.ptr(), &overflow);
  } else {
    if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw py::error_already_set();
    PyErr_Clear();
  }
  if (number && overflow == 0 && tag >= INT_MIN && tag <= INT_MAX) return static_cast<int>(tag);
  throw InvalidArgumentError("tag=" + py::repr(value).cast<std::string>() +
                             ": a whole number from 0 to 2147483647 is expected");
}

Request reduce_request(Kind kind, int op, py::handle prescale, py::handle postscale) {
  Request request;
  request.kind = kind;
  request.op = op_from_code(op);
  request.prescale = factor_from(prescale, "prescale_factor");
  request.postscale = factor_from(postscale, "postscale_factor");
  request.is_async = true;
  return request;
}

Codec codec_from(const py::object& wire) {
  if (wire.is_none()) return Codec::kNone;
  if (!py::isinstance<py::str>(wire)) {
    throw InvalidArgumentError("wire=" + py::repr(wire).cast<std::string>() +
                               ": None or the name of a codec is expected, 'fp16', 'bf16' or 'int8'");
  }
  return codec_from_name(wire.cast<std::string>());
}

}  // namespace

void use_gpu(Context& context, int ordinal) {
  const Device* device = context.gpu().device();
  if (device == nullptr || device->ordinal() != ordinal) context.gpu().use(cuda_device(ordinal));
}

PyWork submit(const PyGroup& group, Request& request, const py::object& name, std::unique_ptr<Held> held) {
  trash().empty();
  std::string text;
  if (!name.is_none()) {
    text = name_of(name);
    if (is_automatic_name(text)) {
      throw InvalidArgumentError("'" + text +
                                 "' is how unnamed operations on GPU memory are called; take another name");
    }
    if (!text.empty()) request.name = &text;  // "" is no name, as in the core
  }
  const int ordinal = held->ordinal;
  const std::vector<Stream> streams = held->streams;
  request.keep = keep(std::move(held));
  const PyGroup members{group.context, group.hold()};
  const WithoutGil unlocked(*members.context);
  if (ordinal == -1) return {members, members.group->submit(request, interrupt), nullptr};
  use_gpu(*members.context, ordinal);
  return {members, nullptr, members.context->gpu().queue().submit(*members.group, request, streams)};
}

void allreduce(const PyGroup& group, py::handle src, py::handle dst, int op, py::handle prescale, py::handle postscale,
               const py::object& name, const py::object& wire) {
  const Codec codec = codec_from(wire);
  const bool is_on_gpu = is_device_form(src) || is_device_form(dst);
  if (name.is_none() && !is_on_gpu) {
    Borrowed src_buffer;
    Borrowed dst_buffer;
    const TensorView in = view_of(src, dst.is(src), src_buffer.buffer);
    const TensorView out = dst.is(src) ? in : view_of(dst, true, dst_buffer.buffer);
    const std::shared_ptr<Group> members = group.hold();
    const Reduction reduction = {in.dtype, op_from_code(op), factor_from(prescale, "prescale_factor"),
                                 factor_from(postscale, "postscale_factor"), members->size()};
    const WithoutGil unlocked(*group.context);
    if (members->allreduce_quick(in, out, reduction, interrupt, codec)) return;
  }
  auto held = std::make_unique<Held>();
  Request request = reduce_request(Kind::kAllreduce, op, prescale, postscale);
  request.is_async = false;
  request.codec = codec;
  request.srcs.push_back(view_of(src, false, *held));
  request.dsts.push_back(view_of(dst, true, *held));
  submit(group, request, name, std::move(held)).wait_or_withdraw();
}

PyWork allreduce_async(const PyGroup& group, const py::sequence& srcs, const py::sequence& dsts, int op,
                       py::handle prescale, py::handle postscale, const py::object& name, const py::object& wire) {
  auto held = std::make_unique<Held>();
  Request request = reduce_request(Kind::kAllreduce, op, prescale, postscale);
  request.codec = codec_from(wire);
  for (const py::handle src : srcs) request.srcs.push_back(view_of(src, false, *held));
  for (const py::handle dst : dsts) request.dsts.push_back(view_of(dst, true, *held));
  return submit(group, request, name, std::move(held));
}

PyWork reduce_async(const PyGroup& group, Kind kind, py::handle src, py::handle dst, int op, py::handle prescale,
                    py::handle postscale, int root, const py::object& name) {
  auto held = std::make_unique<Held>();
  Request request = reduce_request(kind, op, prescale, postscale);
  request.root = root;
  request.srcs.push_back(view_of(src, false, *held));
  // On other ranks than the root a reduce does not write its output.
  request.dsts.push_back(view_of(dst, kind != Kind::kReduce || group.get().rank() == root, *held));
  return submit(group, request, name, std::move(held));
}

PyWork exchange_async(const PyGroup& group, Kind kind, const py::object& src, const py::object& dst, int root,
                      std::vector<uint64_t> splits, const py::object& name, std::vector<uint64_t> expected) {
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

PyWork message(const PyGroup& group, py::handle buffer, int peer, py::handle number, bool outgoing) {
  trash().empty();
  const int tag = tag_from(number);
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
    DeviceQueue& queue = members.context->gpu().queue();
    return {members, nullptr, queue.message(g, task, view, peer, tag, std::move(kept), streams)};
  }
  return {members, outgoing ? g.send(view, peer, tag, std::move(kept)) : g.receive(view, peer, tag, std::move(kept)),
          nullptr};
}

PyWork copy_on_gpu(const PyGroup& world, py::handle src, py::handle dst) {
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
  return {world, nullptr, world.context->gpu().queue().copy(from, to, std::move(kept), streams)};
}

Kind kind_from(const std::string& text) {
#define RR_MATCH(id, upper, lower) \
  if (text == lower) return Kind::id;
  RR_KINDS(RR_MATCH)
#undef RR_MATCH
  throw InvalidArgumentError("no collective is called '" + text + "'");
}

BenchJob bench_job(const PyGroup& group, const std::string& kind, py::handle src, py::handle dst, int op, int iters,
                   Held& held) {
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
