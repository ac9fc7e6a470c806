// The descriptors that a forked child has to close, so that a dead rank's connections end although a child of it lives.
// Without a lock, which another thread may hold while the process forks.
#pragma once

#include <unistd.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace rr {

class OwnedFds {
 public:
  void add(int fd) { change(fd, true); }
  void remove(int fd) { change(fd, false); }
  void close_all() {
    for (size_t word = 0; word < words_.size(); ++word) {
      for (uint64_t bits = words_[word].exchange(0); bits != 0; bits &= bits - 1) {
        ::close(static_cast<int>(word * 64) + __builtin_ctzll(bits));
      }
    }
  }

 private:
  void change(int fd, bool is_owned) {
    const size_t word = static_cast<size_t>(fd) / 64;
    if (fd < 0 || word >= words_.size()) return;
    const uint64_t bit = uint64_t{1} << (fd % 64);
    if (is_owned) {
      words_[word].fetch_or(bit);
    } else {
      words_[word].fetch_and(~bit);
    }
  }

  std::array<std::atomic<uint64_t>, 1024> words_ = {};
};

}  // namespace rr
