#include "gpu/gpu_checks.h"

#include <cstring>

namespace rr::test {
namespace {

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

int32_t element(int rank, size_t i) {
  return static_cast<int32_t>(static_cast<size_t>(rank) * 100003 + i % 99991 * 7 + 1);
}

Bytes bytes_of(const Ints& values) {
  Bytes bytes(values.size() * sizeof(int32_t));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

Bytes output(const Operation& operation) {
  if (operation.output_nbytes == 0) return {};
  const auto* at = reinterpret_cast<const uint8_t*>(FakeDevice::host(operation.output.get()));
  return Bytes(at, at + operation.output_nbytes);
}

size_t rows_of(int rank, size_t count) { return (static_cast<size_t>(rank) * 3 + count) % (2 * count + 1); }

size_t split(int from, int to, size_t count) {
  return (static_cast<size_t>(from) + 2 * static_cast<size_t>(to) + count) % (count + 2);
}

}  // namespace

Bytes input(const Case& c, int rank, uint64_t salt) {
  return random_bytes(c.dtype, c.count, static_cast<uint64_t>(rank) + 100 * salt);
}

Bytes wanted(const Case& c, int size, uint64_t salt) {
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

void check_buckets(GpuRank& rank, bool together) {
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
    if (together) barrier(rank.world);
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

Bytes given(int rank, size_t count, size_t first) {
  Ints values(count);
  for (size_t i = 0; i < count; ++i) values[i] = element(rank, first + i);
  return bytes_of(values);
}

Bytes sums(int size, size_t count, size_t first) {
  Ints values(count);
  for (int r = 0; r < size; ++r) {
    for (size_t i = 0; i < count; ++i) values[i] += element(r, first + i);
  }
  return bytes_of(values);
}

void append(Bytes& bytes, const Bytes& more) { bytes.insert(bytes.end(), more.begin(), more.end()); }

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
  expect(rank.rank.context.stats().one_shot < 40, "nothing of a GPU goes through a request slot");
}

}  // namespace rr::test
