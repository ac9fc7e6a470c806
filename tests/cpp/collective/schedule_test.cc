// collective/schedule/schedule.h, without links: what the algorithms plan ends with every rank's contribution exactly
// once, in whatever order items that may begin are done, and sends as many bytes as the formula says.
#include "collective/schedule/schedule.h"

#include <cstring>
#include <deque>
#include <map>
#include <random>

#include "collective/linked.h"
#include "doctest/doctest.h"

namespace rr {
namespace {

using Id = Schedule::Id;
using Item = Schedule::Item;
using Kind = Schedule::Kind;
using Elements = std::vector<int64_t>;

// A rank's schedule and how far it is.
struct Rank {
  explicit Rank(Schedule given) : schedule(std::move(given)), waits(schedule.items().size(), 0), later(waits.size()) {
    for (const auto& [earlier, after] : schedule.edges()) {
      ++waits[after];
      later[earlier].push_back(after);
    }
    for (Id id = 0; id < schedule.items().size(); ++id) {
      const Item& item = schedule.items()[id];
      const bool is_message = item.kind == Kind::kSend || item.kind == Kind::kReceive || item.kind == Kind::kFold;
      if (is_message) {
        (item.kind == Kind::kSend ? out : in)[item.rank].push_back(id);
      } else {
        rest.push_back(id);
      }
    }
  }

  Schedule schedule;
  std::vector<size_t> waits;
  std::vector<std::vector<Id>> later;
  std::map<int, std::deque<Id>> out;  // by peer, the messages that are left
  std::map<int, std::deque<Id>> in;
  std::vector<Id> rest;
};

// All ranks of a team, each with a schedule, in one thread: done item by item, in a random order.
class Job {
 public:
  explicit Job(std::vector<Rank> ranks) : ranks_(std::move(ranks)) {}

  // False when nothing can be done, and something is left.
  bool run(unsigned seed) {
    std::mt19937 random(seed);
    for (;;) {
      std::vector<std::pair<int, Id>> ready;
      bool is_left = false;
      for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) {
        const Rank& rank = ranks_[static_cast<size_t>(r)];
        const auto add = [&](Id id) {
          if (rank.waits[id] == 0) ready.emplace_back(r, id);
        };
        for (const auto& [peer, messages] : rank.out) {
          is_left |= !messages.empty();
          if (!messages.empty()) add(messages.front());
        }
        for (const auto& [peer, messages] : rank.in) {
          is_left |= !messages.empty();
          if (!messages.empty() && has_come(peer, r, rank.schedule.items()[messages.front()].count)) {
            add(messages.front());
          }
        }
        for (const Id id : rank.rest) add(id);
        is_left |= !rank.rest.empty();
      }
      if (ready.empty()) return !is_left && is_all_taken();
      const auto [r, id] = ready[random() % ready.size()];
      perform(r, id);
    }
  }

  size_t sent(int from, int to) const {
    const auto found = sent_.find({from, to});
    return found == sent_.end() ? 0 : found->second;
  }
  size_t sent_by(int from) const {
    size_t all = 0;
    for (int to = 0; to < static_cast<int>(ranks_.size()); ++to) all += sent(from, to);
    return all;
  }

 private:
  bool has_come(int from, int to, size_t nbytes) { return under_way_[{from, to}].size() >= nbytes; }

  bool is_all_taken() const {
    return std::all_of(under_way_.begin(), under_way_.end(), [](const auto& link) { return link.second.empty(); });
  }

  std::vector<std::byte> take(int from, int to, size_t nbytes) {
    std::deque<std::byte>& link = under_way_[{from, to}];
    const auto end = link.begin() + static_cast<ptrdiff_t>(nbytes);
    std::vector<std::byte> bytes(link.begin(), end);
    link.erase(link.begin(), end);
    return bytes;
  }

  void perform(int r, Id id) {
    Rank& rank = ranks_[static_cast<size_t>(r)];
    const Item& item = rank.schedule.items()[id];
    const Kernels& all = kernels("auto");
    switch (item.kind) {
      case Kind::kSend: {
        std::deque<std::byte>& link = under_way_[{r, item.rank}];
        link.insert(link.end(), item.src, item.src + item.count);
        sent_[{r, item.rank}] += item.count;
        rank.out[item.rank].pop_front();
        break;
      }
      case Kind::kReceive:
      case Kind::kFold: {
        const std::vector<std::byte> bytes = take(item.rank, r, item.count);
        rank.in[item.rank].pop_front();
        if (item.count == 0) break;
        if (item.kind == Kind::kReceive) {
          std::memcpy(item.dst, bytes.data(), item.count);
        } else {
          const Reduction& reduction = rank.schedule.reductions()[item.reduction];
          const void* srcs[2] = {item.dst, bytes.data()};
          void* dst = item.dst;
          all.reduce(reduction, srcs, 2, &dst, 1, item.count / itemsize(reduction.dtype));
        }
        break;
      }
      case Kind::kReduce: {
        std::vector<const void*> srcs;
        for (size_t i = 0; i < item.operand_count; ++i) srcs.push_back(rank.schedule.operands()[item.operands + i]);
        void* dst = item.dst;
        if (item.count == 0) break;
        all.reduce(rank.schedule.reductions()[item.reduction], srcs.data(), srcs.size(), &dst, 1, item.count);
        break;
      }
      case Kind::kCopy:
        if (item.count != 0) std::memmove(item.dst, item.src, item.count);
        break;
      case Kind::kEncode:
        all.encode(item.codec, item.src, item.dst, item.count);
        break;
      case Kind::kDecode:
        all.decode(item.codec, item.src, item.dst, item.count);
        break;
      case Kind::kRoundTrip:
        codec_round_trip(all, item.codec, item.dst, item.count);
        break;
      case Kind::kOnHost:
        FAIL("there is one rank a host");
        break;
      case Kind::kJoint:
        break;
    }
    rank.rest.erase(std::remove(rank.rest.begin(), rank.rest.end(), id), rank.rest.end());
    for (const Id later : rank.later[id]) --rank.waits[later];
  }

  std::vector<Rank> ranks_;
  std::map<std::pair<int, int>, std::deque<std::byte>> under_way_;
  std::map<std::pair<int, int>, size_t> sent_;
};

Team team_of(int size, int me) {
  Team team;
  for (int r = 0; r < size; ++r) team.members.push_back(r);
  team.me = me;
  return team;
}

// plan(schedule, r) writes that of rank r.
template <class Plan>
std::vector<Rank> ranks_of(int size, Plan plan) {
  std::vector<Rank> ranks;
  for (int r = 0; r < size; ++r) {
    Schedule schedule;
    plan(schedule, r);
    ranks.emplace_back(std::move(schedule));
  }
  return ranks;
}

std::byte* bytes_of(Elements& elements) { return reinterpret_cast<std::byte*>(elements.data()); }

// Of up to 8 ranks, whose sum has a byte for each.
int64_t contribution(int rank, size_t i) { return int64_t{1 + static_cast<int64_t>(i % 3)} << (8 * rank); }

int64_t sum(int size, size_t i) {
  int64_t all = 0;
  for (int r = 0; r < size; ++r) all += contribution(r, i);
  return all;
}

struct Tensor {
  Elements input;
  Elements output;
};

std::vector<Tensor> tensors_of(int size, size_t count) {
  std::vector<Tensor> tensors(static_cast<size_t>(size));
  for (int r = 0; r < size; ++r) {
    Tensor& tensor = tensors[static_cast<size_t>(r)];
    for (size_t i = 0; i < count; ++i) tensor.input.push_back(contribution(r, i));
    tensor.output.assign(count, -1);
  }
  return tensors;
}

Reduction int64_sum() {
  Reduction reduction;
  reduction.dtype = DType::kInt64;
  return reduction;
}

std::vector<Piece> pieces_of(Tensor& tensor, size_t pieces, bool in_place) {
  if (in_place) tensor.output = tensor.input;
  const std::byte* const src = bytes_of(in_place ? tensor.output : tensor.input);
  std::byte* const dst = bytes_of(tensor.output);
  std::vector<Piece> all;
  for (size_t k = 0; k < pieces; ++k) {
    const Range range = segment(tensor.input.size(), static_cast<int>(pieces), static_cast<int>(k));
    all.push_back({src + range.begin * sizeof(int64_t), dst + range.begin * sizeof(int64_t), range.count()});
  }
  return all;
}

using Reduce = Ids (*)(Schedule&, const Team&, const LinkedReduction&);

void check_allreduce(Reduce plan, int size, size_t count, size_t pieces, bool in_place, unsigned seed) {
  CAPTURE(size);
  CAPTURE(count);
  CAPTURE(pieces);
  CAPTURE(seed);
  std::vector<Tensor> tensors = tensors_of(size, count);
  Job job(ranks_of(size, [&](Schedule& schedule, int r) {
    LinkedReduction job;
    job.pieces = pieces_of(tensors[static_cast<size_t>(r)], pieces, in_place);
    job.ready.assign(pieces, Schedule::kNone);
    job.reduction = int64_sum();
    const Ids there = plan(schedule, team_of(size, r), job);
    REQUIRE(there.size() == pieces);
  }));
  REQUIRE(job.run(seed));
  size_t sent = 0;
  for (int r = 0; r < size; ++r) {
    sent += job.sent_by(r);
    for (size_t i = 0; i < count; ++i) REQUIRE(tensors[static_cast<size_t>(r)].output[i] == sum(size, i));
  }
  const size_t times = plan == static_cast<Reduce>(gathered) ? static_cast<size_t>(size) : 2;  // of size - 1
  CHECK(sent == times * static_cast<size_t>(size - 1) * count * sizeof(int64_t));
}

// Which elements of a piece a member keeps: each as many as it can.
Kept equal_parts(const std::vector<Piece>& pieces, int size) {
  Kept kept;
  for (const Piece& piece : pieces) {
    kept.emplace_back();
    for (int r = 0; r < size; ++r) kept.back().push_back(segment(piece.count, size, r));
  }
  return kept;
}

Kept all_for(const std::vector<Piece>& pieces, int size, int root) {
  Kept kept;
  for (const Piece& piece : pieces) {
    kept.emplace_back(static_cast<size_t>(size));
    kept.back()[static_cast<size_t>(root)] = {0, piece.count};
  }
  return kept;
}

TEST_CASE("schedule: an all-reduce has every contribution once, in any order of what may be done") {
  unsigned seed = 0;
  for (const Reduce plan : {ring, pairwise, gathered}) {
    for (const int size : {1, 2, 3, 5, 8}) {
      for (const size_t count : {0, 1, 7, 200}) {
        for (const size_t pieces : {1, 2, 9}) {
          for (const bool in_place : {false, true}) check_allreduce(plan, size, count, pieces, in_place, ++seed);
        }
      }
    }
  }
}

TEST_CASE("schedule: a reduce-scatter gives each member what it keeps, and sends half of an all-reduce") {
  unsigned seed = 0;
  for (const Reduce plan : {ring, pairwise}) {
    for (const int size : {2, 3, 4}) {
      for (const int root : {-1, 0, size - 1}) {
        CAPTURE(size);
        CAPTURE(root);
        const size_t count = 90;
        std::vector<Tensor> tensors = tensors_of(size, count);
        Kept kept;
        Job job(ranks_of(size, [&](Schedule& schedule, int r) {
          LinkedReduction job;
          job.pieces = pieces_of(tensors[static_cast<size_t>(r)], 6, false);
          job.ready.assign(6, Schedule::kNone);
          job.reduction = int64_sum();
          kept = root < 0 ? equal_parts(job.pieces, size) : all_for(job.pieces, size, root);
          job.kept = kept;
          plan(schedule, team_of(size, r), job);
        }));
        REQUIRE(job.run(++seed));
        size_t sent = 0;
        for (int r = 0; r < size; ++r) {
          sent += job.sent_by(r);
          for (size_t k = 0; k < 6; ++k) {
            const Range& mine = kept[k][static_cast<size_t>(r)];
            for (size_t i = mine.begin; i < mine.end; ++i) {
              const size_t at = segment(count, 6, static_cast<int>(k)).begin + i;
              REQUIRE(tensors[static_cast<size_t>(r)].output[at] == sum(size, at));
            }
          }
        }
        CHECK(sent == static_cast<size_t>(size - 1) * count * sizeof(int64_t));
      }
    }
  }
}

TEST_CASE("schedule: a chain of many members has few items a piece, whatever their number") {
  for (const int size : {4, 64}) {
    std::vector<std::byte> bytes(64 * 80);
    LinkedReduction job;
    job.reduction = int64_sum();
    for (size_t k = 0; k < 80; ++k) job.pieces.push_back({bytes.data() + 64 * k, bytes.data() + 64 * k, 8});
    job.ready.assign(80, Schedule::kNone);
    job.kept = all_for(job.pieces, size, 0);
    Schedule schedule;
    ring(schedule, team_of(size, 2), job);
    CHECK(schedule.items().size() == 2 * 80);  // from the one before, to the next
  }
}

TEST_CASE("schedule: recursive doubling, for any number of ranks") {
  unsigned seed = 0;
  for (int size = 1; size <= 8; ++size) {
    CAPTURE(size);
    std::vector<Tensor> tensors = tensors_of(size, 20);
    Job job(ranks_of(size, [&](Schedule& schedule, int r) {
      recursive_doubling(schedule, team_of(size, r), pieces_of(tensors[static_cast<size_t>(r)], 3, r % 2 == 0),
                         int64_sum());
    }));
    REQUIRE(job.run(++seed));
    for (const Tensor& tensor : tensors) {
      for (size_t i = 0; i < tensor.output.size(); ++i) REQUIRE(tensor.output[i] == sum(size, i));
    }
  }
}

TEST_CASE("schedule: a codec's messages are not overwritten before they are gone") {
  unsigned seed = 0;
  for (const Codec codec : {Codec::kFp16, Codec::kInt8}) {
    for (const int size : {2, 3, 5}) {
      CAPTURE(size);
      const size_t count = 9 * kCodecBlock;
      std::vector<std::vector<float>> outputs(static_cast<size_t>(size), std::vector<float>(count));
      Job job(ranks_of(size, [&](Schedule& schedule, int r) {
        std::vector<float>& elements = outputs[static_cast<size_t>(r)];
        // In each block 127 and a multiple of one, which int8 gives as they are, and another number in each block.
        for (size_t i = 0; i < count; ++i) {
          elements[i] = i % kCodecBlock == 0 ? 127.0f : static_cast<float>((i / kCodecBlock + i) % 100);
        }
        LinkedReduction job;
        for (size_t k = 0; k < 9; ++k) {
          auto* const at = reinterpret_cast<std::byte*>(elements.data() + k * kCodecBlock);
          job.pieces.push_back({at, at, kCodecBlock});
        }
        job.ready.assign(9, Schedule::kNone);
        job.codec = codec;
        pairwise(schedule, team_of(size, r), job);
      }));
      REQUIRE(job.run(++seed));
      for (const std::vector<float>& elements : outputs) {
        for (size_t i = 0; i < count; ++i) {
          const float one = i % kCodecBlock == 0 ? 127.0f : static_cast<float>((i / kCodecBlock + i) % 100);
          REQUIRE(elements[i] == static_cast<float>(size) * one);
        }
      }
    }
  }
}

TEST_CASE("schedule: a block goes from member to member, part by part, and once over each link") {
  unsigned seed = 0;
  for (const bool is_chain : {false, true}) {
    for (const int size : {2, 3, 7}) {
      for (const int root : {0, size - 1}) {
        CAPTURE(size);
        std::vector<Tensor> tensors = tensors_of(size, 100);
        Job job(ranks_of(size, [&](Schedule& schedule, int r) {
          Tensor& tensor = tensors[static_cast<size_t>(r)];
          if (r == root) tensor.output = tensor.input;
          if (is_chain) {
            LinkedBlock block = {bytes_of(tensor.output), bytes_of(tensor.output), 800, -1, {}, {8, 8, 400, 800}};
            if (r != root) block.from = (r + size - 1) % size;
            if ((r + 1) % size != root) block.to.push_back((r + 1) % size);
            REQUIRE(forward(schedule, team_of(size, r), block).size() == 4);
          } else {
            tree_broadcast(schedule, team_of(size, r), root, bytes_of(tensor.output), 800);
          }
        }));
        REQUIRE(job.run(++seed));
        size_t sent = 0;
        for (int r = 0; r < size; ++r) {
          sent += job.sent_by(r);
          CHECK(tensors[static_cast<size_t>(r)].output == tensors[static_cast<size_t>(root)].input);
        }
        CHECK(sent == static_cast<size_t>(size - 1) * 800);
      }
    }
  }
}

TEST_CASE("schedule: a mesh gives every member its block of all others") {
  const int size = 4;
  std::vector<Tensor> tensors = tensors_of(size, 12);
  Job job(ranks_of(size, [&](Schedule& schedule, int r) {
    Tensor& tensor = tensors[static_cast<size_t>(r)];
    ExchangeJob job;
    job.blocks = size;
    for (int other = 0; other < size; ++other) {
      const ptrdiff_t at = other * 24;
      job.outgoing.push_back({bytes_of(tensor.input) + at, 24});
      job.incoming.push_back({other, other == r ? r : 0, bytes_of(tensor.output) + at, 24, 0});
    }
    mesh(schedule, team_of(size, r), job);
  }));
  REQUIRE(job.run(1));
  for (int r = 0; r < size; ++r) {
    for (size_t i = 0; i < 12; ++i) {
      const int from = static_cast<int>(i / 3);
      const size_t theirs = static_cast<size_t>(r) * 3 + i % 3;
      CHECK(tensors[static_cast<size_t>(r)].output[i] == contribution(from, theirs));
    }
    CHECK(job.sent_by(r) == 3 * 24);
  }
}

}  // namespace
}  // namespace rr
