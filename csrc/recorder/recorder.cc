#include "recorder/recorder.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>

namespace rr {
namespace {

constexpr uint32_t kOtherName = UINT32_MAX;

}  // namespace

uint16_t thread_number() {
  static std::atomic<uint32_t> others{0};
  thread_local const uint16_t number =
      ::gettid() == ::getpid() ? uint16_t{0} : static_cast<uint16_t>(std::min<uint32_t>(UINT16_MAX, ++others));
  return number;
}

// The clock of another thread of this process, as clock_getcpuclockid(3) makes that of a process: the kernel's encoding
// is its interface (include/linux/posix-timers_types.h).
int64_t main_thread_cpu_ns() {
  constexpr unsigned kScheduled = 2, kOfThread = 4;
  const auto clock = static_cast<clockid_t>(~static_cast<unsigned>(::getpid()) << 3 | kScheduled | kOfThread);
  timespec time;
  if (::clock_gettime(clock, &time) != 0) return 0;
  return static_cast<int64_t>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
}

RecordedGroup Recorder::add_group(std::string context, int id, std::vector<int> ranks) {
  RecordedGroup group{0, std::move(context), id, std::move(ranks)};
  const auto groups = groups_.lock();
  if (groups->size() < UINT16_MAX) {
    group.number = static_cast<uint16_t>(groups->size() + 1);
    groups->push_back(group);
  }
  return group;
}

RecordedCall Recorder::call(uint16_t group, const std::string& name) {
  RecordedCall call;
  call.timeline = timeline();
  call.thread = thread_number();
  if (name.empty()) return call;
  std::string key(reinterpret_cast<const char*>(&group), sizeof group);
  key.append(name, 0, kNameNbytes);
  const auto names = names_.lock();
  const auto found = names->known.find(key);
  if (found != names->known.end()) {
    call.name = found->second.number;
    call.number = found->second.calls++;
    return call;
  }
  if (names->known.size() >= kNamesMost) {
    if (names->others == 0) names->news.emplace_back(kOtherName, "(more names than are kept)");
    call.name = kOtherName;
    call.number = names->others++;
    return call;
  }
  call.name = static_cast<uint32_t>(names->known.size() + 1);
  names->news.emplace_back(call.name, name.substr(0, kNameNbytes));
  names->known.emplace(std::move(key), Name{call.name, 1});
  return call;
}

bool Recorder::begin() {
  if (is_on()) return false;
  if (ring_ == nullptr) ring_ = std::make_unique<RecordRing>(kCapacity);
  Record late;  // that threads have added since the last timeline ended
  while (take(&late, 1) != 0) {
  }
  dropped_.store(0);
  *names_.lock() = Names();
  timeline_.store(++timelines_, std::memory_order_release);
  return true;
}

std::vector<std::pair<uint32_t, std::string>> Recorder::take_names() { return std::exchange(names_.lock()->news, {}); }

std::vector<RecordedGroup> Recorder::groups_from(size_t first) {
  const auto groups = groups_.lock();
  std::vector<RecordedGroup> news;
  for (size_t i = first - 1; i < groups->size(); ++i) news.push_back((*groups)[i]);
  return news;
}

}  // namespace rr
