// What a leader makes of another leader's frames: it takes those that can be, and of others it says who sent them.
#include <random>

#include "doctest/doctest.h"
#include "support/scripted_leader.h"

namespace rr::test {
namespace {

TEST_CASE("frames: what can be is taken") {
  const Environment environment{};
  Listener listener;
  say_request(listener, 1, small_sum(), 0);
  say_request(listener, 1, small_sum(), 1);
  CHECK(listener.hear() == "");
  CHECK(listener.control().head(1, 1).tag.load() == 2);
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
      {"has a value that its field cannot have", frame(FrameType::kLeft, 1, uint64_t{0}, Attendance::kAbsent)},
      {"has too long a text",
       frame(FrameType::kLeft, 1, uint64_t{0}, Attendance::kClosed, uint64_t{0}, uint64_t{0}, std::string(1025, 'x'))},
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

TEST_CASE("frames: a reader takes in a whole frame that is longer than what may wait, and no more") {
  FrameWriter out;
  const auto say = [&](size_t nbytes) {
    out.begin(FrameType::kNamed, 1);
    out.put(std::string(nbytes, 'x'));
    out.end();
  };
  say(100);  // which nobody takes
  say(3 * kAhead);
  for (int i = 0; i < 100; ++i) say(kAhead / 10);
  FrameReader in;
  const auto fill = [&] {
    return in.fill([&](std::byte* bytes, size_t nbytes) {
      size_t come = 0;
      out.drain([&](const std::byte* from, size_t left) {
        come = std::min(nbytes, left);
        std::memcpy(bytes, from, come);
        return come;
      });
      return come;
    });
  };
  while (in.has_room() && fill() != 0) {
  }
  const size_t taken_in = in.nbytes_left();
  CHECK(taken_in >= 3 * kAhead);
  CHECK(taken_in <= 3 * kAhead + 200 + FrameReader::kAtOnce);
  int seen = 0;
  in.look_ahead(FrameReader::kForDecisions, [&](FrameParser& frame) {
    frame.skip();
    return ++seen != 0;
  });
  CHECK(seen == 2);
  // Once they are taken there is room for a part of the others.
  in.parse([&](FrameParser& frame) {
    frame.skip();
    return true;
  });
  while (in.has_room() && fill() != 0) {
  }
  CHECK(in.nbytes_left() >= kAhead);
  CHECK(in.nbytes_left() <= kAhead + kAhead / 10 + FrameReader::kAtOnce + 100);
}

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
    const auto wrap = [&](std::unique_ptr<Link> end, int rank, int /*peer*/, int channel) -> std::unique_ptr<Link> {
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
  const int count = rounds(3000);
  int refused = 0;
  for (int turn = 0; turn < count; ++turn) {
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
  CHECK(refused > count * 2 / 3);
}

}  // namespace
}  // namespace rr::test
