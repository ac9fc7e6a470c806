// What a caller has room for, where only the operation knows how much comes: too little or too much is an error of the
// rank that has the room, in words, and of no other.
#include "doctest/doctest.h"
#include "gpu/gpu_checks.h"

namespace rr::test {
namespace {

constexpr size_t kRows = 40;
size_t rows_of(int rank) { return kRows + static_cast<size_t>(rank); }

struct Room {
  Kind kind = Kind::kAllgather;
  std::vector<uint64_t> expected;
  size_t rows = 0;    // of the output
  std::string wrong;  // what the error says; "": there is none
};

// Rank 1's rows are given by `mine`, the others' are right.
void check_room(GpuRank& rank, Kind kind, const std::function<void(Room&)>& mine) {
  const int me = rank.rank.rank;
  const int size = rank.rank.size;
  Room room;
  room.kind = kind;
  Request request = request_of(kind, kind == Kind::kGather ? 1 : -1);
  size_t sent = rows_of(me);
  if (kind == Kind::kAlltoall) {  // each rank sends as many rows to all as it has in an all-gather
    request.splits.assign(static_cast<size_t>(size), sent);
    sent *= static_cast<size_t>(size);
  }
  Bytes all;
  for (int r = 0; r < size; ++r) {
    room.expected.push_back(rows_of(r));
    room.rows += rows_of(r);
    append(all, given(r, 2 * rows_of(r), kind == Kind::kAlltoall ? 2 * static_cast<size_t>(me) * rows_of(r) : 0));
  }
  if (me == 1) mine(room);
  const GpuTensor src(rank.gpu, DType::kInt32, {sent, 2}, given(me, 2 * sent));
  const GpuTensor dst(rank.gpu, DType::kInt32, {room.rows, 2});
  const Bytes untouched = dst.get();
  request.srcs = {src.view()};
  if (kind != Kind::kGather) request.dsts = {dst.view()};
  if (kind != Kind::kGather || me == 1) request.expected = room.expected;
  const OperationPtr operation = rank.world.submit(request, nullptr);
  if (room.wrong.empty()) {
    rank.world.wait(*operation, -1, nullptr);
    if (kind != Kind::kGather) expect(dst.get() == all, std::string(name(kind)) + " where there is room");
  } else {
    const std::string text = raised<MismatchError>([&] { rank.world.wait(*operation, -1, nullptr); });
    expect_contains(text, std::string(name(kind)) + ": the ranks sent " + room.wrong);
    expect_contains(text, "[ringreduce rank 1/" + std::to_string(size));
    if (room.rows * 8 != all.size()) expect(dst.get() == untouched, "nothing is written where it does not belong");
  }
}

void check_rooms(GpuRank& rank) {
  const std::string sent = rank.rank.size == 2 ? "[40, 41]" : "[40, 41, 42]";
  const std::string end = rank.rank.size == 2 ? "]" : ", 42]";
  for (const Kind kind : {Kind::kAllgather, Kind::kAlltoall, Kind::kGather}) {
    check_room(rank, kind, [](Room&) {});
    check_room(rank, kind, [&](Room& room) {  // less than comes
      room.expected[0] -= 9;
      room.rows -= 9;
      room.wrong = sent + " rows, but the outputs here have room for [31, 41" + end;
    });
    check_room(rank, kind, [&](Room& room) {  // as much in all, from others
      room.expected[0] += 1;
      room.expected[1] -= 1;
      room.wrong = sent + " rows, but the outputs here have room for [41, 40" + end;
    });
  }
  const GpuTensor src(rank.gpu, DType::kInt32, {4});
  Request request = request_of(Kind::kAllgather);
  request.srcs = {src.view()};
  request.expected = {4};
  expect_contains(raised<InvalidArgumentError>([&] { rank.world.submit(request, nullptr); }), "1 expected numbers");
  barrier(rank.world);
  check_allreduce(rank, {DType::kFloat32, ReduceOp::kSum, 1000, 1.0, 1.0}, true, "");
}

TEST_CASE("GPUs: an output that has not the room for what comes is an error, by each path") {
  for (const char* const path : {"ipc", "staged"}) {
    CAPTURE(path);
    const Environment environment{{"RINGREDUCE_GPU_PATH", path}};
    CHECK_NOTHROW(run_ranks(3, on_gpu(shared_gpu(11), check_rooms)));
  }
  const Environment environment{};
  CHECK_NOTHROW(run_hosts({0, 1}, on_gpu(own_gpus(12), check_rooms)));
}

}  // namespace
}  // namespace rr::test
