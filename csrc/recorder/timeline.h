// Writes what a Recorder is given into a file, on a thread of its own, until it is stopped.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/log.h"
#include "recorder/live_trace.h"
#include "recorder/record_file.h"
#include "recorder/recorder.h"

namespace rr {

class Timeline {
 public:
  // path, process: of the RecordFile. trace: null, or a trace to be written besides. Throws UnavailableError where a
  // file cannot be made, or the recorder has a timeline already.
  Timeline(std::shared_ptr<Recorder> recorder, const std::string& path, const std::string& process,
           const LiveTrace::Target* trace, const Log& log);
  ~Timeline() { stop("the process has ended"); }
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Writes what has been recorded so far, and ends the files. Does nothing twice.
  void stop(const std::string& reason);
  // In a forked child, which must not destroy it: the thread is not there, and the files are the parent's.
  void forget_after_fork() { recorder_->end(); }

 private:
  void run();
  void write();
  void write_or_give_up();

  const std::shared_ptr<Recorder> recorder_;
  const Log log_;
  RecordFile file_;
  std::optional<LiveTrace> trace_;
  size_t groups_ = 0;            // written
  std::vector<Record> records_;  // room for those taken at once
  bool has_failed_ = false;      // nothing more is written. Of the thread, and after it of who stops

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace rr
