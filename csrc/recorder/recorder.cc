#include "recorder/recorder.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "base/hash.h"
#include "base/text.h"
#include "os/thread.h"
#include "recorder/cycle_times.h"

namespace rr {
namespace {

constexpr uint32_t kOtherName = UINT32_MAX;
constexpr size_t kNameKept = 244;  // of a name, at most

// Of two looks 1 ms apart, each uncertain by 20 ns: good for microseconds.
double measured_ns_per_cycle() {
  constexpr int64_t kApartNs = 1'000'000;
  CycleTimes times;
  const int64_t until_ns = now_ns() + kApartNs;
  while (now_ns() < until_ns) {
  }
  times.update();
  return times.rate();
}

// Of a longer name the beginning and a number that stands for all of it: ranks match operations by what is kept.
std::string kept_of(const std::string& name) {
  if (name.size() <= kNameKept) return name;
  char number[17];
  std::snprintf(number, sizeof number, "%016llx", static_cast<unsigned long long>(hash_of_text(name)));
  const std::string mark = std::string("...#") + number;
  return shortened(name, kNameKept - mark.size()) + mark;
}

std::string key_of(uint16_t group, const std::string& kept) {
  return std::string(reinterpret_cast<const char*>(&group), sizeof group) + kept;
}

}  // namespace

uint16_t thread_number() {
  static std::atomic<uint32_t> others{0};
  thread_local const uint16_t number =
      is_main_thread() ? uint16_t{0} : static_cast<uint16_t>(std::min<uint32_t>(UINT16_MAX, ++others));
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

RecordedCall Recorder::call(uint16_t group, const std::string& name, uint32_t epoch) {
  RecordedCall call;
  call.timeline = timeline();
  call.thread = thread_number();
  if (name.empty()) return call;
  const std::string kept = kept_of(name);
  std::string key = key_of(group, kept);
  const auto names = names_.lock();
  call.timeline = names->timeline;
  auto found = names->known.find(key);
  if (found == names->known.end() && names->known.size() >= kNamesMost) {
    if (!std::exchange(names->has_others, true)) names->news.emplace_back(kOtherName, "(more names than are kept)");
    call.name = kOtherName;
    call.number = hash_of_text(kept);  // of the name alone: ranks number their groups differently
    return call;
  }
  if (found == names->known.end()) {
    const auto number = static_cast<uint32_t>(names->known.size() + 1);
    names->news.emplace_back(number, kept);
    found = names->known.emplace(std::move(key), Name{number, epoch, 0}).first;
  }
  Name& known = found->second;
  if (known.epoch != epoch) known = {known.number, epoch, 0};
  call.name = known.number;
  call.number = static_cast<uint64_t>(epoch) << 32 | known.calls++;
  return call;
}

void Recorder::take_back(uint16_t group, const std::string& name, const RecordedCall& call) {
  if (call.timeline == 0 || name.empty()) return;
  const auto names = names_.lock();
  const auto found = names->known.find(key_of(group, kept_of(name)));
  if (call.timeline != names->timeline || found == names->known.end()) return;
  // Only of the last call of the name: else a later one would have the number of one that is recorded.
  Name& known = found->second;
  const uint64_t last = static_cast<uint64_t>(known.epoch) << 32 | (known.calls - 1);
  if (known.calls != 0 && call.number == last) --known.calls;
}

bool Recorder::begin() {
  if (is_on()) return false;
  if (ring_ == nullptr) ring_ = std::make_unique<RecordRing>(kCapacity);
  ns_per_cycle_.store(has_cycle_counter() ? measured_ns_per_cycle() : 0);
  Record late;  // that threads have added since the last timeline ended
  while (take(&late, 1) != 0) {
  }
  dropped_.store(0);
  {
    const auto names = names_.lock();
    *names = Names();
    names->timeline = ++timelines_;
  }
  timeline_.store(timelines_, std::memory_order_release);
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
