#include "recorder/timeline.h"

#include <chrono>
#include <utility>

#include "base/errors.h"
#include "os/thread.h"

namespace rr {
namespace {

// A rank that is killed loses so much of its timeline, and a wake-up costs 10 us of a core.
constexpr std::chrono::milliseconds kPause{20};
constexpr size_t kAtOnce = 1 << 14;  // records: 1 MiB

}  // namespace

Timeline::Timeline(std::shared_ptr<Recorder> recorder, const std::string& path, const std::string& process,
                   const LiveTrace::Target* trace, const Log& log)
    : recorder_(std::move(recorder)), log_(log), file_(path, process), records_(kAtOnce) {
  if (trace != nullptr) trace_.emplace(*trace);
  if (!recorder_->begin()) throw UnavailableError("this process writes a timeline already; stop it first");
  try {
    thread_ = start_thread([this] { run(); });
  } catch (const std::exception& error) {
    recorder_->end();
    throw UnavailableError(std::string("the timeline's thread cannot be started: ") + error.what());
  }
}

void Timeline::run() {
  std::unique_lock lock(mutex_);
  while (!changed_.wait_for(lock, kPause, [this] { return is_over_; })) {
    lock.unlock();
    write_or_give_up();
    lock.lock();
  }
}

// Records first: of what they name, all is known by then.
void Timeline::write() {
  for (;;) {
    const size_t count = recorder_->take(records_.data(), records_.size());
    for (const RecordedGroup& group : recorder_->groups_from(groups_ + 1)) {
      file_.write_group(group);
      ++groups_;
    }
    const auto names = recorder_->take_names();
    file_.write_names(names);
    file_.write_records(records_.data(), count, recorder_->dropped());
    if (trace_) {
      trace_->add_names(names);
      trace_->add(records_.data(), count);
    }
    if (count < records_.size()) return;
  }
}

// Training goes on without a timeline where the disk is full.
void Timeline::write_or_give_up() {
  if (has_failed_) return;
  try {
    write();
  } catch (const std::exception& error) {
    has_failed_ = true;
    recorder_->end();
    log_.warning(std::string(error.what()) + "; the timeline ends here");
  }
}

void Timeline::stop(const std::string& reason) {
  if (!thread_.joinable()) return;
  recorder_->end();
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
  write_or_give_up();
  if (has_failed_) return;
  try {
    file_.write_end(reason, recorder_->dropped());
    if (trace_) trace_->end();
  } catch (const std::exception& error) {
    log_.warning(std::string(error.what()) + "; the timeline's end is missing");
  }
}

}  // namespace rr
