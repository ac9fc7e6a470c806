// A link between two ranks that breaks when a test says so, as where the peer's process is killed.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "base/errors.h"
#include "transport/link.h"

namespace rr::test {

// A link that has ended from some time on, and throws.
class BreakableLink final : public Link {
 public:
  BreakableLink(std::unique_ptr<Link> link, const std::atomic<bool>& is_broken)
      : link_(std::move(link)), is_broken_(is_broken) {}

  size_t push(const void* src, size_t nbytes) override { return unless_broken().push(src, nbytes); }
  size_t pull(void* dst, size_t nbytes) override { return unless_broken().pull(dst, nbytes); }
  size_t fold(void* dst, size_t nbytes, const Reduction& reduction, const Kernels& kernels) override {
    return unless_broken().fold(dst, nbytes, reduction, kernels);
  }
  bool has_ended() const override { return is_broken_; }

 private:
  Link& unless_broken() const {
    if (is_broken_) throw PeerLostError("the test has broken this link");
    return *link_;
  }

  std::unique_ptr<Link> link_;
  const std::atomic<bool>& is_broken_;
};

}  // namespace rr::test
