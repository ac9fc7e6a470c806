#include "transport/mpi/mpi_message.h"

#include <climits>
#include <cstdlib>
#include <new>
#include <utility>

#include "base/errors.h"

namespace rr {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

MpiMessage::MpiMessage(size_t size)
    : memory(static_cast<std::byte*>(
                 std::aligned_alloc(kAlignment, (size + 2 * kAlignment - kHeaderNbytes) / kAlignment * kAlignment)),
             [](std::byte* bytes) { std::free(bytes); }),
      nbytes(size) {
  if (size > INT_MAX) throw InvalidArgumentError("MPI: a message has at most 2^31 - 1 bytes");
  if (memory == nullptr) throw std::bad_alloc();
}

MpiMessage::MpiMessage(std::byte* data, size_t size, std::shared_ptr<void> holder)
    : memory(nullptr, [](std::byte*) {}), nbytes(size), elsewhere(data), keep(std::move(holder)) {
  if (size > INT_MAX) throw InvalidArgumentError("MPI: a message has at most 2^31 - 1 bytes");
}

}  // namespace rr
