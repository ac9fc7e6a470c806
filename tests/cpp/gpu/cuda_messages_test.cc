// The MPI path: messages straight between fake GPUs, through a transport that is a few queues of the test's.
#include <deque>
#include <map>
#include <tuple>

#include "collective/gpu/device_phases.h"
#include "collective/gpu/scratch.h"
#include "doctest/doctest.h"
#include "fakes/fake_gpu_ranks.h"
#include "fakes/fake_mpi.h"
#include "gpu/gpu_path_checks.h"
#include "transport/mpi/mpi_communicator.h"

namespace rr::test {
namespace {

// Sends wait until they are received; both are done some looks later. What is dropped first stays with the transport.
class Post {
 public:
  class Sender;
  using Way = std::tuple<int, int, int>;  // from, to, group
  struct Half {
    std::byte* data = nullptr;
    size_t nbytes = 0;
    std::shared_ptr<void> keep;
    std::shared_ptr<std::atomic<int>> left = std::make_shared<std::atomic<int>>(-1);  // looks; -1: not matched
  };

  std::shared_ptr<std::atomic<int>> add(const Way& way, Half half, bool is_send) {
    const std::lock_guard lock(mutex_);
    auto& own = (is_send ? sends_ : receives_)[way];
    auto& others = (is_send ? receives_ : sends_)[way];
    own.push_back(half);
    while (!own.empty() && !others.empty()) {
      const Half& from = is_send ? own.front() : others.front();
      const Half& to = is_send ? others.front() : own.front();
      expect(from.nbytes == to.nbytes, "both ends know the length");
      std::memcpy(FakeDevice::host(to.data), FakeDevice::host(from.data), from.nbytes);
      from.left->store(2);
      to.left->store(3);
      own.pop_front();
      others.pop_front();
    }
    return half.left;
  }

 private:
  std::mutex mutex_;
  std::map<Way, std::deque<Half>> sends_, receives_;
};

class PostMessages final : public DeviceMessages {
 public:
  PostMessages(Post& post, int rank) : post_(post), rank_(rank) {}
  std::unique_ptr<Message> send(const std::byte* src, size_t nbytes, int peer, int group,
                                std::shared_ptr<void> keep) override {
    return under_way({rank_, peer, group}, {const_cast<std::byte*>(src), nbytes, std::move(keep)}, true);
  }
  std::unique_ptr<Message> receive(std::byte* dst, size_t nbytes, int peer, int group,
                                   std::shared_ptr<void> keep) override {
    return under_way({peer, rank_, group}, {dst, nbytes, std::move(keep)}, false);
  }

 private:
  class One final : public Message {
   public:
    explicit One(std::shared_ptr<std::atomic<int>> left) : left_(std::move(left)) {}
    bool done() override { return left_->load() >= 0 && left_->fetch_sub(1) <= 0; }

   private:
    std::shared_ptr<std::atomic<int>> left_;
  };
  std::unique_ptr<Message> under_way(const Post::Way& way, Post::Half half, bool is_send) {
    expect(FakeDevice::current() != nullptr, "the GPU is current");
    expect(half.keep != nullptr, "somebody holds the memory");
    return std::make_unique<One>(post_.add(way, std::move(half), is_send));
  }
  Post& post_;
  int rank_;
};

struct PostRank {
  int rank;
  int size;
  FakeDevice& device;
  ScratchMemory& scratch;
  std::shared_ptr<PostMessages> messages;

  void run(DevicePhases phases) const {
    Team team;
    std::vector<int> world_ranks;
    for (int r = 0; r < size; ++r) {
      team.members.push_back(r);
      world_ranks.push_back(r);
    }
    team.me = rank;
    const auto algorithm = message_path(device, messages, world_ranks, 3, team, std::move(phases));
    if (size > 1 && rank == 0) expect(algorithm->needs(1) && !algorithm->needs(0), "it says whom it needs");
    finish(*algorithm);
    expect(!algorithm->needs(size - 1), "it needs nobody any more");
  }
};

void run_post(int size, const std::function<void(PostRank&)>& body) {
  Post post;
  run_threads(size, [&](int r) {
    FakeDevice device(own_gpus(5)(r));
    ScratchMemory scratch(device);
    PostRank rank = {r, size, device, scratch, std::make_shared<PostMessages>(post, r)};
    body(rank);
  });
}

TEST_CASE("mpi path: all-reduces fold in rank order, whatever the lengths") {
  for (const int size : {2, 3, 5}) {
    CAPTURE(size);
    CHECK_NOTHROW(run_post(size, [](PostRank& rank) {
      for (const auto& [dtype, op] : std::vector<std::pair<DType, ReduceOp>>{{DType::kFloat32, ReduceOp::kAverage},
                                                                             {DType::kBFloat16, ReduceOp::kSum},
                                                                             {DType::kInt16, ReduceOp::kAverage},
                                                                             {DType::kBool, ReduceOp::kSum}}) {
        ReduceJob job;
        job.reduction = {dtype, op, 1.0, 1.0, rank.size};
        const std::vector<size_t> lengths = {1, 0, 4099, 17, 30011};
        for (size_t i = 0; i < lengths.size(); ++i) {
          std::byte* const src =
              put(rank.device, random_bytes(dtype, lengths[i], i * 10 + static_cast<size_t>(rank.rank)));
          job.pieces.push_back(
              {src, i % 2 == 0 ? src : put(rank.device, Bytes(lengths[i] * itemsize(dtype))), lengths[i]});
          job.element_count += lengths[i];
        }
        const auto scratch = [&](size_t nbytes) { return rank.scratch.get(nbytes); };
        rank.run(message_allreduce({job}, rank.rank, rank.size, scratch));
        for (size_t i = 0; i < lengths.size(); ++i) {
          std::vector<Bytes> inputs;
          for (int r = 0; r < rank.size; ++r) {
            inputs.push_back(random_bytes(dtype, lengths[i], i * 10 + static_cast<size_t>(r)));
          }
          const Bytes wanted = rr_test::oracle(job.reduction, inputs);
          const Bytes got = get(job.pieces[i].dst, wanted.size());
          expect(rr_test::same(dtype, got.data(), wanted.data(), lengths[i]), std::string("the sum of ") + name(dtype));
        }
      }
    }));
  }
}

TEST_CASE("mpi path: blocks go to those who take them") {
  const int size = 3;
  CHECK_NOTHROW(run_post(size, [&](PostRank& rank) {
    const auto nbytes_of = [](int from, int to) { return static_cast<size_t>(from * 40 + to * 13) % 97 * 11; };
    const auto scratch = [&](size_t nbytes) { return rank.scratch.get(nbytes); };
    for (const bool gathers : {false, true}) {  // alltoall, and allgather
      ExchangeJob job;
      job.blocks = gathers ? 1 : size;
      if (!gathers) job.own_block = rank.rank;
      job.sources.assign(3, true);
      Bytes wanted;
      for (int r = 0; r < size; ++r) {
        const Bytes in = block(r, gathers ? 0 : rank.rank, nbytes_of(r, gathers ? 0 : rank.rank));
        wanted.insert(wanted.end(), in.begin(), in.end());
      }
      std::byte* const dst = put(rank.device, Bytes(wanted.size(), 77));
      std::byte* next = dst;
      for (int r = 0; r < size; ++r) {
        const int work_stream = gathers ? 0 : r;
        if (r < job.blocks)
          job.outgoing.push_back({put(rank.device, block(rank.rank, work_stream, nbytes_of(rank.rank, work_stream))),
                                  nbytes_of(rank.rank, work_stream)});
        const size_t nbytes = nbytes_of(r, gathers ? 0 : rank.rank);
        job.incoming.push_back({r, gathers ? 0 : rank.rank, next, nbytes, 0});
        next += nbytes;
      }
      rank.run(message_exchange(job, rank.rank, size, scratch));
      expect(get(dst, wanted.size()) == wanted, gathers ? "allgather" : "alltoall");
    }
    ExchangeJob broadcast;
    broadcast.sources = {false, true, false};
    broadcast.takers = {true, false, true};
    std::byte* const data = put(rank.device, rank.rank == 1 ? block(1, 9, 700) : Bytes(700, 77));
    if (rank.rank == 1) {
      broadcast.outgoing = {{data, 700}};
    } else {
      broadcast.incoming = {{1, 0, data, 700, 0}};
    }
    rank.run(message_exchange(broadcast, rank.rank, size, scratch));
    expect(get(data, 700) == block(1, 9, 700), "broadcast");
  }));
}

TEST_CASE("mpi path: MPI is given the addresses themselves, and keeps what it still reads or writes") {
  const auto mpi = std::make_shared<FakeMpi>();
  const auto communicator = std::make_shared<MpiCommunicator>(mpi, 1, 2, 3, 0, [] {});
  const auto messages = mpi_device_messages(communicator);
  const auto make = [](uint8_t value) { return std::make_shared<Bytes>(5000, value); };
  const auto bytes = [](const std::shared_ptr<Bytes>& owner) { return reinterpret_cast<std::byte*>(owner->data()); };
  const auto from = make(42);
  const auto to = make(0);
  const auto sent = messages->send(bytes(from), 5000, 0, 7, from);
  CHECK_FALSE(sent->done());
  auto received = messages->receive(bytes(to), 5000, 0, 7, to);
  wait_for([&] { return sent->done() && received->done(); });
  CHECK(*to == *from);
  CHECK(mpi->largest_count == 5000);  // no header
  CHECK(mpi->largest_tag == device_tag(7));
  CHECK(mpi->largest_tag <= 32767);  // what MPI promises
  // More than fits into one message, in order; the last one is short.
  mpi->largest_count = 0;
  const auto parts = mpi_device_messages(communicator, 1536);
  for (size_t i = 0; i < from->size(); ++i) (*from)[i] = static_cast<uint8_t>(i * 7 + i / 256);
  const auto first = parts->send(bytes(from), 5000, 0, 7, from);
  const auto second = parts->receive(bytes(to), 5000, 0, 7, to);
  wait_for([&] { return first->done() && second->done(); });
  CHECK(*to == *from);
  CHECK(mpi->largest_count == 1536);
  // Given up: withdrawn, or kept for as long as MPI may write.
  mpi->holds_receives = true;
  auto late = make(0);
  const std::weak_ptr<Bytes> held = late;
  auto waits = messages->receive(bytes(late), 5000, 0, 7, late);
  late.reset();
  waits.reset();
  CHECK_FALSE(held.expired());
  mpi->end_receives();
  wait_for([&] {
    communicator->progress();
    return held.expired();
  });
}

}  // namespace
}  // namespace rr::test
