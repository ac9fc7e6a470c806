// The NCCL path on a fake NCCL: what is asked of it, and results of all kinds. Ranks are threads here, each with a fake
// GPU of its own.
#include <numeric>

#include "doctest/doctest.h"
#include "nccl/nccl_checks.h"

namespace rr::test {
namespace {

const std::vector<DType> kTypes = {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64, DType::kInt8,
                                   DType::kInt32,   DType::kInt64,    DType::kUInt8,   DType::kUInt32,  DType::kUInt64};

TEST_CASE("nccl: a bucket of all types, small tensors packed into one call, large ones in place") {
  // The fourth is not small, 256 KiB or more, but for short types.
  const auto lengths_of = [](DType dtype) {
    const size_t longest = itemsize(dtype) < 4 ? 7000 : (size_t{256} << 10) / itemsize(dtype);
    return std::vector<size_t>{3, 0, 1000, longest, 17};
  };
  for (const int size : {2, 3}) {
    CAPTURE(size);
    std::vector<std::vector<Bytes>> wanted(kTypes.size());  // by type and tensor
    for (size_t t = 0; t < kTypes.size(); ++t) {
      const std::vector<size_t> lengths = lengths_of(kTypes[t]);
      for (size_t i = 0; i < lengths.size(); ++i) {
        std::vector<Bytes> inputs;
        for (int r = 0; r < size; ++r) inputs.push_back(numbers(kTypes[t], lengths[i], r, i));
        wanted[t].push_back(rr_test::oracle({kTypes[t], ReduceOp::kSum, 1, 1, size}, inputs));
      }
    }
    FakeNccl fake;
    CHECK_NOTHROW(run_nccl(fake, size, [&](NcclRank& rank) {
      for (int turn = 0; turn < 2; ++turn) {
        std::vector<std::pair<Reduction, std::vector<Piece>>> parts;
        for (size_t t = 0; t < kTypes.size(); ++t) {
          const std::vector<size_t> lengths = lengths_of(kTypes[t]);
          parts.push_back({{kTypes[t], ReduceOp::kSum, 1, 1, size}, {}});
          for (size_t i = 0; i < lengths.size(); ++i) {
            const size_t nbytes = lengths[i] * itemsize(kTypes[t]);
            std::byte* const src = put(rank.device, numbers(kTypes[t], lengths[i], rank.rank, i));
            parts.back().second.push_back({src, turn == 0 ? src : rank.device.allocate(nbytes), lengths[i]});
          }
        }
        const auto scratch = [&](size_t nbytes) { return rank.teams->scratch(nbytes); };
        NcclJob job = nccl_allreduce(parts, scratch);
        size_t packed = 0;
        for (const NcclCall& call : job.calls)
          packed += call.count == 3 + 1000 + 17 || call.count == 3 + 1000 + 7000 + 17;
        expect(packed == kTypes.size(), "one packed call a type");
        expect(job.before.size() == kTypes.size() && job.after.size() == kTypes.size(), "packed and unpacked");
        {
          const auto algorithm = nccl_path(rank.teams, rank.everyone(), std::move(job));
          expect(rank.teams->is_at_work(), "an operation is under way");
          finish(*algorithm);
        }
        expect(!rank.teams->is_at_work(), "none is");
        for (size_t t = 0; t < kTypes.size(); ++t) {
          for (size_t i = 0; i < wanted[t].size(); ++i) {
            expect(get(parts[t].second[i].dst, wanted[t][i].size()) == wanted[t][i],
                   std::string("the sum of ") + name(kTypes[t]) + ", tensor " + std::to_string(i));
          }
        }
      }
    }));
    CHECK(fake.counts().made == size);  // one communicator for both turns
    check_clean(fake);
    CHECK_FALSE(fake.left_files());
  }
}

TEST_CASE("nccl: operations and factors as reduction.h says") {
  const int size = 4;
  const std::vector<Reduction> reductions = {
      {DType::kFloat32, ReduceOp::kAverage, 1, 1, size}, {DType::kFloat32, ReduceOp::kAverage, 2, 0.5, 8},
      {DType::kFloat64, ReduceOp::kSum, 0.25, 3, size},  {DType::kFloat16, ReduceOp::kAverage, 1, 1, size},
      {DType::kBFloat16, ReduceOp::kSum, -0.5, 1, size}, {DType::kInt32, ReduceOp::kMin, 1, 1, size},
      {DType::kUInt8, ReduceOp::kMax, 1, 1, size},       {DType::kInt64, ReduceOp::kProduct, 1, 1, size},
      {DType::kFloat32, ReduceOp::kProduct, 1, 1, size},
  };
  // So many elements are not packed: 256 KiB.
  const auto large = [](DType dtype) { return (size_t{256} << 10) / itemsize(dtype) + 1; };
  std::vector<Bytes> all_wanted;
  for (const Reduction& reduction : reductions) {
    std::vector<Bytes> inputs;
    for (int r = 0; r < size; ++r) inputs.push_back(numbers(reduction.dtype, large(reduction.dtype), r));
    all_wanted.push_back(rr_test::oracle(reduction, inputs));
  }
  FakeNccl fake;
  CHECK_NOTHROW(run_nccl(fake, size, [&](NcclRank& rank) {
    for (size_t k = 0; k < reductions.size(); ++k) {
      const Reduction& reduction = reductions[k];
      const Bytes& wanted = all_wanted[k];
      expect(nccl_can(reduction), "NCCL can do it");
      const size_t count = 300;
      std::byte* const data = put(rank.device, numbers(reduction.dtype, count, rank.rank));
      // Two pieces, one of them large, share the operation that the communicator makes.
      const size_t many = large(reduction.dtype);
      std::byte* const more = put(rank.device, numbers(reduction.dtype, many, rank.rank));
      const auto none = [](size_t) -> std::shared_ptr<std::byte> { throw Error("one small piece is not packed"); };
      finish(*nccl_path(rank.teams, rank.everyone(),
                        nccl_allreduce({{reduction, {{data, data, count}, {more, more, many}}}}, none)));
      const std::string what = std::string(name(reduction.op)) + " of " + name(reduction.dtype);
      expect(get(more, wanted.size()) == wanted, what);
      expect(get(data, count * itemsize(reduction.dtype)) ==
                 Bytes(wanted.begin(), wanted.begin() + static_cast<long>(count * itemsize(reduction.dtype))),
             what + ", the short one");
    }
  }));
  check_clean(fake);
}

TEST_CASE("nccl: what it cannot do as reduction.h says goes another path") {
  const auto can = [](DType dtype, ReduceOp op, double pre = 1, double post = 1, int divisor = 4) {
    return nccl_can({dtype, op, pre, post, divisor});
  };
  for (const DType dtype : {DType::kBool, DType::kInt16, DType::kUInt16}) CHECK_FALSE(can(dtype, ReduceOp::kSum));
  CHECK_FALSE(can(DType::kUInt8, ReduceOp::kAverage));
  CHECK_FALSE(can(DType::kInt32, ReduceOp::kSum, 2));
  CHECK_FALSE(can(DType::kFloat32, ReduceOp::kMin));
  CHECK_FALSE(can(DType::kFloat32, ReduceOp::kProduct, 1, 2));
  CHECK_FALSE(can(DType::kInt32, ReduceOp::kBitwiseAnd));
  CHECK_FALSE(can(DType::kInt32, ReduceOp::kLogicalOr));
  // 1/3 is no float16, nor is 1e-5 a normal one; 1/4 and 1.5 are.
  CHECK_FALSE(can(DType::kFloat16, ReduceOp::kAverage, 1, 1, 3));
  CHECK_FALSE(can(DType::kBFloat16, ReduceOp::kAverage, 1, 1, 3));
  CHECK_FALSE(can(DType::kFloat16, ReduceOp::kSum, std::ldexp(1.0, -15)));
  CHECK_FALSE(can(DType::kFloat16, ReduceOp::kSum, 65536));
  CHECK_FALSE(can(DType::kFloat32, ReduceOp::kSum, INFINITY));
  CHECK(can(DType::kFloat16, ReduceOp::kSum, 1.5));
  CHECK(can(DType::kFloat16, ReduceOp::kSum, std::ldexp(1.0, -14)));
  CHECK(can(DType::kFloat16, ReduceOp::kSum, 32768));
  CHECK(can(DType::kFloat32, ReduceOp::kAverage, 1, 1, 3));
  CHECK(can(DType::kInt32, ReduceOp::kMin));
  // The scalar has the bits of the factor.
  for (const double factor : {1.0, 0.25, -1.5, 0.0, 1.0 / 1024}) {
    for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
      const auto format = dtype == DType::kFloat16 ? rr_test::kFp16 : rr_test::kBf16;
      const auto scalar = nccl_scalar(dtype, factor);
      CHECK(rr_test::load<uint16_t>(reinterpret_cast<const uint8_t*>(scalar.data())) ==
            rr_test::encode(format, static_cast<float>(factor)));
    }
  }
}

TEST_CASE("nccl: reduce and reduce-scatter, in equal and in unequal parts") {
  const int size = 3;
  FakeNccl fake;
  CHECK_NOTHROW(run_nccl(fake, size, [&](NcclRank& rank) {
    for (const size_t count : {size_t{3000}, size_t{1001}, size_t{2}, size_t{0}}) {
      std::vector<Bytes> inputs;
      for (int r = 0; r < size; ++r) inputs.push_back(numbers(DType::kFloat32, count, r));
      ReduceJob job;
      job.reduction = {DType::kFloat32, ReduceOp::kSum, 1, 1, size};
      job.element_count = count;
      const Bytes sums = rr_test::oracle(job.reduction, inputs);
      std::byte* const src = put(rank.device, inputs[static_cast<size_t>(rank.rank)]);

      job.shape = ReduceShape::kReduce;
      job.root = 1;
      std::byte* const whole = put(rank.device, Bytes(count * 4, 77));
      job.pieces = {{src, whole, count}};
      finish(*nccl_path(rank.teams, rank.everyone(), nccl_reduce(job, rank.rank)));
      expect(get(whole, count * 4) == (rank.rank == 1 ? sums : Bytes(count * 4, 77)), "only the root has it");

      job.shape = ReduceShape::kReduceScatter;
      for (int r = 0; r < size; ++r) job.owned.push_back(segment(count, size, r));
      const Range mine = job.owned[static_cast<size_t>(rank.rank)];
      std::byte* const part = put(rank.device, Bytes(mine.count() * 4, 77));
      job.pieces = {{src, part, count}};
      finish(*nccl_path(rank.teams, rank.everyone(), nccl_reduce(job, rank.rank)));
      expect(get(part, mine.count() * 4) == Bytes(sums.begin() + static_cast<long>(mine.begin * 4),
                                                  sums.begin() + static_cast<long>(mine.end * 4)),
             "every rank has its part");
      expect(get(src, count * 4) == inputs[static_cast<size_t>(rank.rank)], "the input stays");
    }
  }));
  check_clean(fake);
}

TEST_CASE("nccl: allgather and gather, with blocks of one size and of several") {
  const int size = 3;
  const std::vector<std::vector<size_t>> cases = {{500, 500, 500}, {500, 0, 1300}, {0, 0, 0}};
  FakeNccl fake;
  CHECK_NOTHROW(run_nccl(fake, size, [&](NcclRank& rank) {
    for (const auto& nbytes : cases) {
      for (const int root : {-1, 2}) {  // -1: everybody takes
        ExchangeJob job;
        job.sources.assign(3, true);
        if (root >= 0) job.takers = {false, false, true};
        job.outgoing = {{put(rank.device, block(rank.rank, 0, nbytes[static_cast<size_t>(rank.rank)])),
                         nbytes[static_cast<size_t>(rank.rank)]}};
        job.largest_nbytes = *std::max_element(nbytes.begin(), nbytes.end());
        const bool takes = root < 0 || root == rank.rank;
        const size_t total = std::accumulate(nbytes.begin(), nbytes.end(), size_t{0});
        std::byte* const all = put(rank.device, Bytes(total, 77));
        std::byte* next = all;
        for (int r = 0; r < size && takes; ++r) {
          job.incoming.push_back({r, 0, next, nbytes[static_cast<size_t>(r)], 0});
          next += nbytes[static_cast<size_t>(r)];
        }
        finish(*nccl_path(rank.teams, rank.everyone(), nccl_exchange(job, rank.rank, size)));
        Bytes wanted;
        for (int r = 0; r < size; ++r) {
          const Bytes one = block(r, 0, nbytes[static_cast<size_t>(r)]);
          wanted.insert(wanted.end(), one.begin(), one.end());
        }
        expect(get(all, total) == (takes ? wanted : Bytes(total, 77)), "all blocks in order");
      }
    }
  }));
  check_clean(fake);
}

TEST_CASE("nccl: alltoall, scatter and broadcast") {
  const int size = 3;
  FakeNccl fake;
  CHECK_NOTHROW(run_nccl(fake, size, [&](NcclRank& rank) {
    const auto nbytes_of = [](int from, int to) { return static_cast<size_t>(from * 40 + to * 13) % 97 * 11; };
    ExchangeJob job;
    job.blocks = size;
    job.sources.assign(3, true);
    Bytes input;
    Bytes wanted;
    for (int r = 0; r < size; ++r) {
      const Bytes out = block(rank.rank, r, nbytes_of(rank.rank, r));
      input.insert(input.end(), out.begin(), out.end());
      const Bytes in = block(r, rank.rank, nbytes_of(r, rank.rank));
      wanted.insert(wanted.end(), in.begin(), in.end());
    }
    const std::byte* src = put(rank.device, input);
    std::byte* const dst = put(rank.device, Bytes(wanted.size(), 77));
    std::byte* next = dst;
    for (int r = 0; r < size; ++r) {
      job.outgoing.push_back({src, nbytes_of(rank.rank, r)});
      src += nbytes_of(rank.rank, r);
      job.incoming.push_back({r, rank.rank, next, nbytes_of(r, rank.rank), 0});
      next += nbytes_of(r, rank.rank);
    }
    finish(*nccl_path(rank.teams, rank.everyone(), nccl_exchange(job, rank.rank, size)));
    expect(get(dst, wanted.size()) == wanted, "alltoall");

    for (const int root : {0, 2}) {
      const size_t nbytes = 700;
      ExchangeJob scatter;
      scatter.blocks = size;
      scatter.sources.assign(3, false);
      scatter.sources[static_cast<size_t>(root)] = true;
      scatter.largest_nbytes = nbytes;
      for (int r = 0; r < size && root == rank.rank; ++r)
        scatter.outgoing.push_back({put(rank.device, block(root, r, nbytes)), nbytes});
      std::byte* const mine = put(rank.device, Bytes(nbytes, 77));
      scatter.incoming = {{root, rank.rank, mine, nbytes, 0}};
      finish(*nccl_path(rank.teams, rank.everyone(), nccl_exchange(scatter, rank.rank, size)));
      expect(get(mine, nbytes) == block(root, rank.rank, nbytes), "scatter");

      ExchangeJob broadcast;
      broadcast.sources = scatter.sources;
      broadcast.takers.assign(3, true);
      broadcast.takers[static_cast<size_t>(root)] = false;
      broadcast.largest_nbytes = nbytes;
      std::byte* const data = put(rank.device, root == rank.rank ? block(root, 9, nbytes) : Bytes(nbytes, 77));
      if (root == rank.rank) {
        broadcast.outgoing = {{data, nbytes}};
      } else {
        broadcast.incoming = {{root, 0, data, nbytes, 0}};
      }
      NcclJob plan = nccl_exchange(broadcast, rank.rank, size);
      expect(plan.calls.size() == 1 && plan.calls[0].kind == NcclCall::Kind::kBroadcast, "one call");
      finish(*nccl_path(rank.teams, rank.everyone(), std::move(plan)));
      expect(get(data, nbytes) == block(root, 9, nbytes), "broadcast");
    }
  }));
  check_clean(fake);
}

}  // namespace
}  // namespace rr::test
