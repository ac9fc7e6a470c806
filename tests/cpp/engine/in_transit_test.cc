// What a rank has pushed and its receiver has not taken yet: MPI works on it only while it is called, so some thread of
// the rank has to go on doing so.
#include <atomic>

#include "doctest/doctest.h"
#include "engine/gpu/device_queue.h"
#include "fakes/fake_device.h"
#include "support/ranks.h"

namespace rr::test {
namespace {

TEST_CASE("a call that returns leaves to the engine what is still on its way") {
  const Environment environment{};
  const Fd fd = create_memfd("test", ControlSegment::nbytes(2, 64));
  std::atomic<bool> is_on_its_way{false};
  std::atomic<int> looks{0};
  std::atomic<int> last{20000};  // step
  CHECK_NOTHROW(run_threads(2, [&](int r) {
    auto segments = std::make_shared<SegmentRegistry>();
    Network network;
    if (r == 1) {
      network.progress = [&] {
        ++looks;
        return is_on_its_way.load();
      };
    }
    Context context(fd.get(), r, 2, {-1, -1}, "host", segments, nullptr, tune, -1, network);
    Rank rank = {context, context.world(), r, 2, *segments};
    const std::atomic<uint32_t>& rung = context.engine_bell(r).seq;
    barrier(rank.world);
    const uint32_t before = rung.load();
    if (r == 1) is_on_its_way.store(true);
    // An engine that is awake for another reason, and executes the operation, need not be woken: until one is. Rank 0
    // ends a step after rank 1 has begun it, so both see which step is the last before they end the one before it.
    for (int step = 0; step <= last.load(); ++step) {
      sum_now(rank, rank.world, 5000, step);
      if (r == 1 && rung.load() != before && step + 2 < last.load()) last.store(step + 2);
    }
    if (r == 0) return;
    expect(rung.load() != before, "the engine is woken");
    const int looked = looks.load();
    wait_for([&] { return looks.load() > looked + 3; });
    is_on_its_way.store(false);
  }));
}

// Which of the groups has sent what is lost, the network does not say.
TEST_CASE("a failure of what is on its way ends all groups of the rank") {
  const Environment environment{};
  const Fd fd = create_memfd("test", ControlSegment::nbytes(2, 64));
  const Fd fd_of_set = create_memfd("set", ControlSegment::nbytes(2, 64));
  std::atomic<bool> is_lost{false};
  std::atomic<bool> has_begun{false};  // rank 0 has the barrier's end before the group fails
  CHECK_NOTHROW(run_threads(2, [&](int r) {
    Network network;
    network.progress = [&, r] {
      if (r == 1 && is_lost.load()) throw PeerLostError("MPI: the last message is lost");
      return false;
    };
    Context context(fd.get(), r, 2, {-1, -1}, "host", std::make_shared<SegmentRegistry>(), nullptr, tune, -1, network);
    const std::shared_ptr<Group> set = context.add_group(fd_of_set.get(), {0, 1}, 1, nullptr);
    barrier(*set);
    if (r == 0) has_begun.store(true);
    if (r == 1) {
      wait_for([&] { return has_begun.load(); });
      is_lost.store(true);
      wait_for([&] {
        context.try_progress();
        return has_failed(set->control());
      });
    }
    expect_contains(raised<PeerLostError>([&] { barrier(*set); }), "the last message is lost");
  }));
}

// While it executes something the engine leaves that to it, and sleeps.
TEST_CASE("the queue of a GPU that has nothing more to do leaves to the engine what is still on its way") {
  const Environment environment{};
  const Fd fd = create_memfd("test", ControlSegment::nbytes(1, 64));
  const auto segments = std::make_shared<SegmentRegistry>();
  Network network;
  network.progress = [] { return true; };
  Context context(fd.get(), 0, 1, {-1}, "host", segments, nullptr, tune, -1, network);
  context.gpu().use(std::make_shared<FakeDevice>());
  DeviceQueue& queue = context.gpu().queue();
  const auto data = std::make_shared<Floats>(500);
  Request request;
  request.kind = Kind::kAllreduce;
  request.srcs = request.dsts = {view(*data, DType::kFloat32)};
  request.is_async = true;
  request.keep = data;
  const auto operation = queue.submit(context.world(), request, {reinterpret_cast<Stream>(uintptr_t{0x100})});
  CHECK_NOTHROW(wait_for([&] { return queue.done(*operation); }));
  const uint32_t rung = context.engine_bell(0).seq.load();
  CHECK_NOTHROW(wait_for([&] { return context.engine_bell(0).seq.load() != rung; }));
}

}  // namespace
}  // namespace rr::test
