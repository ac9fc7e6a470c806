// What a leader makes of another leader's frames: it takes those that can be, and of others it says who sent them.
#include <optional>
#include <random>

#include "doctest/doctest.h"
#include "loopback_links.h"
#include "relay/host_relay.h"

namespace rr::test {
namespace {

constexpr int kSize = 4;
constexpr int kMe = 2;    // leads the second host, of ranks 2 and 3
constexpr int kPeer = 0;  // leads the first, of ranks 0 and 1
const std::vector<int> kHostOf = {0, 0, 1, 1};

// What a link does, and what it has been given.
struct Script {
  FrameWriter said;                // what the other end says
  std::vector<FrameType> answers;  // kShown, which goes by the clock, left out
  std::vector<int> shown;          // ranks
  int64_t clock_ns[2] = {};        // of the last answer to a question for the clock
  bool takes = true;               // the link does what it is given
  bool has_ended = false;          // the link's peer
  bool notes_arrivals = false;
  int64_t arrived_ns = 0;
};

class ScriptedLink : public Link {
 public:
  explicit ScriptedLink(Script& script) : script_(script) {}
  size_t push(const void* bytes, size_t nbytes) override {
    if (!script_.takes) return 0;
    for (size_t at = 0; at < nbytes;) {
      const std::byte* const frame = static_cast<const std::byte*>(bytes) + at;
      FrameHead head;
      std::memcpy(&head, frame, sizeof head);
      if (head.type == FrameType::kShown) {
        script_.shown.push_back(head.rank);
      } else {
        script_.answers.push_back(head.type);
      }
      if (head.type == FrameType::kClock) {
        std::memcpy(script_.clock_ns, frame + sizeof head, sizeof script_.clock_ns);
      }
      at += head.nbytes;
    }
    return nbytes;
  }
  size_t pull(void* into, size_t nbytes) override {
    size_t come = 0;
    script_.said.drain([&](const std::byte* bytes, size_t left) {
      come = std::min(nbytes, left);
      std::memcpy(into, bytes, come);
      return come;
    });
    return come;
  }
  size_t fold(void*, size_t, const Reduction&, const Kernels&) override { return 0; }
  bool has_ended() const override { return script_.has_ended; }
  void note_arrivals(bool wanted) override { script_.notes_arrivals = wanted; }
  int64_t arrived_ns() const override { return script_.arrived_ns; }

 private:
  Script& script_;
};

// A host's leader, to whom a test speaks as the other host's.
class Listener : public Script {
 public:
  explicit Listener(int me = kMe, Recorder* recorder = nullptr)
      : me_(me),
        fd_(create_memfd("test", ControlSegment::nbytes(kSize, 16))),
        control_(ControlSegment::map(fd_.get(), kSize)) {
    control_.header().eager_nbytes = 4096;
    control_.header().tuned = kTuned;
    std::vector<std::unique_ptr<Link>> links(2);
    links[static_cast<size_t>(1 - hosts_.mine)] = std::make_unique<ScriptedLink>(*this);
    for (const int r : hosts_.here()) control_.line(r).attendance = Attendance::kPresent;
    relay_ = std::make_unique<HostRelay>(control_, hosts_, *own_, std::move(links), 1.0, recorder,
                                         RecordedGroup{7, "", 0, {15, 16, 17, 18}});
  }

  // Hears what was said. What it finds wrong, or "".
  std::string hear() {
    try {
      relay_->progress();
      return "";
    } catch (const InternalError& error) {
      return error.what();
    }
  }
  // As a leader that leaves: whether it has said all that anybody takes.
  bool pass_on() { return relay_->pass_on(false); }
  const ControlSegment& control() const { return control_; }
  // What this host's ranks announce.
  Negotiation& rank(int r) { return r == me_ ? *own_ : *other_; }

 private:
  std::unique_ptr<Negotiation> negotiation_of(int rank) const {
    return std::make_unique<Negotiation>(control_, rank, world_ranks_, hosts_, bells_in(control_), Algo::kAuto,
                                         size_t{1} << 20, [] {});
  }

  int me_;
  Fd fd_;
  ControlSegment control_;
  const std::vector<int> world_ranks_ = {5, 6, 7, 8};
  const Hosts hosts_ = Hosts(kHostOf, me_);
  const std::unique_ptr<Negotiation> own_ = negotiation_of(me_);
  const std::unique_ptr<Negotiation> other_ = negotiation_of(me_ + 1);
  std::unique_ptr<HostRelay> relay_;
};

Signature small_sum() { return signature_of_sum(2); }
Signature long_sum() { return signature_of_sum(2000); }

// buffer: the eager one in which the data were, on their host; nothing: the data are in the payload.
void say_request(Listener& listener, int rank, const Signature& signature, uint64_t counter,
                 std::optional<uint64_t> buffer = std::nullopt) {
  FrameWriter& out = listener.said;
  out.begin(FrameType::kUnnamed, rank);
  out.put(uint64_t{0});
  out.put(std::string());
  out.put(counter);
  out.put(signature);
  std::vector<std::byte> payload(listener.control().inline_nbytes());
  if (buffer) std::memcpy(payload.data(), &*buffer, sizeof *buffer);
  out.put(payload.data(), payload.size());
  const std::vector<std::byte> data(buffer ? signature.nbytes : 0);
  out.put(data.data(), data.size());
  out.end();
}

void say_logged(Listener& listener, int rank, const Signature& signature, uint64_t counter, uint16_t is_new = 1,
                const std::string& name = "") {
  FrameWriter& out = listener.said;
  out.begin(FrameType::kLogged, rank < kMe || rank >= kSize ? kPeer : kMe);
  out.put(name);
  out.put(counter);
  out.put(uint32_t{1});
  out.put(static_cast<uint16_t>(rank));
  out.put(is_new);
  if (is_new == 1) out.put(signature);
  out.end();
}

RankMask everybody() {
  RankMask mask;
  for (int r = 0; r < kSize; ++r) mask.set(r);
  return mask;
}

constexpr uint32_t kUsual = static_cast<uint32_t>(Algo::kHierarchical);

// Of unnamed operations, or of one with a name.
void say_entry(FrameWriter& out, int rank, uint64_t number, uint32_t algorithm, const RankMask& participants,
               const std::vector<uint64_t>& counters, const std::string& name = "") {
  out.begin(FrameType::kEntry, rank);
  out.put(number);
  out.put(uint32_t{0});
  out.put(algorithm);
  out.put(participants);
  out.put(static_cast<uint32_t>(counters.size()));
  for (const uint64_t counter : counters) {
    out.put(name);
    out.put(counter);
    out.put(uint8_t{0});
    out.put(uint8_t{0});
  }
  out.end();
}

void announce_here(Listener& listener, const Signature& signature, uint64_t counter = 0) {
  for (const int r : {kMe, kMe + 1}) listener.rank(r).announce_unnamed(counter, signature, nullptr, 0);
}

Signature gathered() {
  Signature signature = signature_of_sum(2000);
  signature.kind = Kind::kAllgather;
  return signature;
}

TEST_CASE("frames: what can be is taken") {
  const Environment environment{};
  Listener listener;
  say_request(listener, 1, small_sum(), 0);
  say_request(listener, 1, small_sum(), 1);
  CHECK(listener.hear() == "");
  CHECK(listener.control().head(1, 1).tag.load() == 2);
}

TEST_CASE("frames: an answer waits for the lock that somebody has") {
  const Environment environment{};
  Listener listener;
  const Hosts hosts(kHostOf, kMe);
  const RankStatuses statuses(listener.control(), hosts);
  const uint64_t question = statuses.ask(1);
  CHECK(listener.hear() == "");
  CHECK(listener.answers == std::vector<FrameType>{FrameType::kStatusAsked});
  REQUIRE(listener.control().header().lock.try_acquire());
  listener.said.begin(FrameType::kStatus, 1);
  listener.said.put(std::string("is busy"));
  listener.said.end();
  CHECK(listener.hear() == "");
  CHECK_FALSE(statuses.answer_to(1, question));
  listener.control().header().lock.release();
  CHECK(listener.hear() == "");
  CHECK(statuses.answer_to(1, question) == "is busy");
}

TEST_CASE("frames: the first host's clock is asked for while a timeline is on, 10 times, and recorded") {
  const Environment environment{};
  Recorder recorder;
  Listener listener(kMe, &recorder);
  CHECK(listener.hear() == "");
  CHECK(listener.answers.empty());
  CHECK_FALSE(listener.notes_arrivals);
  REQUIRE(recorder.begin());
  int64_t sooner_ns = now_ns();  // than the next question, which is asked as soon as one is answered
  for (int64_t question = 1; question <= 10; ++question) {
    CHECK(listener.hear() == "");
    CHECK(listener.notes_arrivals);
    REQUIRE(listener.answers == std::vector<FrameType>{FrameType::kClockAsked});
    listener.answers.clear();
    CHECK(listener.hear() == "");
    CHECK(listener.answers.empty());  // one at a time
    const int64_t before_ns = now_ns();
    // Four times nobody knows when the answer came, then it came before it was read.
    listener.arrived_ns = question < 5 ? 0 : before_ns;
    const bool took_long = question == 10;
    listener.said.begin(FrameType::kClock, kPeer);
    listener.said.put(took_long ? int64_t{0} : int64_t{1000 + question});
    listener.said.put(int64_t{1000 + question} * (took_long ? 1'000'000 : 1));
    listener.said.end();
    wait_for([&] { return now_ns() > before_ns + 100'000; });
    const int64_t heard_ns = now_ns();
    CHECK(listener.hear() == "");
    Record record;
    REQUIRE(recorder.take(&record, 1) == 1);
    CHECK(record.type == RecordType::kClock);
    if (question < 5) CHECK(record.ended_ns >= heard_ns);
    if (question >= 5) CHECK(record.ended_ns == before_ns);
    if (took_long) {  // what there is between question and answer was for making the answer
      CHECK(record.called_ns >= record.ended_ns - (record.ended_ns - sooner_ns) / 5000 - 1);
      CHECK(record.called_ns <= record.ended_ns);
    } else {
      CHECK(record.started_ns == 1000 + question);
      CHECK(record.called_ns >= sooner_ns);
      CHECK(record.called_ns <= before_ns);
    }
    CHECK(record.peer == 15);
    CHECK(record.group == 7);
    sooner_ns = heard_ns;
  }
  CHECK(listener.hear() == "");
  CHECK(listener.answers.empty());
  recorder.end();
  CHECK(listener.hear() == "");
  CHECK_FALSE(listener.notes_arrivals);
}

TEST_CASE("frames: the first host's leader answers with its clock, and when the question came") {
  const Environment environment{};
  Recorder recorder;
  Listener listener(0, &recorder);
  for (const bool is_known : {false, true}) {
    CAPTURE(is_known);
    listener.answers.clear();
    const int64_t came_ns = now_ns();
    listener.arrived_ns = is_known ? came_ns : 0;
    wait_for([&] { return now_ns() > came_ns; });
    const int64_t before_ns = now_ns();
    listener.said.begin(FrameType::kClockAsked, kMe);
    listener.said.end();
    CHECK(listener.hear() == "");
    CHECK(listener.answers == std::vector<FrameType>{FrameType::kClock});
    if (is_known) CHECK(listener.clock_ns[0] == came_ns);
    if (!is_known) CHECK(listener.clock_ns[0] >= before_ns);
    CHECK(listener.clock_ns[1] >= before_ns);
    CHECK(listener.clock_ns[1] >= listener.clock_ns[0]);
    CHECK(listener.clock_ns[1] <= now_ns());
  }
}

TEST_CASE("frames: who asks for the clock again before there is an answer is told so") {
  const Environment environment{};
  Listener listener(0);
  for (int question = 0; question < 2; ++question) {
    listener.said.begin(FrameType::kClockAsked, kMe);
    listener.said.end();
  }
  CHECK(listener.hear().find("asks again before it has an answer") != std::string::npos);
}

TEST_CASE("frames: a host shows its ranks to the first, once a second") {
  const Environment environment{};
  Recorder recorder;
  Listener listener(kMe, &recorder);
  listener.takes = false;
  CHECK(listener.hear() == "");
  const int64_t shown_ns = now_ns();
  wait_for([&] { return now_ns() - shown_ns > 1'100'000'000; });
  CHECK(listener.hear() == "");  // nothing is added to what the link has not taken
  listener.takes = true;
  CHECK(listener.hear() == "");
  CHECK(listener.shown == std::vector<int>{2, 3});
  const int64_t told_ns = now_ns();
  wait_for([&] { return now_ns() - told_ns > 1'100'000'000; });
  CHECK(listener.hear() == "");  // nor before the first host has answered
  CHECK(listener.shown == std::vector<int>{2, 3});
  listener.said.begin(FrameType::kShownTaken, kPeer);
  listener.said.end();
  wait_for([&] { return listener.hear() == "" && listener.shown.size() >= 4; });
  CHECK(std::vector<int>(listener.shown.begin(), listener.shown.begin() + 4) == std::vector<int>{2, 3, 2, 3});

  Listener of_another_group(kMe);
  Listener of_first_host(0, &recorder);
  for (Listener* silent : {&of_another_group, &of_first_host}) {
    CHECK(silent->hear() == "");
    CHECK(silent->shown.empty());
  }
}

TEST_CASE("frames: the first host keeps what is shown of another host's rank") {
  const Environment environment{};
  Listener listener(0);
  CHECK(listener.control().rank_elsewhere(3).read()->told_ns == 0);
  ShownRank shown = {};
  shown.pid = 77;
  shown.stats[kStatsCount - 1] = 5;
  const int64_t before_ns = now_ns();
  listener.said.begin(FrameType::kShown, kMe + 1);
  listener.said.put(shown);
  for (const uint64_t figure : {11, 12, 13, 14}) listener.said.put(figure);  // bytes and time, of each host's link
  listener.said.end();
  CHECK(listener.hear() == "");
  const std::optional<RankElsewhere> kept = listener.control().rank_elsewhere(3).read();
  REQUIRE(kept);
  CHECK(kept->told_ns >= before_ns);
  CHECK(kept->shown.pid == 77);
  CHECK(kept->shown.stats[kStatsCount - 1] == 5);
  CHECK(listener.answers == std::vector<FrameType>{FrameType::kShownTaken});  // after the last rank of the host
  CHECK(listener.control().link_score(3, 0).nbytes == 11);
  CHECK(listener.control().link_score(3, 1).busy_ns == 14);
}

TEST_CASE("frames: what cannot be is an error that names its sender") {
  const Environment environment{};
  struct Case {
    const char* what;
    std::function<void(Listener&)> say;
  };
  const auto altered = [](auto change) {
    return [change](Listener& listener) {
      Signature signature = small_sum();
      change(signature);
      say_request(listener, 1, signature, 0);
    };
  };
  const auto frame = [](FrameType type, int rank, auto... fields) {
    return [=](Listener& listener) {
      listener.said.begin(type, rank);
      (listener.said.put(fields), ...);
      listener.said.end();
    };
  };
  const std::vector<Case> cases = {
      {"is about a rank of another host", frame(FrameType::kWatermark, 3, uint64_t{1})},
      {"is about a rank of another host", frame(FrameType::kWatermark, kSize, uint64_t{1})},
      {"is about another rank than its sender", frame(FrameType::kDrained, 1)},
      {"has an unknown type", frame(static_cast<FrameType>(77), kPeer)},
      {"has a value that its field cannot have", frame(FrameType::kVote, kPeer, uint32_t{2})},
      {"is too short", frame(FrameType::kWatermark, 1, uint32_t{1})},
      {"is longer than its fields", frame(FrameType::kWatermark, 1, uint64_t{1}, uint64_t{1})},
      {"has too long a text", frame(FrameType::kNamed, 1, uint64_t{0}, std::string(kNameNbytes + 1, 'x'))},
      {"is too short", frame(FrameType::kNamed, 1, uint64_t{0}, uint32_t{100})},
      {"has a value that its field cannot have", frame(FrameType::kLeft, 1, uint64_t{7}, Attendance::kClosed)},
      {"has a value that its field cannot have", frame(FrameType::kLeft, 1, uint64_t{0}, uint32_t{9})},
      {"has too long a text", frame(FrameType::kLeft, 1, uint64_t{0}, Attendance::kClosed, uint64_t{0}, uint64_t{0},
                                    uint64_t{0}, uint64_t{0}, std::string(1025, 'x'))},
      {"has a value that its field cannot have", frame(FrameType::kFailed, kPeer, uint32_t{9}, std::string("x"))},
      {"asks about a rank of another host", frame(FrameType::kStatusAsked, kPeer, uint16_t{1})},
      {"asks about a rank of another host", frame(FrameType::kStatusAsked, kPeer, uint16_t{kSize})},
      {"is about another rank than its sender", frame(FrameType::kStatusAsked, 1, uint16_t{kMe})},
      {"is too short", frame(FrameType::kStatusAsked, kPeer)},
      {"is about a rank of another host", frame(FrameType::kStatus, kMe + 1, std::string("x"))},
      {"has too long a text", frame(FrameType::kStatus, 1, std::string(sizeof RankStatus::text + 1, 'x'))},
      {"tells a clock that nobody has asked for", frame(FrameType::kClock, kPeer, int64_t{1}, int64_t{1})},
      {"is too short", frame(FrameType::kClock, kPeer, int64_t{1})},
      {"is about another rank than its sender", frame(FrameType::kClock, 1, int64_t{1})},
      {"asks another host than the first", frame(FrameType::kClockAsked, kPeer)},
      {"shows a rank to another host than the first", frame(FrameType::kShown, 1, ShownRank{})},
      {"is about a rank of another host", frame(FrameType::kShown, kMe, ShownRank{})},
      {"answers what nobody has shown", frame(FrameType::kShownTaken, kPeer)},
      {"is about another rank than its sender", frame(FrameType::kClockAsked, 1)},
      {"has a join without a stamp", frame(FrameType::kJoined, 1, uint64_t{0}, uint32_t{0})},
      {"has a value that its field cannot have", frame(FrameType::kJoined, 1, uint64_t{0}, uint32_t{kSize + 1})},
      {"has a value that its field cannot have", altered([](Signature& s) { s.kind = static_cast<Kind>(99); })},
      {"has a value that its field cannot have", altered([](Signature& s) { s.dtype = static_cast<DType>(99); })},
      {"has a value that its field cannot have", altered([](Signature& s) { s.op = static_cast<ReduceOp>(99); })},
      {"has an unknown root", altered([](Signature& s) { s.root = kSize; })},
      {"has no tensor", altered([](Signature& s) { s.tensors = 0; })},
      {"has an operation that was called before",
       [](Listener& listener) {
         say_request(listener, 1, small_sum(), 3);
         say_request(listener, 1, small_sum(), 3);
       }},
      {"has too much data", altered([](Signature& s) { s.nbytes = 5000; })},
      {"has too much data", altered([](Signature& s) {
         s.kind = Kind::kBarrier;
         s.root = 1;
         s.nbytes = 700000;
       })},
      {"has an unknown eager buffer",
       [](Listener& listener) { say_request(listener, 1, signature_of_sum(500), 0, uint64_t{1} << 40); }},
      {"has an unknown eager buffer",
       [](Listener& listener) { say_request(listener, 1, signature_of_sum(500), 0, kEagerCount); }},
      {"has a value that its field cannot have", frame(FrameType::kWatermark, 1, UINT64_MAX)},
      {"has a value that its field cannot have", frame(FrameType::kJoined, 1, UINT64_MAX, uint32_t{1})},
      {"has a value that its field cannot have",
       frame(FrameType::kVerdict, kPeer, uint32_t{1}, uint64_t{1} << 63, std::string("stuck"))},
      {"has a value that its field cannot have",
       frame(FrameType::kBlocked, 1, uint64_t{1}, UINT64_MAX, Ticket::unnamed(0), std::string())},
      {"has a value that its field cannot have",
       frame(FrameType::kBlocked, 1, uint64_t{1}, uint64_t{0}, Ticket{0, UINT64_MAX}, std::string())},
      {"has a value that its field cannot have",
       [](Listener& listener) { say_request(listener, 1, small_sum(), UINT64_MAX); }},
      {"has a value that its field cannot have",
       [](Listener& listener) { say_entry(listener.said, kPeer, 1, 99, everybody(), {0}); }},
      {"has a value that its field cannot have", frame(FrameType::kEntry, kPeer, uint64_t{1}, uint32_t{kSize + 1})},
      {"is out of order", [](Listener& listener) { say_entry(listener.said, kPeer, 2, kUsual, everybody(), {0}); }},
      {"has an operation that no rank here has called",
       [](Listener& listener) { say_entry(listener.said, kPeer, 1, kUsual, everybody(), {0}); }},
      {"has an operation that no rank here has called",
       [](Listener& listener) { say_entry(listener.said, kPeer, 1, kUsual, everybody(), {0}, "unheard of"); }},
      {"has an operation that no rank here has called",
       [](Listener& listener) {
         RankMask there;
         there.set(1);
         say_entry(listener.said, kPeer, 1, kUsual, there, {0});
       }},
      {"is about another rank than its sender",
       [](Listener& listener) { say_entry(listener.said, 1, 1, kUsual, everybody(), {0}); }},
      {"leaves out a rank that the operation needs",
       [](Listener& listener) {
         announce_here(listener, gathered());
         RankMask some = everybody();
         some.clear(0);
         say_entry(listener.said, kPeer, 1, kUsual, some, {0});
       }},
      {"has an algorithm that the operation cannot take",
       [](Listener& listener) {
         announce_here(listener, gathered());
         say_entry(listener.said, kPeer, 1, static_cast<uint32_t>(Algo::kRing), everybody(), {0});
       }},
      {"has an algorithm that the operation cannot take",
       [](Listener& listener) {
         announce_here(listener, long_sum());
         say_entry(listener.said, kPeer, 1, static_cast<uint32_t>(Algo::kTwoShot), everybody(), {0});
       }},
      {"has operations that cannot share an entry",
       [](Listener& listener) {
         announce_here(listener, long_sum());
         Signature other = long_sum();
         other.op = ReduceOp::kMax;
         announce_here(listener, other, 1);
         say_entry(listener.said, kPeer, 1, kUsual, everybody(), {0, 1});
       }},
      {"has rows that the operation has not, or lacks them",
       [](Listener& listener) {
         announce_here(listener, gathered());
         say_entry(listener.said, kPeer, 1, kUsual, everybody(), {0});
       }},
      {"decides what it has not asked",
       frame(FrameType::kVerdict, kPeer, uint32_t{1}, uint64_t{5}, std::string("stuck"))},
      {"has unknown ranks", [](Listener& listener) { say_logged(listener, 99, long_sum(), 0); }},
      {"has no signature", [](Listener& listener) { say_logged(listener, 1, long_sum(), 0, 0); }},
      {"has an operation that is not in the log", [](Listener& listener) { say_logged(listener, 1, small_sum(), 0); }},
      {"has no request", frame(FrameType::kLogged, kPeer, std::string(), uint64_t{0}, uint32_t{0})},
      {"has no length",
       [](Listener& listener) {
         const FrameHead head = {3, FrameType::kWatermark, 1};
         listener.said.put(head);
       }},
      {"is too long",
       [](Listener& listener) {
         const FrameHead head = {1u << 30, FrameType::kWatermark, 1};
         listener.said.put(head);
       }},
  };
  for (const Case& one : cases) {
    CAPTURE(one.what);
    Listener listener;
    one.say(listener);
    const std::string text = listener.hear();
    CHECK(text.rfind("rank 5, which speaks for another host, has sent a frame that ", 0) == 0);
    expect_contains(text, one.what);
  }
}

TEST_CASE("frames: a name that nobody has announced takes no room in the table") {
  const Environment environment{};
  Listener listener;
  say_entry(listener.said, kPeer, 1, kUsual, everybody(), {0}, "unheard of");
  CHECK(listener.hear() != "");
  CHECK(listener.control().header().names_used == 0);
}

// A decision says what ranks elsewhere have announced; what their leader had sent before comes later, and is over.
TEST_CASE("frames: requests that have been decided about meanwhile are dropped") {
  const Environment environment{};
  for (const bool is_named : {false, true}) {
    CAPTURE(is_named);
    Listener listener;
    bool log_full = false;
    Ticket ticket;
    for (const int r : {kMe, kMe + 1}) {
      ticket = is_named ? listener.rank(r).announce_named("name", long_sum(), nullptr, 0, true, log_full)
                        : listener.rank(r).announce_unnamed(0, long_sum(), nullptr, 0);
    }
    say_entry(listener.said, kPeer, 1, kUsual, everybody(), {0}, is_named ? "name" : "");
    if (!is_named) say_logged(listener, 1, long_sum(), 0);
    CHECK(listener.hear() == "");
    CHECK(listener.control().header().log_tail.load() == 1);
    CHECK(listener.rank(kMe).requests().is_appended(ticket));
    for (int r = 0; r < kSize; ++r) CHECK(listener.rank(kMe).requests().has_announced(ticket, r));
  }
}

TEST_CASE("frames: the first host is told of an operation once all ranks of a host have announced it or joined") {
  const Environment environment{};
  for (const bool joins : {false, true}) {
    CAPTURE(joins);
    Listener listener;
    listener.rank(kMe).announce_unnamed(0, long_sum(), nullptr, 0);
    CHECK(listener.hear() == "");
    CHECK(listener.answers.empty());
    if (joins) {
      listener.rank(kMe + 1).joins().join(0);
    } else {
      listener.rank(kMe + 1).announce_unnamed(0, long_sum(), nullptr, 0);
    }
    CHECK(listener.hear() == "");
    CHECK(std::count(listener.answers.begin(), listener.answers.end(), FrameType::kLogged) == 1);
  }
}

// Rank 1 completes an operation, and appends it, after the leader has read its ranks' notes. Then the leader sends the
// entry, and says that rank 0 waits in the operation.
TEST_CASE("frames: what the first host has sent as decided is not shown") {
  const Environment environment{};
  Listener listener(0);
  bool log_full = false;
  const Ticket ticket = listener.rank(0).announce_named("name", long_sum(), nullptr, 0, true, log_full);
  for (const int r : {kMe, kMe + 1}) say_logged(listener, r, long_sum(), 0, 1, "name");
  CHECK(listener.hear() == "");
  CHECK(listener.answers.empty());
  listener.rank(0).deadlock().block(ticket, 0);
  CHECK(listener.rank(1).announce_named("name", long_sum(), nullptr, 0, true, log_full).tag == ticket.tag);
  CHECK(listener.hear() == "");
  REQUIRE_FALSE(listener.answers.empty());
  CHECK(listener.answers.front() == FrameType::kEntry);
  listener.rank(1).deadlock().block(ticket, 0);  // the leader has read now that it has announced the operation
  CHECK(listener.hear() == "");
  CHECK(std::count(listener.answers.begin(), listener.answers.end(), FrameType::kLogged) == 0);
  CHECK(std::count(listener.answers.begin(), listener.answers.end(), FrameType::kBlocked) == 2);
}

TEST_CASE("frames: a failure is heard behind frames that wait") {
  const Environment environment{};
  Listener listener;
  FrameWriter& out = listener.said;
  out.begin(FrameType::kDrained, kPeer);
  out.end();
  say_request(listener, 1, small_sum(), 0);  // for the next epoch
  out.begin(FrameType::kFailed, kPeer);
  out.put(FatalKind::kPeerLost);
  out.put(std::string("lost rank 1"));
  out.end();
  CHECK(listener.hear() == "");
  CHECK(listener.control().head(0, 1).tag.load() == 0);
  CHECK(failure_text(listener.control()) == "lost rank 1");
}

TEST_CASE("frames: a leader that leaves a job which has failed does not wait for one that takes nothing more") {
  const Environment environment{};
  Listener listener;
  listener.takes = false;
  FrameWriter& out = listener.said;
  out.begin(FrameType::kFailed, kPeer);
  out.put(FatalKind::kPeerLost);
  out.put(std::string("lost rank 1"));
  out.end();
  CHECK(listener.hear() == "");
  listener.rank(kMe + 1).deadlock().block({}, 0);  // which is told to the other host
  CHECK_FALSE(listener.pass_on());
  listener.has_ended = true;
  CHECK(listener.pass_on());
}

TEST_CASE("frames: one that is too long is not sent, and those around it are") {
  FrameWriter out;
  const auto say = [&](size_t nbytes) {
    out.begin(FrameType::kNamed, 1);
    out.put(std::string(nbytes, 'x'));
    out.end();
  };
  say(5);
  CHECK_THROWS_AS(say(kFrameNbytesMost), InternalError);
  say(7);
  CHECK(out.nbytes_left() == 2 * (sizeof(FrameHead) + sizeof(uint32_t)) + 5 + 7);
}

// Says another number in place of one that leaves, all others as they are.
class LyingLink : public Link {
 public:
  LyingLink(std::unique_ptr<Link> honest, uint64_t truth, uint64_t lie)
      : honest_(std::move(honest)), truth_(truth), lie_(lie) {}
  size_t push(const void* src, size_t nbytes) override {
    std::vector<std::byte> bytes(nbytes);
    std::memcpy(bytes.data(), src, nbytes);
    for (size_t at = 0; at + sizeof truth_ <= nbytes; ++at) {
      if (std::memcmp(bytes.data() + at, &truth_, sizeof truth_) == 0)
        std::memcpy(bytes.data() + at, &lie_, sizeof lie_);
    }
    return honest_->push(bytes.data(), nbytes);
  }
  size_t pull(void* dst, size_t nbytes) override { return honest_->pull(dst, nbytes); }
  size_t fold(void* dst, size_t nbytes, const Reduction& reduction, const Kernels& kernels) override {
    return honest_->fold(dst, nbytes, reduction, kernels);
  }

 private:
  const std::unique_ptr<Link> honest_;
  const uint64_t truth_;
  const uint64_t lie_;
};

TEST_CASE("frames: rows that cannot be are an error on every host, and nothing is written by them") {
  const Environment environment{{"RINGREDUCE_TIMEOUT", "30"}};
  constexpr uint64_t kRows = 3001;
  for (const uint64_t lie : {UINT64_MAX - 4095, uint64_t{1} << 60, kRows * sizeof(int32_t) + 1}) {
    CAPTURE(lie);
    const auto wrap = [&](std::unique_ptr<Link> end, int rank, int channel) -> std::unique_ptr<Link> {
      if (rank != 0 || !carries_control(channel)) return end;
      return std::make_unique<LyingLink>(std::move(end), kRows * sizeof(int32_t), lie);
    };
    const auto gather = [&](Rank& rank) {
      std::vector<int32_t> mine(kRows);
      Request request;
      request.kind = Kind::kAllgather;
      request.srcs = {view(mine, DType::kInt32)};
      const std::string text =
          raised<InternalError>([&] { rank.world.wait(*rank.world.submit(request, nullptr), -1, nullptr); });
      expect_contains(text, "rank 0 is said to have " + std::to_string(lie) + " bytes in 3001 rows of 4 bytes");
    };
    const auto body = [&](Rank& rank) {
      if (rank.rank == 1) return gather(rank);
      try {
        gather(rank);
      } catch (const std::exception&) {
      }
    };
    CHECK_NOTHROW(run_hosts({0, 1}, body, 64, 8192, nullptr, wrap));
  }
}

// The sanitizers look on.
TEST_CASE("frames: no bytes whatever do harm") {
  const Environment environment{};
  std::mt19937_64 random(seed(1));
  int refused = 0;
  for (int turn = 0; turn < 3000; ++turn) {
    Listener listener;
    say_request(listener, 1, small_sum(), 0);
    for (int i = 0; i < 4; ++i) {
      listener.said.begin(static_cast<FrameType>(random() % 16), static_cast<int>(random() % 3));
      const size_t words = random() % 60;
      for (size_t word = 0; word < words; ++word) {
        const uint64_t value = random() % 3 == 0 ? random() : random() % 3;
        listener.said.put(&value, random() % 2 == 0 ? 8 : 4);
      }
      listener.said.end();
    }
    refused += listener.hear().empty() ? 0 : 1;
  }
  CHECK(refused > 2000);
}

}  // namespace
}  // namespace rr::test
