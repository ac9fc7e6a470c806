#include "os/segments.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <functional>
#include <new>

namespace rr {

namespace {

// A memory file with the content of the own region.
std::shared_ptr<const Fd> copy_of(const Segment& segment) {
  auto copy = std::make_shared<const Fd>(create_memfd("ringreduce.fork", segment.nbytes()));
  for (size_t done = 0; done < segment.nbytes();) {
    // Not by a mapping: a store for which there is no memory would be a SIGBUS.
    const ssize_t written =
        ::pwrite(copy->get(), segment.own() + done, segment.nbytes() - done, static_cast<off_t>(done));
    if (written > 0) {
      done += static_cast<size_t>(written);
    } else if (errno != EINTR) {
      throw Error(with_errno("fork: no memory for a copy of " + std::to_string(segment.nbytes()) +
                             " bytes of registered memory, which a forked child can therefore only read"));
    }
  }
  return copy;
}

bool is_same(const Fd& copy, const Segment& segment) {
  void* at = ::mmap(nullptr, segment.nbytes(), PROT_READ, MAP_SHARED, copy.get(), 0);
  if (at == MAP_FAILED) return false;
  const bool same = std::memcmp(at, segment.own(), segment.nbytes()) == 0;
  ::munmap(at, segment.nbytes());
  return same;
}

}  // namespace

Segment::Segment(int fd, uint64_t uid, int region, int regions, size_t nbytes)
    : mapping_(fd, OnFork::kInherit), uid_(uid), region_(region), regions_(regions), nbytes_(nbytes) {
  if (uid == 0 || region < 0 || region >= regions || static_cast<size_t>(regions) * nbytes > mapping_.nbytes()) {
    throw InvalidArgumentError("registered memory: " + std::to_string(regions) + " regions of " +
                               std::to_string(nbytes) + " bytes do not fit a file of " +
                               std::to_string(mapping_.nbytes()));
  }
  mapping_.populate(static_cast<size_t>(region) * nbytes, nbytes);
}

void SegmentRegistry::add(const Segment* segment) {
  const std::lock_guard lock(mutex_);
  entries_.push_back({segment, nullptr});
}

void SegmentRegistry::remove(const Segment* segment) {
  const std::lock_guard lock(mutex_);
  const auto is_it = [&](const Entry& entry) { return entry.segment == segment; };
  entries_.erase(std::remove_if(entries_.begin(), entries_.end(), is_it), entries_.end());
}

MemoryRef SegmentRegistry::find(const void* data, size_t nbytes) const {
  const auto* at = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  for (Entry& entry : entries_) {
    const Segment& segment = *entry.segment;
    // Pointers into different mappings have no order but std::less's.
    const std::less_equal<const std::byte*> not_above;
    if (not_above(segment.own(), at) && not_above(at + nbytes, segment.own() + segment.nbytes())) {
      if (!is_forking_) entry.copy.reset();  // about to differ
      return {segment.uid(), static_cast<uint32_t>(segment.region()), 0, static_cast<uint64_t>(at - segment.own())};
    }
  }
  return {};
}

std::byte* SegmentRegistry::address(const MemoryRef& ref) const {
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_) {
    const Segment& segment = *entry.segment;
    if (segment.uid() == ref.uid && ref.region < static_cast<uint32_t>(segment.regions())) {
      return segment.at(static_cast<int>(ref.region)) + ref.offset;
    }
  }
  return nullptr;
}

void SegmentRegistry::before_fork() {
  std::vector<Entry> entries;
  {
    const std::lock_guard lock(mutex_);
    is_forking_ = true;
    entries = entries_;
    for (Entry& entry : entries_) entry.copy.reset();  // should one of the new ones fail, no child gets an old one
  }
  // Without the lock, which operations take.
  std::string failure;
  for (Entry& entry : entries) {
    if (entry.copy != nullptr && is_same(*entry.copy, *entry.segment)) continue;
    entry.copy.reset();
    try {
      entry.copy = copy_of(*entry.segment);
    } catch (const Error& error) {
      failure = error.what();
    }
  }
  const std::lock_guard lock(mutex_);
  entries_.swap(entries);
  if (!failure.empty()) throw Error(failure);
}

void SegmentRegistry::after_fork_in_parent() {
  const std::lock_guard lock(mutex_);
  is_forking_ = false;
}

void SegmentRegistry::after_fork_in_child() {
  new (&mutex_) std::mutex;  // another thread of the parent may have held it
  is_forking_ = false;
  std::vector<Entry> entries;
  entries.swap(entries_);
  std::string failure;
  for (const Entry& entry : entries) {
    try {
      entry.segment->make_private(entry.copy != nullptr ? entry.copy->get() : -1);
    } catch (const Error& error) {
      entry.segment->forbid();
      failure = error.what();
    }
  }
  if (!failure.empty()) throw Error(failure);
}

}  // namespace rr
