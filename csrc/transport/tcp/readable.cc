#include "transport/tcp/readable.h"

#include "base/clock.h"

namespace rr {
namespace {
constexpr int64_t kFreshNs = 1000;  // a thread takes about so long to look at its links
constexpr size_t kFew = 4;
}  // namespace

bool Readable::Flag::take() {
  if (!is_up_.load(std::memory_order_acquire)) all_.look();
  const uint64_t looks = all_.looks_.load(std::memory_order_relaxed);
  const bool is_asked = looks != looks_;
  looks_ = looks;
  return is_up_.exchange(false) || is_asked || is_always_up_.load(std::memory_order_relaxed);
}

Readable::Flag& Readable::add(int fd) {
  if (free_.empty()) free_.push_back(&flags_.emplace_back(*this));
  Flag& flag = *free_.back();
  free_.pop_back();
  flag.is_up_.store(true);
  flag.is_always_up_.store(!epoll_.try_add_tagged(fd, EPOLLIN | EPOLLRDHUP | EPOLLET, &flag));
  count_.fetch_add(1);
  return flag;
}

void Readable::remove(int fd, Flag& flag) {
  count_.fetch_sub(1);
  epoll_.remove(fd);
  free_.push_back(&flag);
}

void Readable::look() {
  const int64_t now = now_ns();
  if (now - looked_ns_.load(std::memory_order_relaxed) < kFreshNs) return;
  looked_ns_.store(now, std::memory_order_relaxed);
  if (count_.load(std::memory_order_relaxed) <= kFew) {
    looks_.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  epoll_event events[64];
  for (size_t count = 64; count == 64;) {
    count = epoll_.wait(events, 0);
    for (size_t i = 0; i < count; ++i) {
      Flag& flag = *static_cast<Flag*>(events[i].data.ptr);
      if ((events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) flag.is_always_up_.store(true);
      flag.is_up_.store(true);
    }
  }
}

}  // namespace rr
