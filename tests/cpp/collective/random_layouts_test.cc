// Random collectives of every kind, dtype and operation, several at a time, on hosts of many shapes. The oracle of
// support/reduce_oracle.h says what they must give; the values are such that their sums are exact in any order.
// RR_TEST_ROUNDS and RR_TEST_SEED as in stress_test.cc.
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "doctest/doctest.h"
#include "support/loopback_links.h"
#include "support/reduce_oracle.h"

namespace rr::test {
namespace {

using rr_test::Bytes;
using Random = std::mt19937_64;

constexpr size_t kPeriod = 1009;  // a tensor repeats so many elements: a prime, so that chunks differ from one another
constexpr uint8_t kUnwritten = 0xEE;

// The host of each rank: hosts of unlike sizes, hosts whose ranks are not neighbours, and one host.
const std::vector<std::vector<int>> kShapes = {
    {0, 0, 0},          {0, 0, 0, 0, 0},       {0, 0, 0, 0, 0, 0, 0}, {0, 1},
    {0, 0, 1},          {0, 1, 2, 3, 4},       {0, 0, 0, 0, 1},       {2, 0, 1, 0, 2},
    {0, 0, 1, 1, 2, 2}, {0, 0, 0, 1, 1, 1},    {0, 1, 2, 0, 1, 2, 0}, {0, 1, 1, 2, 2, 2, 2},
    {1, 0, 0, 0, 0, 1}, {0, 1, 2, 3, 4, 5, 6}, {0, 0, 1, 1, 2, 2, 3}, {0, 0, 0, 1, 1, 1, 2, 2, 2},
};

const std::vector<DType> kDtypes = {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64, DType::kInt8,
                                    DType::kInt16,   DType::kInt32,    DType::kInt64,   DType::kUInt8,   DType::kUInt16,
                                    DType::kUInt32,  DType::kUInt64,   DType::kBool};
const std::vector<ReduceOp> kOps = {ReduceOp::kAverage,   ReduceOp::kSum,        ReduceOp::kMin,
                                    ReduceOp::kMax,       ReduceOp::kProduct,    ReduceOp::kLogicalAnd,
                                    ReduceOp::kLogicalOr, ReduceOp::kBitwiseAnd, ReduceOp::kBitwiseOr};
const std::vector<Kind> kKinds = {Kind::kAllreduce,     Kind::kAllreduce, Kind::kReduce,
                                  Kind::kReduceScatter, Kind::kAllgather, Kind::kGather,
                                  Kind::kScatter,       Kind::kAlltoall,  Kind::kBroadcast};
// About the limits of request slots, eager buffers, chunks of 4 KiB, and of rings (1 MiB of float32).
const std::vector<size_t> kCounts = {0,    1,    2,    3,    13,   25,    26,    27,    255,    1023,   1024,
                                     1025, 2047, 2048, 2049, 4097, 16385, 32769, 65537, 262143, 262144, 262145};

template <class T>
const T& one_of(Random& random, const std::vector<T>& all) {
  return all[random() % all.size()];
}

bool is_float(DType dtype) { return static_cast<int>(dtype) <= static_cast<int>(DType::kFloat64); }

// The value as an element of a dtype of floating point.
void put_float(Bytes& out, DType dtype, size_t i, double value) {
  if (dtype == DType::kFloat64) return rr_test::put(out, i, value);
  if (dtype == DType::kFloat32) return rr_test::put(out, i, static_cast<float>(value));
  rr_test::put(out, i, rr_test::encode(dtype == DType::kFloat16 ? rr_test::kFp16 : rr_test::kBf16, value));
}

// The elements that one rank's tensor repeats.
Bytes pattern(DType dtype, ReduceOp op, uint64_t seed) {
  Random random(seed);
  Bytes bytes(kPeriod * itemsize(dtype));
  for (size_t i = 0; i < kPeriod; ++i) {
    const uint64_t drawn = random();
    if (dtype == DType::kBool) {
      bytes[i] = drawn % 2;
    } else if (!is_float(dtype)) {
      std::memcpy(&bytes[i * itemsize(dtype)], &drawn, itemsize(dtype));
    } else if (op == ReduceOp::kProduct) {
      put_float(bytes, dtype, i, std::ldexp(drawn % 2 != 0 ? 1.0 : -1.0, static_cast<int>(drawn / 2 % 3) - 1));
    } else {
      constexpr double kInfinity = std::numeric_limits<double>::infinity();
      const double specials[] = {kInfinity, -kInfinity, std::numeric_limits<double>::quiet_NaN()};
      const bool is_special = drawn / 16 % 100 == 0;
      put_float(bytes, dtype, i, is_special ? specials[drawn % 3] : static_cast<double>(drawn % 9) - 4.0);
    }
  }
  return bytes;
}

// `count` elements of a tensor that repeats these, from the element `begin` on; never without an address.
Bytes repeated(const Bytes& elements, DType dtype, size_t begin, size_t count) {
  const size_t item = itemsize(dtype);
  Bytes bytes(count * item);
  for (size_t i = 0; i < count; ++i) std::memcpy(&bytes[i * item], &elements[(begin + i) % kPeriod * item], item);
  bytes.reserve(1);
  return bytes;
}

// One operation: what this rank gives and gets. All ranks draw it from one seed.
class RandomOperation {
 public:
  RandomOperation(Rank& rank, uint64_t seed, const std::string& name)
      : random_(seed),
        seed_(seed),
        size_(static_cast<size_t>(rank.size)),
        me_(static_cast<size_t>(rank.rank)),
        kind_(one_of(random_, kKinds)),
        root_(random_() % size_),
        count_(random_() % 4 == 0 ? random_() % 40000 : one_of(random_, kCounts)),
        row_(1 + random_() % 3),
        is_in_place_(random_() % 2 == 0) {
    draw_reduction();
    request_.kind = kind_;
    request_.is_async = true;
    if (takes_root()) request_.root = static_cast<int>(root_);
    if (random_() % 2 == 0) request_.name = &name;
    for (size_t r = 0; r < size_; ++r) given_.push_back(pattern(dtype_, op_, seed + 31 * r));
    describe();
    if (is_reduction()) {
      reduce();
    } else if (kind_ == Kind::kBroadcast || kind_ == Kind::kScatter) {
      spread();
    } else {
      gather();
    }
    request_.keep = memory_;
    operation_ = rank.world.submit(request_, nullptr);
  }

  void check(Rank& rank) {
    rank.world.wait(*operation_, -1, nullptr);
    if (!is_receiver_) return;
    const bool has_own_output = !is_reduction() && kind_ != Kind::kBroadcast && kind_ != Kind::kScatter;
    const uint8_t* got = has_own_output ? reinterpret_cast<const uint8_t*>(operation_->output.get()) : result_;
    if (has_own_output) expect(operation_->output_nbytes == expected_.size(), text_ + ": another size");
    for (size_t r = 0; r < rows_from_.size(); ++r) expect(operation_->counts[r] == rows_from_[r], text_ + ": rows");
    check_same(dtype_, got, expected_);
    for (const Tensor& more : memory_->more) check_same(more.dtype, more.data.data(), more.expected);
  }

 private:
  struct Tensor {
    DType dtype;
    Bytes data, expected;
  };

  struct Memory {
    Bytes input, output;
    std::vector<Tensor> more;  // of a group, in place
  };

  void check_same(DType dtype, const uint8_t* got, const Bytes& wanted) const {
    const size_t item = itemsize(dtype);
    for (size_t at = 0; at < wanted.size(); at += item) {
      if (rr_test::same(dtype, got + at, &wanted[at], 1)) continue;
      expect(false, text_ + ": element " + std::to_string(at / item) + " of " + rr::name(dtype) + " differs on rank " +
                        std::to_string(me_));
    }
  }

  bool is_reduction() const {
    return kind_ == Kind::kAllreduce || kind_ == Kind::kReduce || kind_ == Kind::kReduceScatter;
  }
  bool takes_root() const {
    return kind_ == Kind::kReduce || kind_ == Kind::kGather || kind_ == Kind::kScatter || kind_ == Kind::kBroadcast;
  }
  bool is_root() const { return me_ == root_; }

  void draw_reduction() {
    do {
      dtype_ = random_() % 3 == 0 ? DType::kFloat32 : one_of(random_, kDtypes);
      op_ = one_of(random_, kOps);
    } while (!is_meaningful(dtype_, op_) ||
             (kind_ == Kind::kReduceScatter && op_ != ReduceOp::kSum && op_ != ReduceOp::kAverage));
    if (!is_reduction()) return;
    request_.op = op_;
    draw_codec();
    if (!is_scalable(dtype_, op_) || random_() % 3 != 0) return;
    request_.prescale = one_of(random_, std::vector<double>{0.5, 2.0, -1.0, 4.0});
    request_.postscale = one_of(random_, std::vector<double>{1.0, 0.5, 2.0, -1.0});
  }

  // A sum of these values is exact in 16 bits; an average is not.
  void draw_codec() {
    const bool takes_codec = op_ == ReduceOp::kSum || op_ == ReduceOp::kMin || op_ == ReduceOp::kMax;
    if (kind_ != Kind::kAllreduce || dtype_ != DType::kFloat32 || !takes_codec) return;
    request_.codec = one_of(random_, std::vector<Codec>{Codec::kNone, Codec::kFp16, Codec::kBf16});
  }

  void describe() {
    text_ = std::string(rr::name(kind_)) + " " + rr::name(dtype_) + " " + rr::name(op_) + " of " +
            std::to_string(count_) + ", rows of " + std::to_string(row_) + ", factors " +
            std::to_string(request_.prescale) + " " + std::to_string(request_.postscale) + ", root " +
            std::to_string(root_) + ", codec " + rr::name(request_.codec) + (is_in_place_ ? ", in place" : "") +
            (request_.name != nullptr ? ", named" : ", unnamed") + ", seed " + std::to_string(seed_);
  }

  TensorView tensor(Bytes& bytes, size_t rows) {
    TensorView view;
    view.data = reinterpret_cast<std::byte*>(bytes.data());
    view.dtype = dtype_;
    const uint64_t dims[] = {rows, row_};
    view.set_shape(2, [&](size_t i) { return dims[i]; });
    return view;
  }

  Bytes unwritten(size_t rows) const {
    Bytes bytes(rows * row_ * itemsize(dtype_), kUnwritten);
    bytes.reserve(1);
    return bytes;
  }

  void reduce() {
    const size_t rows = count_ / row_;
    const bool scatters = kind_ == Kind::kReduceScatter;
    const Range mine = scatters ? segment(rows, static_cast<int>(size_), static_cast<int>(me_)) : Range{0, rows};
    memory_->input = repeated(given_[me_], dtype_, 0, rows * row_);
    memory_->output = unwritten(mine.count());
    request_.srcs = {tensor(memory_->input, rows)};
    request_.dsts = {tensor(memory_->output, mine.count())};
    if (is_in_place_) request_.dsts[0].data = request_.srcs[0].data + mine.begin * row_ * itemsize(dtype_);
    result_ = reinterpret_cast<const uint8_t*>(request_.dsts[0].data);
    const Reduction reduction = {dtype_, op_, request_.prescale, request_.postscale, static_cast<int>(size_)};
    if (kind_ == Kind::kReduce && !is_root()) {  // gets nothing, and keeps what it gives
      expected_ = memory_->input;
      result_ = memory_->input.data();
      return;
    }
    expected_ = repeated(rr_test::oracle(reduction, given_), dtype_, mine.begin * row_, mine.count() * row_);
    if (kind_ == Kind::kAllreduce && random_() % 3 == 0) add_tensors();
  }

  // To a group, of other dtypes where the operation has a meaning there.
  void add_tensors() {
    memory_->more.resize(1 + random_() % 4);
    for (Tensor& more : memory_->more) {
      const DType drawn = one_of(random_, kDtypes);
      const bool is_plain = request_.codec == Codec::kNone && request_.prescale == 1.0 && request_.postscale == 1.0;
      more.dtype = is_plain && is_meaningful(drawn, op_) ? drawn : dtype_;
      const size_t count = one_of(random_, kCounts) / 2;
      std::vector<Bytes> given;
      for (size_t r = 0; r < size_; ++r) given.push_back(pattern(more.dtype, op_, seed_ + 31 * r + 7));
      const Reduction reduction = {more.dtype, op_, request_.prescale, request_.postscale, static_cast<int>(size_)};
      more.expected = repeated(rr_test::oracle(reduction, given), more.dtype, 0, count);
      more.data = repeated(given[me_], more.dtype, 0, count);
      request_.srcs.push_back(view(more.data, more.dtype));
      request_.srcs.back().count = request_.srcs.back().dims[0] = count;
      request_.dsts.push_back(request_.srcs.back());
    }
    text_ += ", and " + std::to_string(memory_->more.size()) + " more tensors";
  }

  void spread() {
    const bool scatters = kind_ == Kind::kScatter;
    const size_t rows = count_ / row_ / (scatters ? size_ : 1);
    const size_t given = scatters ? size_ * rows : rows;
    memory_->input = is_root() ? repeated(given_[root_], dtype_, 0, given * row_) : unwritten(given);
    memory_->output = unwritten(rows);
    if (is_root() || !scatters) request_.srcs = {tensor(memory_->input, given)};
    request_.dsts = scatters ? std::vector<TensorView>{tensor(memory_->output, rows)} : request_.srcs;
    result_ = reinterpret_cast<const uint8_t*>(request_.dsts[0].data);
    expected_ = repeated(given_[root_], dtype_, scatters ? me_ * rows * row_ : 0, rows * row_);
  }

  // splits[from][to]: rows. A gather is an alltoall whose ranks give all they have to each receiver.
  void gather() {
    const size_t rows = count_ / row_ / size_;
    const std::vector<size_t> choices = {0, 1, 5, rows / 3, rows};
    std::vector<std::vector<size_t>> splits(size_);
    for (auto& of_rank : splits) {
      for (size_t to = 0; to < size_; ++to) of_rank.push_back(one_of(random_, choices));
      if (kind_ != Kind::kAlltoall) of_rank.assign(size_, of_rank[0]);
    }
    const auto begin = [&](size_t from, size_t to) {
      const auto first = splits[from].begin();
      return kind_ == Kind::kAlltoall ? std::accumulate(first, first + static_cast<std::ptrdiff_t>(to), size_t{0}) : 0;
    };
    const size_t given = kind_ == Kind::kAlltoall ? begin(me_, size_) : splits[me_][0];
    memory_->input = repeated(given_[me_], dtype_, 0, given * row_);
    request_.srcs = {tensor(memory_->input, given)};
    if (kind_ == Kind::kAlltoall) request_.splits.assign(splits[me_].begin(), splits[me_].end());
    is_receiver_ = kind_ != Kind::kGather || is_root();
    for (size_t from = 0; from < size_; ++from) {
      const Bytes part = repeated(given_[from], dtype_, begin(from, me_) * row_, splits[from][me_] * row_);
      expected_.insert(expected_.end(), part.begin(), part.end());
      rows_from_.push_back(splits[from][me_]);
    }
  }

  Random random_;
  const uint64_t seed_;
  const size_t size_, me_;
  const Kind kind_;
  const size_t root_;
  const size_t count_;  // elements, about
  const size_t row_;    // elements of a row
  const bool is_in_place_;
  DType dtype_ = DType::kFloat32;
  ReduceOp op_ = ReduceOp::kSum;
  std::vector<Bytes> given_;  // by rank: what its tensor repeats
  Request request_;
  const std::shared_ptr<Memory> memory_ = std::make_shared<Memory>();
  Bytes expected_;
  std::vector<size_t> rows_from_;  // by rank, of what is gathered
  const uint8_t* result_ = nullptr;
  bool is_receiver_ = true;
  std::string text_;
  OperationPtr operation_;
};

constexpr size_t kBatches = 4;

void play(Rank& rank, uint64_t seed) {
  Random random(seed);
  for (size_t batch = 0; batch < kBatches; ++batch) {
    std::vector<std::unique_ptr<RandomOperation>> operations;
    const size_t at_once = 1 + random() % 4;
    for (size_t i = 0; i < at_once; ++i) {
      const std::string name = "tensor " + std::to_string(batch % 2) + "." + std::to_string(i);  // names come again
      operations.push_back(std::make_unique<RandomOperation>(rank, random(), name));
    }
    for (const auto& operation : operations) operation->check(rank);
  }
  barrier(rank.world);
}

TEST_CASE("random collectives on hosts of many shapes") {
  const std::vector<std::string> algorithms = {"auto", "auto", "auto", "ring", "recursive_doubling", "tree"};
  const unsigned run_seed = seed(1);
  Random random(run_seed);
  const int turns = rounds(60);
  for (int turn = 0; turn < turns; ++turn) {
    const std::vector<int>& host_of = one_of(random, kShapes);
    const std::string algorithm = one_of(random, algorithms);
    const std::string chunk = one_of(random, std::vector<std::string>{"4096", "65536"});
    const size_t link_nbytes = one_of(random, std::vector<size_t>{4096, 65536});
    const uint64_t drawn = random();
    std::string shape;
    for (const int host : host_of) shape += std::to_string(host) + " ";
    CAPTURE(shape);
    CAPTURE(algorithm);
    CAPTURE(chunk);
    CAPTURE(link_nbytes);
    CAPTURE(run_seed);
    CAPTURE(drawn);
    const Environment environment{{"RINGREDUCE_ALGORITHM", algorithm}, {"RINGREDUCE_CHUNK", chunk}};
    CHECK_NOTHROW(run_hosts(host_of, [&](Rank& rank) { play(rank, drawn); }, 64, link_nbytes));
  }
}

}  // namespace
}  // namespace rr::test
