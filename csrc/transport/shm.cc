// Link over two single-producer single-consumer byte rings in shared memory.
//
// head and tail count bytes since the start and never wrap (2^64); the reader owns tail, the writer owns head. A
// release store of head publishes the bytes before it, a release store of tail hands the space back.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>

#include "transport/link.h"

namespace rr {
namespace {

struct RingHeader {
  alignas(64) std::atomic<uint64_t> head;
  alignas(64) std::atomic<uint64_t> tail;
};

class ByteRing {
 public:
  ByteRing(std::byte* memory, size_t capacity)
      : header_(*reinterpret_cast<RingHeader*>(memory)), bytes_(memory + sizeof(RingHeader)), capacity_(capacity) {}

  size_t write(const std::byte* src, size_t nbytes) {
    const uint64_t head = header_.head.load(std::memory_order_relaxed);
    const size_t space = capacity_ - static_cast<size_t>(head - header_.tail.load(std::memory_order_acquire));
    const size_t moved = std::min(nbytes, space);
    if (moved == 0) return 0;  // an empty tensor has no address
    const size_t at = head % capacity_;
    const size_t before_wrap = std::min(moved, capacity_ - at);
    std::memcpy(bytes_ + at, src, before_wrap);
    std::memcpy(bytes_, src + before_wrap, moved - before_wrap);
    header_.head.store(head + moved, std::memory_order_release);
    return moved;
  }

  // Hands up to nbytes of arrived bytes to consume(src, offset, n), n a multiple of granule (at most 8 bytes), in
  // contiguous pieces; an element that straddles the wrap goes through a copy of its own.
  template <class Consume>
  size_t read(size_t nbytes, size_t granule, Consume consume) {
    size_t moved = 0;
    for (int piece = 0; piece < 3; ++piece) {
      const uint64_t tail = header_.tail.load(std::memory_order_relaxed);
      const size_t arrived = static_cast<size_t>(header_.head.load(std::memory_order_acquire) - tail);
      const size_t at = tail % capacity_;
      const size_t wanted = std::min(nbytes - moved, arrived);
      size_t n = std::min(wanted, capacity_ - at) / granule * granule;
      if (n == 0 && wanted >= granule) {
        std::byte element[8];
        const size_t before_wrap = capacity_ - at;
        std::memcpy(element, bytes_ + at, before_wrap);
        std::memcpy(element + before_wrap, bytes_, granule - before_wrap);
        consume(element, moved, granule);
        n = granule;
      } else if (n != 0) {
        consume(bytes_ + at, moved, n);
      } else {
        break;
      }
      header_.tail.store(tail + n, std::memory_order_release);
      moved += n;
    }
    return moved;
  }

 private:
  RingHeader& header_;
  std::byte* bytes_;
  size_t capacity_;
};

class ShmLink final : public Link {
 public:
  ShmLink(std::byte* outgoing, std::byte* incoming, size_t capacity, Bell& peer_bell)
      : out_(outgoing, capacity), in_(incoming, capacity), peer_bell_(peer_bell) {}

  size_t push(const void* src, size_t nbytes) override {
    return rung(out_.write(static_cast<const std::byte*>(src), nbytes));
  }

  size_t pull(void* dst, size_t nbytes) override {
    return rung(in_.read(nbytes, 1, [dst](const std::byte* src, size_t offset, size_t n) {
      std::memcpy(static_cast<std::byte*>(dst) + offset, src, n);
    }));
  }

  size_t fold(void* dst, size_t nbytes, const Reduction& reduction, const Kernels& kernels) override {
    const size_t item = itemsize(reduction.dtype);
    return rung(in_.read(nbytes, item, [&](const std::byte* src, size_t offset, size_t n) {
      void* at = static_cast<std::byte*>(dst) + offset;
      const void* inputs[2] = {at, src};
      kernels.reduce(reduction, inputs, 2, &at, 1, n / item);
    }));
  }

 private:
  size_t rung(size_t moved) {
    if (moved != 0) ring(peer_bell_);
    return moved;
  }

  ByteRing out_;
  ByteRing in_;
  Bell& peer_bell_;
};

}  // namespace

size_t shm_link_nbytes(size_t capacity) { return sizeof(RingHeader) + capacity; }

std::unique_ptr<Link> shm_link(std::byte* outgoing, std::byte* incoming, size_t capacity, Bell& peer_bell) {
  return std::make_unique<ShmLink>(outgoing, incoming, capacity, peer_bell);
}

}  // namespace rr
