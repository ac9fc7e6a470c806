// Bindings: Python objects as tensors, and what keeps their memory alive until the core has finished with it.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "base/never_destroyed.h"
#include "engine/operation.h"

namespace rr {

inline DType dtype_of_format(const char* format) {
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

// The device form of a tensor: (address, shape, dtype code, owner, ordinal of the GPU, stream).
inline bool is_device_form(pybind11::handle object) {
  return PyTuple_CheckExact(object.ptr()) && PyTuple_GET_SIZE(object.ptr()) == 6;
}

// What keeps Python memory alive and unmoved. Released with the GIL held, never on the engine thread: see Trash.
struct Held {
  std::vector<Py_buffer> buffers;
  std::vector<pybind11::object> objects;
  int ordinal = -1;             // of the GPU whose memory it is; -1: host memory
  std::vector<Stream> streams;  // whose work the memory's content comes from
  Held() = default;
  Held(const Held&) = delete;
  ~Held() {
    for (Py_buffer& buffer : buffers) PyBuffer_Release(&buffer);
  }
};

// A buffer for the length of one call; released with the GIL held.
struct Borrowed {
  Py_buffer buffer = {};
  Borrowed() = default;
  Borrowed(const Borrowed&) = delete;
  ~Borrowed() {
    if (buffer.obj != nullptr) PyBuffer_Release(&buffer);
  }
};

// An (address, shape, dtype code, owner) tuple, or its device form, or an object with the buffer protocol, which
// `buffer` then holds.
inline TensorView view_of(pybind11::handle object, bool writable, Py_buffer& buffer) {
  TensorView view;
  if (PyTuple_CheckExact(object.ptr())) {
    const auto tuple = pybind11::reinterpret_borrow<pybind11::tuple>(object);
    const pybind11::tuple shape = tuple[1];
    view.data = reinterpret_cast<std::byte*>(tuple[0].cast<uintptr_t>());
    view.dtype = dtype_from_code(tuple[2].cast<int>());
    view.place = is_device_form(object) ? Place::kDevice : Place::kHost;
    view.set_shape(shape.size(), [&](size_t i) { return shape[i].cast<uint64_t>(); });
    return view;
  }
  const int flags = PyBUF_FORMAT | PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
  if (PyObject_GetBuffer(object.ptr(), &buffer, flags) != 0) throw pybind11::error_already_set();
  view.data = static_cast<std::byte*>(buffer.buf);
  view.dtype = dtype_of_format(buffer.format != nullptr ? buffer.format : "B");
  view.set_shape(static_cast<size_t>(buffer.ndim), [&](size_t i) { return static_cast<uint64_t>(buffer.shape[i]); });
  return view;
}

inline TensorView view_of(pybind11::handle object, bool writable, Held& held) {
  Py_buffer buffer = {};
  const TensorView view = view_of(object, writable, buffer);
  if (buffer.obj != nullptr) {
    held.buffers.push_back(buffer);
  } else {
    held.objects.push_back(pybind11::reinterpret_borrow<pybind11::object>(object));  // the tuple, and the owner in it
  }
  if (is_device_form(object)) {
    const auto tuple = pybind11::reinterpret_borrow<pybind11::tuple>(object);
    const int ordinal = tuple[4].cast<int>();
    if (held.ordinal != -1 && held.ordinal != ordinal) throw InternalError("Tensors in list must be on same device.");
    held.ordinal = ordinal;
    held.streams.push_back(reinterpret_cast<Stream>(tuple[5].cast<uintptr_t>()));
  }
  return view;
}

// Held objects that operations have let go of, on whatever thread; emptied by the next call that has the GIL.
struct Trash {
  std::mutex mutex;
  std::vector<std::unique_ptr<Held>> items;
  void add(std::unique_ptr<Held> item) {
    const std::lock_guard lock(mutex);
    items.push_back(std::move(item));
  }
  void empty() {
    std::vector<std::unique_ptr<Held>> taken;
    {
      const std::lock_guard lock(mutex);
      taken.swap(items);
    }
  }
};

inline Trash& trash() {
  static auto& instance = never_destroyed<Trash>();
  return instance;
}
inline std::shared_ptr<SegmentRegistry> registry() {
  static auto& instance = never_destroyed<std::shared_ptr<SegmentRegistry>>(std::make_shared<SegmentRegistry>());
  return instance;
}

inline std::shared_ptr<void> keep(std::unique_ptr<Held> held) {
  return std::shared_ptr<Held>(held.release(), [](Held* item) { trash().add(std::unique_ptr<Held>(item)); });
}

}  // namespace rr
