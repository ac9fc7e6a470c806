// Python objects as tensors, and what keeps their memory alive until the core has finished with it.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <mutex>
#include <vector>

#include "planner/operation.h"

namespace rr {

namespace py = pybind11;

// The device form of a tensor: (address, shape, dtype code, owner, ordinal of the GPU, stream).
inline bool is_device_form(py::handle object) {
  return PyTuple_CheckExact(object.ptr()) && PyTuple_GET_SIZE(object.ptr()) == 6;
}

// What keeps Python memory alive and unmoved. Released with the GIL held, never on the engine thread: see Trash.
struct Held {
  std::vector<Py_buffer> buffers;
  std::vector<py::object> objects;
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
TensorView view_of(py::handle object, bool writable, Py_buffer& buffer);
// The same; what `object` needs to stay is added to `held`.
TensorView view_of(py::handle object, bool writable, Held& held);

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

Trash& trash();
// In a forked child: a thread that the child does not have may have held the lock.
void forget_trash_after_fork();
// The registered memory of this process.
std::shared_ptr<SegmentRegistry> registry();
// What an operation keeps until it has finished; `held` then goes to the trash.
std::shared_ptr<void> keep(std::unique_ptr<Held> held);

}  // namespace rr
