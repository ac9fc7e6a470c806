#include "python/memory.h"

#include <string>
#include <utility>

#include "base/never_destroyed.h"

namespace rr {
namespace {

DType dtype_of_format(const char* format) {
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  switch (format[0] != '\0' && format[1] == '\0' ? format[0] : '\0') {
    case 'e':
      return DType::kFloat16;
    case 'f':
      return DType::kFloat32;
    case 'd':
      return DType::kFloat64;
    case 'b':
      return DType::kInt8;
    case 'h':
      return DType::kInt16;
    case 'i':
      return DType::kInt32;
    case 'l':
    case 'q':
      return DType::kInt64;
    case 'B':
      return DType::kUInt8;
    case 'H':
      return DType::kUInt16;
    case 'I':
      return DType::kUInt32;
    case 'L':
    case 'Q':
      return DType::kUInt64;
    case '?':
      return DType::kBool;
    default:
      throw InvalidArgumentError(std::string("data type '") + format + "' is not supported");
  }
}

// Frameworks have arrays without memory: traced ones, and those that wrap others.
void check_address(const TensorView& view) {
  if (view.data != nullptr || view.count == 0) return;
  throw InvalidArgumentError("an array of " + std::to_string(view.count) +
                             " elements has no memory (its address is 0): pass one that holds its values, a copy of "
                             "it, say");
}

}  // namespace

TensorView view_of(py::handle object, bool writable, Py_buffer& buffer) {
  TensorView view;
  if (PyTuple_CheckExact(object.ptr())) {
    const auto tuple = py::reinterpret_borrow<py::tuple>(object);
    const py::tuple shape = tuple[1];
    view.data = reinterpret_cast<std::byte*>(tuple[0].cast<uintptr_t>());
    view.dtype = dtype_from_code(tuple[2].cast<int>());
    view.place = is_device_form(object) ? Place::kDevice : Place::kHost;
    view.set_shape(shape.size(), [&](size_t i) { return shape[i].cast<uint64_t>(); });
    check_address(view);
    return view;
  }
  const int flags = PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(object.ptr(), &buffer, flags) != 0) throw py::error_already_set();
  view.data = static_cast<std::byte*>(buffer.buf);
  view.dtype = dtype_of_format(buffer.format != nullptr ? buffer.format : "B");
  view.set_shape(static_cast<size_t>(buffer.ndim), [&](size_t i) { return static_cast<uint64_t>(buffer.shape[i]); });
  if (view.nbytes() != static_cast<size_t>(buffer.len)) {
    throw InvalidArgumentError("a buffer of " + std::to_string(buffer.len) + " bytes, whose shape and format say " +
                               std::to_string(view.nbytes()));
  }
  check_address(view);
  return view;
}

TensorView view_of(py::handle object, bool writable, Held& held) {
  Borrowed borrowed;  // so that what is refused is released
  const TensorView view = view_of(object, writable, borrowed.buffer);
  if (borrowed.buffer.obj != nullptr) {
    held.buffers.push_back(std::exchange(borrowed.buffer, Py_buffer{}));
  } else {
    held.objects.push_back(py::reinterpret_borrow<py::object>(object));  // the tuple, and the owner in it
  }
  if (is_device_form(object)) {
    const auto tuple = py::reinterpret_borrow<py::tuple>(object);
    const int ordinal = tuple[4].cast<int>();
    if (held.ordinal != -1 && held.ordinal != ordinal) throw InternalError("Tensors in list must be on same device.");
    held.ordinal = ordinal;
    held.streams.push_back(reinterpret_cast<Stream>(tuple[5].cast<uintptr_t>()));
  }
  return view;
}

namespace {
Trash*& current_trash() {
  static Trash* instance = &never_destroyed<Trash>();
  return instance;
}
}  // namespace

Trash& trash() { return *current_trash(); }
void forget_trash_after_fork() { current_trash() = &never_destroyed<Trash>(); }

std::shared_ptr<SegmentRegistry> registry() {
  static auto& instance = never_destroyed<std::shared_ptr<SegmentRegistry>>(std::make_shared<SegmentRegistry>());
  return instance;
}

std::shared_ptr<void> keep(std::unique_ptr<Held> held) {
  return std::shared_ptr<Held>(held.release(), [](Held* item) { trash().add(std::unique_ptr<Held>(item)); });
}

}  // namespace rr
