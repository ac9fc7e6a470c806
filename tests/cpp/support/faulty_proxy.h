// A TCP proxy that does one thing wrong: at one byte of what clients send, or of what they get, it changes a bit or
// ends the connection.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <list>
#include <thread>

#include "os/fd.h"
#include "support/tcp_ranks.h"

namespace rr::test {

struct Fault {
  enum class Kind { kFlip, kCut };
  Kind kind = Kind::kFlip;
  bool is_to_server = false;
  size_t at = 0;  // counted over all connections, one after the other
  std::byte mask{1};
};

class FaultyProxy {
 public:
  FaultyProxy(const TcpAddress& server, const Fault& fault) : server_(server), fault_(fault) {
    auto [socket, address] = listening();
    listener_ = std::move(socket);
    address_ = address;
    thread_ = std::thread([this] { run(); });
  }
  ~FaultyProxy() {
    stop_ = true;
    thread_.join();
  }
  FaultyProxy(const FaultyProxy&) = delete;
  FaultyProxy& operator=(const FaultyProxy&) = delete;
  const TcpAddress& address() const { return address_; }
  bool has_struck() const { return has_struck_; }

 private:
  struct Pair {
    Fd client;
    Fd server;
    bool is_over = false;
  };

  void run() {
    while (!stop_) {
      std::vector<pollfd> waited = {{listener_.get(), POLLIN, 0}};
      for (const Pair& pair : pairs_) {
        waited.push_back({pair.client.get(), POLLIN, 0});
        waited.push_back({pair.server.get(), POLLIN, 0});
      }
      ::poll(waited.data(), waited.size(), 5);
      for (Pair& pair : pairs_) {
        forward(pair, pair.client, pair.server, true);
        forward(pair, pair.server, pair.client, false);
      }
      pairs_.remove_if([](const Pair& pair) { return pair.is_over; });
      Fd client(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!client) continue;
      Fd server(static_cast<int>(check_sys(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket")));
      if (::connect(server.get(), server_.get(), server_.nbytes) == 0) {
        pairs_.push_back({std::move(client), std::move(server)});
      }
    }
  }

  void forward(Pair& pair, const Fd& from, const Fd& to, bool is_to_server) {
    std::byte bytes[4096];
    const ssize_t n = ::recv(from.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0) {
      pair.is_over = true;
      return;
    }
    auto length = static_cast<size_t>(n);
    size_t& passed = passed_[is_to_server ? 1 : 0];
    if (!has_struck_ && fault_.is_to_server == is_to_server && fault_.at >= passed && fault_.at < passed + length) {
      has_struck_ = true;
      if (fault_.kind == Fault::Kind::kFlip) {
        bytes[fault_.at - passed] ^= fault_.mask;
      } else {
        length = fault_.at - passed;
        pair.is_over = true;
      }
    }
    passed += length;
    // The receiver always reads: nothing waits for long.
    if (length != 0 && ::send(to.get(), bytes, length, MSG_NOSIGNAL) < 0) pair.is_over = true;
  }

  const TcpAddress server_;
  const Fault fault_;
  Fd listener_;
  TcpAddress address_;
  std::list<Pair> pairs_;
  size_t passed_[2] = {};
  std::atomic<bool> stop_{false};
  std::atomic<bool> has_struck_{false};
  std::thread thread_;
};

}  // namespace rr::test
