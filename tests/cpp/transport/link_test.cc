// The conformance suite of Link, for every transport: a transport is one line at the end. Order, wrap-around, full and
// empty, folds of whole elements only, and two threads that move 10 MB in random pieces. MPI is a fake of ours, and
// with RR_TEST_MPI=/path/to/libmpi.so that one (tests/python/mpi/test_mpi_link.py names every one that is here).
#include "transport/link.h"

#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "doctest/doctest.h"
#include "fakes/fake_mpi.h"
#include "support/delayed_link.h"
#include "support/expect.h"
#include "support/mpi_real.h"
#include "support/tcp_ranks.h"
#include "transport/mpi/mpi_communicator.h"

namespace rr {
namespace {

// Two ends of one edge.
struct Pair {
  std::unique_ptr<Link> a;
  std::unique_ptr<Link> b;
  size_t capacity = 0;  // bytes that fit on the way for certain
  size_t at_most = 0;   // bytes that fit on the way at the very most
  int patience = 1;     // calls until one that finds nothing possible is believed
  std::shared_ptr<void> keep;
  // Bytes that have gone before an element comes. Where bytes lie in a ring, elements then straddle its end.
  std::vector<size_t> offsets = {0, 1, 2, 3, 5, 7};
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
  return {shm_link(ab, ba, capacity, memory->bells[1]),
          shm_link(ba, ab, capacity, memory->bells[0]),
          capacity,
          capacity,
          1,
          memory};
}

// Its time goes on by 10 us with each call.
Pair delayed_pair() {
  Pair pair = shm_pair();
  for (auto* end : {&pair.a, &pair.b}) {
    test::DelayOptions options;
    options.clock = [time_ns = int64_t{0}]() mutable { return time_ns += 10'000; };
    *end = std::make_unique<test::DelayedLink>(std::move(*end), std::mt19937(end == &pair.a ? 1 : 2), options);
  }
  pair.at_most += test::DelayedLink::kAhead;
  pair.patience = 2'000;  // a delay is at most 10 ms
  return pair;
}

// Both ends in one process: rank 0 talks to itself, with one tag for each direction.
Pair mpi_pair(std::shared_ptr<MpiLibrary> library, const RealMpi::Handles& handles, int patience) {
  const auto communicator = std::make_shared<MpiCommunicator>(std::move(library), handles.comm_self, handles.byte,
                                                              handles.errors_return, 10.0, [] {});
  const MpiLinkOptions options = {1031, 5};  // bytes, so that elements straddle messages; messages
  const size_t capacity = options.message_nbytes * options.depth;
  return {mpi_link(communicator, 0, 1, 2, options),
          mpi_link(communicator, 0, 2, 1, options),
          capacity,
          2 * capacity,
          patience,
          communicator};
}

Pair fake_mpi_pair() { return mpi_pair(std::make_shared<FakeMpi>(), {}, 1); }

Pair real_mpi_pair() { return mpi_pair(real_mpi().library, real_mpi().handles, 10'000); }

// Two ranks over the loopback interface. The first looks make the connection.
Pair tcp_pair(Encrypt encrypt) {
  auto ranks = std::make_shared<test::TcpRanks>(2, encrypt);
  Pair pair = {ranks->networks[0]->link(1, 0), ranks->networks[1]->link(0, 0), 64 << 10, 16 << 20, 50'000, ranks};
  std::byte nothing;
  test::wait_for([&] { return pair.a->push(&nothing, 1) != 0; });
  test::wait_for([&] { return pair.b->pull(&nothing, 1) != 0; });
  pair.offsets = {0, 3};  // no ring; and to see that nothing has come takes 50'000 system calls
  return pair;
}

std::byte pattern(size_t i) { return static_cast<std::byte>(i * 131 + i / 251); }

// Bytes from..from+n of the pattern.
std::vector<std::byte> bytes(size_t from, size_t n) {
  std::vector<std::byte> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = pattern(from + i);
  return out;
}

// Calls move(offset) until n bytes are moved or it has moved nothing for as long as the transport may take.
template <class Move>
size_t insist(const Pair& pair, size_t n, Move move) {
  size_t done = 0;
  for (int failures = 0; done < n && failures < pair.patience;) {
    const size_t moved = move(done);
    failures = moved == 0 ? failures + 1 : 0;
    done += moved;
  }
  return done;
}

size_t push(const Pair& pair, Link& link, const void* src, size_t n) {
  return insist(pair, n, [&](size_t done) { return link.push(static_cast<const std::byte*>(src) + done, n - done); });
}

size_t pull(const Pair& pair, Link& link, void* dst, size_t n) {
  return insist(pair, n, [&](size_t done) { return link.pull(static_cast<std::byte*>(dst) + done, n - done); });
}

void push_all(const Pair& pair, const void* src, size_t n) { REQUIRE(push(pair, *pair.a, src, n) == n); }

// Leaves both ends `offset` bytes into the memory of the way from a to b.
void advance(const Pair& pair, size_t offset) {
  std::vector<std::byte> skipped(offset);
  push_all(pair, skipped.data(), offset);
  REQUIRE(pull(pair, *pair.b, skipped.data(), offset) == offset);
}

void test_order(Pair pair) {
  const auto sent = bytes(0, 3000);
  push_all(pair, sent.data(), 1000);
  push_all(pair, sent.data() + 1000, 2000);
  std::vector<std::byte> got(3000);
  size_t n = 0;
  for (const size_t piece : {1, 2, 1499, 5000}) {
    n += pull(pair, *pair.b, got.data() + n, std::min(piece, got.size() - n));
  }
  CHECK(n == 3000);
  CHECK(got == sent);
}

void test_both_directions(Pair pair) {
  push_all(pair, bytes(0, 100).data(), 100);
  REQUIRE(push(pair, *pair.b, bytes(5000, 100).data(), 100) == 100);
  std::vector<std::byte> at_a(100), at_b(100);
  CHECK(pull(pair, *pair.a, at_a.data(), 100) == 100);
  CHECK(pull(pair, *pair.b, at_b.data(), 100) == 100);
  CHECK(at_a == bytes(5000, 100));
  CHECK(at_b == bytes(0, 100));
}

void test_empty_and_full(Pair pair) {
  std::vector<std::byte> got(16);
  CHECK(pair.b->pull(got.data(), got.size()) == 0);
  CHECK(pair.a->push(nullptr, 0) == 0);  // an empty tensor has no address
  CHECK(pair.b->pull(nullptr, 0) == 0);
  const auto sent = bytes(0, pair.at_most + 100 + pair.capacity);
  const size_t pushed = push(pair, *pair.a, sent.data(), pair.at_most + 100);
  CHECK(pushed >= pair.capacity);
  CHECK(pushed <= pair.at_most);
  CHECK(pair.a->push(sent.data() + pushed, 1) == 0);
  CHECK(pull(pair, *pair.b, got.data(), 3) == 3);
  size_t more = 0;
  if (pair.capacity == pair.at_most) {
    more = pair.a->push(sent.data() + pushed, 100);
    CHECK(more == 3);  // exactly the room that was made
  }
  std::vector<std::byte> rest(pushed + more - 3);
  CHECK(pull(pair, *pair.b, rest.data(), rest.size()) == rest.size());
  CHECK(rest == bytes(3, rest.size()));
  // What was offered and did not move comes next, and some more.
  const size_t again = std::max(pair.capacity, pair.at_most + 100 - pushed);
  rest.resize(again);
  size_t offered = 0;
  CHECK(insist(pair, again, [&](size_t done) {
          offered += pair.a->push(sent.data() + pushed + more + offered, again - offered);
          return pair.b->pull(rest.data() + done, again - done);
        }) == again);
  CHECK(rest == bytes(pushed + more, again));
  CHECK(pair.b->pull(got.data(), got.size()) == 0);
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
  // All but the last byte at first: a part of the last element comes behind whole ones.
  const auto* const all = reinterpret_cast<const std::byte*>(incoming.data());
  push_all(pair, all, count * sizeof(T) - 1);
  const auto fold = [&](T* dst, size_t n) {
    return insist(pair, n * sizeof(T), [&](size_t done) {
      return pair.b->fold(dst + done / sizeof(T), n * sizeof(T) - done, reduction, portable);
    });
  };
  CHECK(fold(sums.data(), count) == (count - 1) * sizeof(T));
  push_all(pair, all + count * sizeof(T) - 1, 1);
  CHECK(fold(sums.data() + count - 1, 1) == sizeof(T));
  CHECK(sums == expected);
  // An element of which a part has arrived stays where it is, however small the parts are.
  const T one = 1;
  T sum = 41;
  for (size_t i = 0; i + 1 < sizeof(T); ++i) push_all(pair, reinterpret_cast<const std::byte*>(&one) + i, 1);
  CHECK(fold(&sum, 1) == 0);
  CHECK(sum == 41);
  push_all(pair, reinterpret_cast<const std::byte*>(&one) + sizeof(T) - 1, 1);
  CHECK(fold(&sum, 1) == sizeof(T));
  CHECK(sum == 42);
  // Nor do the parts get lost that a fold has looked at and a pull asks for.
  const auto last = bytes(0, sizeof(T) + 1);
  push_all(pair, last.data(), sizeof(T) - 1);
  if (sizeof(T) > 1) CHECK(fold(&sum, 1) == 0);
  push_all(pair, last.data() + sizeof(T) - 1, 2);
  auto got = std::vector<std::byte>(sizeof(T) + 1);
  CHECK(pull(pair, *pair.b, got.data(), got.size()) == got.size());
  CHECK(got == last);
}

void test_stream(Pair pair) {
  constexpr size_t kTotal = 3 << 20;
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
    for (const size_t offset : make().offsets) {
      test_fold<uint8_t>(make(), DType::kUInt8, offset);
      test_fold<int16_t>(make(), DType::kInt16, offset);
      test_fold<float>(make(), DType::kFloat32, offset);
      test_fold<double>(make(), DType::kFloat64, offset);
    }
  }
  SUBCASE("two threads, 3 MB in pieces of random size") { test_stream(make()); }
}

TEST_CASE("link: shm") { conforms(shm_pair); }
TEST_CASE("link: shm, delayed") { conforms(delayed_pair); }
TEST_CASE("link: tcp") {
  conforms([] { return tcp_pair(Encrypt::kOff); });
}
TEST_CASE("link: tcp, encrypted") {
  conforms([] { return tcp_pair(Encrypt::kOn); });
}
TEST_CASE("link: tcp says when bytes had arrived, once it is asked to") {
  const Pair pair = tcp_pair(Encrypt::kOff);
  const auto arrived_ns = [&] {
    push_all(pair, bytes(0, 100).data(), 100);
    std::vector<std::byte> room(100);
    CHECK(pull(pair, *pair.b, room.data(), room.size()) == room.size());
    return pair.b->arrived_ns();
  };
  CHECK(arrived_ns() == 0);
  pair.b->note_arrivals(true);
  test::wait_for([&] { return arrived_ns() != 0; });  // the kernel begins in its own time
  const int64_t before_ns = now_ns();
  const int64_t noted_ns = arrived_ns();
  CHECK(noted_ns >= before_ns);
  CHECK(noted_ns <= now_ns() + 500);
  pair.b->note_arrivals(false);
  CHECK(arrived_ns() == 0);
}
TEST_CASE("link: mpi, a fake") { conforms(fake_mpi_pair); }
TEST_CASE("link: mpi" * doctest::skip(!has_real_mpi())) { conforms(real_mpi_pair); }

}  // namespace
}  // namespace rr
