// The conformance suite of Link, for every transport: a transport is one line at the end. Order, wrap-around, full and
// empty, folds of whole elements only, and two threads that move 10 MB in random pieces.
#include "transport/link.h"

#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "doctest/doctest.h"

namespace rr {
namespace {

// Two ends of one edge.
struct Pair {
  std::unique_ptr<Link> a;
  std::unique_ptr<Link> b;
  size_t capacity = 0;  // bytes that fit on the way; 0 = unknown
  std::shared_ptr<void> keep;
};

Pair shm_pair() {
  struct Memory {
    explicit Memory(size_t capacity)
        : nbytes(shm_link_nbytes(capacity)), bytes(new(std::align_val_t{4096}) std::byte[2 * nbytes]()) {}
    ~Memory() { operator delete[](bytes, std::align_val_t{4096}); }
    size_t nbytes;
    std::byte* bytes;
    Bell bells[2] = {};
  };
  const size_t capacity = 4096;
  auto memory = std::make_shared<Memory>(capacity);
  std::byte* ab = memory->bytes;
  std::byte* ba = memory->bytes + memory->nbytes;
  return {shm_link(ab, ba, capacity, memory->bells[1]), shm_link(ba, ab, capacity, memory->bells[0]), capacity, memory};
}

std::byte pattern(size_t i) { return static_cast<std::byte>(i * 131 + i / 251); }

// Bytes from..from+n of the pattern.
std::vector<std::byte> bytes(size_t from, size_t n) {
  std::vector<std::byte> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = pattern(from + i);
  return out;
}

void push_all(Link& link, const void* src, size_t n) { REQUIRE(link.push(src, n) == n); }

// Leaves both ends `offset` bytes into the memory of the way from a to b.
void advance(Pair& pair, size_t offset) {
  std::vector<std::byte> skipped(offset);
  push_all(*pair.a, skipped.data(), offset);
  REQUIRE(pair.b->pull(skipped.data(), offset) == offset);
}

void test_order(Pair pair) {
  const auto sent = bytes(0, 3000);
  push_all(*pair.a, sent.data(), 1000);
  push_all(*pair.a, sent.data() + 1000, 2000);
  std::vector<std::byte> got(3000);
  size_t n = 0;
  for (const size_t piece : {1, 2, 1499, 5000}) n += pair.b->pull(got.data() + n, std::min(piece, got.size() - n));
  CHECK(n == 3000);
  CHECK(got == sent);
}

void test_both_directions(Pair pair) {
  push_all(*pair.a, bytes(0, 100).data(), 100);
  push_all(*pair.b, bytes(5000, 100).data(), 100);
  std::vector<std::byte> at_a(100), at_b(100);
  CHECK(pair.a->pull(at_a.data(), 100) == 100);
  CHECK(pair.b->pull(at_b.data(), 100) == 100);
  CHECK(at_a == bytes(5000, 100));
  CHECK(at_b == bytes(0, 100));
}

void test_empty_and_full(Pair pair) {
  std::vector<std::byte> got(16);
  CHECK(pair.b->pull(got.data(), got.size()) == 0);
  CHECK(pair.a->push(nullptr, 0) == 0);  // an empty tensor has no address
  CHECK(pair.b->pull(nullptr, 0) == 0);
  const auto sent = bytes(0, pair.capacity + 100);
  size_t pushed = 0;
  for (size_t n = 1; n != 0; pushed += n) n = pair.a->push(sent.data() + pushed, sent.size() - pushed);
  CHECK(pushed == pair.capacity);
  CHECK(pair.a->push(sent.data(), 1) == 0);
  CHECK(pair.b->pull(got.data(), 3) == 3);
  CHECK(pair.a->push(sent.data() + pushed, 100) == 3);  // exactly the room that was made
  std::vector<std::byte> rest(pair.capacity);
  CHECK(pair.b->pull(rest.data(), rest.size()) == pair.capacity);
  CHECK(rest == bytes(3, pair.capacity));
}

template <class T>
void test_fold(Pair pair, DType dtype, size_t offset) {
  const Reduction reduction = {dtype, ReduceOp::kSum, 1.0, 1.0, 1};
  const Kernels& portable = kernels(Isa::kPortable);
  const size_t count = pair.capacity / sizeof(T) - 1;
  std::vector<T> incoming(count), sums(count), expected(count);
  for (size_t i = 0; i < count; ++i) {
    incoming[i] = static_cast<T>(i + 1);
    sums[i] = static_cast<T>(2 * i);
    expected[i] = static_cast<T>(3 * i + 1);
  }
  advance(pair, offset);  // the elements are not aligned in the memory of the link, and one straddles its end
  push_all(*pair.a, incoming.data(), count * sizeof(T));
  CHECK(pair.b->fold(sums.data(), count * sizeof(T), reduction, portable) == count * sizeof(T));
  CHECK(sums == expected);
  // An element of which a part has arrived stays where it is.
  const T one = 1;
  T sum = 41;
  push_all(*pair.a, &one, sizeof(T) - 1);
  CHECK(pair.b->fold(&sum, sizeof(T), reduction, portable) == 0);
  CHECK(sum == 41);
  push_all(*pair.a, reinterpret_cast<const std::byte*>(&one) + sizeof(T) - 1, 1);
  CHECK(pair.b->fold(&sum, sizeof(T), reduction, portable) == sizeof(T));
  CHECK(sum == 42);
}

void test_stream(Pair pair) {
  constexpr size_t kTotal = 10 << 20;
  constexpr size_t kLargest = 9000;
  std::thread sender([&] {
    std::mt19937 random(1);
    for (size_t sent = 0; sent < kTotal;) {
      const auto piece = bytes(sent, std::min<size_t>(1 + random() % kLargest, kTotal - sent));
      for (size_t n = 0; n < piece.size();) {
        const size_t moved = pair.a->push(piece.data() + n, piece.size() - n);
        if (moved == 0) std::this_thread::yield();
        n += moved;
      }
      sent += piece.size();
    }
  });
  std::mt19937 random(2);
  size_t wrong = 0;
  std::vector<std::byte> piece(kLargest);
  for (size_t received = 0; received < kTotal;) {
    const size_t n = pair.b->pull(piece.data(), 1 + random() % kLargest);
    if (n == 0) std::this_thread::yield();
    for (size_t i = 0; i < n; ++i) wrong += piece[i] != pattern(received + i);
    received += n;
  }
  sender.join();
  CHECK(wrong == 0);
}

void conforms(Pair (*make)()) {
  SUBCASE("bytes arrive in the order pushed") { test_order(make()); }
  SUBCASE("both directions are independent") { test_both_directions(make()); }
  SUBCASE("empty and full") { test_empty_and_full(make()); }
  SUBCASE("fold, elements straddling the end of the buffer") {
    for (const size_t offset : {0, 1, 2, 3, 5, 7}) {
      test_fold<uint8_t>(make(), DType::kUInt8, offset);
      test_fold<int16_t>(make(), DType::kInt16, offset);
      test_fold<float>(make(), DType::kFloat32, offset);
      test_fold<double>(make(), DType::kFloat64, offset);
    }
  }
  SUBCASE("two threads, 10 MB in pieces of random size") { test_stream(make()); }
}

TEST_CASE("link: shm") { conforms(shm_pair); }

}  // namespace
}  // namespace rr
