// What the negotiation of many ranks on many hosts sends, and what memory it takes, counted: relays driven from one
// thread.
#include <sys/stat.h>

#include <deque>
#include <numeric>

#include "doctest/doctest.h"
#include "relay/host_relay.h"
#include "support/ranks.h"

namespace rr::test {
namespace {

struct Layout {
  int hosts;
  int ranks_of_host;
  int size() const { return hosts * ranks_of_host; }
};

// One way of a link: bytes that have been sent and not taken yet.
struct Pipe {
  std::deque<std::byte> bytes;
  size_t sent = 0;
};

class PipeLink : public Link {
 public:
  PipeLink(Pipe& out, Pipe& in) : out_(out), in_(in) {}
  size_t push(const void* src, size_t nbytes) override {
    const auto* const bytes = static_cast<const std::byte*>(src);
    out_.bytes.insert(out_.bytes.end(), bytes, bytes + nbytes);
    out_.sent += nbytes;
    return nbytes;
  }
  size_t pull(void* dst, size_t nbytes) override {
    const size_t n = std::min(nbytes, in_.bytes.size());
    const auto end = in_.bytes.begin() + static_cast<std::ptrdiff_t>(n);
    std::copy(in_.bytes.begin(), end, static_cast<std::byte*>(dst));
    in_.bytes.erase(in_.bytes.begin(), end);
    return n;
  }
  size_t fold(void*, size_t, const Reduction&, const Kernels&) override { return 0; }

 private:
  Pipe& out_;
  Pipe& in_;
};

// A host: its control segment, the negotiations of its ranks, and its leader's relay.
class Host {
 public:
  Host(const Layout& layout, int host, size_t capacity, const std::vector<int>& world_ranks,
       std::vector<std::vector<Pipe>>& pipes)
      : fd_(create_memfd("test", ControlSegment::nbytes(layout.size(), capacity))),
        control_(ControlSegment::map(fd_.get(), layout.size())),
        hosts_(labels(layout), host * layout.ranks_of_host) {
    control_.header().eager_nbytes = 4096;
    control_.header().tuned = kTuned;
    const Bells bells = bells_in(control_);
    for (const int r : hosts_.here()) {
      control_.line(r).attendance = Attendance::kPresent;
      negotiations_.push_back(
          std::make_unique<Negotiation>(control_, r, world_ranks, hosts_, bells, Algo::kAuto, size_t{1} << 30, [] {}));
    }
    const size_t me = static_cast<size_t>(host);
    std::vector<std::unique_ptr<Link>> links(pipes.size());
    for (size_t other = 0; other < pipes.size(); ++other) {
      if (other != me) links[other] = std::make_unique<PipeLink>(pipes[me][other], pipes[other][me]);
    }
    relay_ = std::make_unique<HostRelay>(control_, hosts_, *negotiations_.front(), std::move(links), 60.0);
  }

  const std::vector<int>& ranks() const { return hosts_.here(); }
  const ControlSegment& control() const { return control_; }
  Negotiation& negotiation(size_t index) const { return *negotiations_[index]; }
  void progress() {
    do relay_->progress();
    while (relay_->is_patient());
  }
  uint64_t log_tail() const { return control_.header().log_tail.load(); }
  // Of the control segment, which is sparse.
  size_t resident_nbytes() const {
    struct stat info = {};
    REQUIRE(::fstat(fd_.get(), &info) == 0);
    return static_cast<size_t>(info.st_blocks) * 512;
  }

 private:
  static std::vector<int> labels(const Layout& layout) {
    std::vector<int> host_of;
    for (int r = 0; r < layout.size(); ++r) host_of.push_back(r / layout.ranks_of_host);
    return host_of;
  }

  Fd fd_;
  ControlSegment control_;
  Hosts hosts_;
  std::vector<std::unique_ptr<Negotiation>> negotiations_;
  std::unique_ptr<HostRelay> relay_;
};

class Job {
 public:
  Job(const Layout& layout, size_t capacity)
      : pipes_(static_cast<size_t>(layout.hosts), std::vector<Pipe>(static_cast<size_t>(layout.hosts))) {
    for (int r = 0; r < layout.size(); ++r) world_ranks_.push_back(r);
    for (int host = 0; host < layout.hosts; ++host) {
      hosts_.push_back(std::make_unique<Host>(layout, host, capacity, world_ranks_, pipes_));
    }
  }

  // announce(negotiation, rank)
  template <class Announce>
  void announce(Announce announce) {
    for (auto& host : hosts_) {
      for (size_t i = 0; i < host->ranks().size(); ++i) announce(host->negotiation(i), host->ranks()[i]);
    }
  }
  // All hosts tell the first one, which decides, and the second takes the decisions up: the rest would do the same, and
  // write what the ranks of all hosts have announced, each into memory of its own.
  void decide() {
    for (auto& host : hosts_) host->progress();
    for (int turn = 0; turn < 3; ++turn) hosts_[0]->progress();
    for (int turn = 0; turn < 3; ++turn) hosts_[1]->progress();
  }
  const Host& host(size_t index) const { return *hosts_[index]; }
  // By the host that sends most.
  size_t busiest() const {
    size_t most = 0;
    for (size_t host = 0; host < pipes_.size(); ++host) most = std::max(most, sent(host));
    return most;
  }
  size_t sent(size_t host) const {
    size_t sum = 0;
    for (const Pipe& pipe : pipes_[host]) sum += pipe.sent;
    return sum;
  }

 private:
  std::vector<std::vector<Pipe>> pipes_;
  std::vector<int> world_ranks_;
  std::vector<std::unique_ptr<Host>> hosts_;
};

void announce_named(Negotiation& negotiation, const std::string& name, const Signature& signature) {
  bool log_full = false;
  REQUIRE(negotiation.announce_named(name, signature, nullptr, 0, true, log_full).tag != 0);
}

Signature long_sum() { return signature_of_sum(10000); }

TEST_CASE("relay: 300 names on 32 hosts of 8 ranks cost the busiest host less than 2 MB a step") {
  const Environment environment{};
  constexpr int kNames = 300;
  Job job({32, 8}, kNames);
  job.announce([](Negotiation& negotiation, int) {
    for (int k = 0; k < kNames; ++k) {
      std::string name = "gradient of layer " + std::to_string(k);
      name.resize(64, '.');
      announce_named(negotiation, name, long_sum());
    }
  });
  job.decide();
  CHECK(job.host(0).log_tail() != 0);
  CHECK(job.host(1).log_tail() == job.host(0).log_tail());
  MESSAGE("the busiest host sends " << job.busiest() << " bytes");
  CHECK(job.busiest() < 2000000);
  CHECK(job.busiest() > kNames * 64);
}

TEST_CASE("relay: the longest entry of many tensors: a full bucket on GPUs") {
  const Environment environment{};
  Job buckets({4, 8}, 300);
  buckets.announce([](Negotiation& negotiation, int rank) {
    Signature sum = long_sum();
    sum.place = Place::kDevice;
    sum.src.uid = static_cast<uint64_t>(rank) + 1;
    for (size_t k = 0; k < kEntryMembers; ++k) {
      announce_named(negotiation, std::string(200, 'x') + std::to_string(k), sum);
    }
  });
  buckets.decide();
  CHECK(buckets.host(1).log_tail() != 0);
  CHECK(buckets.host(1).log_tail() == buckets.host(0).log_tail());
}

// What a rank has of the splits: a number that no other pair has.
uint64_t split(int from, int to) { return static_cast<uint64_t>(from * kAlltoallRanksMost + to); }

TEST_CASE("relay: the longest frames: an alltoall of the most ranks that may do one") {
  const Environment environment{};
  Job job({4, kAlltoallRanksMost / 4}, 16);
  job.announce([](Negotiation& negotiation, int rank) {
    Signature one = long_sum();
    one.kind = Kind::kAlltoall;
    std::vector<uint64_t> splits;
    for (int to = 0; to < kAlltoallRanksMost; ++to) splits.push_back(split(rank, to));
    one.dims[0] = one.nbytes = std::accumulate(splits.begin(), splits.end(), uint64_t{0});  // no two are alike
    negotiation.announce_unnamed(0, one, splits.data(), splits.size() * sizeof(uint64_t));
  });
  job.decide();
  CHECK(job.host(0).log_tail() == 1);
  const Host& other = job.host(1);
  REQUIRE(other.log_tail() == 1);
  const size_t slot = other.control().entry(0).member[0].request_slot;
  int wrong = 0;
  for (int from = 0; from < kAlltoallRanksMost; ++from) {
    for (const int to : other.ranks()) wrong += other.control().splits(slot, from)[to] != split(from, to) ? 1 : 0;
  }
  CHECK(wrong == 0);
}

TEST_CASE("relay: a rank of a refused alltoall is told of the requests, whose splits do not travel") {
  const Environment environment{};
  Job job({4, kAlltoallRanksMost / 4}, 16);
  const std::vector<uint64_t> splits(kAlltoallRanksMost, 1);
  job.announce([&](Negotiation& negotiation, int rank) {
    Signature one = long_sum();
    one.kind = Kind::kAlltoall;
    one.dtype = rank == 7 ? DType::kInt32 : DType::kFloat32;
    negotiation.announce_unnamed(0, one, splits.data(), splits.size() * sizeof(uint64_t));
  });
  const size_t before = job.sent(0);
  job.decide();
  CHECK(job.host(1).negotiation(0).requests().is_refused(Ticket::unnamed(0)));
  RankMask everybody;
  for (int r = 0; r < kAlltoallRanksMost; ++r) everybody.set(r);
  CHECK(job.host(1).negotiation(0).requests().mismatch(Ticket::unnamed(0), everybody).find("rank 7") !=
        std::string::npos);
  CHECK(job.sent(0) - before < 3 * kAlltoallRanksMost * (sizeof(Signature) + 8));
}

// 256 bytes for each rank and each of the two last operations, and nothing that grows with the square of the ranks.
TEST_CASE("relay: what an operation of the most ranks takes of a host's memory") {
  const Environment environment{};
  Job job({4, kMaxRanks / 4}, 64);
  const auto sum = [&](const std::string& name) {
    job.announce([&](Negotiation& negotiation, int) { announce_named(negotiation, name, long_sum()); });
    job.decide();
  };
  sum("first");
  const size_t before = job.host(1).resident_nbytes();
  sum("second");
  CHECK(job.host(1).log_tail() != 0);
  CHECK(job.host(1).resident_nbytes() - before < kMaxRanks * kRequestSlotNbytes * 3 / 2);
  CHECK(job.host(1).resident_nbytes() - before >= kMaxRanks * kRequestSlotNbytes);
}

}  // namespace
}  // namespace rr::test
