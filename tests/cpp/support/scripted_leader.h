// A leader alone, to whom a test speaks as the other host's leader.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "relay/host_relay.h"
#include "support/loopback_links.h"

namespace rr::test {

inline constexpr int kSize = 4;
inline constexpr int kMe = 2;    // leads the second host, of ranks 2 and 3
inline constexpr int kPeer = 0;  // leads the first, of ranks 0 and 1
inline const std::vector<int> kHostOf = {0, 0, 1, 1};

// What a link does, and what it has been given.
struct Script {
  FrameWriter said;                // what the other end says
  std::vector<FrameType> answers;  // kShown, which goes by the clock, left out
  std::vector<int> answers_of;     // ranks, of each answer
  std::vector<int> shown;          // ranks
  int pushes = 0;
  int64_t clock_ns[2] = {};  // of the last answer to a question for the clock
  bool takes = true;         // the link does what it is given
  bool has_ended = false;    // the link's peer
  bool notes_arrivals = false;
  int64_t arrived_ns = 0;
};

class ScriptedLink : public Link {
 public:
  explicit ScriptedLink(Script& script) : script_(script) {}
  size_t push(const void* bytes, size_t nbytes) override {
    if (!script_.takes) return 0;
    ++script_.pushes;
    for (size_t at = 0; at < nbytes;) {
      const std::byte* const frame = static_cast<const std::byte*>(bytes) + at;
      FrameHead head;
      std::memcpy(&head, frame, sizeof head);
      if (head.type == FrameType::kShown) {
        script_.shown.push_back(head.rank);
      } else {
        script_.answers.push_back(head.type);
        script_.answers_of.push_back(head.rank);
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
  // late_s: what waits so long is shown to all hosts.
  explicit Listener(int me = kMe, Recorder* recorder = nullptr, double late_s = 1.0)
      : me_(me),
        fd_(create_memfd("test", ControlSegment::nbytes(kSize, 16))),
        control_(ControlSegment::map(fd_.get(), kSize)) {
    control_.header().eager_nbytes = 4096;
    control_.header().tuned = kTuned;
    std::vector<std::unique_ptr<Link>> links(2);
    links[static_cast<size_t>(1 - hosts_.mine)] = std::make_unique<ScriptedLink>(*this);
    for (const int r : hosts_.here()) control_.line(r).attendance = Attendance::kPresent;
    relay_ = std::make_unique<HostRelay>(control_, hosts_, *own_, std::move(links), late_s, recorder,
                                         RecordedGroup{7, "", 0, {15, 16, 17, 18}}, false);
  }

  // Hears what was said, and says what there is to say. What it finds wrong, or "".
  std::string hear() {
    try {
      do relay_->progress();
      while (relay_->is_patient());
      return "";
    } catch (const InternalError& error) {
      return error.what();
    }
  }
  void hear_once() { relay_->progress(); }
  HostRelay& relay() { return *relay_; }
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

inline Signature small_sum() { return signature_of_sum(2); }
inline Signature long_sum() { return signature_of_sum(2000); }

// buffer: the eager one in which the data were, on their host; nothing: the data are in the payload.
inline void say_request(Listener& listener, int rank, const Signature& signature, uint64_t counter,
                        std::optional<uint64_t> buffer = std::nullopt) {
  FrameWriter& out = listener.said;
  out.begin(FrameType::kUnnamed, rank);
  out.put(uint64_t{0});
  out.put(std::string());
  out.put(counter);
  out.put(signature);
  std::vector<std::byte> payload(kInlineNbytes);
  if (buffer) std::memcpy(payload.data(), &*buffer, sizeof *buffer);
  out.put(payload.data(), payload.size());
  const std::vector<std::byte> data(buffer ? signature.nbytes : 0);
  out.put(data.data(), data.size());
  out.end();
}

inline void say_logged(Listener& listener, int rank, const Signature& signature, uint64_t counter, uint16_t is_new = 1,
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

inline RankMask everybody() {
  RankMask mask;
  for (int r = 0; r < kSize; ++r) mask.set(r);
  return mask;
}

inline constexpr uint32_t kUsual = static_cast<uint32_t>(Algo::kHierarchical);

// Of unnamed operations, or of one with a name.
inline void say_entry(FrameWriter& out, int rank, uint64_t number, uint32_t algorithm, const RankMask& participants,
                      const std::vector<uint64_t>& counters, const std::string& name = "") {
  out.begin(FrameType::kEntry, rank);
  out.put(number);
  out.put(uint32_t{0});
  out.put(algorithm);
  put_ranks(out, participants, kSize);
  out.put(static_cast<uint32_t>(counters.size()));
  for (const uint64_t counter : counters) {
    out.put(name);
    out.put(counter);
    out.put(uint8_t{0});
    out.put(uint8_t{0});
  }
  out.end();
}

inline void announce_here(Listener& listener, const Signature& signature, uint64_t counter = 0) {
  for (const int r : {kMe, kMe + 1}) listener.rank(r).announce_unnamed(counter, signature, nullptr, 0);
}

inline Signature gathered() {
  Signature signature = signature_of_sum(2000);
  signature.kind = Kind::kAllgather;
  return signature;
}

}  // namespace rr::test
