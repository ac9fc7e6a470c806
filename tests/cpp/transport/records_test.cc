// The records of a TCP connection: nothing that was changed, left out, repeated or sent back is taken for the peer's.
#include "transport/tcp/session/records.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "doctest/doctest.h"
#include "support/ranks.h"
#include "support/tcp_ranks.h"
#include "transport/tcp/session/checksum.h"
#include "transport/tcp/session/handshake.h"

namespace rr::test {
namespace {

Session session_of(bool is_encrypted) { return {key_of(1), key_of(2), 3, 4, is_encrypted}; }

Session other_end(const Session& session) {
  return {session.receive_key, session.send_key, session.receive_seed, session.send_seed, session.is_encrypted};
}

std::pair<Fd, Fd> sockets() {
  int fds[2];
  check_sys(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), "socketpair");
  return {Fd(fds[0]), Fd(fds[1])};
}

std::vector<std::byte> pattern(size_t nbytes) {
  std::vector<std::byte> bytes(nbytes);
  for (size_t i = 0; i < nbytes; ++i) bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  return bytes;
}

// What the writer puts on the wire for each of these payloads.
std::vector<std::vector<std::byte>> records_of(const Session& session, const std::vector<std::vector<std::byte>>& all) {
  auto [from, to] = sockets();
  RecordWriter writer(session);
  std::vector<std::vector<std::byte>> records;
  for (const auto& payload : all) {
    REQUIRE(writer.send(from.get(), payload.data(), payload.size()) == payload.size());
    std::vector<std::byte> record(payload.size() + 24);
    REQUIRE(::recv(to.get(), record.data(), record.size(), MSG_WAITALL) == static_cast<ssize_t>(record.size()));
    records.push_back(std::move(record));
  }
  return records;
}

// All bytes that a reader takes for the peer's. Throws what it throws.
std::vector<std::byte> read_all(const Session& session, const std::vector<std::vector<std::byte>>& records) {
  auto [from, to] = sockets();
  RecordReader reader(session, "test");
  std::vector<std::byte> taken;
  for (const auto& record : records) {
    check_sys(::send(from.get(), record.data(), record.size(), MSG_NOSIGNAL), "send");
    reader.receive(to.get());
    while (reader.next()) {
      taken.insert(taken.end(), reader.data(), reader.data() + reader.size());
      reader.consume(reader.size());
    }
  }
  return taken;
}

// Of the first record, with a check that is right.
std::vector<std::byte> header(uint64_t seed, size_t nbytes) {
  const auto length = static_cast<uint32_t>(nbytes);
  std::vector<std::byte> bytes(8);
  std::memcpy(bytes.data(), &length, 4);
  const uint32_t check = checksum(seed, bytes.data(), 4)[3];
  std::memcpy(bytes.data() + 4, &check, 4);
  return bytes;
}

TEST_CASE("gcm: what NIST's specification gives for a known key") {
  // Test case 14 of McGrew and Viega, "The Galois/Counter Mode of Operation": key, nonce and text are zero.
  const Bytes32 key = {};
  const std::array<std::byte, 16> text = {};
  std::array<std::byte, 16> out;
  const Gcm::Tag tag = Gcm(key, Gcm::Direction::kSeal).seal(0, {}, {text.data(), text.size()}, out.data());
  const auto hex = [](const std::array<std::byte, 16>& bytes) {
    std::string digits;
    for (const std::byte one : bytes) {
      digits += "0123456789abcdef"[static_cast<unsigned>(one) >> 4];
      digits += "0123456789abcdef"[static_cast<unsigned>(one) & 15];
    }
    return digits;
  };
  CHECK(hex(out) == "cea7403d4d606b6e074ec5d3baf39d18");
  CHECK(hex(tag) == "d0d1c8a799996bf0265b98b5d48ab919");
}

TEST_CASE("checksum: CRC-32C of each quarter, by the processor's instructions or without") {
  std::vector<std::byte> bytes(997);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 31 + i / 7);
  for (const size_t nbytes : {0, 1, 8, 31, 32, 33, 63, 64, 100, 996, 997}) {
    for (const size_t offset : {0, 1}) {
      if (offset + nbytes > bytes.size()) continue;
      const std::byte* const from = bytes.data() + offset;
      CHECK(checksum(nbytes, from, nbytes) == checksum_portable(nbytes, from, nbytes));
      CHECK(checksum(1, from, nbytes) != checksum(2, from, nbytes));
    }
  }
  // The last quarter of fewer than 32 bytes is all of them: "123456789" is what CRCs are known by, 0xe3069283 here; the
  // seed's 8 bytes come before, so take the text in two parts.
  uint64_t seed = 0;
  std::memcpy(&seed, "12345678", 8);
  const std::byte nine{'9'};
  CHECK(checksum(seed, &nine, 1)[3] == 0xe3069283);
}

TEST_CASE("records: arrive, and are encrypted where that was agreed") {
  const std::vector<std::vector<std::byte>> sent = {pattern(1), pattern(8), pattern(1000), pattern(kRecordNbytes)};
  for (const bool is_encrypted : {false, true}) {
    const Session session = session_of(is_encrypted);
    const auto records = records_of(session, sent);
    std::vector<std::byte> all;
    for (size_t i = 0; i < sent.size(); ++i) {
      const bool is_readable = std::equal(sent[i].begin(), sent[i].end(), records[i].begin() + 8);
      CHECK(is_readable == !is_encrypted);
      all.insert(all.end(), sent[i].begin(), sent[i].end());
    }
    CHECK(read_all(other_end(session), records) == all);
  }
}

TEST_CASE("records: of a long message less than a thousandth is headers and tags") {
  const std::vector<std::byte> sent = pattern(1 << 20);
  for (const bool is_encrypted : {false, true}) {
    auto [from, to] = sockets();
    RecordWriter writer(session_of(is_encrypted));
    size_t moved = 0;
    size_t on_wire = 0;
    std::vector<std::byte> bytes(1 << 16);
    while (true) {
      const std::optional<size_t> n = writer.send(from.get(), sent.data() + moved, sent.size() - moved);
      REQUIRE(n);
      moved += *n;
      const ssize_t come = ::recv(to.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
      if (come > 0) on_wire += static_cast<size_t>(come);
      if (moved == sent.size() && come <= 0) break;
    }
    CHECK(on_wire > sent.size());
    CHECK(on_wire - sent.size() < sent.size() / 1000);
  }
}

TEST_CASE("records: a changed bit anywhere in one is noticed") {
  for (const bool is_encrypted : {false, true}) {
    const Session session = session_of(is_encrypted);
    auto records = records_of(session, {pattern(40), pattern(40)});
    for (size_t bit = 0; bit < 8 * records[1].size(); ++bit) {
      records[1][bit / 8] ^= std::byte{1} << bit % 8;
      const std::string text = raised<InternalError>([&] { read_all(other_end(session), records); });
      CHECK(text.find("test: record 1 of this connection is not as the peer has made it") == 0);
      records[1][bit / 8] ^= std::byte{1} << bit % 8;
    }
  }
}

TEST_CASE("records: a changed bit in the length, its check, the payload or the tag is noticed, one at random of each") {
  std::mt19937 random(5);
  const int count = std::min(rounds(500), 10'000);
  for (const bool is_encrypted : {false, true}) {
    const Session session = session_of(is_encrypted);
    for (const int part : {0, 1, 2, 3}) {
      for (int i = 0; i < count; ++i) {
        auto records = records_of(session, {pattern(random() % 2000 + 1), pattern(random() % 2000 + 1)});
        const size_t which = random() % 2;
        std::vector<std::byte>& record = records[which];
        const size_t begins[] = {0, 4, 8, record.size() - 16, record.size()};
        const size_t at = begins[part] + random() % (begins[part + 1] - begins[part]);
        record[at] ^= std::byte{1} << random() % 8;
        const std::string text = raised<InternalError>([&] { read_all(other_end(session), records); });
        const std::string wanted = "test: record " + std::to_string(which) + " of this connection is not as the peer";
        REQUIRE_MESSAGE(text.find(wanted) == 0, text);
      }
    }
  }
}

TEST_CASE("records: one that is left out, repeated, moved or sent back is noticed") {
  for (const bool is_encrypted : {false, true}) {
    const Session session = session_of(is_encrypted);
    const auto r = records_of(session, {pattern(8), pattern(8), pattern(8)});
    using Order = std::vector<std::vector<std::byte>>;
    for (const Order& order : {Order{r[1]}, Order{r[0], r[0]}, Order{r[0], r[2]}, Order{r[1], r[0]}}) {
      raised<InternalError>([&] { read_all(other_end(session), order); });
    }
    raised<InternalError>([&] { read_all(session, {r[0]}); });  // the sender's own
    // Longer than any record, whatever a seal would say.
    raised<InternalError>([&] { read_all(other_end(session), {header(session.send_seed, kRecordNbytes + 1)}); });
  }
}

TEST_CASE("records: a length that has grown is noticed before the bytes that it promises") {
  for (const bool is_encrypted : {false, true}) {
    const Session session = session_of(is_encrypted);
    auto records = records_of(session, {pattern(40)});
    for (const size_t second : {4, 5, 6, 7}) {  // the same bit in both words, as a fault of one wire changes them
      for (const unsigned bit : {0, 3, 7}) {
        auto changed = records;
        changed[0][second - 4] ^= std::byte{1} << bit;
        changed[0][second] ^= std::byte{1} << bit;
        raised<InternalError>([&] { read_all(other_end(session), changed); });
      }
    }
  }
}

// Sockets whose kernel takes a few KB at a time.
std::pair<Fd, Fd> narrow_sockets() {
  auto [listener, address] = listening();
  Fd from(static_cast<int>(check_sys(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "socket")));
  const int nbytes = 8 << 10;
  check_sys(::setsockopt(from.get(), SOL_SOCKET, SO_SNDBUF, &nbytes, sizeof nbytes), "setsockopt");
  check_sys(::setsockopt(listener.get(), SOL_SOCKET, SO_RCVBUF, &nbytes, sizeof nbytes), "setsockopt");
  check_sys(::connect(from.get(), address.get(), address.nbytes), "connect");
  Fd to;
  wait_for([&] { return static_cast<bool>(to = Fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC))); });
  return {std::move(from), std::move(to)};
}

TEST_CASE("records: what the kernel took a part of is offered again, with more behind it") {
  const std::vector<std::byte> sent = pattern(500'000);
  for (const bool is_encrypted : {false, true}) {
    auto [from, to] = narrow_sockets();
    RecordWriter writer(session_of(is_encrypted));
    RecordReader reader(other_end(session_of(is_encrypted)), "test");
    std::vector<std::byte> got;
    size_t moved = 0;
    size_t offered = 0;
    int refused = 0;
    while (got.size() < sent.size()) {
      offered = std::min(sent.size(), std::max(offered, moved) + 7001);
      const std::optional<size_t> n = writer.send(from.get(), sent.data() + moved, offered - moved);
      REQUIRE(n);
      moved += *n;
      if (*n != 0) continue;
      refused += moved < sent.size() ? 1 : 0;  // the kernel has no room, perhaps in the middle of a record
      reader.receive(to.get());
      while (reader.next()) {
        got.insert(got.end(), reader.data(), reader.data() + reader.size());
        reader.consume(reader.size());
      }
    }
    CHECK(got == sent);
    CHECK(refused > 10);
  }
}

TEST_CASE("records: after a failed send nothing more is sent, and what had moved is told") {
  auto [from, to] = sockets();
  RecordWriter writer(session_of(false));
  const std::vector<std::byte> bytes = pattern(100);
  REQUIRE(writer.send(from.get(), bytes.data(), bytes.size()));
  CHECK_FALSE(writer.send(-1, bytes.data(), bytes.size()));
  CHECK_FALSE(writer.send(from.get(), bytes.data(), bytes.size()));
  CHECK(errno == EBADF);
}

TEST_CASE("records: of random bytes nothing is taken") {
  std::mt19937 random(7);
  const int count = rounds(20'000);
  size_t taken = 0;
  int refused = 0;
  for (int i = 0; i < count; ++i) {
    std::vector<std::byte> bytes(random() % 100 + 1);
    for (std::byte& one : bytes) one = static_cast<std::byte>(random());
    if (bytes.size() >= 8 && i % 2 == 0) {
      const std::vector<std::byte> possible = header(session_of(false).receive_seed, random() % 80);
      std::copy(possible.begin(), possible.end(), bytes.begin());
    }
    try {
      taken += read_all(session_of(i % 4 < 2), {bytes}).size();
    } catch (const InternalError&) {
      ++refused;
    }
  }
  CHECK(taken == 0);
  CHECK(refused > count / 3);  // of the others not all of a record has come
}

TEST_CASE("handshake: both ends get the same keys, and each direction and each connection its own") {
  const Handshakes client(key_of(7), 1, 4);
  const Handshakes server(key_of(7), 2, 4);
  const auto keys = [&] {
    const Hello hello = client.hello(2, 5);
    const Challenge challenge = server.answer(hello, Verdict::kWelcome);
    const Session one = client.session(hello, challenge, true);
    const Session other = server.session(hello, challenge, false);
    CHECK(one.send_key == other.receive_key);
    CHECK(one.receive_key == other.send_key);
    CHECK(one.send_key != one.receive_key);
    return one.send_key;
  };
  CHECK(keys() != keys());
}

TEST_CASE("handshake: data is encrypted when either end wants that, and control in any case") {
  for (const bool client_wants : {false, true}) {
    for (const bool server_wants : {false, true}) {
      for (const int channel : {0, 1, 2}) {
        const Handshakes client(key_of(7), 1, 4, {false, false, client_wants, false});
        const Handshakes server(key_of(7), 2, 4, {false, server_wants, false, false});
        const Hello hello = client.hello(2, channel);
        const Challenge challenge = server.answer(hello, server.judge(hello));
        const bool is_encrypted = client.session(hello, challenge, true).is_encrypted;
        CHECK(is_encrypted == (client_wants || server_wants || channel == control_channel_of(0)));
        CHECK(is_encrypted == server.session(hello, challenge, false).is_encrypted);
      }
    }
  }
}

TEST_CASE("tcp: which addresses are in a network of one's own") {
  for (const char* const host :
       {"127.0.0.1", "10.1.2.3", "172.16.0.1", "172.31.255.255", "192.168.7.1", "169.254.1.1", "100.64.0.1",
        "100.127.1.1", "::1", "fe80::1", "fd00::1", "fc00::1", "::ffff:10.0.0.1"}) {
    CHECK_MESSAGE(TcpAddress::from(host, 1).is_private(), host);
  }
  for (const char* const host : {"8.8.8.8", "172.32.0.1", "172.15.0.1", "192.169.0.1", "100.63.0.1", "100.128.0.1",
                                 "11.0.0.1", "2001:db8::1", "fe00::1", "::ffff:8.8.8.8"}) {
    CHECK_MESSAGE(!TcpAddress::from(host, 1).is_private(), host);
  }
}

}  // namespace
}  // namespace rr::test
