#include "engine/groups.h"

#include <algorithm>

#include "base/clock.h"
#include "base/errors.h"

namespace rr {

void Groups::add(std::shared_ptr<Group> group) {
  const std::lock_guard lock(executor_);
  listed_.lock()->push_back(group);
  groups_.push_back(std::move(group));
}

std::shared_ptr<Group> Groups::end(Group& group) {
  const std::lock_guard lock(executor_);
  group.end();
  std::shared_ptr<Group> removed;
  for (auto one = groups_.begin(); one != groups_.end(); ++one) {
    if (one->get() != &group) continue;
    removed = std::move(*one);
    groups_.erase(one);
    break;
  }
  *listed_.lock() = groups_;
  return removed;
}

std::shared_ptr<Group> Groups::shared(Group& group) const {
  const std::lock_guard lock(executor_);
  for (auto& known : groups_) {
    if (known.get() == &group) return known;
  }
  return std::shared_ptr<Group>(std::shared_ptr<void>(), &group);
}

void Groups::leave(const std::string& cause) const {
  std::vector<Group*> groups;
  for_each([&](Group& group) { groups.push_back(&group); });
  Group::leave(groups, cause);
  gpu_.drain();
}

void Groups::fail(FatalKind kind, const std::string& text) const {
  const std::lock_guard lock(executor_);
  for_each([&](Group& group) { record_failure(group.control(), kind, text); });
}

bool Groups::progress(bool from_engine, bool* busy) {
  const std::unique_lock lock(executor_, std::try_to_lock);
  const bool has_links = !network_.host_of.empty();
  // By this thread, which waits, or by the one that the engine has found at work.
  if (has_links && from_engine != lock.owns_lock()) driven_ns_.store(now_ns(), std::memory_order_relaxed);
  if (!lock.owns_lock()) {
    // Whoever is at work may have looked at the notes before the last one was written, for which the engine was woken.
    if (busy != nullptr) *busy = has_links;
    return false;
  }
  // Before the step, which goes on with what housekeeping has received.
  if (is_housekeeping_due_.load(std::memory_order_relaxed) && is_housekeeping_due_.exchange(false)) keep_house();
  bool moved = world_->has_work() && world_->progress(from_engine);
  bool work = world_->is_busy();
  for (auto& group : groups_) {
    if (!group->has_work()) continue;
    moved |= group->progress(from_engine);
    work |= group->is_busy();
  }
  if (network_.progress) {
    try {
      in_transit_.store(network_.progress(), std::memory_order_relaxed);
    } catch (const std::exception& error) {
      in_transit_.store(false, std::memory_order_relaxed);
      for_each([&](Group& group) { record_failure(group.control(), kind_of(error), error.what()); });
    }
  }
  if (gpu_.device() != nullptr) {
    gpu_.forget_passed();
    gpu_.note_busy(must_poll_device() || (work && gpu_.device()->is_busy()));
  }
  if (busy != nullptr) *busy = work || is_in_transit();
  return moved;
}

bool Groups::must_poll_device() const {
  bool must = false;
  for_each([&](Group& group) { must |= group.must_poll_device(); });
  return must;
}

LinkNeed Groups::link_need() const {
  const std::unique_lock lock(executor_, std::try_to_lock);
  if (!lock.owns_lock() || is_in_transit()) return LinkNeed::kOthers;
  LinkNeed need = LinkNeed::kNobody;
  for_each([&](Group& group) { need = std::max(need, group.link_need()); });
  return need;
}

bool Groups::must_go_on() const {
  const std::unique_lock lock(executor_, std::try_to_lock);
  if (!lock.owns_lock()) return true;
  bool must = is_in_transit();
  for_each([&](Group& group) { must |= group.must_go_on(); });
  return must;
}

int64_t Groups::linger_until_ns() const {
  const std::unique_lock lock(executor_, std::try_to_lock);
  if (!lock.owns_lock()) return INT64_MAX;
  int64_t until = INT64_MAX;
  for_each([&](Group& group) { until = std::min(until, group.linger_until_ns()); });
  return until;
}

// One that waited for the lock would wait for long behind a thread that calls one operation after the other, and be
// woken each time that the thread lets go of the lock.
void Groups::housekeep() {
  const std::unique_lock lock(executor_, std::try_to_lock);
  if (lock.owns_lock()) {
    keep_house();
  } else {
    is_housekeeping_due_.store(true);
  }
}

void Groups::keep_house() {
  bool waits_for_peers = false;
  for_each([&](Group& group) { waits_for_peers |= group.waits_on_device_for_peers(); });
  gpu_.trim_mappings(waits_for_peers);
  for_each([](Group& group) { group.housekeep(); });
}

std::string Groups::calls_text() const {
  constexpr size_t kTextsMost = 3;
  const std::lock_guard lock(executor_);
  std::vector<std::string> texts;
  for_each([&](Group& group) {
    const std::string text = texts.size() < kTextsMost ? group.calls_text() : "";
    if (!text.empty()) texts.push_back(text);
  });
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : "; ") + text;
  return all.empty() ? "has called nothing in this group yet" : all;
}

}  // namespace rr
