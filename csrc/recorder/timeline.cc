#include "recorder/timeline.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "os/thread.h"
#include "recorder/cycle_times.h"
#include "recorder/record_file.h"

namespace rr {
namespace {

// A rank that is killed loses so much of its timeline. A wake-up takes 50 to 75 us of a core on a VM.
constexpr int64_t kPauseNs = 80'000'000;
constexpr std::chrono::seconds kPatience{5};
constexpr size_t kAtOnce = 1 << 14;  // records: 1 MiB

}  // namespace

class Timeline::Writer {
 public:
  Writer(std::shared_ptr<Recorder> recorder, const std::string& path, const std::string& process,
         const LiveTrace::Target* trace, const Log& log)
      : recorder_(std::move(recorder)), log_(log), file_(path, process), records_(kAtOnce) {
    if (trace != nullptr) trace_.emplace(*trace);
  }

  // Of the thread.
  void run() {
    while (!has_failed_ && !is_over_.load(std::memory_order_acquire)) {
      recorder_->wait(kPauseNs, is_over_);
      unless_it_fails([this] { write(); });
    }
    await_end();  // after a failure: nobody takes from the ring, which may be full
    unless_it_fails([this] {
      write();
      file_.write_end(reason_, lost_at_end());
      if (trace_) trace_->end();
    });
    const std::lock_guard lock(mutex_);
    is_done_ = true;
    changed_.notify_all();
  }
  // False: the thread has not ended the files in time.
  bool end(const std::string& reason) {
    recorder_->end();
    std::unique_lock lock(mutex_);
    reason_ = reason;
    is_over_.store(true, std::memory_order_release);
    recorder_->hurry();
    changed_.notify_all();
    if (changed_.wait_for(lock, kPatience, [this] { return is_done_; })) return true;
    lost_ = recorder_->dropped() + recorder_->left();
    is_given_up_ = true;
    log_.warning("the timeline's disk has not answered within 5 s; what the file lacks may be lost");
    return false;
  }

 private:
  struct Taken {
    size_t count;  // of records_
    std::vector<RecordedGroup> groups;
    std::vector<std::pair<uint32_t, std::string>> names;
  };
  void await_end() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return is_over_.load(); });
  }
  // Records are taken first: of what they name, all is known by then. Memory that nothing was taken into is left alone,
  // for the sake of the core's cache.
  void write() {
    while (const std::optional<Taken> taken = take()) {
      cycle_times_.update();
      for (size_t i = 0; i < taken->count; ++i) in_nanoseconds(records_[i]);
      for (const RecordedGroup& group : taken->groups) {
        file_.write_group(group);
        ++groups_;
      }
      file_.write_names(taken->names);
      file_.write_records(records_.data(), taken->count, lost());
      if (trace_) {
        trace_->add_names(taken->names);
        trace_->add(records_.data(), taken->count);
      }
      if (taken->count < records_.size()) return;
    }
  }
  // Empty: the thread has been given up, and the recorder is the next timeline's.
  std::optional<Taken> take() {
    const std::lock_guard lock(mutex_);
    if (is_given_up_) return std::nullopt;
    const size_t count = recorder_->take(records_.data(), records_.size());
    return Taken{count, recorder_->groups_from(groups_ + 1), recorder_->take_names()};
  }
  // Records that are not in the file.
  uint64_t lost() {
    const std::lock_guard lock(mutex_);
    return is_given_up_ ? lost_ : recorder_->dropped();
  }
  // The same at the end: nobody takes what comes behind a thread that has begun to add a record, and does not run.
  uint64_t lost_at_end() {
    const std::lock_guard lock(mutex_);
    return is_given_up_ ? lost_ : recorder_->dropped() + recorder_->left();
  }
  void in_nanoseconds(Record& record) const {
    if ((record.flags & kRecordInCycles) == 0) return;
    record.flags &= static_cast<uint8_t>(~kRecordInCycles);
    for (int64_t* at : {&record.called_ns, &record.started_ns, &record.ended_ns}) {
      if (*at != 0) *at = cycle_times_.ns(*at);
    }
    record.ended_ns = std::max(record.ended_ns, record.called_ns);  // where a counter was not what the kernel thought
    if (record.started_ns != 0) record.started_ns = std::clamp(record.started_ns, record.called_ns, record.ended_ns);
  }
  // Training goes on without a timeline where the disk is full.
  template <class Step>
  void unless_it_fails(Step step) {
    if (has_failed_) return;
    try {
      step();
    } catch (const std::exception& error) {
      has_failed_ = true;
      const std::lock_guard lock(mutex_);
      if (!is_given_up_) recorder_->end();
      log_.warning(std::string(error.what()) + "; the timeline ends here");
    }
  }

  const std::shared_ptr<Recorder> recorder_;
  const Log log_;
  RecordFile file_;
  std::optional<LiveTrace> trace_;
  size_t groups_ = 0;            // written
  std::vector<Record> records_;  // room for those taken at once
  CycleTimes cycle_times_;
  bool has_failed_ = false;  // nothing more is written

  std::string reason_;  // written before is_over_
  std::atomic<bool> is_over_{false};
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  bool is_done_ = false;
  bool is_given_up_ = false;
  uint64_t lost_ = 0;  // where it is given up
};

Timeline::Timeline(const std::shared_ptr<Recorder>& recorder, const std::string& path, const std::string& process,
                   const LiveTrace::Target* trace, const Log& log) {
  if (!recorder->begin()) throw UnavailableError("this process writes a timeline already; stop it first");
  try {
    writer_ = std::make_shared<Writer>(recorder, path, process, trace, log);
    thread_ = start_thread([writer = writer_] { writer->run(); });
  } catch (const Error&) {
    recorder->end();
    throw;
  } catch (const std::exception& error) {
    recorder->end();
    throw UnavailableError(std::string("the timeline cannot be begun: ") + error.what());
  }
}

bool Timeline::stop(const std::string& reason) {
  if (!thread_.joinable()) return true;
  const bool is_written = writer_->end(reason);
  if (is_written) {
    thread_.join();
  } else {
    thread_.detach();
  }
  writer_.reset();
  return is_written;
}

}  // namespace rr
