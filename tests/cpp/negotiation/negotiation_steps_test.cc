// The negotiation itself, step by step and on one thread: moments that ranks meet only now and then.
#include "doctest/doctest.h"
#include "negotiation/negotiation.h"
#include "os/mapping.h"
#include "support/ranks.h"

namespace rr::test {
namespace {

// A control segment and the negotiations of the ranks that share it; nobody reads what they leave for other hosts.
class Ranks {
 public:
  explicit Ranks(const std::vector<int>& host_of, size_t capacity = 16)
      : file_(create_memfd("test", ControlSegment::nbytes(static_cast<int>(host_of.size()), capacity))),
        control(ControlSegment::map(file_.get(), static_cast<int>(host_of.size()))) {
    const Bells bells = bells_in(control);
    for (int r = 0; r < control.size(); ++r) ranks_.push_back(r);
    for (int r = 0; r < control.size(); ++r) hosts_.push_back(std::make_unique<Hosts>(host_of, r));
    for (int r = 0; r < control.size(); ++r) {
      negotiations_.push_back(std::make_unique<Negotiation>(control, r, ranks_, *hosts_[static_cast<size_t>(r)], bells,
                                                            Algo::kAuto, 1 << 20, [] {}));
    }
  }
  Negotiation& operator[](int rank) { return *negotiations_[static_cast<size_t>(rank)]; }

  // A barrier under a name; tag 0: there is no room for it.
  Ticket announce(int rank, const std::string& name) {
    bool log_full = false;
    return (*this)[rank].announce_named(name, barrier_, nullptr, 0, false, log_full);
  }
  Ticket announce(int rank, uint64_t counter) { return (*this)[rank].announce_unnamed(counter, barrier_, nullptr, 0); }

 private:
  Fd file_;
  Signature barrier_;
  std::vector<int> ranks_;
  std::vector<std::unique_ptr<Hosts>> hosts_;
  std::vector<std::unique_ptr<Negotiation>> negotiations_;

 public:
  const ControlSegment control;
};

TEST_CASE("a name's request slot is not written again before a rank that has joined has read it") {
  Ranks ranks({0, 0});
  const Ticket first = ranks.announce(0, "name");
  CHECK(ranks.announce(1, "name").tag == first.tag);
  ranks[0].joins().join(0);
  ranks[1].publish_consumed(first);
  const Ticket second = ranks.announce(1, "name");  // the name's other request slot
  REQUIRE(second.tag != 0);
  CHECK(second.request_slot != first.request_slot);
  CHECK(ranks[1].requests().complete(second));
  ranks[1].publish_consumed(second);
  CHECK(ranks.announce(1, "name").tag == 0);
  CHECK(ranks[0].requests().complete(first));
  ranks[0].publish_consumed(first);
  CHECK(ranks.announce(1, "name").request_slot == first.request_slot);
}

TEST_CASE("a name in flight keeps its place in a table that is full; one that all have consumed gives it up") {
  Ranks ranks({0, 0});
  std::vector<Ticket> tickets;
  for (size_t i = 0; i < ranks.control.capacity(); ++i) {
    tickets.push_back(ranks.announce(0, "name " + std::to_string(i)));
    CHECK(tickets.back().tag != 0);
  }
  CHECK(ranks.announce(0, "one more").tag == 0);
  CHECK(ranks.announce(1, "name 3").request_slot == tickets[3].request_slot);
  ranks[0].publish_consumed(tickets[3]);
  CHECK(ranks.announce(0, "one more").tag == 0);
  ranks[1].publish_consumed(tickets[3]);
  const Ticket taken = ranks.announce(0, "one more");
  CHECK((taken.request_slot - kUnnamedSlots) / 2 == (tickets[3].request_slot - kUnnamedSlots) / 2);
  CHECK(taken.tag > tickets[3].tag);  // nobody takes it for the old name's
  CHECK(ranks.announce(1, "one more").tag == taken.tag);
  CHECK(ranks.announce(1, "name 4").tag == tickets[4].tag);
}

TEST_CASE("a name that another host's rank has announced keeps its place until the ranks here have come to it") {
  Ranks ranks({0, 1});
  const auto leader_has_read = [&] {
    Outbox& outbox = ranks.control.outbox(0);
    outbox.read.store(outbox.written.load());
  };
  for (size_t i = 0; i < ranks.control.capacity(); ++i) {
    CHECK(ranks[0].record_named("name " + std::to_string(i), {{1, Signature(), nullptr, 0}}).tag != 0);
  }
  CHECK(ranks.announce(0, "one more").tag == 0);
  const Ticket ticket = ranks.announce(0, "name 3");
  CHECK(ranks[0].requests().complete(ticket));
  leader_has_read();
  CHECK(ranks.announce(0, "one more").tag == 0);
  ranks[0].publish_consumed(ticket);  // what rank 1 has consumed is nothing to this host
  const Ticket taken = ranks.announce(0, "one more");
  CHECK(Names::slot_at(taken.request_slot) == Names::slot_at(ticket.request_slot));
  CHECK(taken.tag > ticket.tag);
}

// In the first host's table the requests of all ranks come together.
TEST_CASE(
    "a name keeps its place on the first host until its operation is decided, though all ranks there have joined") {
  Ranks ranks({0, 1, 2});
  Signature sum;
  sum.kind = Kind::kAllreduce;
  sum.nbytes = 8000;
  const auto record = [&](const std::string& name, int rank) {
    return ranks[0].record_named(name, {{rank, sum, nullptr, 0}});
  };
  ranks[0].joins().join(0);
  ranks.control.outbox(0).read = 1;
  std::vector<Ticket> tickets;
  for (size_t i = 0; i < ranks.control.capacity(); ++i) tickets.push_back(record("name " + std::to_string(i), 1));
  CHECK(record("one more", 1).tag == 0);
  CHECK(record("name 3", 2).tag == tickets[3].tag);
  CHECK(ranks[0].requests().complete(tickets[3]));
  CHECK(record("one more", 1).tag == 0);
  REQUIRE(ranks[0].log().append(tickets[3]));
  CHECK(record("one more", 1).tag == 0);  // the other hosts have not been told
  ranks.control.header().log_sent = ranks.control.header().log_tail.load();
  CHECK(Names::slot_at(record("one more", 1).request_slot) == Names::slot_at(tickets[3].request_slot));
}

TEST_CASE("a rank announces no more while the leader of its host reads nothing") {
  Ranks ranks({0, 0, 1});
  const size_t capacity = ranks.control.capacity();
  size_t announced = 0;
  while (ranks[1].notes().has_room(announced % kUnnamedSlots) && announced <= kUnnamedSlots + capacity) {
    ranks.announce(1, announced++);
  }
  CHECK(announced == kUnnamedSlots);  // the next one would overwrite what the leader has not passed on
  std::vector<Ticket> named;
  for (size_t i = 0; i < capacity; ++i) named.push_back(ranks.announce(1, "name " + std::to_string(i)));
  CHECK(named.back().tag != 0);
  const uint64_t unused_request_slot = named.front().request_slot ^ 1;  // a name has two
  CHECK_FALSE(ranks[1].notes().has_room(unused_request_slot));
  CHECK(ranks[0].notes().has_room(unused_request_slot));
  CHECK(Ranks({0, 0})[1].notes().has_room(0));
  ranks.control.outbox(1).read.store(1);
  CHECK(ranks[1].notes().has_room(unused_request_slot));
  CHECK(ranks[1].notes().has_room(0));
  CHECK_FALSE(ranks[1].notes().has_room(1));
  ranks.announce(1, kUnnamedSlots);
  CHECK_FALSE(ranks[1].notes().has_room(unused_request_slot));
}

TEST_CASE("ranks that wait are not stuck while one of their operations is complete") {
  Ranks ranks({0, 0});
  const Ticket both[] = {ranks.announce(0, "both"), ranks.announce(1, "both")};
  const Ticket alone = ranks.announce(1, "alone");
  ranks[0].deadlock().block(both[0], 0);
  ranks[1].deadlock().block(alone, 0);
  ranks[1].deadlock().detect();
  CHECK_FALSE(ranks[0].deadlock().is_withdrawn());
  CHECK_FALSE(ranks[1].deadlock().is_withdrawn());
  CHECK_FALSE(ranks[0].deadlock().freeze_if_stuck().has_value());
  CHECK(ranks[0].deadlock().unblock(false) == false);
  ranks[0].deadlock().block(ranks.announce(0, "other"), 0);
  ranks[0].deadlock().detect();
  CHECK(ranks[0].deadlock().is_withdrawn());
  CHECK(ranks[1].deadlock().is_withdrawn());
  CHECK(ranks[0].deadlock().verdict().text.find("rank 1 waits in barrier 'alone' for rank 0") != std::string::npos);
}

TEST_CASE("what a verdict has withdrawn is not complete when those who have raised the verdict join") {
  Ranks ranks({0, 0, 0});
  const Ticket complete[] = {ranks.announce(0, 0), ranks.announce(1, 0), ranks.announce(2, 0)};
  const Ticket alone = ranks.announce(2, 1);
  for (int r = 0; r < 3; ++r) ranks[r].deadlock().block(ranks.announce(r, "name " + std::to_string(r)), r == 2 ? 2 : 1);
  ranks[2].deadlock().detect();
  REQUIRE(ranks[2].deadlock().is_withdrawn());
  for (int r = 0; r < 2; ++r) {
    CHECK(ranks[r].deadlock().unblock(false) == true);
    ranks[r].joins().join(ranks[r].deadlock().verdict().unnamed);
  }
  CHECK_FALSE(ranks[2].requests().complete(alone));
  CHECK(ranks[2].requests().complete(complete[2]));
}

TEST_CASE("what a verdict has withdrawn of a rank that has joined is not complete when all have joined") {
  Ranks ranks({0, 0, 0});
  const Ticket alone = ranks.announce(2, 0);
  ranks[2].joins().join(1);
  for (int r = 0; r < 2; ++r) ranks[r].deadlock().block(ranks.announce(r, "name " + std::to_string(r)), 0);
  ranks[0].deadlock().detect();
  for (int r = 0; r < 2; ++r) {
    REQUIRE(ranks[r].deadlock().unblock(false) == true);
    ranks[r].joins().join(ranks[r].deadlock().verdict().unnamed);
  }
  CHECK_FALSE(ranks[2].requests().has_announced(alone, 2));
  CHECK_FALSE(ranks[2].requests().complete(alone));
  CHECK(ranks[2].deadlock().verdict().unnamed == 1);
}

// One thread of a rank sees that all have announced it, and loses its core before it has the lock.
TEST_CASE("an operation that all ranks have been through is not appended once more") {
  Ranks ranks({0, 0});
  uint64_t next = 0;
  const auto announce_all = [&] {
    ranks.announce(0, next);
    return ranks.announce(1, next++);
  };
  for (int round = 0; round < 50; ++round) {
    const Ticket ticket = announce_all();
    std::atomic<bool> has_begun{false};
    std::thread appending;
    ranks[0].segment().locked([&] {
      appending = std::thread([&] {
        has_begun = true;
        ranks[1].log().append(ticket);
      });
      wait_for([&] { return has_begun.load(); });
      while (next % kUnnamedSlots != ticket.request_slot) announce_all();
      announce_all();
      return true;
    });
    appending.join();
  }
  CHECK(ranks.control.header().log_tail.load() == 0);
}

TEST_CASE("an entry of the log is not overwritten before every rank has been through it") {
  Ranks ranks({0, 0});
  const auto fill = [&](uint64_t& counter) {
    for (bool has_room = true; has_room && counter < 4 * kLogEntries; counter += has_room ? 1 : 0) {
      ranks.announce(0, counter);
      has_room = ranks[1].log().append(ranks.announce(1, counter));
    }
  };
  uint64_t counter = 0;
  fill(counter);
  CHECK(counter == kLogEntries);
  ranks.control.line(0).cursor.store(3);
  fill(counter);
  CHECK(counter == kLogEntries);
  ranks.control.line(1).cursor.store(2);
  fill(counter);
  CHECK(counter == kLogEntries + 2);
}

}  // namespace
}  // namespace rr::test
