// What the negotiation of 256 ranks on 32 hosts sends, counted: relays driven from one thread.
#include <deque>

#include "doctest/doctest.h"
#include "ranks.h"
#include "relay/host_relay.h"

namespace rr::test {
namespace {

constexpr int kHosts = 32;
constexpr int kRanksOfHost = 8;
constexpr int kNames = 300;

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
  Host(int host, const std::vector<int>& host_of, const std::vector<int>& world_ranks,
       std::vector<std::vector<Pipe>>& pipes)
      : fd_(create_memfd("test", ControlSegment::nbytes(static_cast<int>(host_of.size()), kNames))),
        control_(ControlSegment::map(fd_.get(), static_cast<int>(host_of.size()))),
        hosts_(host_of, host * kRanksOfHost) {
    control_.header().eager_nbytes = 4096;
    Bells bells;
    for (int r = 0; r < control_.size(); ++r) {
      bells.wait.push_back(&control_.wait_bell(r));
      bells.engine.push_back(&control_.engine_bell(r));
    }
    for (const int r : hosts_.here()) {
      control_.line(r).attendance = Attendance::kPresent;
      negotiations_.push_back(
          std::make_unique<Negotiation>(control_, r, world_ranks, hosts_, bells, Algo::kAuto, size_t{1} << 30, [] {}));
    }
    std::vector<std::unique_ptr<Link>> links(kHosts);
    const size_t me = static_cast<size_t>(host);
    for (size_t other = 0; other < kHosts; ++other) {
      if (other != me) links[other] = std::make_unique<PipeLink>(pipes[me][other], pipes[other][me]);
    }
    relay_ = std::make_unique<HostRelay>(control_, hosts_, *negotiations_.front(), std::move(links), 60.0);
  }

  void announce(const std::string& name, const Signature& signature) {
    bool log_full = false;
    for (auto& negotiation : negotiations_) {
      const Ticket ticket = negotiation->announce_named(name, signature, nullptr, 0, true, log_full);
      REQUIRE(ticket.tag != 0);
    }
  }
  HostRelay& relay() { return *relay_; }
  const ControlSegment& control() const { return control_; }

 private:
  Fd fd_;
  ControlSegment control_;
  Hosts hosts_;
  std::vector<std::unique_ptr<Negotiation>> negotiations_;
  std::unique_ptr<HostRelay> relay_;
};

TEST_CASE("relay: 300 names on 32 hosts of 8 ranks cost the busiest host less than 2 MB a step") {
  const Environment environment{};
  std::vector<int> host_of, world_ranks;
  for (int r = 0; r < kHosts * kRanksOfHost; ++r) {
    host_of.push_back(r / kRanksOfHost);
    world_ranks.push_back(r);
  }
  std::vector<std::vector<Pipe>> pipes(kHosts, std::vector<Pipe>(kHosts));
  std::vector<std::unique_ptr<Host>> hosts;
  for (int host = 0; host < kHosts; ++host) {
    hosts.push_back(std::make_unique<Host>(host, host_of, world_ranks, pipes));
  }
  Signature sum;
  sum.kind = Kind::kAllreduce;
  sum.dtype = DType::kFloat32;
  sum.ndim = 1;
  sum.dims[0] = 10000;
  sum.nbytes = 40000;
  for (int k = 0; k < kNames; ++k) {
    std::string name = "gradient of layer " + std::to_string(k);
    name.resize(64, '.');
    for (auto& host : hosts) host->announce(name, sum);
  }
  for (auto& host : hosts) host->relay().progress();
  for (int turn = 0; turn < 3; ++turn) hosts[0]->relay().progress();
  // One of the others takes up what it was sent: 170 MB of request slots. The rest would do the same.
  for (int turn = 0; turn < 3; ++turn) hosts[1]->relay().progress();
  CHECK(hosts[0]->control().header().log_tail.load() != 0);
  CHECK(hosts[1]->control().header().log_tail.load() == hosts[0]->control().header().log_tail.load());
  size_t busiest = 0;
  for (const auto& of_host : pipes) {
    size_t sent = 0;
    for (const Pipe& pipe : of_host) sent += pipe.sent;
    busiest = std::max(busiest, sent);
  }
  MESSAGE("the busiest host sends " << busiest << " bytes");
  CHECK(busiest < 2000000);
  CHECK(busiest > kNames * 64);
}

}  // namespace
}  // namespace rr::test
