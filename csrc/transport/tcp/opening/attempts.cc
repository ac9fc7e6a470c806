#include "transport/tcp/opening/attempts.h"

#include <poll.h>
#include <sys/resource.h>

#include <algorithm>

#include "base/clock.h"

namespace rr {
namespace {

// Connections whose peer has not proven who it is; four for each rank of the job, and not less than this, but no more
// than an eighth of the descriptors that the process may have. One more ends the oldest of those that have said
// nothing, or the oldest: its rank dials again.
constexpr size_t kUnprovenMost = 64;
constexpr size_t kUnprovenPerRank = 4;
constexpr size_t kDescriptorsPerUnproven = 8;
constexpr int64_t kToSpeakNs = 100'000'000;  // a rank says who it is at once

size_t unproven_most(size_t size) {
  const size_t wanted = std::max(kUnprovenMost, kUnprovenPerRank * size);
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return wanted;
  return std::clamp<size_t>(static_cast<size_t>(limit.rlim_cur) / kDescriptorsPerUnproven, 1, wanted);
}

// If this process was stopped, what has come meanwhile is not read yet. An error of the socket's is left where it is.
bool has_more_to_read(int fd) {
  pollfd look = {fd, POLLIN, 0};
  return ::poll(&look, 1, 0) > 0;
}

}  // namespace

Attempts::Attempts(const Handshakes& handshakes, int rank, size_t size, int late_after_ms, Connections& connections,
                   Epoll& events)
    : handshakes_(handshakes),
      rank_(rank),
      unproven_most_(unproven_most(size)),
      late_after_ns_(late_after_ms * int64_t{1'000'000}),
      connections_(connections),
      events_(events) {}

bool Attempts::dialled(OwnedFd socket, int peer, int channel) {
  return watch(std::make_unique<Attempt>(handshakes_, std::move(socket), rank_, peer, channel), EPOLLOUT);
}

bool Attempts::accepted(OwnedFd socket) {
  make_room();
  return watch(std::make_unique<Attempt>(handshakes_, std::move(socket), rank_), EPOLLIN | EPOLLRDHUP);
}

bool Attempts::watch(std::unique_ptr<Attempt> attempt, uint32_t events) {
  const int fd = attempt->fd();
  if (!events_.try_add(fd, events)) return false;
  under_way_[fd] = std::move(attempt);
  return true;
}

// Among the connections that have proven nothing.
void Attempts::make_room() {
  size_t unproven = 0;
  int first = -1;
  for (const auto& [fd, attempt] : under_way_) {
    if (attempt->is_dialled()) continue;
    ++unproven;
    const auto order = [](const Attempt& one) { return std::pair(!one.is_silent(), one.began_ns); };
    if (first < 0 || order(*attempt) < order(*under_way_.at(first))) first = fd;
  }
  if (unproven >= unproven_most_) end(first, Attempt::Outcome::kDropped);
}

bool Attempts::drop_silent() {
  const int64_t before_ns = now_ns() - kToSpeakNs;
  int first = -1;
  for (const auto& [fd, attempt] : under_way_) {
    if (!attempt->is_silent() || attempt->began_ns > before_ns || has_more_to_read(fd)) continue;
    if (first < 0 || attempt->began_ns < under_way_.at(first)->began_ns) first = fd;
  }
  if (first >= 0) end(first, Attempt::Outcome::kDropped);
  return first >= 0;
}

// A lower rank takes the connection that the higher one has chosen.
Attempt::Choice Attempts::choose(const Attempt& attempt) {
  const Connections::Use use = connections_.use(attempt.peer(), attempt.channel());
  if (use == Connections::Use::kGone) return Attempt::Choice::kGone;
  if (rank_ < attempt.peer()) return Attempt::Choice::kCounts;
  if (use == Connections::Use::kOpen) return Attempt::Choice::kOther;
  const std::pair name(attempt.peer(), attempt.channel());
  const bool is_chosen = chosen_.emplace(name, attempt.fd()).first->second == attempt.fd();
  return is_chosen ? Attempt::Choice::kCounts : Attempt::Choice::kOther;
}

std::optional<Attempts::Ended> Attempts::step(int fd) {
  Attempt& attempt = *under_way_.at(fd);
  const bool was_connecting = attempt.wants_to_write();
  const Attempt::Outcome outcome = attempt.step([this](const Attempt& one) { return choose(one); });
  if (outcome != Attempt::Outcome::kPending) return end(fd, outcome);
  if (was_connecting) events_.change(fd, EPOLLIN | EPOLLRDHUP);
  return {};
}

std::vector<Attempts::Ended> Attempts::take_late(int64_t now_ns) {
  std::vector<int> late;
  for (const auto& [fd, attempt] : under_way_) {
    if (now_ns - attempt->began_ns >= late_after_ns_ && !attempt->is_watched()) late.push_back(fd);
  }
  std::vector<Ended> ended;
  for (const int fd : late) {
    // If this process was stopped, what has come meanwhile is not read yet.
    std::optional<Ended> one = step(fd);
    if (!one && !under_way_.at(fd)->is_watched()) one = end(fd, Attempt::Outcome::kDropped);
    if (one) ended.push_back(std::move(*one));
  }
  return ended;
}

std::vector<int> Attempts::take_silent(int64_t now_ns) {
  std::vector<int> silent;
  for (const auto& [fd, attempt] : under_way_) {
    const bool is_silent = attempt->is_watched() && !attempt->is_proven();
    if (!is_silent || now_ns - attempt->began_ns < late_after_ns_ || has_more_to_read(fd)) continue;
    if (told_silent_.insert(attempt->peer()).second) silent.push_back(attempt->peer());
  }
  return silent;
}

int64_t Attempts::next_late_ns() const {
  int64_t next_ns = INT64_MAX;
  for (const auto& [fd, attempt] : under_way_) {
    const bool is_told = attempt->is_watched() && (attempt->is_proven() || told_silent_.count(attempt->peer()) != 0);
    if (!is_told) next_ns = std::min(next_ns, attempt->began_ns + late_after_ns_);
  }
  return next_ns;
}

Attempts::Ended Attempts::end(int fd, Attempt::Outcome outcome) {
  Ended ended{std::move(under_way_.at(fd)), outcome};
  under_way_.erase(fd);
  events_.remove(fd);
  const auto chosen = chosen_.find({ended.attempt->peer(), ended.attempt->channel()});
  if (chosen != chosen_.end() && chosen->second == fd) chosen_.erase(chosen);
  return ended;
}

}  // namespace rr
