// Which links between hosts are slow: the judgement on what they carry while they are busy, and how that is sampled.
#include "engine/late/slow_links.h"

#include <functional>

#include "doctest/doctest.h"
#include "engine/late/link_records.h"
#include "engine/remote_link.h"
#include "support/ranks.h"

namespace rr::test {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

struct Use {
  double mbytes;  // a second
  double share;   // of it the link is busy
};

// Links 0 -> 1, 1 -> 2 and so on, looked at once a second.
class Network {
 public:
  explicit Network(size_t links) : links_(links) {
    for (size_t i = 0; i < links; ++i) {
      links_[i].from = static_cast<int>(i);
      links_[i].to = static_cast<int>(i) + 1;
    }
  }
  // Which links are warned about meanwhile.
  std::vector<int> run(int seconds, const std::vector<Use>& uses) {
    std::vector<int> told;
    for (int second = 0; second < seconds; ++second) {
      now_ns_ += kSecondNs;
      for (size_t i = 0; i < uses.size(); ++i) {
        links_[i].nbytes += static_cast<uint64_t>(uses[i].mbytes * 1e6);
        links_[i].busy_ns += static_cast<uint64_t>(uses[i].share * kSecondNs);
      }
      slow_.add(now_ns_, links_);
      for (const SlowLinks::Found& found : slow_.find(now_ns_)) {
        told.push_back(found.from);
        last = found;
      }
    }
    return told;
  }
  std::vector<SlowLinks::Found> now() const { return slow_.slow_now(); }
  SlowLinks::Found last;

 private:
  std::vector<SlowLinks::Link> links_;
  SlowLinks slow_{0.1};
  int64_t now_ns_ = 1;
};

using Told = std::vector<int>;

TEST_CASE("slow links: the one that is busy and carries less meanwhile, once a minute") {
  Network ring(4);
  const std::vector<Use> third_is_slow = {{28, 0.25}, {28, 0.25}, {28, 0.9}, {28, 0.3}};
  CHECK(ring.run(6, third_is_slow).empty());  // not enough has been seen
  CHECK(ring.run(2, third_is_slow) == Told{2});
  CHECK(ring.last.to == 3);
  CHECK(ring.last.share == doctest::Approx(0.9));
  CHECK(ring.last.rate == doctest::Approx(28e6 / 0.9));
  CHECK(ring.last.others_rate == doctest::Approx(28e6 / 0.3));
  CHECK(ring.run(50, third_is_slow).empty());
  CHECK(ring.now().size() == 1);
  CHECK(ring.run(20, third_is_slow) == Told{2});
}

TEST_CASE("slow links: none where all are alike, or a bit different, or idle") {
  CHECK(Network(4).run(100, {{100, 0.9}, {100, 0.9}, {100, 0.9}, {100, 0.9}}).empty());
  CHECK(Network(4).run(100, {{100, 0.9}, {100, 0.5}, {100, 0.6}, {100, 0.7}}).empty());
  CHECK(Network(4).run(100, {{1, 0.05}, {1, 0.01}, {1, 0.01}, {1, 0.01}}).empty());
  CHECK(Network(4).run(100, {{0, 0}, {0, 0}, {0, 0}, {0, 0}}).empty());
  CHECK(Network(1).run(100, {{10, 0.9}}).empty());
  // Most of them are slow: the fast one is the exception.
  CHECK(Network(4).run(100, {{28, 0.2}, {28, 0.9}, {28, 0.9}, {28, 0.9}}).empty());
}

TEST_CASE("slow links: two that are alike are told of together, and links without data do not count") {
  CHECK(Network(4).run(10, {{28, 0.9}, {28, 0.2}, {28, 0.8}, {28, 0.2}}) == Told{0, 2});
  CHECK(Network(4).run(10, {{28, 0.9}, {28, 0.2}, {0.001, 0.9}, {0, 0}}) == Told{0});
  CHECK(Network(4).run(10, {{28, 0.9}, {28, 0.0}, {28, 0.0}, {28, 0.0}}) == Told{0});
}

TEST_CASE("slow links: a single outage is none") {
  Network ring(3);
  CHECK(ring.run(10, {{28, 0.2}, {28, 0.2}, {28, 0.2}}).empty());
  CHECK(ring.run(3, {{5, 0.1}, {5, 1.0}, {5, 0.1}}).empty());
  CHECK(ring.run(20, {{28, 0.2}, {28, 0.2}, {28, 0.2}}).empty());
}

class SlowLink final : public Link {
 public:
  size_t push(const void*, size_t nbytes) override { return std::min(nbytes, takes); }
  size_t pull(void*, size_t) override { return 0; }
  size_t fold(void*, size_t, const Reduction&, const Kernels&) override { return 0; }
  bool has_unsent() const override {
    ++asked;
    return unsent;
  }
  void note_arrivals(bool wanted) override { notes_arrivals = wanted; }
  int64_t arrived_ns() const override { return 7; }
  size_t takes = SIZE_MAX;
  bool unsent = false;
  bool notes_arrivals = false;
  mutable int asked = 0;
};

TEST_CASE("remote links: the time in which bytes have not left is counted, by samples, and idle links are not asked") {
  RemoteLinks links;
  std::atomic<uint64_t> sent{0};
  LinkScore score = {};
  auto owned = std::make_unique<SlowLink>();
  SlowLink& slow = *owned;
  RemoteLink link(std::move(owned), links, sent, score, [] { return false; });
  const auto look = [&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const uint64_t before_ns = score.busy_ns;
    links.sample();
    return score.busy_ns - before_ns;
  };
  const std::byte bytes[100] = {};
  look();
  CHECK(slow.asked == 0);
  CHECK(link.push(bytes, 100) == 100);
  CHECK(sent == 100);
  CHECK(score.nbytes == 100);
  slow.unsent = true;
  CHECK(look() >= 20'000'000);
  CHECK(look() >= 20'000'000);  // still
  slow.unsent = false;
  CHECK(look() == 0);
  const int asked = slow.asked;
  CHECK(look() == 0);
  CHECK(slow.asked == asked);
  slow.takes = 40;
  CHECK(link.push(bytes, 100) == 40);
  CHECK(look() >= 20'000'000);
  CHECK(score.nbytes == 140);
  slow.takes = SIZE_MAX;
  CHECK(link.push(bytes + 40, 60) == 60);
  CHECK(look() == 0);
}

TEST_CASE("remote links: arrivals are those of the link below") {
  RemoteLinks links;
  std::atomic<uint64_t> sent{0};
  LinkScore score = {};
  auto owned = std::make_unique<SlowLink>();
  const SlowLink& below = *owned;
  RemoteLink link(std::move(owned), links, sent, score, [] { return false; });
  CHECK(link.arrived_ns() == 7);
  link.note_arrivals(true);
  CHECK(below.notes_arrivals);
  link.note_arrivals(false);
  CHECK_FALSE(below.notes_arrivals);
}

// Two ranks on host 1 of three, and the records that its leader leaves.
TEST_CASE("link records: what each used link of this host has carried since the last ones, while a timeline is on") {
  const Fd fd = create_memfd("test", ControlSegment::nbytes(4, 64));
  const ControlSegment control = ControlSegment::map(fd.get(), 4);
  const Hosts hosts({0, 1, 1, 3}, 1);
  Recorder recorder;
  const RecordedGroup group = recorder.add_group("", 0, {10, 11, 12, 13});
  LinkRecords links(recorder, group, control, hosts);
  const auto taken = [&] {
    std::vector<Record> records(8);
    records.resize(recorder.take(records.data(), records.size()));
    return records;
  };
  control.link_score(1, 2).nbytes = 1000;
  links.add(kSecondNs);
  REQUIRE(recorder.begin());
  links.add(2 * kSecondNs);  // from here on
  control.link_score(1, 2).nbytes += 500;
  control.link_score(2, 2).nbytes += 70;
  control.link_score(1, 2).busy_ns += 40'000'000;
  control.link_score(0, 1).nbytes += 5;  // of another host
  links.add(2 * kSecondNs + 100'000'000);
  CHECK(taken().empty());  // too soon
  links.add(3 * kSecondNs);
  const std::vector<Record> first = taken();
  REQUIRE(first.size() == 1);
  CHECK(first[0].type == RecordType::kLink);
  CHECK(first[0].peer == 13);
  CHECK(first[0].group == group.number);
  CHECK(first[0].called_ns == 2 * kSecondNs);
  CHECK(first[0].ended_ns == 3 * kSecondNs);
  CHECK(first[0].nbytes == 570);
  CHECK(first[0].number == 40'000'000);
  links.add(4 * kSecondNs);
  CHECK(taken().empty());  // nothing was sent
  recorder.end();
  control.link_score(1, 0).nbytes += 9;
  links.add(5 * kSecondNs);
  REQUIRE(recorder.begin());
  links.add(6 * kSecondNs);
  links.add(7 * kSecondNs);
  CHECK(taken().empty());  // it was sent between two timelines
}

}  // namespace
}  // namespace rr::test
