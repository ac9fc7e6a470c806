#include "os/owned_fd.h"

#include <pthread.h>

#include <cerrno>
#include <mutex>
#include <set>

#include "base/never_destroyed.h"

namespace rr {
namespace {

// Of the process, as descriptors are. fork() takes the mutex, so not a Guarded, whose holder is a scope.
struct Owned {
  Owned();
  std::mutex mutex;
  std::set<int> fds;
};

Owned& owned() {
  static auto& of_process = never_destroyed<Owned>();
  return of_process;
}

void close_in_child() {
  for (const int fd : owned().fds) ::close(fd);
  owned().fds.clear();
  owned().mutex.unlock();
}

Owned::Owned() {
  const int error = ::pthread_atfork([] { owned().mutex.lock(); }, [] { owned().mutex.unlock(); }, close_in_child);
  if (error != 0) throw Error("pthread_atfork failed");
}

}  // namespace

OwnedFd::OwnedFd(Fd fd) {
  if (!fd) return;
  const NoFork held;
  fd_ = noted(fd.release());
}

// A child that has an object of its parent's closes nothing: its number may be another file's there.
void OwnedFd::reset() {
  if (fd_ < 0) return;
  const int error = errno;
  const NoFork held;
  if (owned().fds.erase(fd_) != 0) ::close(fd_);
  fd_ = -1;
  errno = error;
}

int OwnedFd::noted(int fd) {
  try {
    owned().fds.insert(fd);
  } catch (...) {
    ::close(fd);
    throw;
  }
  return fd;
}

OwnedFd::NoFork::NoFork() { owned().mutex.lock(); }
OwnedFd::NoFork::~NoFork() { owned().mutex.unlock(); }

}  // namespace rr
