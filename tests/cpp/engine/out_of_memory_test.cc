// What the engine's thread cannot do for want of memory is an error of the group, and no end of the process.
#include <atomic>
#include <new>

#include "doctest/doctest.h"
#include "support/loopback_links.h"

namespace rr::test {
namespace {

// Runs out of memory once it is told to.
class Starved final : public Link {
 public:
  Starved(std::unique_ptr<Link> link, const std::atomic<bool>& is_starved)
      : link_(std::move(link)), is_starved_(is_starved) {}
  size_t push(const void* src, size_t nbytes) override { return link_->push(src, nbytes); }
  size_t pull(void* dst, size_t nbytes) override {
    if (is_starved_.load()) throw std::bad_alloc();
    return link_->pull(dst, nbytes);
  }
  size_t fold(void* dst, size_t nbytes, const Reduction& reduction, const Kernels& kernels) override {
    if (is_starved_.load()) throw std::bad_alloc();
    return link_->fold(dst, nbytes, reduction, kernels);
  }

 private:
  std::unique_ptr<Link> link_;
  const std::atomic<bool>& is_starved_;
};

TEST_CASE("hosts: a rank that runs out of memory ends the group, not its process, and all are told") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "30"}};
  for (const bool is_control : {true, false}) {
    CAPTURE(is_control);
    std::atomic<bool> is_starved{false};
    const auto starve = [&](std::unique_ptr<Link> link, int rank, int /*peer*/, int channel) -> std::unique_ptr<Link> {
      if (rank != 1 || carries_control(channel) != is_control) return link;
      return std::make_unique<Starved>(std::move(link), is_starved);
    };
    const auto body = [&](Rank& rank) {
      sum_now(rank, rank.world, 5000, 1);
      barrier(rank.world);
      if (rank.rank == 1) is_starved.store(true);
      const std::string text = raised<InternalError>([&] {
        for (;;) sum_now(rank, rank.world, 5000, 1);
      });
      expect_contains(text, "[ringreduce rank 1/2");
      expect_contains(text, "out of memory");
    };
    CHECK_NOTHROW(run_hosts({0, 1}, body, 64, 8192, nullptr, starve));
  }
}

}  // namespace
}  // namespace rr::test
