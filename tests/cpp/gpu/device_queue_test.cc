// The queue between streams and the group: streams of a fake GPU, operations on host memory, which the queue does not
// tell apart.
#include "engine/gpu/device_queue.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "doctest/doctest.h"
#include "fakes/fake_device.h"
#include "support/loopback_links.h"

namespace rr::test {
namespace {

Stream stream(int number) { return reinterpret_cast<Stream>(static_cast<uintptr_t>(0x100 + number)); }

// A rank with a fake GPU.
struct Gpu {
  explicit Gpu(Rank& of, bool manual = false) : rank(of) {
    FakeOptions options;
    options.seed = static_cast<uint64_t>(of.rank) + 1;
    options.manual = manual;
    device = std::make_shared<FakeDevice>(options);
    rank.context.gpu().use(device);
  }
  DeviceQueue& queue() const { return rank.context.gpu().queue(); }

  Rank& rank;
  std::shared_ptr<FakeDevice> device;
};

Request sum_in_place(const std::shared_ptr<Floats>& data, const std::string* name = nullptr) {
  Request request;
  request.kind = Kind::kAllreduce;
  request.srcs = request.dsts = {view(*data, DType::kFloat32)};
  request.is_async = true;
  request.name = name;
  request.keep = data;
  return request;
}

float input(int rank, int base, size_t at) { return static_cast<float>((rank + 1) * (base % 89 + 1) + (at % 13)); }

float expected(int size, int base, size_t at) {
  float sum = 0;
  for (int r = 0; r < size; ++r) sum += input(r, base, at);
  return sum;
}

std::function<void()> filler(Floats& data, int rank, int base) {
  return [&data, rank, base] {
    for (size_t i = 0; i < data.size(); ++i) data[i] = input(rank, base, i);
  };
}

void expect_sums(const Floats& data, int size, int base) {
  for (size_t i = 0; i < data.size(); ++i) {
    if (data[i] != expected(size, base, i)) {
      throw std::runtime_error("operation " + std::to_string(base) + ", element " + std::to_string(i) + ": " +
                               std::to_string(data[i]) + ", not " + std::to_string(expected(size, base, i)));
    }
  }
}

}  // namespace

TEST_CASE("operations come after their stream's work and before what a thread that waits does next") {
  const Environment environment({});
  constexpr int kOperations = 60;
  run_ranks(3, [](Rank& rank) {
    Gpu gpu(rank);
    std::mt19937 random(static_cast<unsigned>(rank.rank));
    std::vector<std::shared_ptr<Floats>> data;
    std::vector<std::pair<int, DeviceOperationPtr>> pending;
    for (int i = 0; i < kOperations; ++i) {
      data.push_back(std::make_shared<Floats>(i % 3 == 0 ? 7 : 3000 + i, -1.0F));
      const Stream from = stream(static_cast<int>(random() % 4));  // other streams on each rank
      gpu.device->run(from, filler(*data.back(), rank.rank, i));
      pending.emplace_back(i, gpu.queue().submit(rank.world, sum_in_place(data.back()), {from}));
    }
    std::shuffle(pending.begin(), pending.end(), random);
    for (const auto& [i, operation] : pending) {
      expect(gpu.queue().wait(*operation, 30, nullptr), "done in time");
      expect_sums(*data[static_cast<size_t>(i)], rank.size, i);
    }
    barrier(rank.world);
  });
}

TEST_CASE("an operation of two streams waits for both, and a thread can wait for it") {
  const Environment environment({});
  run_ranks(2, [](Rank& rank) {
    Gpu gpu(rank);
    for (int i = 0; i < 20; ++i) {
      const auto data = std::make_shared<Floats>(2000);
      gpu.device->run(stream(1), [&] {
        for (size_t k = 0; k < 1000; ++k) (*data)[k] = input(rank.rank, i, k);
      });
      gpu.device->run(stream(2), [&] {
        for (size_t k = 1000; k < 2000; ++k) (*data)[k] = input(rank.rank, i, k);
      });
      const auto operation = gpu.queue().submit(rank.world, sum_in_place(data), {stream(1), stream(2), stream(1)});
      expect(gpu.queue().wait(*operation, 30, nullptr), "done in time");
      expect(gpu.queue().done(*operation), "done");
      expect_sums(*data, rank.size, i);
    }
  });
}

TEST_CASE("names: one in flight unless a thread waits for it, in the order of the calls") {
  const Environment environment({});
  run_ranks(2, [](Rank& rank) {
    Gpu gpu(rank, true);
    const std::string name = "gradient";
    const auto first = std::make_shared<Floats>(500);
    const auto second = std::make_shared<Floats>(500);
    filler(*first, rank.rank, 1)();
    filler(*second, rank.rank, 2)();
    const auto one = gpu.queue().submit(rank.world, sum_in_place(first, &name), {stream(1)});
    const auto again = [&] { gpu.queue().submit(rank.world, sum_in_place(second, &name), {stream(2)}); };
    expect_contains(raised<InvalidArgumentError>(again), "same name");
    expect(!gpu.queue().wait(*one, 0.01, nullptr), "its stream has not come there");
    expect_contains(raised<InvalidArgumentError>(again), "same name");  // no thread waits for it any longer
    const auto waiting = std::async(std::launch::async, [&] { gpu.queue().wait(*one, 30, nullptr); });
    wait_for([&] { return one->waiting.load() != 0; });
    const auto two = gpu.queue().submit(rank.world, sum_in_place(second, &name), {stream(2)});
    expect(!gpu.queue().done(*two), "pending");
    gpu.device->advance();
    expect(gpu.queue().wait(*two, 30, nullptr), "the second");
    expect(gpu.queue().done(*one), "the first before it");
    expect_sums(*first, rank.size, 1);
    expect_sums(*second, rank.size, 2);
  });
}

TEST_CASE("an operation's own failure is raised where it is asked for, and the queue goes on") {
  const Environment environment({});
  run_ranks(2, [](Rank& rank) {
    Gpu gpu(rank);
    const auto data = std::make_shared<Floats>(static_cast<size_t>(1000 + rank.rank));
    const auto operation = gpu.queue().submit(rank.world, sum_in_place(data), {stream(1)});
    expect_contains(raised<MismatchError>([&] { gpu.queue().wait(*operation, 30, nullptr); }), "Mismatched ALLREDUCE");
    expect(gpu.queue().done(*operation), "failed");
    expect_contains(raised<MismatchError>([&] { gpu.queue().wait(*operation, -1, nullptr); }), "shapes");
    const auto good = std::make_shared<Floats>(100);
    filler(*good, rank.rank, 5)();
    expect(gpu.queue().wait(*gpu.queue().submit(rank.world, sum_in_place(good), {stream(1)}), 30, nullptr), "usable");
    expect_sums(*good, rank.size, 5);
    Request wrong = sum_in_place(good);
    wrong.dsts[0].dtype = DType::kInt32;
    expect_contains(raised<InvalidArgumentError>([&] { gpu.queue().submit(rank.world, wrong, {stream(1)}); }), "dtype");
    barrier(rank.world);
  });
}

TEST_CASE("what is called while a stream is captured in a graph is refused") {
  const Environment environment({});
  run_ranks(2, [](Rank& rank) {
    Gpu gpu(rank);
    const auto data = std::make_shared<Floats>(100);
    filler(*data, rank.rank, 3)();
    gpu.device->begin_capture(stream(1));
    const auto captured = [&] { gpu.queue().submit(rank.world, sum_in_place(data), {stream(2), stream(1)}); };
    expect_contains(raised<UnavailableError>(captured), "outside of the capture");
    gpu.device->end_capture(stream(1));
    expect(gpu.queue().wait(*gpu.queue().submit(rank.world, sum_in_place(data), {stream(1)}), 30, nullptr), "done");
    expect_sums(*data, rank.size, 3);
  });
}

void shut_down(const std::string& why, const std::string& told) {
  const Environment environment({});
  std::atomic<bool> has_called{false};
  run_ranks(2, [&](Rank& rank) {
    Gpu gpu(rank);
    const auto data = std::make_shared<Floats>(100);
    if (rank.rank == 0) {
      const auto unasked = gpu.queue().submit(rank.world, sum_in_place(data), {stream(1)});
      wait_for([&] { return has_called.load(); });
      rank.context.shutdown(why);
      expect_contains(raised<ShutdownError>([&] { gpu.queue().wait(*unasked, -1, nullptr); }), "shut down");
      expect_contains(raised<ShutdownError>([&] { gpu.queue().submit(rank.world, sum_in_place(data), {stream(1)}); }),
                      "shut down");
    } else {
      const std::string name = "of this rank alone";
      const auto lost = gpu.queue().submit(rank.world, sum_in_place(data, &name), {stream(1)});
      has_called.store(true);
      expect_contains(raised<InternalError>([&] { gpu.queue().wait(*lost, -1, nullptr); }), told);
      expect_contains(raised<InternalError>([&] { gpu.queue().submit(rank.world, sum_in_place(data), {stream(1)}); }),
                      told);
    }
  });
}

TEST_CASE("shutdown lets go of threads that wait for what will never be done") {
  shut_down("", "rank 0 called shutdown()");
  shut_down("ValueError: of rank 0", "lost rank 0: ValueError: of rank 0");
}

TEST_CASE("an operation that times out fails its group") {
  const Environment environment({{"RINGREDUCE_TIMEOUT", "0.5"}});
  run_ranks(2, [](Rank& rank) {
    Gpu gpu(rank);
    if (rank.rank == 0) {
      const auto data = std::make_shared<Floats>(100);
      const auto lone = gpu.queue().submit(rank.world, sum_in_place(data), {stream(1)});
      expect_contains(raised<TimeoutError>([&] { gpu.queue().wait(*lone, -1, nullptr); }), "device.allreduce.0");
    } else {
      wait_for([&] { return has_failed(rank.world.control()); });
    }
  });
}

TEST_CASE("an operation whose stream does not come ends with its group") {
  const Environment environment({});
  run_ranks(2, [](Rank& rank) {
    Gpu gpu(rank, true);
    const auto data = std::make_shared<Floats>(100, 1.0F);
    const auto operation = gpu.queue().submit(rank.world, sum_in_place(data), {stream(1)});
    barrier(rank.world);
    if (rank.rank == 1) rank.context.fail_groups(FatalKind::kPeerLost, "lost rank 7");
    wait_for([&] { return gpu.queue().done(*operation); });  // nobody waits
    expect_contains(raised<PeerLostError>([&] { gpu.queue().wait(*operation, -1, nullptr); }), "lost rank 7");
    expect(data->front() == 1.0F, "nothing was done");
  });
}

TEST_CASE("a stream that takes longer than an operation may fails the group, also if nobody waits") {
  const Environment environment({});
  run_ranks(2, [](Rank& rank) {
    Gpu gpu(rank, true);
    const auto data = std::make_shared<Floats>(100, 1.0F);
    barrier(rank.world);
    rank.context.set_timeout_s(rank.rank == 0 ? 0.2 : 600);
    const auto operation = gpu.queue().submit(rank.world, sum_in_place(data), {stream(1)});
    wait_for([&] { return gpu.queue().done(*operation); });
    const std::string text = raised<TimeoutError>([&] { gpu.queue().wait(*operation, -1, nullptr); });
    expect_contains(text, "the stream of rank 0 has not come to the operation within the group's timeout of 0.2 s");
    expect_contains(text, "device.allreduce.0");
  });
}

TEST_CASE("a broken GPU fails the groups of its rank on all ranks") {
  const Environment environment({});
  run_ranks(2, [](Rank& rank) {
    Gpu gpu(rank, true);
    const auto data = std::make_shared<Floats>(100, 1.0F);
    const auto operation = gpu.queue().submit(rank.world, sum_in_place(data), {stream(1)});
    barrier(rank.world);
    if (rank.rank == 0) gpu.device->break_down("illegal address");
    wait_for([&] { return gpu.queue().done(*operation); });
    expect_contains(raised<Error>([&] { gpu.queue().wait(*operation, -1, nullptr); }), "illegal address");
    expect_contains(raised<Error>([&] { barrier(rank.world); }), "illegal address");
  });
}

TEST_CASE("a context goes while a stream has not come to an operation") {
  const Environment environment({});
  std::shared_ptr<FakeDevice> devices[2];
  std::shared_ptr<Floats> data[2];
  run_ranks(2, [&](Rank& rank) {
    Gpu gpu(rank, true);
    devices[rank.rank] = gpu.device;
    data[rank.rank] = std::make_shared<Floats>(100, 1.0F);
    gpu.queue().submit(rank.world, sum_in_place(data[rank.rank]), {stream(1)});
  });
  for (int r = 0; r < 2; ++r) {
    CHECK(devices[r]->advance() == 1);  // the point, of which nobody is left to hear
    CHECK(data[r].use_count() == 1);
    CHECK(data[r]->front() == 1.0F);
  }
}

TEST_CASE("shutdown keeps the memory of a copy that is under way until the GPU has come to its end") {
  const Environment environment({});
  run_ranks(1, [](Rank& rank) {
    Gpu gpu(rank, true);
    const auto numbers = [&] {
      TensorView tensor;
      tensor.dtype = DType::kInt32;
      tensor.place = Place::kDevice;
      tensor.set_shape(1, [](size_t) { return 100; });
      tensor.data = gpu.device->allocate(tensor.nbytes());
      return tensor;
    };
    auto keep = std::make_shared<int>();
    const std::weak_ptr<int> kept = keep;
    const auto copy = gpu.queue().copy(numbers(), numbers(), std::move(keep), {stream(1)});
    gpu.device->advance(1);  // its stream has come to it
    wait_for([&] { return gpu.device->is_busy(); });
    std::thread shutting_down([&] { rank.context.shutdown(); });
    wait_for([&] { return gpu.queue().done(*copy); });
    const bool is_kept = !kept.expired();
    gpu.device->advance();
    shutting_down.join();
    expect(is_kept, "the memory is kept while the copy is under way");
    expect(kept.expired(), "and no longer");
    expect_contains(raised<ShutdownError>([&] { gpu.queue().wait(*copy, -1, nullptr); }), "shut down");
  });
}

TEST_CASE("shutdown leaves a GPU that does not come to an end") {
  const Environment environment({});
  run_ranks(1, [](Rank& rank) {
    Gpu gpu(rank, true);
    TensorView numbers;
    numbers.dtype = DType::kInt32;
    numbers.place = Place::kDevice;
    numbers.set_shape(1, [](size_t) { return 100; });
    numbers.data = gpu.device->allocate(numbers.nbytes());
    gpu.queue().copy(numbers, numbers, nullptr, {stream(1)});
    gpu.device->advance(1);
    wait_for([&] { return gpu.device->is_busy(); });
    rank.context.shutdown();
    expect(gpu.device->is_left(), "nothing of it waits for the GPU any more");
  });
}

TEST_CASE("messages: pinned memory beyond what is kept is let go of by others, and is not far too large") {
  const auto device = std::make_shared<FakeDevice>();
  StagingPool pool(device);
  std::vector<Staging> taken;
  for (size_t i = 0; i < 12; ++i) taken.push_back(pool.take(100));
  CHECK(device->pinned_ranges() == 12);
  for (Staging& one : taken) pool.give_back(std::move(one));
  CHECK(device->pinned_ranges() == 12);
  CHECK(pool.take_surplus().size() == 4);
  CHECK(device->pinned_ranges() == 8);
  CHECK(pool.take_surplus().empty());
  // The least that has room, and none that is far larger; what is surplus serves as long as it is there.
  Staging two = pool.take(size_t{2} << 20);
  Staging one = pool.take(size_t{1} << 20);
  Staging eight = pool.take(size_t{8} << 20);
  CHECK(device->pinned_ranges() == 11);
  for (Staging* const staging : {&two, &one, &eight}) pool.give_back(std::move(*staging));
  const Staging least = pool.take(100000);
  const Staging next_larger = pool.take(100000);
  const Staging made = pool.take(100000);
  CHECK(least.nbytes == size_t{1} << 20);
  CHECK(next_larger.nbytes == size_t{2} << 20);
  CHECK(made.nbytes == 131072);
  std::vector<Staging> small;
  for (size_t i = 0; i < 8; ++i) small.push_back(pool.take(1));
  CHECK(device->pinned_ranges() == 12);
  small.clear();
  // No more bytes are kept than so many, but the one used last.
  constexpr size_t kLarge = size_t{512} << 20;
  pool.give_back(pool.take(kLarge));
  CHECK(pool.take_surplus().size() == 1);
  CHECK(device->pinned_ranges() == 4);
  Staging large = pool.take(kLarge);
  Staging next = pool.take(size_t{128} << 20);
  CHECK(device->pinned_ranges() == 5);
  pool.give_back(std::move(large));
  pool.give_back(std::move(next));
  CHECK(device->pinned_ranges() == 5);
  pool.give_back_surplus(pool.take_surplus());
  CHECK(pool.take(kLarge).nbytes == kLarge);
  CHECK(device->pinned_ranges() == 4);
}

TEST_CASE("a mapping that has been forgotten is closed by nobody's call") {
  const Environment environment({});
  run_ranks(1, [](Rank& rank) {
    Gpu gpu(rank, true);
    gpu.device->forget(1);
    wait_for([&] { return gpu.device->forgotten() == 0; });
  });
}

TEST_CASE("messages of GPU memory go through pinned memory, in the order of the calls") {
  const Environment environment({});
  run_ranks(2, [](Rank& rank) {
    Gpu gpu(rank);
    constexpr int kMessages = 12;  // both ways, on several streams
    const int peer = 1 - rank.rank;
    std::vector<std::byte*> memory;
    std::vector<TensorView> in;
    std::vector<DeviceOperationPtr> operations;
    for (int i = 0; i < 2 * kMessages; ++i) {
      const size_t count = static_cast<size_t>(1 + (i % kMessages) * 3000);
      memory.push_back(gpu.device->allocate(count * sizeof(float)));
      TensorView tensor;
      tensor.data = memory.back();
      tensor.dtype = DType::kFloat32;
      tensor.place = Place::kDevice;
      tensor.set_shape(1, [&](size_t) { return count; });
      const Stream on = stream(i % 3);
      if (i < kMessages) {
        auto* const bytes = reinterpret_cast<float*>(FakeDevice::host(tensor.data));
        gpu.device->run(on, [=] {
          for (size_t k = 0; k < count; ++k) bytes[k] = input(rank.rank, i, k);
        });
      } else {
        in.push_back(tensor);
      }
      const DeviceTask task = i < kMessages ? DeviceTask::kSend : DeviceTask::kReceive;
      operations.push_back(gpu.queue().message(rank.world, task, tensor, peer, i % 2, nullptr, {on}));
    }
    for (const auto& operation : operations) expect(gpu.queue().wait(*operation, 60, nullptr), "in time");
    for (int i = 0; i < kMessages; ++i) {
      const TensorView& tensor = in[static_cast<size_t>(i)];
      const auto* const got = reinterpret_cast<const float*>(FakeDevice::host(tensor.data));
      for (size_t k = 0; k < tensor.count; ++k)
        expect(got[k] == input(peer, i, k), [&] { return "message " + std::to_string(i); });
    }
    const auto to_oneself = [&] {
      gpu.queue().message(rank.world, DeviceTask::kSend, in[0], rank.rank, 0, nullptr, {stream(1)});
    };
    expect_contains(raised<InvalidArgumentError>(to_oneself), "another rank");
    // Between two arrays of the GPU.
    std::byte* const copied = gpu.device->allocate(in[5].nbytes());
    TensorView target = in[5];
    target.data = copied;
    const auto copy = gpu.queue().copy(in[5], target, nullptr, {stream(4)});
    expect(gpu.queue().wait(*copy, 30, nullptr), "copied");
    expect(std::memcmp(FakeDevice::host(copied), FakeDevice::host(in[5].data), in[5].nbytes()) == 0, "the same");
    barrier(rank.world);
  });
}

TEST_CASE("a process set that is removed takes its operations along") {
  const Environment environment({});
  const Fd fd = create_memfd("set", ControlSegment::nbytes(2, 64));
  run_ranks(2, [&](Rank& rank) {
    Gpu gpu(rank, true);
    auto group = rank.context.add_group(fd.get(), {0, 1}, 1, nullptr);
    const auto data = std::make_shared<Floats>(100);
    const auto reached = gpu.queue().submit(*group, sum_in_place(data), {stream(rank.rank)});
    const auto behind = gpu.queue().submit(*group, sum_in_place(data), {stream(7)});
    rank.context.remove_group(group.get(), nullptr);
    for (const auto& operation : {reached, behind}) {
      expect_contains(raised<ShutdownError>([&] { gpu.queue().wait(*operation, -1, nullptr); }), "was removed");
    }
    group.reset();
    gpu.device->advance();
    const auto world = gpu.queue().submit(rank.world, sum_in_place(data), {stream(1)});
    gpu.device->advance();
    expect(gpu.queue().wait(*world, 30, nullptr), "the world is there");
  });
}

// Rank 1 waits for the end of the set already, so nothing but rank 0's stream holds it up.
TEST_CASE("a thread that waits for an operation of a process set gets its result before the set is removed") {
  const Environment environment({});
  const Fd fd = create_memfd("set", ControlSegment::nbytes(2, 64));
  run_ranks(2, [&](Rank& rank) {
    Gpu gpu(rank, true);
    const auto set = rank.context.add_group(fd.get(), {0, 1}, 1, nullptr);
    const auto data = std::make_shared<Floats>(500, static_cast<float>(rank.rank + 1));
    const auto operation = gpu.queue().submit(*set, sum_in_place(data), {stream(0)});
    if (rank.rank == 1) {
      gpu.device->advance();
      return rank.context.remove_group(set.get(), nullptr);
    }
    std::atomic<bool> is_right{false};
    std::thread waits([&] { is_right.store(gpu.queue().wait(*operation, 30, nullptr) && data->front() == 3); });
    wait_for([&] { return operation->waiting.load() != 0; });
    std::atomic<bool> removes{false};
    std::thread streams([&] {
      wait_for([&] { return removes.load() && set->control().head(0, 1).tag.load() != 0; });
      look_around(rank, 1);
      gpu.device->advance();
    });
    removes.store(true);
    rank.context.remove_group(set.get(), nullptr);
    streams.join();
    waits.join();
    expect(is_right.load(), "with the sum, not with " + std::to_string(data->front()));
  });
}

TEST_CASE("join: what has been called and not come to its stream yet counts") {
  const Environment environment({});
  run_ranks(3, [](Rank& rank) {
    Gpu gpu(rank, true);
    const auto data = std::make_shared<Floats>(500, static_cast<float>(rank.rank + 1));
    const auto operation = gpu.queue().submit(rank.world, sum_in_place(data), {stream(0)});
    std::thread streams([&] {
      wait_for([&] { return rank.world.is_joining(); });
      gpu.device->advance();
    });
    rank.world.join(nullptr);
    streams.join();
    expect(gpu.queue().wait(*operation, 30, nullptr), "done");
    expect(data->front() == 6 && data->back() == 6, "of all ranks: " + std::to_string(data->front()));
  });
}

}  // namespace rr::test
