// Collectives on memory of GPUs, by every road that needs no library: ranks are threads, GPUs are doubles whose memory
// host code cannot read. Results are the oracle's, bit for bit.
#include <mutex>

#include "doctest/doctest.h"
#include "gpu_ranks.h"

namespace rr::test {
namespace {

struct Case {
  DType dtype;
  ReduceOp op;
  size_t count;
  double prescale;
  double postscale;
};

Bytes input(const Case& c, int rank, uint64_t salt = 0) {
  return random_bytes(c.dtype, c.count, static_cast<uint64_t>(rank) + 100 * salt);
}

Bytes wanted(const Case& c, int size, uint64_t salt = 0) {
  std::vector<Bytes> inputs;
  for (int r = 0; r < size; ++r) inputs.push_back(input(c, r, salt));
  return rr_test::oracle({c.dtype, c.op, c.prescale, c.postscale, size}, inputs);
}

void check_same(DType dtype, const Bytes& got, const Bytes& want, const std::string& what) {
  expect(got.size() == want.size(), "size of " + what);
  expect(rr_test::same(dtype, got.data(), want.data(), got.size() / itemsize(dtype)), what);
}

void check_allreduce(GpuRank& rank, const Case& c, bool in_place, const std::string& name) {
  const GpuTensor src(rank.gpu, c.dtype, {c.count}, input(c, rank.rank.rank));
  const GpuTensor dst(rank.gpu, c.dtype, {c.count});
  Request request = request_of(Kind::kAllreduce);
  request.op = c.op;
  request.prescale = c.prescale;
  request.postscale = c.postscale;
  request.srcs = {src.view()};
  request.dsts = {in_place ? src.view() : dst.view()};
  if (!name.empty()) request.name = &name;
  run(rank, request);
  const std::string what = std::string("all-reduce of ") + std::to_string(c.count) + " " + rr::name(c.dtype) + " " +
                           rr::name(c.op) + " on rank " + std::to_string(rank.rank.rank);
  check_same(c.dtype, in_place ? src.get() : dst.get(), wanted(c, rank.rank.size), what);
  if (!in_place) expect(src.get() == input(c, rank.rank.rank), "the input stays: " + what);
}

void check_allreduces(GpuRank& rank) {
  const size_t n = static_cast<size_t>(rank.rank.size);
  size_t number = 0;
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kBFloat16, DType::kFloat16, DType::kUInt8,
                            DType::kInt16, DType::kInt64, DType::kBool}) {
    for (const size_t count : {size_t{0}, size_t{1}, n + 1, size_t{1009}, size_t{30011}}) {
      if (count > 30000 && dtype != DType::kFloat32 && dtype != DType::kBFloat16) continue;
      Case c = {dtype, number % 3 == 0 ? ReduceOp::kMax : ReduceOp::kSum, count, 1.0, 1.0};
      const bool floats = dtype <= DType::kFloat64;
      if (floats && number % 3 == 1) c.op = ReduceOp::kAverage;
      if (floats && number % 5 == 1) c.prescale = 0.25;
      if (floats && number % 5 == 2) c.postscale = 3.0;
      check_allreduce(rank, c, number % 2 == 0, number % 4 >= 2 ? "tensor " + std::to_string(number % 7) : "");
      ++number;
    }
  }
}

// Tensors that are submitted one after the other share a bucket; a group has tensors of several types.
void check_buckets(GpuRank& rank) {
  const size_t counts[] = {5, 0, 4099, 1, 1023, 20001};
  for (int turn = 0; turn < 3; ++turn) {
    std::vector<GpuTensor> tensors;
    std::vector<OperationPtr> operations;
    for (size_t k = 0; k < std::size(counts); ++k) {
      const Case c = {DType::kFloat32, ReduceOp::kSum, counts[k], 1.0, 1.0};
      tensors.emplace_back(rank.gpu, c.dtype, std::vector<uint64_t>{c.count}, input(c, rank.rank.rank, k));
      Request request = request_of(Kind::kAllreduce);
      request.srcs = request.dsts = {tensors.back().view()};
      request.is_async = true;
      operations.push_back(rank.world.submit(request, nullptr));
    }
    for (const OperationPtr& operation : operations) rank.world.wait(*operation, -1, nullptr);
    for (size_t k = 0; k < std::size(counts); ++k) {
      const Case c = {DType::kFloat32, ReduceOp::kSum, counts[k], 1.0, 1.0};
      check_same(c.dtype, tensors[k].get(), wanted(c, rank.rank.size, k), "tensor of a bucket");
    }
  }
  const DType dtypes[] = {DType::kFloat32, DType::kInt32, DType::kFloat32, DType::kBFloat16, DType::kInt32};
  std::vector<GpuTensor> srcs;
  std::vector<GpuTensor> dsts;
  Request request = request_of(Kind::kAllreduce);
  for (size_t k = 0; k < std::size(dtypes); ++k) {
    const Case c = {dtypes[k], ReduceOp::kSum, counts[k] + 3, 1.0, 1.0};
    srcs.emplace_back(rank.gpu, c.dtype, std::vector<uint64_t>{c.count}, input(c, rank.rank.rank, k));
    dsts.emplace_back(rank.gpu, c.dtype, std::vector<uint64_t>{c.count});
    request.srcs.push_back(srcs.back().view());
    request.dsts.push_back(dsts.back().view());
  }
  run(rank, request);
  for (size_t k = 0; k < std::size(dtypes); ++k) {
    const Case c = {dtypes[k], ReduceOp::kSum, counts[k] + 3, 1.0, 1.0};
    check_same(c.dtype, dsts[k].get(), wanted(c, rank.rank.size, k), "tensor of a group");
  }
}

using Ints = std::vector<int32_t>;

int32_t element(int rank, size_t i) {
  return static_cast<int32_t>(static_cast<size_t>(rank) * 100003 + i % 99991 * 7 + 1);
}
Bytes bytes_of(const Ints& values) {
  Bytes bytes(values.size() * sizeof(int32_t));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}
Bytes given(int rank, size_t count, size_t first = 0) {
  Ints values(count);
  for (size_t i = 0; i < count; ++i) values[i] = element(rank, first + i);
  return bytes_of(values);
}
void append(Bytes& bytes, const Bytes& more) { bytes.insert(bytes.end(), more.begin(), more.end()); }
Bytes output(const Operation& operation) {
  if (operation.output_nbytes == 0) return {};
  const auto* at = reinterpret_cast<const uint8_t*>(FakeDevice::host(operation.output.get()));
  return Bytes(at, at + operation.output_nbytes);
}

void check_one_to_many(GpuRank& rank, size_t count, int root) {
  const int me = rank.rank.rank;
  const size_t n = static_cast<size_t>(rank.rank.size);
  const GpuTensor tensor(rank.gpu, DType::kInt32, {count}, given(me, count));
  Request request = request_of(Kind::kBroadcast, root);
  request.srcs = request.dsts = {tensor.view()};
  run(rank, request);
  expect(tensor.get() == given(root, count), "broadcast of " + std::to_string(count));

  const GpuTensor all(rank.gpu, DType::kInt32, {count * n}, given(me, count * n));
  const GpuTensor mine(rank.gpu, DType::kInt32, {count});
  request = request_of(Kind::kScatter, root);
  if (me == root) request.srcs = {all.view()};
  request.dsts = {mine.view()};
  run(rank, request);
  expect(mine.get() == given(root, count, count * static_cast<size_t>(me)), "scatter of " + std::to_string(count));
}

size_t rows_of(int rank, size_t count) { return (static_cast<size_t>(rank) * 3 + count) % (2 * count + 1); }
size_t split(int from, int to, size_t count) {
  return (static_cast<size_t>(from) + 2 * static_cast<size_t>(to) + count) % (count + 2);
}

void check_gathers(GpuRank& rank, size_t count, int root) {
  const int me = rank.rank.rank;
  const size_t rows = rows_of(me, count);
  const GpuTensor mine(rank.gpu, DType::kInt32, {rows, 2}, given(me, 2 * rows));
  Bytes all;
  for (int r = 0; r < rank.rank.size; ++r) append(all, given(r, 2 * rows_of(r, count)));
  for (const Kind kind : {Kind::kAllgather, Kind::kGather}) {
    Request request = request_of(kind, kind == Kind::kGather ? root : -1);
    request.srcs = {mine.view()};
    const OperationPtr operation = run(rank, request);
    const bool receives = kind == Kind::kAllgather || me == root;
    expect(output(*operation) == (receives ? all : Bytes()), std::string(name(kind)) + " of " + std::to_string(count));
    for (size_t r = 0; receives && r < operation->counts.size(); ++r) {
      expect(operation->counts[r] == rows_of(static_cast<int>(r), count), "first dimensions");
    }
  }
}

void check_alltoall(GpuRank& rank, size_t count) {
  const int me = rank.rank.rank;
  Request request = request_of(Kind::kAlltoall);
  size_t rows = 0;
  for (int to = 0; to < rank.rank.size; ++to) {
    request.splits.push_back(split(me, to, count));
    rows += request.splits.back();
  }
  const GpuTensor mine(rank.gpu, DType::kInt32, {rows}, given(me, rows));
  request.srcs = {mine.view()};
  Bytes all;
  for (int from = 0; from < rank.rank.size; ++from) {
    size_t begin = 0;
    for (int to = 0; to < me; ++to) begin += split(from, to, count);
    append(all, given(from, split(from, me, count), begin));
  }
  expect(output(*run(rank, request)) == all, "alltoall of " + std::to_string(count));
}

Bytes sums(int size, size_t count, size_t first = 0) {
  Ints values(count);
  for (int r = 0; r < size; ++r) {
    for (size_t i = 0; i < count; ++i) values[i] += element(r, first + i);
  }
  return bytes_of(values);
}

void check_reduces(GpuRank& rank, size_t count, int root) {
  const int me = rank.rank.rank;
  const GpuTensor src(rank.gpu, DType::kInt32, {count, 3}, given(me, 3 * count));
  const GpuTensor dst(rank.gpu, DType::kInt32, {count, 3});
  const Bytes untouched = dst.get();
  Request request = request_of(Kind::kReduce, root);
  request.srcs = {src.view()};
  request.dsts = {dst.view()};
  run(rank, request);
  expect(dst.get() == (me == root ? sums(rank.rank.size, 3 * count) : untouched), "reduce of " + std::to_string(count));
  const Range rows = segment(count, rank.rank.size, me);
  const GpuTensor part(rank.gpu, DType::kInt32, {rows.count(), 3});
  request = request_of(Kind::kReduceScatter);
  request.srcs = {src.view()};
  request.dsts = {part.view()};
  run(rank, request);
  expect(part.get() == sums(rank.rank.size, 3 * rows.count(), 3 * rows.begin),
         "reducescatter of " + std::to_string(count));
}

void check_all(GpuRank& rank) {
  const size_t n = static_cast<size_t>(rank.rank.size);
  check_allreduces(rank);
  check_buckets(rank);
  for (const size_t count : {size_t{0}, size_t{1}, n + 1, size_t{101}, size_t{7919}}) {
    const int root = static_cast<int>(count % n);
    check_one_to_many(rank, count, root);
    check_gathers(rank, count, root);
    check_alltoall(rank, count);
    check_reduces(rank, count, root);
  }
  barrier(rank.world);
  expect(rank.rank.context.stats().cells < 40, "nothing of a GPU goes through a cell");
}

TEST_CASE("GPUs: every kind by both roads, sharing one GPU, two each, and one each") {
  for (const char* road : {"auto", "staged"}) {
    for (const int size : {1, 2, 3, 4}) {
      for (const int each : {1, 2, 4}) {
        if (each > size && each != 4) continue;
        CAPTURE(road);
        CAPTURE(size);
        CAPTURE(each);
        const Environment environment{{"RINGREDUCE_CUDA_ROAD", road}};
        std::atomic<uint64_t> launches{0};
        CHECK_NOTHROW(
            run_ranks(size, on_gpu(own_gpus(static_cast<uint64_t>(10 * size + each), each), [&](GpuRank& rank) {
                        check_all(rank);
                        const Stats& stats = rank.rank.context.stats();
                        const bool is_staged = std::string(road) == "staged";
                        expect((stats.cuda_staged > 0) == is_staged, "staged");
                        expect((stats.cuda_ipc > 0) != is_staged, "ipc");
                        expect(stats.fused_operations > 0, "buckets were fused");
                        if (!is_staged && rank.rank.rank % each != 0) {
                          expect(rank.gpu.launches() == 0, "only leaders launch");
                        }
                        launches += rank.gpu.launches();
                      })));
        CHECK(launches > 0);
      }
    }
  }
}

TEST_CASE("GPUs: chunks of all sizes, in one round and in many") {
  for (const char* chunk : {"1", "4097", "65536", "16777216"}) {
    for (const char* road : {"ipc", "staged"}) {
      CAPTURE(chunk);
      CAPTURE(road);
      const Environment environment{{"RINGREDUCE_CUDA_ROAD", road}, {"RINGREDUCE_CHUNK", chunk}};
      CHECK_NOTHROW(run_ranks(3, on_gpu(own_gpus(5, 2), [](GpuRank& rank) {
                                const Case c = {DType::kFloat32, ReduceOp::kSum, 300007, 1.0, 1.0};
                                check_allreduce(rank, c, true, "");
                                check_buckets(rank);
                                check_alltoall(rank, 5000);
                                check_reduces(rank, 9001, 1);
                                barrier(rank.world);
                              })));
    }
  }
}

TEST_CASE("GPUs on two hosts") {
  for (const auto& host_of : kLayouts) {
    CAPTURE(host_of.size());
    const Environment environment{};
    CHECK_NOTHROW(run_hosts(host_of, on_gpu(shared_gpu(3), [](GpuRank& rank) {
                              for (const size_t count : {size_t{0}, size_t{5}, size_t{3001}}) {
                                const int root = static_cast<int>(count) % rank.rank.size;
                                check_one_to_many(rank, count, root);
                                check_gathers(rank, count, root);
                                check_alltoall(rank, count);
                                check_reduces(rank, count, root);
                              }
                              for (const size_t count : {size_t{7}, size_t{100003}}) {
                                for (const bool in_place : {false, true}) {
                                  check_allreduce(rank, {DType::kInt32, ReduceOp::kSum, count, 1.0, 1.0}, in_place, "");
                                }
                                check_allreduce(rank, {DType::kBFloat16, ReduceOp::kMax, count, 1.0, 1.0}, true, "b");
                              }
                              expect(rank.rank.context.stats().cuda_staged > 0, "staged");
                              barrier(rank.world);
                            })));
  }
}

TEST_CASE("GPUs on two hosts: a long tensor goes in pieces, beside short ones") {
  const Environment environment{{"RINGREDUCE_CHUNK", "65536"}};
  const auto body = [](GpuRank& rank) {
    const size_t counts[] = {100, 4500007, 3};  // of 4 bytes: more than two pieces of 8 MiB
    std::vector<GpuTensor> tensors;
    Request request = request_of(Kind::kAllreduce);
    for (const size_t count : counts) {
      tensors.emplace_back(rank.gpu, DType::kInt32, std::vector<uint64_t>{count}, given(rank.rank.rank, count));
      request.srcs.push_back(tensors.back().view());
    }
    request.dsts = request.srcs;
    run(rank, request);
    for (size_t k = 0; k < std::size(counts); ++k) expect(tensors[k].get() == sums(3, counts[k]), "sum in pieces");
    barrier(rank.world);
  };
  CHECK_NOTHROW(run_hosts({0, 0, 1}, on_gpu(own_gpus(3), body), 64, 65536));
}

TEST_CASE("GPUs: memory that cannot be exported is staged, and so is what a GPU may not map") {
  const Environment environment{};
  const auto gpus = [](bool exports, bool imports) {
    return [=](int rank) {
      FakeOptions options = own_gpus(7)(rank);
      options.exports = exports || rank != 1;
      options.imports = imports || rank != 1;
      return options;
    };
  };
  CHECK_NOTHROW(run_ranks(3, on_gpu(gpus(false, true), [](GpuRank& rank) {
                            check_all(rank);
                            // What is empty needs no mapping.
                            const Stats& stats = rank.rank.context.stats();
                            expect(stats.cuda_staged > 3 * stats.cuda_ipc, "what lies in rank 1's memory is staged");
                          })));
  CHECK_NOTHROW(run_ranks(3, on_gpu(gpus(true, false), [](GpuRank& rank) {
                            check_buckets(rank);
                            check_all(rank);
                            const Stats& stats = rank.rank.context.stats();
                            expect(stats.cuda_ipc > 0 && stats.cuda_ipc < 20, "tried at first");
                            expect(stats.cuda_staged > stats.cuda_ipc, "then staged");
                          })));
}

TEST_CASE("GPUs: a forced road that cannot be taken is an error on all ranks, and the group goes on") {
  for (const char* road : {"nccl", "mpi", "ipc"}) {
    CAPTURE(road);
    const Environment environment{{"RINGREDUCE_CUDA_ROAD", road}};
    const auto no_mapping = [](int rank) {
      FakeOptions options = own_gpus(1)(rank);
      options.imports = false;
      return options;
    };
    CHECK_NOTHROW(run_ranks(2, on_gpu(no_mapping, [&](GpuRank& rank) {
                              const GpuTensor tensor(rank.gpu, DType::kFloat32, {50000});
                              Request request = request_of(Kind::kAllreduce);
                              request.srcs = request.dsts = {tensor.view()};
                              for (const bool named : {false, true}) {
                                const std::string name = "tensor";
                                request.name = named ? &name : nullptr;
                                const std::string text = raised<InternalError>([&] { run(rank, request); });
                                expect_contains(text, std::string("RINGREDUCE_CUDA_ROAD=") + road);
                                expect_contains(text, road == std::string("ipc") ? "peer access" : "not every rank");
                              }
                              sum_now(rank.rank, rank.world, 5000, 1);
                            })));
  }
}

TEST_CASE("GPUs: the ranks' tensors are in different places") {
  const Environment environment{};
  CHECK_NOTHROW(run_ranks(3, on_gpu(shared_gpu(1), [](GpuRank& rank) {
                            for (const size_t count : {size_t{1}, size_t{5000}}) {
                              Floats host(count, 1);
                              const GpuTensor tensor(rank.gpu, DType::kFloat32, {count});
                              Request request = request_of(Kind::kAllreduce);
                              request.srcs = {rank.rank.rank == 2 ? tensor.view() : view(host, DType::kFloat32)};
                              request.dsts = request.srcs;
                              const std::string name = "odd";
                              request.name = &name;
                              expect_contains(
                                  raised<MismatchError>([&] { run(rank, request); }),
                                  "Mismatched ALLREDUCE CPU/GPU device selection: One rank specified device CPU, but "
                                  "another rank specified device GPU.");
                              request.srcs = {view(host, DType::kFloat32), tensor.view()};
                              request.dsts = request.srcs;
                              expect_contains(raised<InternalError>([&] { run(rank, request); }),
                                              "Tensors in list must be on same device.");
                              sum_now(rank.rank, rank.world, count, 1);
                            }
                          })));
}

TEST_CASE("GPUs: a rank without one is told so") {
  const Environment environment{};
  CHECK_NOTHROW(run_ranks(1, [](Rank& rank) {
    FakeDevice device;
    const GpuTensor tensor(device, DType::kFloat32, {3});
    Request request = request_of(Kind::kAllreduce);
    request.srcs = request.dsts = {tensor.view()};
    expect_contains(raised<UnavailableError>([&] { rank.world.submit(request, nullptr); }), "no GPU");
  }));
}

TEST_CASE("GPUs: process sets of their own, at the same time") {
  for (const char* road : {"ipc", "staged"}) {
    CAPTURE(road);
    const Environment environment{{"RINGREDUCE_CUDA_ROAD", road}};
    const Fd odd = create_memfd("odd", Board::nbytes(2, 64));
    const Fd even = create_memfd("even", Board::nbytes(2, 64));
    CHECK_NOTHROW(run_ranks(4, on_gpu(own_gpus(2, 2), [&](GpuRank& rank) {
                              const int me = rank.rank.rank;
                              const std::vector<int> members = me % 2 == 0 ? std::vector<int>{0, 2} : std::vector{1, 3};
                              Group& half = *rank.rank.context.add_group(me % 2 == 0 ? even.get() : odd.get(), members,
                                                                         1 + me % 2, nullptr);
                              for (int turn = 0; turn < 20; ++turn) {
                                const Case c = {DType::kFloat32, ReduceOp::kSum, 5000, 1.0, 1.0};
                                const GpuTensor mine(rank.gpu, c.dtype, {c.count}, input(c, me));
                                const GpuTensor all(rank.gpu, c.dtype, {c.count}, input(c, me));
                                Request request = request_of(Kind::kAllreduce);
                                request.is_async = true;
                                request.srcs = request.dsts = {all.view()};
                                const OperationPtr whole = rank.world.submit(request, nullptr);
                                request.srcs = request.dsts = {mine.view()};
                                half.wait(*half.submit(request, nullptr), -1, nullptr);
                                rank.world.wait(*whole, -1, nullptr);
                                const std::vector<Bytes> both = {input(c, members[0]), input(c, members[1])};
                                const Bytes want = rr_test::oracle({c.dtype, c.op, 1.0, 1.0, 2}, both);
                                check_same(c.dtype, mine.get(), want, "sum over the set");
                                check_same(c.dtype, all.get(), wanted(c, 4), "sum over all");
                              }
                              rank.rank.context.remove_group(&half, nullptr);
                            })));
  }
}

TEST_CASE("GPUs: sums go on without the ranks that have joined") {
  for (const char* road : {"ipc", "staged"}) {
    CAPTURE(road);
    const Environment environment{{"RINGREDUCE_CUDA_ROAD", road}};
    CHECK_NOTHROW(run_ranks(3, on_gpu(own_gpus(4, 2), [](GpuRank& rank) {
                              const int me = rank.rank.rank;
                              for (int step = 0; step < 4 * (3 - me); ++step) {
                                const Case c = {DType::kFloat32, ReduceOp::kAverage, 4001, 1.0, 1.0};
                                const GpuTensor tensor(rank.gpu, c.dtype, {c.count}, input(c, me));
                                std::vector<Bytes> inputs;
                                for (int r = 0; r < 3; ++r) {
                                  if (step < 4 * (3 - r)) inputs.push_back(input(c, r));
                                }
                                Request request = request_of(Kind::kAllreduce);
                                request.op = c.op;
                                request.srcs = request.dsts = {tensor.view()};
                                run(rank, request);
                                check_same(c.dtype, tensor.get(), rr_test::oracle({c.dtype, c.op, 1.0, 1.0, 3}, inputs),
                                           "those left");
                              }
                              rank.world.join(nullptr);
                              check_allreduce(rank, {DType::kFloat32, ReduceOp::kSum, 4001, 1.0, 1.0}, true, "");
                            })));
  }
}

// Its lanes go on only when it has told the others.
void leave(GpuRank& rank) {
  std::thread lanes([&] {
    while (!rank.rank.context.is_shut_down()) std::this_thread::yield();
    const auto left = [&] {
      return rank.world.board().line(rank.rank.rank).attendance.load() == static_cast<uint32_t>(Attendance::kShutDown);
    };
    wait_for(left);
    rank.gpu.advance();
  });
  rank.rank.context.shutdown();
  lanes.join();
}

TEST_CASE("GPUs: a rank that leaves in the middle, and one whose GPU breaks") {
  for (const char* road : {"ipc", "staged"}) {
    CAPTURE(road);
    const Environment environment{{"RINGREDUCE_CUDA_ROAD", road}};
    const auto manual = [](int rank) {
      FakeOptions options = own_gpus(4)(rank);
      options.manual = rank == 2;
      return options;
    };
    for (const bool breaks : {false, true}) {
      std::atomic<int> waiting{0};
      CHECK_NOTHROW(run_ranks(3, on_gpu(manual, [&](GpuRank& rank) {
                                const auto tensor = std::make_shared<GpuTensor>(rank.gpu, DType::kFloat32,
                                                                                std::vector<uint64_t>{50000});
                                Request request = request_of(Kind::kAllreduce);
                                request.srcs = request.dsts = {tensor->view()};
                                request.is_async = true;
                                request.keep = tensor;
                                const OperationPtr operation = rank.world.submit(request, nullptr);
                                if (rank.rank.rank == 2) {
                                  // Its lanes do nothing, so the operation cannot end.
                                  wait_for([&] { return rank.gpu.is_busy(); });
                                  if (!breaks) return leave(rank);
                                  rank.gpu.break_down("an illegal memory access was encountered");
                                }
                                const std::string text = raised<InternalError>([&] {
                                  try {
                                    rank.world.wait(*operation, -1, nullptr);
                                  } catch (const ShutdownError& error) {
                                    throw InternalError(error.what());
                                  }
                                });
                                expect_contains(text, breaks ? "illegal memory access" : "rank 2 called shutdown()");
                                ++waiting;
                              })));
      CHECK(waiting == (breaks ? 3 : 2));
    }
  }
}

TEST_CASE("mappings: each is made once, and the least recently used and the idle are forgotten") {
  FakeDevice owner;
  const auto device = std::make_shared<FakeDevice>();
  CHECK((DeviceMappings::of(device) == DeviceMappings::of(device)));
  DeviceMappings mappings(device, 2);
  std::vector<DeviceExport> exports;
  std::vector<std::byte*> memory;
  for (int i = 0; i < 4; ++i) {
    memory.push_back(owner.allocate(100));
    exports.push_back(device_operand(owner, memory.back() + 8, 16).memory);
    CHECK(device_operand(owner, memory.back() + 8, 16).offset == 8);
  }
  std::byte* const first = mappings.hold(exports[0]);
  CHECK(mappings.hold(exports[0]) == first);
  for (int i = 1; i < 4; ++i) mappings.hold(exports[static_cast<size_t>(i)]);
  CHECK(mappings.count() == 4);
  mappings.release({exports[1].uid, exports[0].uid});
  CHECK(mappings.count() == 3);  // 0 is still held, 2 and 3 too
  mappings.release({exports[2].uid});
  CHECK(mappings.count() == 2);
  mappings.release({exports[0].uid, exports[3].uid});
  CHECK(mappings.count() == 2);
  CHECK(mappings.hold(exports[0]) == first);
  CHECK(device->imports() == 4);
  mappings.trim();
  CHECK(mappings.count() == 2);

  DeviceMappings forgetful(device, 2, 0);
  forgetful.hold(exports[1]);
  forgetful.trim();
  CHECK(forgetful.count() == 1);
  forgetful.release({exports[1].uid});
  forgetful.trim();
  CHECK(forgetful.count() == 0);
}

TEST_CASE("roads: the rule, and why") {
  DeviceTeam team;
  team.ranks = 4;
  team.gpus = 2;
  team.exported = team.nccl = team.mpi = true;
  CHECK(select_road("auto", team).algorithm == Algo::kIpc);
  CHECK(select_road("nccl", team).algorithm == Algo::kAuto);
  CHECK(select_road("nccl", team).reason.find("one rank a GPU") != std::string::npos);
  team.is_mappable = false;
  CHECK(select_road("auto", team).algorithm == Algo::kMpi);
  team.gpus = 4;
  CHECK(select_road("auto", team).algorithm == Algo::kNccl);
  team.is_mappable = true;
  CHECK(select_road("auto", team).algorithm == Algo::kNccl);
  team.is_mappable = team.is_whole_group = false;
  CHECK(select_road("auto", team).algorithm == Algo::kNccl);
  team.nccl = false;
  CHECK(select_road("auto", team).algorithm == Algo::kPinned);
  team.several_hosts = team.is_whole_group = team.nccl = true;
  CHECK(select_road("auto", team).algorithm == Algo::kNccl);
  CHECK(select_road("ipc", team).algorithm == Algo::kAuto);
  CHECK(select_road("staged", team).algorithm == Algo::kPinned);
  team.nccl = false;
  CHECK(select_road("auto", team).algorithm == Algo::kMpi);
  CHECK(select_road("auto", team).reason.find("not nccl") != std::string::npos);
  CHECK(std::string(name(Algo::kPinned)) == "cuda_staged");
}

}  // namespace
}  // namespace rr::test
