#include "transport/tcp/tcp_network.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/errors.h"
#include "base/guarded.h"
#include "os/epoll.h"
#include "os/owned_fd.h"
#include "os/tcp/tcp_options.h"
#include "os/thread.h"
#include "transport/tcp/arrivals.h"
#include "transport/tcp/closings.h"
#include "transport/tcp/connections.h"
#include "transport/tcp/heartbeats.h"
#include "transport/tcp/opening/opener.h"
#include "transport/tcp/readable.h"
#include "transport/tcp/tcp_link.h"

namespace rr {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kBeatNs = Heartbeats::kPauseMs * kMs;
// Between two times that data is sent. The kernel ends a connection whose peer has no room after twice as long without
// an answer (tcp_options.h), which is to be more than the 3.5 s after which the peer's host is lost.
constexpr int kDataAgainMs = 2000;
constexpr int64_t kLookNs = 1'000 * kMs;   // between two looks at what is acknowledged of data
constexpr int64_t kLeaveNs = 1'000 * kMs;  // when the network ends, dropped connections have so long
// leave() waits so long for the thread to say farewell. To a peer whose connection is not there yet it is said later,
// until so long after leave() as a peer that is not heard of is lost.
constexpr std::chrono::milliseconds kFarewellWait(100);

// The thread, and what the other threads ask of it.
class TcpReader final : public TcpNetwork, public std::enable_shared_from_this<TcpReader> {
 public:
  explicit TcpReader(TcpOptions options);
  ~TcpReader() override;
  TcpReader(const TcpReader&) = delete;
  TcpReader& operator=(const TcpReader&) = delete;

  std::unique_ptr<Link> link(int peer, int channel) override;
  void start(std::function<void()> ring) override { *ring_.lock() = std::move(ring); }
  void monitor(const std::vector<int>& world_ranks) override;
  void begin_watch() override { arrivals_.begin_watch(); }
  void end_watch() override { arrivals_.end_watch(); }
  std::vector<LostRank> newly_lost() override { return std::exchange(*lost_.lock(), {}); }
  std::vector<std::string> new_warnings() override { return std::exchange(*warnings_.lock(), {}); }
  void leave() override;

 private:
  void want(const ConnectionPtr& connection);
  void wake();
  void ring();

  // The thread's.
  void run();
  void turn();
  void look_at(int fd);
  void look_at_requests();
  void look_at_clock();
  int pause_ms() const;
  void use(TcpConnection& connection, OwnedFd socket, const Session& session);
  void fail(const ConnectionPtr& connection, const std::string& why);
  void drop(const ConnectionPtr& connection);
  void tell(const Heartbeats::News& news);
  void leave_when_all_are_told();
  void end_leaving();
  void give_up(const std::string& why);

  const int rank_;
  const int size_;
  const int lost_after_ms_;
  const int data_lost_after_ms_;
  Connections connections_;
  Guarded<std::vector<LostRank>> lost_;         // not yet told of
  Guarded<std::vector<std::string>> warnings_;  // likewise
  Guarded<std::function<void()>> ring_;
  std::atomic<bool> is_leaving_{false};
  std::promise<void> farewell_;
  const std::shared_future<void> has_said_farewell_ = farewell_.get_future().share();
  std::atomic<bool> stop_{false};
  OwnedFd wake_;
  Epoll events_;  // of everything but the links' connections
  Arrivals arrivals_;
  Readable readable_;

  Opener opener_;
  Closings closings_;
  Heartbeats heartbeats_;
  int64_t beat_ns_ = 0;
  int64_t looked_ns_ = 0;       // at what is acknowledged of data
  int64_t leave_until_ns_ = 0;  // 0: it does not leave yet
  bool has_left_ = false;
  const pid_t owner_ = ::getpid();
  std::thread thread_;
};

// A connection of data on which nothing moves is ended when its peer's host has gone; and packet filters that forget
// connections on which nothing moves keep this one in mind.
void keep_alive(int fd, int lost_after_ms) {
  const int none = 0;  // of the handshake's; acknowledged.h says why
  check_sys(::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &none, sizeof none), "setsockopt(TCP_USER_TIMEOUT)");
  const int half = std::max(1, lost_after_ms / 2000);  // seconds until the first probe; and so many, one a second
  if (!retransmit_steadily(fd, kDataAgainMs) || !probe_when_idle(fd, half, half)) check_sys(-1, "setsockopt, data");
}

TcpReader::TcpReader(TcpOptions options)
    : rank_(options.rank),
      size_(static_cast<int>(options.addresses.size())),
      lost_after_ms_(options.lost_after_ms),
      data_lost_after_ms_(options.data_lost_after_ms),
      wake_(OwnedFd::from([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })),
      arrivals_(events_, [this] { wake(); }),
      opener_(std::move(options), connections_, events_,
              {[this](TcpConnection& connection, OwnedFd socket, const Session& session) {
                 use(connection, std::move(socket), session);
               },
               [this](const ConnectionPtr& connection, const std::string& why) { fail(connection, why); }}),
      closings_(data_lost_after_ms_),
      heartbeats_(rank_, lost_after_ms_, events_) {
  check_sys(wake_.get(), "eventfd");
  events_.add(wake_.get(), EPOLLIN);
  thread_ = start_thread([this] { run(); });
}

TcpReader::~TcpReader() {
  if (::getpid() != owner_) {  // a forked child has the object, and not the thread
    thread_.detach();
    return;
  }
  leave();
  stop_.store(true);
  wake();
  thread_.join();
}

void TcpReader::wake() {
  const uint64_t one = 1;
  while (::write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) continue;  // full: it is awake
}

void TcpReader::want(const ConnectionPtr& connection) {
  if (connections_.want(connection)) wake();
}

std::unique_ptr<Link> TcpReader::link(int peer, int channel) {
  if (peer < 0 || peer >= size_ || peer == rank_) {
    throw InvalidArgumentError("TCP: rank " + std::to_string(peer) + " is no peer of rank " + std::to_string(rank_) +
                               " of " + std::to_string(size_));
  }
  if (channel < 0 || channel >= Heartbeats::kChannel) {
    throw InvalidArgumentError("TCP: there is no channel " + std::to_string(channel));
  }
  ConnectionPtr found = connections_.begin_link(peer, channel);
  const auto self = shared_from_this();
  return tcp_link(
      found, rank_, [self, found] { self->want(found); },
      [self, found] {
        self->connections_.let_go(found);
        self->wake();
      });
}

void TcpReader::monitor(const std::vector<int>& world_ranks) {
  for (const int rank : world_ranks) want(connections_.find(rank, Heartbeats::kChannel));
}

void TcpReader::leave() {
  *ring_.lock() = nullptr;
  is_leaving_.store(true);
  wake();
  has_said_farewell_.wait_for(kFarewellWait);
}

void TcpReader::ring() {
  const auto ring = ring_.lock();
  if (*ring) (*ring)();
}

void TcpReader::run() {
  try {
    while (!stop_.load() || !has_left_) turn();
    const int64_t until_ns = now_ns() + kLeaveNs;
    look_at_requests();  // what came with the stop
    for (OwnedFd& socket : heartbeats_.take_sockets()) closings_.add(std::move(socket));
    while (!closings_.empty() && now_ns() < until_ns) turn();
  } catch (const std::exception& error) {
    give_up(error.what());
  }
}

void TcpReader::turn() {
  epoll_event events[64];
  const size_t count = events_.wait(events, pause_ms());
  for (size_t i = 0; i < count; ++i) look_at(events[i].data.fd);
  look_at_requests();
  look_at_clock();
  arrivals_.resume_if_watched();
}

void TcpReader::look_at(int fd) {
  if (fd == wake_.get()) {
    uint64_t times = 0;
    if (::read(fd, &times, sizeof times) < 0 && errno != EAGAIN && errno != EINTR) check_sys(-1, "read(eventfd)");
  } else if (arrivals_.has(fd)) {
    if (arrivals_.look()) ring();
  } else if (heartbeats_.has(fd)) {
    Heartbeats::News news;
    heartbeats_.look(fd, news);
    tell(news);
  } else {
    opener_.look_at(fd);
  }
}

void TcpReader::look_at_requests() {
  const Connections::Asked asked = connections_.take();
  for (const ConnectionPtr& one : asked.to_dial) {
    const bool is_wanted = one->state.load() == TcpConnection::State::kWanted;
    if (is_wanted && one->channel == Heartbeats::kChannel) heartbeats_.expect(one->peer);
    opener_.dial(one);
  }
  for (const ConnectionPtr& one : asked.to_drop) drop(one);
  if (is_leaving_.load() && !has_left_) leave_when_all_are_told();
}

// A leader whose connection is not there yet would take a silent end for a death.
void TcpReader::leave_when_all_are_told() {
  if (leave_until_ns_ == 0) leave_until_ns_ = now_ns() + lost_after_ms_ * kMs;
  heartbeats_.say_farewell();
  if (heartbeats_.has_said_farewell() || now_ns() >= leave_until_ns_) end_leaving();
}

void TcpReader::end_leaving() {
  opener_.close();
  if (!std::exchange(has_left_, true)) farewell_.set_value();
}

int TcpReader::pause_ms() const {
  int64_t next_ns = opener_.next_due_ns();
  if (!has_left_) next_ns = std::min(next_ns, leave_until_ns_ != 0 ? leave_until_ns_ : beat_ns_ + kBeatNs);
  next_ns = std::min(next_ns, closings_.next_look_ns());
  if (next_ns == INT64_MAX) return -1;
  return static_cast<int>(std::max<int64_t>(0, (next_ns - now_ns() + kMs - 1) / kMs));
}

void TcpReader::look_at_clock() {
  const int64_t now = now_ns();
  if (!has_left_ && now - beat_ns_ >= kBeatNs) {
    beat_ns_ = now;
    Heartbeats::News news;
    heartbeats_.send(news);
    tell(news);
    opener_.resume();
  }
  if (!has_left_ && now - looked_ns_ >= kLookNs) {
    looked_ns_ = now;
    connections_.end_silent(data_lost_after_ms_);
    for (const ConnectionPtr& one : connections_.useless()) drop(one);
    opener_.fail_those_that_cannot_be_accepted(now);
  }
  opener_.look_at_clock(now);
  tell({{}, opener_.new_warnings(now)});
  closings_.look();
}

void TcpReader::use(TcpConnection& connection, OwnedFd socket, const Session& session) {
  const int fd = socket.get();
  const int yes = 1;
  check_sys(::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes), "setsockopt(TCP_NODELAY)");
  if (connection.channel == Heartbeats::kChannel) {
    heartbeats_.add(connection.peer, std::move(socket), session);
    connection.open(OwnedFd(), {});
  } else {
    keep_alive(fd, data_lost_after_ms_);
    arrivals_.add(fd);
    connection.open(std::move(socket), session, &readable_.add(fd));
  }
  ring();
}

void TcpReader::fail(const ConnectionPtr& connection, const std::string& why) {
  connection->fail(why);
  if (connection->channel == Heartbeats::kChannel) {
    heartbeats_.forget(connection->peer);
    tell({{{connection->peer, why}}, {}});
  }
  ring();
}

// Of a link that has gone.
void TcpReader::drop(const ConnectionPtr& connection) {
  connections_.drop(*connection);
  opener_.forget(*connection);
  const bool was_open = connection->state.exchange(TcpConnection::State::kFailed) == TcpConnection::State::kOpen;
  if (!was_open) return;  // an attempt under way ends by itself
  arrivals_.remove(connection->socket.get());
  readable_.remove(connection->socket.get(), *connection->readable);
  closings_.add(std::move(connection->socket));
}

void TcpReader::tell(const Heartbeats::News& news) {
  if (news.lost.empty() && news.warnings.empty()) return;
  {
    const auto lost = lost_.lock();
    lost->insert(lost->end(), news.lost.begin(), news.lost.end());
  }
  {
    const auto warnings = warnings_.lock();
    warnings->insert(warnings->end(), news.warnings.begin(), news.warnings.end());
  }
  ring();
}

// The thread cannot go on. Nobody would hear of arrivals and of lost ranks any more, so all are lost here; and as no
// heartbeats are sent, this rank is lost for the others.
void TcpReader::give_up(const std::string& why) {
  const std::string broken = "the network's thread of rank " + std::to_string(rank_) + " has ended: " + why;
  connections_.fail_all(broken);
  Heartbeats::News news;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) news.lost.push_back({peer, broken});
  }
  opener_.clear();
  heartbeats_.take_sockets();
  end_leaving();
  tell(news);
}

}  // namespace

std::shared_ptr<TcpNetwork> TcpNetwork::create(TcpOptions options) {
  return std::make_shared<TcpReader>(std::move(options));
}

Network tcp_network(std::shared_ptr<TcpNetwork> tcp, std::vector<int> host_of) {
  return {"tcp", std::move(host_of), [tcp](int peer, int channel) { return tcp->link(peer, channel); }, {}, nullptr,
          tcp};
}

}  // namespace rr
