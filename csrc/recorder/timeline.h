// Writes what a Recorder is given into a file, on a thread of its own, until it is stopped.
#pragma once

#include <memory>
#include <string>
#include <thread>

#include "base/log.h"
#include "recorder/live_trace.h"
#include "recorder/recorder.h"

namespace rr {

class Timeline {
 public:
  // path, process: of the RecordFile. trace: null, or a trace to be written besides. Throws UnavailableError where a
  // file cannot be made, or the recorder has a timeline already.
  Timeline(const std::shared_ptr<Recorder>& recorder, const std::string& path, const std::string& process,
           const LiveTrace::Target* trace, const Log& log);
  ~Timeline() { stop("the process has ended"); }
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  // Writes what has been recorded so far, and ends the files. Does nothing twice. False, behind a warning: the disk has
  // not answered within 5 s, and another look at it may take as long.
  bool stop(const std::string& reason);

 private:
  class Writer;

  std::shared_ptr<Writer> writer_;  // the thread's, too: nobody can end a thread that waits for a disk
  std::thread thread_;
};

}  // namespace rr
