#include "transport/tcp/tcp_network.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/errors.h"
#include "base/guarded.h"
#include "os/epoll.h"
#include "os/owned_fd.h"
#include "os/thread.h"
#include "transport/tcp/attempt.h"
#include "transport/tcp/heartbeats.h"
#include "transport/tcp/tcp_link.h"

namespace rr {
namespace {

constexpr int64_t kMs = 1'000'000;
// Of strangers and of ranks alike: a handshake takes two round trips.
constexpr int64_t kHandshakeNs = 10'000 * kMs;
// Connections whose peer has not proven who it is; at least four for each rank of the job. One more ends the oldest of
// those that have said nothing, or the oldest: its rank dials again.
constexpr size_t kUnprovenMost = 64;
constexpr size_t kUnprovenPerRank = 4;
constexpr int kAcceptsAtOnce = 64;       // so that a flood of strangers does not keep the thread from heartbeats
constexpr int64_t kRedialNs = 50 * kMs;  // after the first attempt that was dropped; doubled up to
constexpr int64_t kRedialMostNs = 400 * kMs;
// Closing a connection on which something unread has arrived takes back what has not reached the peer's machine yet. So
// who drops one waits until the peer's machine has everything, and looks so often; when the network ends, so long.
constexpr int64_t kDrainNs = 1 * kMs;
constexpr int64_t kLeaveNs = 1'000 * kMs;
constexpr int64_t kFarewellNs = 100 * kMs;  // leave() waits so long for the thread to say it

// Whether the peer's machine has all that was sent, or will never have it. What a reset connection had still to send
// stays counted (SIOCOUTQ), so its state is looked at as well.
bool has_arrived(int fd) {
  int nbytes = 0;
  if (::ioctl(fd, SIOCOUTQ, &nbytes) < 0 || nbytes == 0) return true;
  tcp_info info = {};
  socklen_t size = sizeof info;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) < 0 || info.tcpi_state == TCP_CLOSE;
}

class TcpReader final : public TcpNetwork, public std::enable_shared_from_this<TcpReader> {
 public:
  explicit TcpReader(TcpOptions options);
  ~TcpReader() override;
  TcpReader(const TcpReader&) = delete;
  TcpReader& operator=(const TcpReader&) = delete;

  std::unique_ptr<Link> link(int peer, int channel) override;
  void start(std::function<void()> ring) override { *ring_.lock() = std::move(ring); }
  void monitor(const std::vector<int>& world_ranks) override;
  void begin_watch() override;
  void end_watch() override { watchers_.fetch_sub(1, std::memory_order_relaxed); }
  std::vector<LostRank> newly_lost() override;
  void leave() override;

 private:
  using ConnectionPtr = std::shared_ptr<TcpConnection>;
  struct Shared {
    std::map<std::pair<int, int>, ConnectionPtr> connections;  // by peer and channel
    std::vector<ConnectionPtr> to_dial;
    std::vector<ConnectionPtr> to_drop;
    std::set<std::pair<int, int>> dropped;  // whose links have gone, and do not come again
    std::vector<LostRank> lost;
    bool is_leaving = false;
    std::string broken;  // why the thread has ended; "" while it has not
  };
  struct Tries {
    int count = 0;
    int64_t unanswered_since_ns = 0;  // 0: the peer has answered the last one
  };
  struct Redial {
    ConnectionPtr connection;
    int64_t at_ns;
  };

  ConnectionPtr connection(int peer, int channel);
  void dial_once(const ConnectionPtr& connection);
  void wake();
  void ring();

  // The thread's.
  void run();
  void turn();
  void look_at_requests();
  void look_at_clock();
  int pause_ms() const;
  void accept_all();
  void make_room();
  void dial(const ConnectionPtr& connection);
  bool choose(const Attempt& attempt);
  void step(int fd);
  void end_attempt(int fd, bool is_final);
  void opened(Attempt& attempt);
  void failed(TcpConnection& connection, const std::string& why, bool is_final, bool has_answer);
  bool start_connecting(int fd, const TcpAddress& to, int channel) const;
  void read_heartbeats(int fd);
  void drop(const ConnectionPtr& connection);
  void lose(const std::vector<LostRank>& lost);
  void give_up(const std::string& why);
  void look_at_arrivals();
  void forget(int fd);

  const int rank_;
  const std::vector<TcpAddress> addresses_;  // by rank
  const Handshakes handshakes_;
  Guarded<Shared> shared_;
  Guarded<std::function<void()>> ring_;
  Epoll events_;    // of everything but the links' connections
  Epoll arrivals_;  // of the links' connections, each reported once (EPOLLET)
  OwnedFd wake_;
  std::atomic<int> watchers_{0};
  // The thread does not look for arrivals, because nobody watched when the last one came.
  std::atomic<bool> is_parked_{false};
  std::atomic<bool> stop_{false};

  OwnedFd listener_;
  bool listens_ = true;                               // else no descriptor was left for a connection
  std::map<int, std::unique_ptr<Attempt>> attempts_;  // by descriptor
  std::map<std::pair<int, int>, Tries> tries_;        // attempts that were dropped, by peer and channel
  std::map<std::pair<int, int>, int> chosen_;         // descriptors of attempts that count, and are not open yet
  std::vector<Redial> redials_;
  std::map<int, OwnedFd> closings_;  // likewise; dropped, and not all that was sent has come to the peer
  Heartbeats heartbeats_;
  int64_t beat_ns_ = 0;
  std::atomic<bool> has_said_farewell_{false};
  const int lost_after_ms_;
  const pid_t owner_ = ::getpid();
  bool watches_arrivals_ = true;
  std::thread thread_;
};

TcpReader::TcpReader(TcpOptions options)
    : rank_(options.rank),
      addresses_(std::move(options.addresses)),
      handshakes_(options.key, rank_, static_cast<int>(addresses_.size())),
      wake_(OwnedFd::from([] { return ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); })),
      listener_(std::move(options.listener)),
      heartbeats_(options.lost_after_ms, [this](int fd) { forget(fd); }),
      lost_after_ms_(options.lost_after_ms) {
  check_sys(wake_.get(), "eventfd");
  events_.add(listener_.get(), EPOLLIN);
  events_.add(wake_.get(), EPOLLIN);
  events_.add(arrivals_.fd(), EPOLLIN);
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

TcpReader::ConnectionPtr TcpReader::connection(int peer, int channel) {
  const auto shared = shared_.lock();
  ConnectionPtr& known = shared->connections[{peer, channel}];
  if (known == nullptr) {
    known = std::make_shared<TcpConnection>(peer, channel);
    if (!shared->broken.empty()) known->fail(shared->broken);
  }
  return known;
}

void TcpReader::dial_once(const ConnectionPtr& connection) {
  TcpConnection::State idle = TcpConnection::State::kIdle;
  if (!connection->state.compare_exchange_strong(idle, TcpConnection::State::kWanted)) return;
  shared_.lock()->to_dial.push_back(connection);
  wake();
}

std::unique_ptr<Link> TcpReader::link(int peer, int channel) {
  if (peer < 0 || static_cast<size_t>(peer) >= addresses_.size() || peer == rank_) {
    throw InvalidArgumentError("TCP: rank " + std::to_string(peer) + " is no peer of rank " + std::to_string(rank_) +
                               " of " + std::to_string(addresses_.size()));
  }
  if (channel < 0 || channel >= Heartbeats::kChannel) {
    throw InvalidArgumentError("TCP: there is no channel " + std::to_string(channel));
  }
  ConnectionPtr found = connection(peer, channel);
  const auto self = shared_from_this();
  return tcp_link(
      found, rank_, [self, found] { self->dial_once(found); },
      [self, found] {
        self->shared_.lock()->to_drop.push_back(found);
        self->wake();
      });
}

void TcpReader::monitor(const std::vector<int>& world_ranks) {
  for (const int rank : world_ranks) dial_once(connection(rank, Heartbeats::kChannel));
}

// A watcher counts itself and then looks whether the thread is parked. The thread says that it is parked and then looks
// for watchers: one of the two sees the other.
void TcpReader::begin_watch() {
  watchers_.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (is_parked_.load(std::memory_order_seq_cst) && is_parked_.exchange(false)) wake();
}

std::vector<LostRank> TcpReader::newly_lost() { return std::exchange(shared_.lock()->lost, {}); }

void TcpReader::leave() {
  *ring_.lock() = nullptr;
  shared_.lock()->is_leaving = true;
  wake();
  const int64_t until_ns = now_ns() + kFarewellNs;
  while (!has_said_farewell_.load() && now_ns() < until_ns) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

void TcpReader::ring() {
  const auto ring = ring_.lock();
  if (*ring != nullptr) (*ring)();
}

void TcpReader::run() {
  try {
    while (!stop_.load()) turn();
    const int64_t until_ns = now_ns() + kLeaveNs;
    look_at_requests();  // what came with the stop
    while (!closings_.empty() && now_ns() < until_ns) turn();
  } catch (const std::exception& error) {
    give_up(error.what());
  }
}

void TcpReader::turn() {
  epoll_event events[64];
  const size_t count = events_.wait(events, pause_ms());
  for (size_t i = 0; i < count; ++i) {
    const int fd = events[i].data.fd;
    if (fd == wake_.get()) {
      uint64_t times = 0;
      if (::read(fd, &times, sizeof times) < 0 && errno != EAGAIN && errno != EINTR) check_sys(-1, "read(eventfd)");
    } else if (fd == arrivals_.fd()) {
      look_at_arrivals();
    } else if (listener_ && fd == listener_.get()) {
      accept_all();
    } else if (attempts_.count(fd) != 0) {
      step(fd);
    } else if (heartbeats_.has(fd)) {
      read_heartbeats(fd);
    }
  }
  look_at_requests();
  look_at_clock();
  if (!is_parked_.load() && !watches_arrivals_) {
    watches_arrivals_ = true;
    events_.change(arrivals_.fd(), EPOLLIN);
  }
}

void TcpReader::look_at_requests() {
  std::vector<ConnectionPtr> to_dial, to_drop;
  bool is_leaving = false;
  {
    const auto shared = shared_.lock();
    to_dial = std::exchange(shared->to_dial, {});
    to_drop = std::exchange(shared->to_drop, {});
    is_leaving = shared->is_leaving;
  }
  for (const ConnectionPtr& one : to_dial) dial(one);
  for (const ConnectionPtr& one : to_drop) drop(one);
  if (!is_leaving || has_said_farewell_.load()) return;
  heartbeats_.say_farewell();
  forget(listener_.get());
  listener_.reset();
  has_said_farewell_.store(true);
}

int TcpReader::pause_ms() const {
  int64_t next_ns = has_said_farewell_ ? INT64_MAX : beat_ns_ + Heartbeats::kPauseMs * kMs;
  for (const Redial& redial : redials_) next_ns = std::min(next_ns, redial.at_ns);
  for (const auto& [fd, attempt] : attempts_) {
    if (!attempt->awaits_ready()) next_ns = std::min(next_ns, attempt->began_ns + kHandshakeNs);
  }
  if (!closings_.empty()) next_ns = std::min(next_ns, now_ns() + kDrainNs);
  if (next_ns == INT64_MAX) return -1;
  return static_cast<int>(std::max<int64_t>(0, (next_ns - now_ns() + kMs - 1) / kMs));
}

void TcpReader::look_at_clock() {
  const int64_t now = now_ns();
  if (!has_said_farewell_ && now - beat_ns_ >= Heartbeats::kPauseMs * kMs) {
    beat_ns_ = now;
    std::vector<LostRank> lost;
    heartbeats_.send(lost);
    lose(lost);
    if (listener_ && !listens_) {
      listens_ = true;
      events_.change(listener_.get(), EPOLLIN);
    }
  }
  std::vector<ConnectionPtr> due;
  for (size_t i = 0; i < redials_.size();) {
    if (redials_[i].at_ns > now) {
      ++i;
      continue;
    }
    due.push_back(std::move(redials_[i].connection));
    redials_[i] = std::move(redials_.back());
    redials_.pop_back();
  }
  for (const ConnectionPtr& one : due) dial(one);
  std::vector<int> late;
  for (const auto& [fd, attempt] : attempts_) {
    if (now - attempt->began_ns >= kHandshakeNs && !attempt->awaits_ready()) late.push_back(fd);
  }
  for (const int fd : late) end_attempt(fd, false);
  for (auto closing = closings_.begin(); closing != closings_.end();) {
    closing = has_arrived(closing->first) ? closings_.erase(closing) : std::next(closing);
  }
}

void TcpReader::accept_all() {
  for (int accepted = 0; accepted < kAcceptsAtOnce; ++accepted) {
    OwnedFd socket =
        OwnedFd::from([this] { return ::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC); });
    if (!socket) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno != EAGAIN && errno != EWOULDBLOCK) {  // no descriptor is left: look again with the next heartbeat
        listens_ = false;
        events_.change(listener_.get(), 0);
      }
      return;
    }
    make_room();
    const int fd = socket.get();
    events_.add(fd, EPOLLIN | EPOLLRDHUP);
    attempts_[fd] = std::make_unique<Attempt>(handshakes_, std::move(socket), rank_);
    step(fd);  // what it has said already counts for it when room is needed
  }
}

// Among the connections that have proven nothing.
void TcpReader::make_room() {
  size_t unproven = 0;
  int first = -1;
  for (const auto& [fd, attempt] : attempts_) {
    if (attempt->is_dialled()) continue;
    ++unproven;
    const auto order = [](const Attempt& one) { return std::pair(!one.is_silent(), one.began_ns); };
    if (first < 0 || order(*attempt) < order(*attempts_.at(first))) first = fd;
  }
  if (unproven >= std::max(kUnprovenMost, kUnprovenPerRank * addresses_.size())) end_attempt(first, false);
}

void TcpReader::dial(const ConnectionPtr& connection) {
  if (connection->state.load(std::memory_order_acquire) != TcpConnection::State::kWanted) return;
  const TcpAddress& address = addresses_[static_cast<size_t>(connection->peer)];
  OwnedFd socket = OwnedFd::from(
      [&] { return ::socket(address.socket_address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); });
  const int fd = socket.get();
  if (!socket || !start_connecting(fd, address, connection->channel)) {
    const bool is_refused = errno == ECONNREFUSED;
    failed(*connection, with_errno("connect"), is_refused, false);
    return;
  }
  events_.add(fd, EPOLLOUT);
  attempts_[fd] =
      std::make_unique<Attempt>(handshakes_, std::move(socket), rank_, connection->peer, connection->channel);
}

// False, with errno, if that is impossible now.
bool TcpReader::start_connecting(int fd, const TcpAddress& to, int channel) const {
  // From the address at which this rank listens: what leaves by another interface may not come back.
  const TcpAddress from = addresses_[static_cast<size_t>(rank_)].with_any_port();
  if (from.socket_address.ss_family == to.socket_address.ss_family) {
    const int yes = 1;
    ::setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &yes, sizeof yes);
    if (::bind(fd, from.get(), from.nbytes) < 0) return false;
  }
  if (channel == Heartbeats::kChannel &&
      ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &lost_after_ms_, sizeof lost_after_ms_) < 0)
    return false;
  return ::connect(fd, to.get(), to.nbytes) == 0 || errno == EINPROGRESS || errno == EINTR;
}

// Whether the attempt's connection counts, and no other.
bool TcpReader::choose(const Attempt& attempt) {
  const std::pair name(attempt.peer(), attempt.channel());
  {
    const auto shared = shared_.lock();
    if (shared->dropped.count(name) != 0) return false;
    const auto known = shared->connections.find(name);
    if (known != shared->connections.end() && known->second->state.load() == TcpConnection::State::kOpen) return false;
  }
  return chosen_.emplace(name, attempt.fd()).first->second == attempt.fd();
}

void TcpReader::step(int fd) {
  Attempt& attempt = *attempts_.at(fd);
  const bool was_connecting = attempt.wants_to_write();
  const Attempt::Outcome outcome = attempt.step([this](const Attempt& one) { return choose(one); });
  switch (outcome) {
    case Attempt::Outcome::kPending:
      if (was_connecting) events_.change(fd, EPOLLIN | EPOLLRDHUP);
      return;
    case Attempt::Outcome::kOpen: {
      const std::unique_ptr<Attempt> ended = std::move(attempts_.at(fd));
      attempts_.erase(fd);
      chosen_.erase({ended->peer(), ended->channel()});
      events_.remove(fd);
      opened(*ended);
      return;
    }
    case Attempt::Outcome::kDropped:
    case Attempt::Outcome::kRejected:
      end_attempt(fd, outcome == Attempt::Outcome::kRejected);
  }
}

// is_final: another attempt would end in the same way.
void TcpReader::end_attempt(int fd, bool is_final) {
  const std::unique_ptr<Attempt> attempt = std::move(attempts_.at(fd));
  attempts_.erase(fd);
  forget(fd);
  const auto chosen = chosen_.find({attempt->peer(), attempt->channel()});
  if (chosen != chosen_.end() && chosen->second == fd) chosen_.erase(chosen);
  if (!attempt->is_dialled()) return;
  const std::string why = attempt->why().empty() ? "no answer within 10 s" : attempt->why();
  failed(*connection(attempt->peer(), attempt->channel()), why, is_final, attempt->has_answer());
}

void TcpReader::opened(Attempt& attempt) {
  OwnedFd socket = attempt.take_socket();
  const int fd = socket.get();
  const bool is_wanted = shared_.lock()->dropped.count({attempt.peer(), attempt.channel()}) == 0;
  const ConnectionPtr found = is_wanted ? connection(attempt.peer(), attempt.channel()) : nullptr;
  if (found == nullptr || found->state.load() == TcpConnection::State::kOpen) {
    return;
  }
  const int yes = 1;
  check_sys(::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes), "setsockopt(TCP_NODELAY)");
  if (attempt.channel() == Heartbeats::kChannel) {
    events_.add(fd, EPOLLIN | EPOLLRDHUP);
    heartbeats_.add(attempt.peer(), std::move(socket));
    found->open(OwnedFd());
  } else {
    found->open(std::move(socket));
    arrivals_.add(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
  }
  ring();
}

// An attempt at a connection, which is made again unless that is_final. has_answer: of the peer, or its kernel: then a
// leader is not lost, however long it takes.
void TcpReader::failed(TcpConnection& connection, const std::string& why, bool is_final, bool has_answer) {
  if (connection.state.load(std::memory_order_acquire) != TcpConnection::State::kWanted) return;
  const int64_t now = now_ns();
  Tries& tries = tries_[{connection.peer, connection.channel}];
  if (has_answer) tries.unanswered_since_ns = 0;
  if (!has_answer && tries.unanswered_since_ns == 0) tries.unanswered_since_ns = now;
  const bool is_leader = connection.channel == Heartbeats::kChannel;
  const bool is_lost = is_leader && !has_answer && now - tries.unanswered_since_ns >= lost_after_ms_ * kMs;
  if (!is_final && !is_lost) {
    const int64_t pause_ns = std::min(kRedialMostNs, kRedialNs << std::min(tries.count++, 8));
    redials_.push_back({this->connection(connection.peer, connection.channel), now + pause_ns});
    return;
  }
  const TcpAddress& address = addresses_[static_cast<size_t>(connection.peer)];
  connection.fail("no connection to " + address.text() + ": " + why);
  if (is_leader) lose({{connection.peer, *connection.reason.lock()}});
  ring();
}

void TcpReader::read_heartbeats(int fd) {
  std::vector<LostRank> lost;
  heartbeats_.read(fd, lost);
  lose(lost);
}

void TcpReader::lose(const std::vector<LostRank>& lost) {
  if (lost.empty()) return;
  {
    const auto shared = shared_.lock();
    shared->lost.insert(shared->lost.end(), lost.begin(), lost.end());
  }
  ring();
}

// The thread cannot go on. Nobody would hear of arrivals and of lost ranks any more, so all are lost here; and as no
// heartbeats are sent, this rank is lost for the others.
void TcpReader::give_up(const std::string& why) {
  std::vector<LostRank> lost;
  {
    const auto shared = shared_.lock();
    shared->broken = "the network's thread of rank " + std::to_string(rank_) + " has ended: " + why;
    for (const auto& [name, one] : shared->connections) {
      if (one->state.load() != TcpConnection::State::kOpen) one->fail(shared->broken);
    }
    for (size_t peer = 0; peer < addresses_.size(); ++peer) {
      if (static_cast<int>(peer) != rank_) lost.push_back({static_cast<int>(peer), shared->broken});
    }
  }
  attempts_.clear();
  listener_.reset();
  heartbeats_.end();
  lose(lost);
}

// Of a link that has gone.
void TcpReader::drop(const ConnectionPtr& connection) {
  {
    const auto shared = shared_.lock();
    shared->connections.erase({connection->peer, connection->channel});
    shared->dropped.insert({connection->peer, connection->channel});
  }
  const bool was_open = connection->state.exchange(TcpConnection::State::kFailed) == TcpConnection::State::kOpen;
  if (!was_open) return;  // an attempt under way ends by itself
  OwnedFd socket = std::move(connection->socket);
  const int fd = socket.get();
  arrivals_.remove(fd);
  ::shutdown(fd, SHUT_WR);
  if (!has_arrived(fd)) closings_[fd] = std::move(socket);
}

void TcpReader::forget(int fd) { events_.remove(fd); }

// Where nobody watches, whoever looks at the links is faster than this thread, which parks until somebody watches. What
// has arrived stays in the epoll and is reported then.
void TcpReader::look_at_arrivals() {
  if (watchers_.load(std::memory_order_relaxed) == 0) {
    is_parked_.store(true, std::memory_order_seq_cst);
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (watchers_.load(std::memory_order_seq_cst) == 0) {
      watches_arrivals_ = false;
      events_.change(arrivals_.fd(), 0);
      return;
    }
    is_parked_.store(false);
  }
  epoll_event events[64];
  while (arrivals_.wait(events, 0) == 64) continue;
  ring();
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
