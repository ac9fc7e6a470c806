// A timeline whose disk fails or hangs, or whose place another user has prepared: what is lost is counted, no core is
// taken, and no other file is touched.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "doctest/doctest.h"
#include "recorder/output_file.h"
#include "recorder/timeline.h"
#include "support/child.h"
#include "support/ranks.h"
#include "support/record_files.h"

namespace rr::test {
namespace {

// A file whose disk takes a page, and then nothing until it is read or closed.
class SlowDisk {
 public:
  explicit SlowDisk(const std::string& path) {
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    reader_ = Fd(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    REQUIRE(::fcntl(reader_.get(), F_SETPIPE_SZ, 4096) > 0);
  }
  // All that is written until the writer closes the file.
  std::string read() {
    REQUIRE(::fcntl(reader_.get(), F_SETFL, 0) == 0);
    std::string text;
    char part[4096];
    for (ssize_t got = 0; (got = ::read(reader_.get(), part, sizeof part)) > 0;)
      text.append(part, static_cast<size_t>(got));
    return text;
  }
  void fail() { reader_ = Fd(); }

 private:
  Fd reader_;
};

// Adds records until the ring is full, and a few more. Returns how many.
uint64_t overfill(Recorder& recorder) {
  uint64_t count = 0;
  while (recorder.dropped() < 10) recorder.add(recorder.timeline(), numbered(count++));
  return count;
}

// With the first thread of a process the thread sanitizer starts one of its own, so that one is made before.
std::set<std::string> threads() {
  static const bool has_first = [] { return std::thread([] {}).join(), true; }();
  REQUIRE(has_first);
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) found.insert(entry.path().string());
  return found;
}

// "S": it sleeps; "R": it runs, or could.
std::string state_of(const std::string& thread) {
  const std::string stat = content(thread + "/stat");
  return stat.substr(stat.rfind(')') + 2, 1);
}

}  // namespace

TEST_CASE("timeline: once a write has failed its thread sleeps, however much is left in the ring") {
  const TemporaryFolder folder;
  SlowDisk disk(folder.file("rank-0000.rr"));
  const auto recorder = std::make_shared<Recorder>();
  const std::set<std::string> before = threads();
  Timeline timeline(recorder, folder.file("rank-0000.rr"), "{}", nullptr, Log(LogLevel::kFatal, 0));
  std::set<std::string> made = threads();
  for (const std::string& one : before) made.erase(one);
  REQUIRE(made.size() == 1);
  overfill(*recorder);
  disk.fail();
  CHECK_NOTHROW(wait_for([&] { return !recorder->is_on(); }));
  CHECK_NOTHROW(wait_for([&] { return state_of(*made.begin()) == "S"; }));
  timeline.stop("the test is over");
}

TEST_CASE("timeline: what a disk that hangs keeps out of the file is counted at its end") {
  const TemporaryFolder folder;
  SlowDisk disk(folder.file("rank-0000.rr"));
  const auto recorder = std::make_shared<Recorder>();
  Timeline timeline(recorder, folder.file("rank-0000.rr"), "{}", nullptr, Log(LogLevel::kFatal, 0));
  const uint64_t added = overfill(*recorder);
  CHECK_FALSE(timeline.stop("the disk hangs"));
  Timeline next(recorder, folder.file("next.rr"), "{}", nullptr, Log());
  recorder->add(recorder->timeline(), numbered(7));
  const std::string text = disk.read();
  CHECK(bodies(text, 5).size() == 1);
  CHECK(records_in(text).size() + dropped_at_end(text) == added);
  CHECK(next.stop("the test is over"));
  const std::string of_next = content(folder.file("next.rr"));
  REQUIRE(records_in(of_next).size() == 1);
  CHECK(records_in(of_next)[0].number == 7);
  CHECK(dropped_at_end(of_next) == 0);
}

TEST_CASE("timeline: a disk that hangs, and fails once it was given up, leaves the next timeline alone") {
  const TemporaryFolder folder;
  SlowDisk disk(folder.file("rank-0000.rr"));
  const auto recorder = std::make_shared<Recorder>();
  const size_t threads_before = threads().size();
  Timeline timeline(recorder, folder.file("rank-0000.rr"), "{}", nullptr, Log(LogLevel::kFatal, 0));
  overfill(*recorder);
  CHECK_FALSE(timeline.stop("the disk hangs"));
  Timeline next(recorder, folder.file("next.rr"), "{}", nullptr, Log());
  disk.fail();
  CHECK_NOTHROW(wait_for([&] { return threads().size() == threads_before + 1; }));
  CHECK(recorder->is_on());
  CHECK(next.stop("the test is over"));
}

TEST_CASE("timeline: a link in place of a rank's file is refused, and what it leads to is left alone") {
  const TemporaryFolder folder;
  std::ofstream(folder.file("thesis")) << "years of work";
  std::filesystem::create_symlink(folder.file("thesis"), folder.file("rank-0000.rr"));
  const auto recorder = std::make_shared<Recorder>();
  CHECK_NOTHROW(expect_contains(
      raised<UnavailableError>([&] { Timeline(recorder, folder.file("rank-0000.rr"), "{}", nullptr, Log()); }),
      "it is a symbolic link"));
  CHECK(content(folder.file("thesis")) == "years of work");
  CHECK_FALSE(recorder->is_on());
  // The trace's name is the user's, who may have made a link.
  std::filesystem::create_symlink(folder.file("thesis"), folder.file("trace.json"));
  const LiveTrace::Target target{folder.file("trace.json"), 0, 0, 0, {}, false};
  Timeline(recorder, folder.file("rank-0001.rr"), "{}", &target, Log()).stop("");
  CHECK(content(folder.file("thesis")).substr(0, 1) == "[");
}

TEST_CASE("timeline: a pipe that nobody reads is refused, and is not waited for") {
  const TemporaryFolder folder;
  REQUIRE(::mkfifo(folder.file("rank-0000.rr").c_str(), 0600) == 0);
  CHECK_THROWS_AS(Timeline(std::make_shared<Recorder>(), folder.file("rank-0000.rr"), "{}", nullptr, Log()),
                  UnavailableError);
  REQUIRE(::mkfifo(folder.file("trace.json").c_str(), 0600) == 0);
  const LiveTrace::Target target{folder.file("trace.json"), 0, 0, 0, {}, false};
  CHECK_NOTHROW(expect_contains(raised<UnavailableError>([&] {
                                  Timeline(std::make_shared<Recorder>(), folder.file("rank-0001.rr"), "{}", &target,
                                           Log());
                                }),
                                "is a pipe that nobody reads"));
}

TEST_CASE("timeline: another user's file is not written") {
  if (::geteuid() != 0) {
    MESSAGE("only root can make another user's file");
    return;
  }
  const TemporaryFolder folder;
  const std::string path = folder.file("rank-0000.rr");
  std::ofstream(path) << "another user's";
  REQUIRE(::chown(path.c_str(), 65534, 65534) == 0);
  CHECK_NOTHROW(expect_contains(
      raised<UnavailableError>([&] { Timeline(std::make_shared<Recorder>(), path, "{}", nullptr, Log()); }),
      "belongs to another user"));
  CHECK(content(path) == "another user's");
  REQUIRE(::chown(path.c_str(), ::geteuid(), ::getegid()) == 0);
  Timeline(std::make_shared<Recorder>(), path, "{}", nullptr, Log()).stop("");
  CHECK(bodies(content(path), 5).size() == 1);
}

TEST_CASE("timeline: its file stays this process's own, also once this process has read it") {
  const TemporaryFolder folder;
  const std::string path = folder.file("rank-0000.rr");
  const auto recorder = std::make_shared<Recorder>();
  Timeline timeline(recorder, path, "{}", nullptr, Log());
  content(path);  // POSIX locks end with any descriptor of the file
  const pid_t child = forked();
  if (child == 0) {
    try {
      OutputFile(path, OutputFile::NamedBy::kTimeline);
    } catch (const OutputError& error) {
      ::_exit(error.code == EAGAIN ? 0 : 2);
    }
    ::_exit(1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  timeline.stop("the test is over");
  CHECK_NOTHROW(OutputFile(path, OutputFile::NamedBy::kTimeline));  // no child has kept it
}

TEST_CASE("timeline: a second one of a process leaves the first one's file alone") {
  const TemporaryFolder folder;
  const std::string path = folder.file("rank-0000.rr");
  const auto recorder = std::make_shared<Recorder>();
  Timeline timeline(recorder, path, "{}", nullptr, Log());
  const std::string before = content(path);
  CHECK_FALSE(before.empty());
  CHECK_NOTHROW(expect_contains(raised<UnavailableError>([&] { Timeline(recorder, path, "second", nullptr, Log()); }),
                                "writes a timeline already"));
  CHECK(content(path) == before);
  timeline.stop("the test is over");
}

TEST_CASE("timeline: where its file cannot be made, the next one may begin") {
  const TemporaryFolder folder;
  const auto recorder = std::make_shared<Recorder>();
  CHECK_THROWS_AS(Timeline(recorder, folder.file("no such folder/rank-0000.rr"), "{}", nullptr, Log()), OutputError);
  CHECK_FALSE(recorder->is_on());
  Timeline(recorder, folder.file("rank-0000.rr"), "{}", nullptr, Log()).stop("");
}

}  // namespace rr::test
