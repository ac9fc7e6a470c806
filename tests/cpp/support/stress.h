// Random interleavings: ranks that submit, poll, wait, join, and make and remove groups, in orders of their own.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <mutex>

#include "support/loopback_links.h"
#include "support/random_operations.h"
#include "support/watchdog.h"

namespace rr::test {

struct Stress {
  std::vector<int> host_of;  // by rank
  int rounds = 0;
  unsigned seed = 0;
  bool delayed = false;     // the links between hosts, and their leaders
  size_t capacity = 64;     // names
  bool ends_early = false;  // ranks leave as soon as they have what they want
};

class StressRun {
 public:
  explicit StressRun(const Stress& stress)
      : stress_(stress),
        size_(static_cast<int>(stress.host_of.size())),
        delays_(stress.seed),
        watchdog_(size_, "seed " + std::to_string(stress.seed)) {}

  // Returns the number of operations of all ranks.
  size_t run() {
    const auto body = [this](Rank& rank) { play(rank); };
    const auto& hosts = stress_.host_of;
    const bool several = std::any_of(hosts.begin(), hosts.end(), [&](int host) { return host != hosts[0]; });
    if (several) {
      run_hosts(hosts, body, stress_.capacity, 8192, stress_.delayed ? &delays_ : nullptr);
    } else {
      run_ranks(size_, body, stress_.capacity);
    }
    return operations_;
  }

 private:
  struct Player {
    Rank& rank;
    std::vector<Group*> groups;  // null: not a member
    std::mt19937 shared;         // draws the same on all ranks
    std::mt19937 own;
  };

  void play(Rank& rank) {
    Player player = {rank,
                     {&rank.world, nullptr, nullptr, nullptr},
                     std::mt19937(stress_.seed),
                     std::mt19937(stress_.seed + 1 + static_cast<unsigned>(rank.rank))};
    std::vector<int> low, high;
    for (int r = 0; r + 1 < size_; ++r) low.push_back(r);
    for (int r = 1; r < size_; ++r) high.push_back(r);
    player.groups[1] = add_group(rank, low, 1);
    player.groups[2] = add_group(rank, high, 2);
    for (int round = 0; round < stress_.rounds; ++round) {
      const bool has_guest = round % 8 == 7;  // a group for a round
      if (has_guest) player.groups[3] = add_group(rank, draw_ranks(player.shared), 3 + round);
      operations_ += play_round(player, round);
      if (has_guest) remove_group(player, player.groups[3]);
      if (round % 6 == 5) play_join(player, round);
    }
    note(rank, "ends");
    if (!stress_.ends_early) return barrier(rank.world);
    // The last thing that a rank does before it leaves.
    const What last =
        std::array{What::kSum, What::kAllgather, What::kBroadcast, What::kMessage, What::kBarrier}[player.shared() % 5];
    const std::string name = last == What::kSum || last == What::kBroadcast ? "last" : "";
    finish(start(rank, rank.world, {last, 0, name, draw_count(player.shared), false, 0}, 1));
  }

  void note(const Rank& rank, std::string text) { watchdog_.note(rank.rank, std::move(text)); }

  // Null if the rank is not one of them.
  Group* add_group(Rank& rank, const std::vector<int>& ranks, int id) {
    if (std::find(ranks.begin(), ranks.end(), rank.rank) == ranks.end()) return nullptr;
    note(rank, "adds group " + std::to_string(id));
    int fd = -1;
    {
      const std::lock_guard lock(mutex_);
      Fd& segment = segments_[{id, stress_.host_of[static_cast<size_t>(rank.rank)]}];
      if (segment.get() < 0) {
        segment = create_memfd("group", ControlSegment::nbytes(static_cast<int>(ranks.size()), stress_.capacity));
      }
      fd = segment.get();
    }
    Group* const group = rank.context.add_group(fd, ranks, id, nullptr).get();
    const std::lock_guard lock(mutex_);
    segments_.erase({id, stress_.host_of[static_cast<size_t>(rank.rank)]});  // all members here have mapped it
    return group;
  }

  // Sometimes with an operation pending that nobody else has announced.
  void remove_group(Player& player, Group*& group) {
    const bool is_lonely = player.own() % 2 == 0;
    if (group == nullptr) return;
    Rank& rank = player.rank;
    note(rank, "removes a group");
    const std::string name = "only rank " + std::to_string(rank.rank);
    const Sum lonely = is_lonely && group->size() > 1 ? start_sum(rank, *group, 5, 1, name) : Sum{};
    rank.context.remove_group(group, nullptr);
    group = nullptr;
    if (lonely.operation == nullptr) return;
    expect_contains(raised<ShutdownError>([&] { finish_sum(rank.world, lonely); }), "process set was removed");
  }

  std::vector<int> draw_ranks(std::mt19937& shared) const {
    std::vector<int> ranks;
    while (ranks.empty()) {
      for (int r = 0; r < size_; ++r) {
        if (shared() % 4 != 0) ranks.push_back(r);
      }
    }
    return ranks;
  }

  // The unnamed operations of all groups keep their order, everything else goes anywhere.
  size_t play_round(Player& player, int round) {
    std::vector<Draw> draws;
    for (int i = 0; i < 20; ++i) {
      const Draw d = draw(player.shared, round, i, player.groups.size(), size_);
      if (player.groups[d.group] != nullptr) draws.push_back(d);
    }
    std::vector<Draw> order;
    for (const Draw& d : draws) {
      if (d.name.empty()) order.push_back(d);
    }
    for (const Draw& d : draws) {
      if (d.name.empty()) continue;
      order.insert(order.begin() + static_cast<std::ptrdiff_t>(player.own() % (order.size() + 1)), d);
    }
    const std::string in_round = "round " + std::to_string(round) + ": ";
    std::vector<Running> running;
    for (const Draw& d : order) {
      note(player.rank, in_round + "submits " + text_of(d));
      running.push_back(start(player.rank, *player.groups[d.group], d, round));
      if (d.sync) {
        note(player.rank, in_round + "waits for " + text_of(d));
        finish(running.back());
        running.pop_back();
      } else if (player.own() % 4 == 0) {
        const Running& any = running[player.own() % running.size()];
        if (any.sum.operation != nullptr) any.group->poll(*any.sum.operation);
      }
    }
    std::shuffle(running.begin(), running.end(), player.own);
    for (const Running& one : running) {
      note(player.rank, in_round + "waits for " + text_of(one.draw));
      finish(one, player.own() % 8 == 0);
    }
    return order.size();
  }

  // A tail of steps of which every rank does as many as it likes, then joins; what its last step gave it may look at
  // later.
  void play_join(Player& player, int round) {
    const size_t at = player.shared() % 3;
    const unsigned most = player.shared() % 4 == 0 ? 40 : 4;
    std::vector<unsigned> steps;
    std::vector<size_t> counts;
    for (int r = 0; r < size_; ++r) steps.push_back(player.shared() % most);
    for (unsigned i = 0; i < 3 * most; ++i) counts.push_back(draw_count(player.shared));
    if (player.groups[at] == nullptr) return;
    Rank& rank = player.rank;
    Group& group = *player.groups[at];
    const unsigned mine = steps[static_cast<size_t>(rank.rank)];
    const bool looks_later = player.own() % 2 == 0;
    std::vector<std::pair<Sum, int>> last;
    for (unsigned step = 0; step < mine; ++step) {
      note(rank, "round " + std::to_string(round) + ": step " + std::to_string(step) + " of " + std::to_string(mine) +
                     " before it joins group " + std::to_string(at));
      int contributors = 0;
      for (const int r : group.ranks()) contributors += steps[static_cast<size_t>(r)] > step ? r + 1 : 0;
      const int base = static_cast<int>(step);
      const Sum sums[] = {start_sum(rank, group, counts[3 * step], base, "joined"),
                          start_sum(rank, group, counts[3 * step + 1], base),
                          start_sum(rank, group, counts[3 * step + 2], base, "joined " + std::to_string(step % 3))};
      for (const Sum& sum : sums) {
        if (looks_later && step + 1 == mine) {
          last.emplace_back(sum, contributors);
        } else {
          finish_sum(group, sum, contributors);
        }
      }
      operations_ += 3;
    }
    note(rank, "round " + std::to_string(round) + ": joins group " + std::to_string(at));
    const int last_joined = group.join(nullptr);
    for (const auto& [sum, contributors] : last) finish_sum(group, sum, contributors);
    // All have been told the same.
    note(rank, "round " + std::to_string(round) + ": has joined group " + std::to_string(at));
    Floats told = {static_cast<float>(last_joined)};
    Request request;
    request.kind = Kind::kAllreduce;
    request.srcs = request.dsts = {view(told, DType::kFloat32)};
    group.wait(*group.submit(request, nullptr), -1, nullptr);
    expect(told[0] == static_cast<float>(last_joined * group.size()), "all are told who joined last");
  }

  const Stress stress_;
  const int size_;
  std::atomic<size_t> operations_{0};
  std::mutex mutex_;
  std::map<std::pair<int, int>, Fd> segments_;  // by group and host
  Delays delays_;
  Watchdog watchdog_;
};

}  // namespace rr::test
