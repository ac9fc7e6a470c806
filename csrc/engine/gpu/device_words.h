// The words that streams wait for: which of a device's belong to whom.
//
// A word only grows, and a stream waits for at least a value: so a word serves the next operation as soon as its last
// one is done, however late a stream comes by. The words of captured operations are an exception: they go back to 0
// before each replay, hence they are taken once, from the other end, and never given back.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "gpu/device.h"

namespace rr {

struct Word {
  uint32_t* at = nullptr;
  uint32_t value = 0;  // of the operation that has it: what a stream waits for
};

class DeviceWords {
 public:
  // One for each device, shared by the contexts that use it.
  static std::shared_ptr<DeviceWords> of(const std::shared_ptr<Device>& device);
  explicit DeviceWords(std::shared_ptr<Device> device) : device_(std::move(device)) {}

  // UnavailableError when all are in use.
  Word take();
  Word take_for_replays();
  // Lets streams go on. Any thread, a driver's callback too.
  static void write(const Word& word) { __atomic_store_n(word.at, word.value, __ATOMIC_SEQ_CST); }
  // Before a replay.
  static void reset(const Word& word) { __atomic_store_n(word.at, word.value - 1, __ATOMIC_SEQ_CST); }
  void give_back(const Word& word);  // written
  size_t in_use() const;

 private:
  [[noreturn]] void throw_exhausted() const;

  const std::shared_ptr<Device> device_;
  mutable std::mutex mutex_;
  std::vector<uint32_t*> free_;
  size_t begun_ = 0;     // words that have ever been taken
  size_t replayed_ = 0;  // from the end
};

}  // namespace rr
