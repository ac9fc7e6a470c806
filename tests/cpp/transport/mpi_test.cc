// The MPI transport where an MPI behaves badly, which a fake one does to order: errors, ends, and messages that nobody
// takes. What a link must do in any case is in link_test.cc.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/errors.h"
#include "doctest/doctest.h"
#include "fakes/fake_mpi.h"
#include "support/child.h"
#include "support/expect.h"
#include "support/sanitizer.h"
#include "transport/link.h"
#include "transport/mpi/mpi_communicator.h"

namespace rr {
namespace {

struct Rank {
  std::shared_ptr<FakeMpi> mpi = std::make_shared<FakeMpi>();
  std::shared_ptr<MpiCommunicator> communicator = make(10.0);

  ~Rank() {
    if (communicator != nullptr) communicator->close(0);  // rather than wait for a peer that there is not
  }
  std::shared_ptr<MpiCommunicator> make(double timeout_s, void (*interrupt)() = [] {}) const {
    return std::make_shared<MpiCommunicator>(mpi, 1, 2, 3, timeout_s, interrupt);
  }
  // To itself; what goes out comes in where the tags are the same.
  std::unique_ptr<Link> link(int send_tag, int receive_tag, const MpiLinkOptions& options = {}) const {
    return mpi_link(communicator, 0, send_tag, receive_tag, options);
  }
};

const MpiLinkOptions kOptions;

template <class Call>
std::string text_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

size_t mapped_nbytes() {
  size_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

TEST_CASE("mpi: a few bytes cost one message of a few bytes, and nothing is posted before the first pull") {
  Rank rank;
  const auto link = rank.link(5, 5);
  const size_t before = rank.mpi->requests();
  uint64_t value = 42;
  CHECK(link->push(&value, sizeof value) == sizeof value);
  CHECK(rank.mpi->sends == 1);
  CHECK(rank.mpi->bytes_sent == 16);
  CHECK(rank.mpi->requests() - before == 1);
  uint64_t got = 0;
  CHECK(link->pull(&got, sizeof got) == sizeof got);
  CHECK(got == 42);
}

TEST_CASE("mpi: no count passes 2^31, however much is pushed") {
  Rank rank;
  constexpr size_t kNbytes = size_t{5} << 30;
  void* zeros = ::mmap(nullptr, kNbytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(zeros != MAP_FAILED);
  const auto link = rank.link(5, 6);
  CHECK(link->push(zeros, kNbytes) == kOptions.depth * kOptions.message_nbytes);
  CHECK(rank.mpi->sends == kOptions.depth);
  CHECK(rank.mpi->largest_count == static_cast<int>(kOptions.message_nbytes) + 8);
  ::munmap(zeros, kNbytes);
  CHECK_THROWS_AS(rank.link(5, 6, {INT_MAX - 7, 4}), InvalidArgumentError);
  CHECK_THROWS_AS(rank.link(5, 6, {0, 4}), InvalidArgumentError);
  CHECK_THROWS_AS(rank.link(5, 6, {1024, 0}), InvalidArgumentError);
  CHECK_THROWS_AS(mpi_link(rank.communicator, 1, 5, 6), InvalidArgumentError);
}

TEST_CASE("mpi: one round of messages waits for a peer that has pulled nothing, however small they are") {
  Rank rank;
  const auto link = rank.link(5, 6, {1 << 20, 4});
  const std::byte byte{};
  size_t pushed = 0;
  while (pushed < 1000 && link->push(&byte, 1) == 1) ++pushed;
  CHECK(pushed == 4);
  CHECK(rank.mpi->synchronous_sends == 1);
}

TEST_CASE("mpi: fewer than two rounds of messages wait for a peer that no longer pulls") {
  Rank rank;
  const auto link = rank.link(5, 6, {1 << 20, 4});
  const auto peer = rank.link(6, 5, {1 << 20, 4});
  std::byte byte{};
  size_t waiting = 0;
  const auto push_all = [&] {
    while (waiting < 1000 && link->push(&byte, 1) == 1) ++waiting;
  };
  push_all();
  CHECK(peer->pull(&byte, 1) == 1);
  --waiting;
  push_all();
  CHECK(waiting == 4 + 2 * 4 - 1);  // of them four in the receives that the peer has posted
}

TEST_CASE("mpi: progress is true while something is on its way, receives posted ahead apart") {
  Rank rank;
  const auto link = rank.link(5, 6);
  const auto peer = rank.link(6, 5);
  std::byte byte{};
  CHECK(link->pull(&byte, 1) == 0);
  CHECK_FALSE(rank.communicator->progress());
  CHECK(link->push(&byte, 1) == 1);  // synchronous, as the first of every round
  CHECK(rank.communicator->progress());
  CHECK(rank.communicator->progress());
  CHECK(peer->pull(&byte, 1) == 1);
  CHECK_FALSE(rank.communicator->progress());
}

TEST_CASE("mpi: what was pushed arrives although its link has gone") {
  Rank rank;
  std::vector<std::byte> sent(3000, std::byte{7}), got(3000);
  CHECK(rank.link(5, 6)->push(sent.data(), sent.size()) == sent.size());
  CHECK(rank.communicator->progress());
  CHECK(rank.link(6, 5)->pull(got.data(), got.size()) == got.size());
  CHECK(got == sent);
  CHECK_FALSE(rank.communicator->progress());
  CHECK(rank.mpi->requests() == 0);
}

TEST_CASE(
    "mpi: what no peer takes of a link that has gone is on its way for a while only, and arrives late all the same") {
  Rank rank;
  const std::byte sent{7};
  std::byte got{};
  CHECK(rank.link(5, 6)->push(&sent, 1) == 1);
  CHECK(rank.communicator->progress());
  test::wait_for([&] { return !rank.communicator->progress(); });
  CHECK(rank.mpi->requests() == 1);
  CHECK(rank.link(6, 5)->pull(&got, 1) == 1);
  CHECK(got == sent);
  rank.communicator->close(0.01);
  CHECK(rank.mpi->communicators == 0);
}

TEST_CASE("mpi: a link withdraws its receives, and keeps their memory while MPI has them") {
  Rank rank;
  std::byte byte{};
  CHECK(rank.link(5, 6)->pull(&byte, 1) == 0);
  CHECK(rank.mpi->cancelled == static_cast<int>(kOptions.depth));
  CHECK(rank.mpi->requests() == 0);
  rank.mpi->holds_receives = true;
  CHECK(rank.link(5, 6)->pull(&byte, 1) == 0);
  CHECK(rank.mpi->requests() == kOptions.depth);
  rank.mpi->end_receives();  // writes: the address sanitizer looks
  CHECK_FALSE(rank.communicator->progress());
  CHECK(rank.mpi->requests() == 0);
}

TEST_CASE("mpi: close waits for a while only, and leaves to MPI what is on its way") {
  Rank rank;
  const auto link = rank.link(5, 6);
  rank.mpi->holds_receives = true;
  std::vector<std::byte> bytes(3000);
  CHECK(link->push(bytes.data(), bytes.size()) == bytes.size());
  CHECK(link->pull(bytes.data(), 1) == 0);
  rank.communicator->close(0.01);
  CHECK(rank.mpi->communicators == 1);  // not freed: messages are on their way
  CHECK_THROWS_AS(link->push(bytes.data(), 1), ShutdownError);
  CHECK_THROWS_AS(link->pull(bytes.data(), 1), ShutdownError);
  CHECK(contains(text_of([&] { rank.communicator->progress(); }), "no error"));
  rank.mpi->end_receives();
  rank.communicator->close(0.01);
}

TEST_CASE("mpi: close frees the communicator when nothing is on its way") {
  Rank rank;
  const auto link = rank.link(5, 6);
  std::byte byte{};
  CHECK(link->pull(&byte, 1) == 0);
  rank.communicator->close(1.0);
  CHECK(rank.mpi->communicators == 0);
  CHECK(rank.mpi->requests() == 0);
}

// A freed one's successor may be given its messages.
TEST_CASE("mpi: close does not free a communicator with a message that this rank has not received") {
  for (const bool is_received : {true, false}) {
    Rank rank;
    const auto link = rank.link(5, 6);
    auto peer = rank.link(6, 5);
    std::byte byte{};
    CHECK(link->push(&byte, 1) == 1);
    CHECK(peer->pull(&byte, 1) == 1);
    if (!is_received) peer.reset();
    CHECK(link->push(&byte, 1) == 1);  // into a receive that is posted, or nowhere
    CHECK_FALSE(rank.communicator->progress());
    rank.communicator->close(1.0);
    CHECK(rank.mpi->communicators == (is_received ? 0 : 1));
  }
}

TEST_CASE("mpi: after close a link has nothing to pull, though its receives are taken back") {
  Rank rank;
  const auto link = rank.link(5, 6);
  const auto peer = rank.link(6, 5);
  std::vector<std::byte> bytes(10, std::byte{7});
  CHECK(link->pull(bytes.data(), 1) == 0);
  for (size_t i = 0; i < kOptions.depth; ++i) {  // each message's memory has bytes that were read
    CHECK(peer->push(bytes.data(), bytes.size()) == bytes.size());
    CHECK(link->pull(bytes.data(), bytes.size()) == bytes.size());
  }
  rank.communicator->close(1.0);
  for (int i = 0; i < 2; ++i) {
    std::vector<std::byte> got(10);
    CHECK_THROWS_AS(link->pull(got.data(), got.size()), ShutdownError);
    CHECK(got == std::vector<std::byte>(10));
  }
}

TEST_CASE("mpi: a receive that MPI has refused is no message that has come") {
  Rank rank;
  const auto link = rank.link(5, 6);
  std::byte byte{};
  rank.mpi->failing = 12;
  const std::string text = text_of([&] { link->pull(&byte, 1); });
  CHECK(contains(text, "MPI_Irecv of"));
  rank.mpi->failing = 0;
  CHECK(text_of([&] { link->pull(&byte, 1); }) == text);
}

TEST_CASE("mpi: a link whose first look finds too little memory looks again") {
  if (test::is_sanitized()) return;  // it has its own ideas of a process's memory
  constexpr size_t kMessageNbytes = size_t{256} << 20;
  const pid_t child = test::forked();
  if (child == 0) {
    ::alarm(20);  // rather than hang
    const Rank own;
    const auto link = own.link(5, 6, {kMessageNbytes, 16});
    std::byte byte{};
    struct rlimit before = {};
    ::getrlimit(RLIMIT_AS, &before);
    struct rlimit small = before;
    small.rlim_cur = mapped_nbytes() + 4 * kMessageNbytes;
    ::setrlimit(RLIMIT_AS, &small);
    bool is_thrown = false;
    try {
      link->pull(&byte, 1);
    } catch (const std::bad_alloc&) {
      is_thrown = true;
    }
    ::setrlimit(RLIMIT_AS, &before);
    ::_exit(is_thrown && link->pull(&byte, 1) == 0 && own.mpi->requests() == 16 ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

TEST_CASE("mpi: nothing is called after MPI_Finalize, and calls say so") {
  Rank rank;
  auto link = rank.link(5, 6);
  std::vector<std::byte> bytes(3000);
  CHECK(link->push(bytes.data(), bytes.size()) == bytes.size());
  CHECK(link->pull(bytes.data(), 1) == 0);
  rank.mpi->is_finalized = true;
  CHECK(contains(text_of([&] { link->push(bytes.data(), 1); }), "MPI_Finalize has been called"));
  CHECK(contains(text_of([&] { link->pull(bytes.data(), 1); }), "MPI_Finalize has been called"));
  CHECK(contains(text_of([&] { rank.communicator->progress(); }), "MPI_Finalize has been called"));
  CHECK(contains(text_of([&] { rank.make(1.0); }), "MPI_Finalize has been called"));
  link.reset();
  rank.communicator.reset();
  CHECK(rank.mpi->calls_after_finalize == 0);
}

TEST_CASE("mpi: an error names the call, the ranks, the tag and MPI's text; a failed process is a lost peer") {
  Rank rank;
  const auto link = rank.link(5, 6);
  std::vector<std::byte> bytes(3000);
  CHECK(link->pull(bytes.data(), 1) == 0);
  CHECK(link->push(bytes.data(), bytes.size()) == bytes.size());
  rank.mpi->failing = 12;
  const std::string sent = text_of([&] { link->push(bytes.data(), 1); });
  CHECK(sent == "MPI (fake), rank 0/1: MPI_Isend of 9 bytes, peer 0, tag 5, failed: fake error 12");
  const std::string received = text_of([&] { link->pull(bytes.data(), 1); });
  CHECK(received == "MPI (fake), rank 0/1: MPI_Testsome of a message from peer 0, tag 6, failed: fake error 12");
  CHECK_THROWS_AS(rank.communicator->progress(), InternalError);
  rank.mpi->failing = FakeMpi::kProcessFailed;
  CHECK_THROWS_AS(link->push(bytes.data(), 1), PeerLostError);
}

TEST_CASE("mpi: each link hears of its own message's failure, whoever has looked") {
  for (const bool is_looked_at_by_link : {true, false}) {
    Rank rank;
    auto first = rank.link(5, 6);
    const auto second = rank.link(7, 8);
    std::byte byte{};
    CHECK(first->pull(&byte, 1) == 0);
    CHECK(second->pull(&byte, 1) == 0);
    rank.mpi->failing = 12;
    rank.mpi->all_fail = true;
    if (is_looked_at_by_link) {
      const std::string text = text_of([&] {
        while (first->pull(&byte, 1) == 0) continue;
      });
      CHECK(contains(text, "a message from peer 0, tag 6, failed: fake error 12"));
    } else {
      first.reset();  // withdraws its receives
    }
    rank.mpi->failing = 0;
    for (int i = 0; i < 2; ++i) {
      CHECK(contains(text_of([&] { second->pull(&byte, 1); }), "a message from peer 0, tag 8, failed: fake error 12"));
    }
    CHECK(text_of([&] { rank.communicator->progress(); }) == "no error");
  }
}

TEST_CASE("mpi: a link does not hear of another one's failure, and progress() does") {
  Rank rank;
  const auto first = rank.link(5, 6);
  const auto second = rank.link(7, 8);
  std::byte byte{};
  CHECK(first->pull(&byte, 1) == 0);
  CHECK(second->pull(&byte, 1) == 0);
  rank.mpi->failing = 12;  // the one that was started first
  const int looks = rank.mpi->looks;
  while (rank.mpi->looks == looks) CHECK(second->pull(&byte, 1) == 0);
  rank.mpi->failing = 0;
  const std::string failure =
      "MPI (fake), rank 0/1: MPI_Testsome of a message from peer 0, tag 6, failed: fake error 12";
  CHECK(text_of([&] { rank.communicator->progress(); }) == failure);
  CHECK(text_of([&] { rank.communicator->progress(); }) == "no error");
  CHECK(text_of([&] { first->pull(&byte, 1); }) == failure);
}

TEST_CASE("mpi: nobody hears of a failure of a receive that was withdrawn") {
  Rank rank;
  auto link = rank.link(5, 6, {1024, 1});
  std::byte byte{};
  CHECK(link->pull(&byte, 1) == 0);
  rank.mpi->failing = 12;
  link.reset();
  rank.mpi->failing = 0;
  CHECK(rank.mpi->cancelled == 1);
  CHECK(text_of([&] { rank.communicator->progress(); }) == "no error");
}

TEST_CASE("mpi: each channel of each group has a tag of its own, and none is above the library's highest") {
  std::set<int> tags;
  for (int group = 0; group < 100; ++group) {
    for (int channel = 0; channel <= kChannels; ++channel) tags.insert(link_tag(channel_of(group, channel)));
    tags.insert(device_tag(group));
  }
  CHECK(tags.size() == 100 * (kChannels + 2));
  for (const int highest : {32767, 32766, 32768, 100, 101, 102, INT_MAX}) {
    CAPTURE(highest);
    const int most = most_group(highest);
    CHECK(device_tag(most) <= highest);
    CHECK(device_tag(most - 1) + kChannels + 2 == device_tag(most));
    if (highest != INT_MAX) CHECK(device_tag(most + 1) > highest);
  }
}

TEST_CASE("mpi: a message that is none of ours is an error") {
  Rank rank;
  const auto link = rank.link(5, 6);
  std::byte byte{};
  CHECK(link->pull(&byte, 1) == 0);
  const uint64_t nonsense = uint64_t{1} << 40;
  MpiHandle request;
  rank.mpi->isend(&nonsense, {}, {sizeof nonsense, 0, 6}, {}, request);
  const std::string text = text_of([&] {
    while (link->pull(&byte, 1) == 0) continue;
  });
  CHECK(contains(text, "somebody else uses the tag"));
}

TEST_CASE("mpi: a communicator needs MPI, threads, and every rank") {
  Rank rank;
  rank.mpi->is_initialized = false;
  CHECK_THROWS_AS(rank.make(1.0), UnavailableError);
  rank.mpi->is_initialized = true;
  rank.mpi->level = MpiThreads::kSingle;
  CHECK(contains(text_of([&] { rank.make(1.0); }), "MPI_THREAD_SINGLE"));
  rank.mpi->level = MpiThreads::kFunneled;
  CHECK(rank.make(1.0)->threads() == MpiThreads::kFunneled);
  rank.mpi->everybody_comes = false;
  CHECK_THROWS_AS(rank.make(0.01), TimeoutError);
  struct Stop {};
  CHECK_THROWS_AS(rank.make(0, [] { throw Stop(); }), Stop);
}

TEST_CASE("mpi: a forked child leaves MPI alone") {
  auto rank = std::make_unique<Rank>();
  auto link = rank->link(5, 6);
  std::vector<std::byte> bytes(3000);
  CHECK(link->push(bytes.data(), bytes.size()) == bytes.size());
  CHECK(link->pull(bytes.data(), 1) == 0);
  const auto mpi = rank->mpi;
  std::unique_lock<std::mutex> held(mpi->mutex());  // as by another thread at the moment of the fork
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(20);               // rather than hang
    mpi->is_finalized = true;  // counts calls
    link.reset();
    rank.reset();
    ::_exit(mpi->calls_after_finalize == 0 && mpi->cancelled == 0 ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  held.unlock();
  link.reset();
  rank.reset();
  CHECK(mpi->requests() == 1);  // the send, which nobody has taken
}

TEST_CASE("mpi: a library that is not there, or not an MPI, is named") {
  CHECK(contains(text_of([] { MpiLibrary::open("/nowhere/MPI.so", 4); }), "/nowhere/MPI.so is not loaded"));
  const std::string none = text_of([] { MpiLibrary::open("libc.so.6", 4); });
  CHECK(contains(none, "lacks"));
  CHECK(contains(none, "MPI_Isend"));
  CHECK(contains(text_of([] { MpiLibrary::open("libc.so.6", 8); }), "handles of 8 bytes"));
}

}  // namespace
}  // namespace rr
