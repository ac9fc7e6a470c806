#include "streams.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "state.h"

namespace fake {
namespace {

thread_local unsigned capture_mode = rr::cu::kCaptureModeGlobal;

struct Streams {
  std::mutex mutex;
  std::map<const Stream*, std::shared_ptr<Stream>> all;
  std::map<const Context*, std::shared_ptr<Stream>> legacy;
  std::map<std::pair<const Context*, std::thread::id>, std::shared_ptr<Stream>> per_thread;
  std::vector<std::weak_ptr<Graph>> captures;  // under way
  uint64_t made = 0;
};

Streams& streams() {
  static auto& instance = rr::never_destroyed<Streams>();
  return instance;
}

std::shared_ptr<Stream> made(Streams& all, Context& context, bool is_blocking) {
  auto stream = std::make_shared<Stream>(context, is_blocking, ++all.made);
  all.all[stream.get()] = stream;
  return stream;
}

}  // namespace

Stream::Stream(Context& context, bool is_blocking, uint64_t number)
    : context_(context),
      is_blocking_(is_blocking),
      random_(option("FAKE_CUDA_SEED", 1) * 1000 + number),
      jitter_us_(option("FAKE_CUDA_JITTER_US", 50)) {}

std::shared_ptr<Graph> Stream::capture() const {
  const std::lock_guard lock(mutex_);
  return capture_;
}

void Stream::set_capture(std::shared_ptr<Graph> graph) {
  const std::lock_guard lock(mutex_);
  capture_ = std::move(graph);
}

void Stream::issue(Task task) {
  const std::lock_guard lock(mutex_);
  if (capture_ != nullptr) {
    capture_->tasks.push_back(std::move(task));
    return;
  }
  tasks_.push_back(std::move(task));
  ++issued_;
  if (!has_thread_) {
    has_thread_ = true;
    std::thread([self = shared_from_this()] { self->run(); }).detach();
  }
  changed_.notify_all();
}

uint64_t Stream::issued() const {
  const std::lock_guard lock(mutex_);
  return issued_;
}

bool Stream::has_done(uint64_t number) const {
  const std::lock_guard lock(mutex_);
  return done_ >= number;
}

bool Stream::await(uint64_t number, double limit_s) const {
  std::unique_lock lock(mutex_);
  return changed_.wait_for(lock, std::chrono::duration<double>(limit_s), [&] { return done_ >= number; });
}

void Stream::await_in_task(uint64_t number) const {
  while (!await(number, 0.05)) {
    if (context_.broken != rr::cu::kSuccess) return;
  }
}

void Stream::close() {
  const std::lock_guard lock(mutex_);
  is_closing_ = true;
  changed_.notify_all();
}

void Stream::pause() {
  const uint64_t drawn = random_();
  if (jitter_us_ != 0 && drawn % 4 == 0) {
    ::usleep(static_cast<useconds_t>((drawn >> 8) % jitter_us_));
  } else if (drawn % 2 == 0) {
    std::this_thread::yield();
  }
}

void Stream::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return is_closing_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const Task task = std::move(tasks_.front());
    tasks_.pop_front();
    lock.unlock();
    pause();
    if (context_.broken == rr::cu::kSuccess) task();
    lock.lock();
    ++done_;
    changed_.notify_all();
  }
}

Task wait_value(Context& context, const uint32_t* word, uint32_t value) {
  return [&context, word, value] {
    while (static_cast<int32_t>(__atomic_load_n(word, __ATOMIC_ACQUIRE) - value) < 0) {
      if (context.broken != rr::cu::kSuccess) return;
      ::usleep(20);
    }
  };
}

std::shared_ptr<Stream> new_stream(Context& context, bool is_blocking) {
  auto& all = streams();
  const std::lock_guard lock(all.mutex);
  return made(all, context, is_blocking);
}

std::shared_ptr<Stream> find(rr::cu::Stream handle, Context& current) {
  auto& all = streams();
  const std::lock_guard lock(all.mutex);
  const auto value = reinterpret_cast<uintptr_t>(handle);
  if (value <= 1) {
    auto& stream = all.legacy[&current];
    if (stream == nullptr) stream = made(all, current, true);
    return stream;
  }
  if (value == 2) {
    auto& stream = all.per_thread[{&current, std::this_thread::get_id()}];
    if (stream == nullptr) stream = made(all, current, true);
    return stream;
  }
  const auto known = all.all.find(reinterpret_cast<const Stream*>(handle));
  return known == all.all.end() ? nullptr : known->second;
}

rr::cu::Stream handle_of(const Stream& stream) {
  return reinterpret_cast<rr::cu::Stream>(reinterpret_cast<uintptr_t>(&stream));
}

void forget(const Stream& stream) {
  auto& all = streams();
  const std::lock_guard lock(all.mutex);
  all.all.erase(&stream);
}

std::vector<std::shared_ptr<Stream>> streams_of(const Context& context) {
  auto& all = streams();
  const std::lock_guard lock(all.mutex);
  std::vector<std::shared_ptr<Stream>> found;
  for (const auto& [key, stream] : all.all) {
    if (&stream->context() == &context) found.push_back(stream);
  }
  return found;
}

void synchronize(const Context& context, const char* call) {
  for (const auto& stream : streams_of(context)) {
    if (stream->await(stream->issued(), 20)) continue;
    std::fprintf(stderr, "fake CUDA: %s has waited 20 s for the device; on a GPU this is a deadlock\n", call);
    std::abort();
  }
}

Result issue(const std::shared_ptr<Stream>& stream, Task task) {
  if (const auto graph = stream->capture()) {
    if (graph->is_invalid) return rr::cu::kStreamCaptureInvalidated;
    stream->issue(std::move(task));
    return rr::cu::kSuccess;
  }
  std::vector<std::pair<std::shared_ptr<Stream>, uint64_t>> before;
  if (stream->is_blocking()) {
    auto& all = streams();
    const std::lock_guard lock(all.mutex);
    const auto legacy = all.legacy.find(&stream->context());
    const bool is_legacy = legacy != all.legacy.end() && legacy->second == stream;
    for (const auto& [key, other] : all.all) {
      const bool counts = is_legacy ? other->is_blocking() : legacy != all.legacy.end() && other == legacy->second;
      if (other == stream || !counts || &other->context() != &stream->context()) continue;
      if (other->capture() != nullptr) return rr::cu::kStreamCaptureImplicit;
      before.emplace_back(other, other->issued());
    }
  }
  stream->issue([before = std::move(before), task = std::move(task)] {
    for (const auto& [other, number] : before) other->await_in_task(number);
    task();
  });
  return rr::cu::kSuccess;
}

void begin_capture(const std::shared_ptr<Stream>& stream, unsigned mode) {
  auto graph = std::make_shared<Graph>();
  graph->mode = mode;
  graph->thread = std::this_thread::get_id();
  auto& all = streams();
  const std::lock_guard lock(all.mutex);
  all.captures.push_back(graph);
  stream->set_capture(std::move(graph));
}

std::shared_ptr<Graph> end_capture(const std::shared_ptr<Stream>& stream) {
  const auto graph = stream->capture();
  auto& all = streams();
  const std::lock_guard lock(all.mutex);
  for (const auto& [key, other] : all.all) {
    if (other->capture() == graph) other->set_capture(nullptr);
  }
  for (size_t i = all.captures.size(); i-- > 0;) {
    const auto known = all.captures[i].lock();
    if (known == nullptr || known == graph) all.captures.erase(all.captures.begin() + static_cast<ptrdiff_t>(i));
  }
  return graph;
}

unsigned exchange_capture_mode(unsigned mode) { return std::exchange(capture_mode, mode); }

Result forbidden_in_capture() {
  if (capture_mode == rr::cu::kCaptureModeRelaxed) return rr::cu::kSuccess;
  auto& all = streams();
  const std::lock_guard lock(all.mutex);
  Result result = rr::cu::kSuccess;
  for (const auto& weak : all.captures) {
    const auto graph = weak.lock();
    if (graph == nullptr || graph->mode == rr::cu::kCaptureModeRelaxed) continue;
    const bool is_mine = graph->thread == std::this_thread::get_id();
    const bool is_global = capture_mode == rr::cu::kCaptureModeGlobal && graph->mode == rr::cu::kCaptureModeGlobal;
    if (!is_mine && !is_global) continue;
    graph->is_invalid = true;
    result = rr::cu::kStreamCaptureUnsupported;
  }
  return result;
}

}  // namespace fake
