#include "planner/exchange_plan.h"

#include <algorithm>
#include <cstring>

namespace rr {

std::byte* allocate_output(const Resources& from, Operation& operation) {
  if (!operation.dsts.empty() && operation.dsts[0].nbytes() == operation.output_nbytes) return operation.dsts[0].data;
  const size_t nbytes = std::max<size_t>(1, operation.output_nbytes);
  if (operation.arena != nullptr) {
    operation.dsts.resize(1);
    operation.dsts[0].dtype = DType::kUInt8;
    operation.dsts[0].count = operation.output_nbytes;
    return operation.dsts[0].data = operation.arena->allocate(nbytes);
  }
  operation.output = operation.signature.place == Place::kDevice ? new_output_locked(from.gpu.shared_device(), nbytes)
                                                                 : new_output(nbytes);
  return operation.output.get();
}

std::string unexpected_rows(const Operation& operation, int rank) {
  const bool takes = operation.kind != Kind::kGather || operation.signature.root == rank;
  if (!takes || operation.expected.empty() || operation.counts == operation.expected) return "";
  const auto list = [](const std::vector<uint64_t>& counts) {
    std::string text;
    for (const uint64_t count : counts) text += (text.empty() ? "[" : ", ") + std::to_string(count);
    return text + "]";
  };
  return std::string(name(operation.kind)) + ": the ranks sent " + list(operation.counts) +
         (operation.signature.ndim == 1 ? " elements" : " rows") + ", but the outputs here have room for " +
         list(operation.expected);
}

namespace {

constexpr uint64_t kMostNbytes = uint64_t{1} << 48;  // what a process can map on x86-64 and ARMv8

// How many rows one rank has said that it sends to another one in an alltoall. 0 between ranks elsewhere: this host
// need not know.
uint64_t split(const Resources& from, const Operation& operation, int of_rank, int to) {
  if (!from.hosts.is_here(of_rank) && !from.hosts.is_here(to)) return 0;
  return from.control.splits(operation.ticket.request_slot, of_rank)[to];
}

// What ranks of other hosts have announced of their rows comes over the network: it must be what a tensor can have.
void check_rows(const Resources& from, const Operation& operation, int rank, uint64_t row) {
  const Signature& theirs = from.announced(operation, rank);
  uint64_t most_rows = theirs.dims[0];
  if (operation.kind == Kind::kAlltoall) {
    for (int to = 0; to < from.size(); ++to) most_rows = std::max(most_rows, split(from, operation, rank, to));
  }
  const bool is_possible = most_rows <= kMostNbytes / std::max<uint64_t>(1, row) && most_rows == theirs.dims[0] &&
                           theirs.nbytes == theirs.dims[0] * row;
  if (is_possible) return;
  throw InternalError("rank " + std::to_string(from.world_ranks[static_cast<size_t>(rank)]) + " is said to have " +
                      std::to_string(theirs.nbytes) + " bytes in " + std::to_string(most_rows) + " rows of " +
                      std::to_string(row) + " bytes; do all hosts run one build?");
}

// Of all ranks that have any the first one's; a rank without rows need not know.
uint64_t row_of(const Resources& from, const Operation& operation) {
  for (int r = 0; r < from.size(); ++r) {
    const Signature& theirs = from.announced(operation, r);
    if (theirs.dims[0] != 0) return theirs.nbytes / theirs.dims[0];
  }
  return 0;
}

}  // namespace

ExchangeJob exchange_job(const Resources& from, Operation& operation) {
  if (is_ragged(operation.kind)) {
    const uint64_t own = operation.srcs[0].count != 0 ? operation.srcs[0].row_nbytes() : row_of(from, operation);
    for (int r = 0; r < from.size(); ++r) check_rows(from, operation, r, own);
  }
  const int rank = from.rank;
  const size_t n = static_cast<size_t>(from.size());
  const Signature& mine = operation.signature;
  ExchangeJob job;
  job.sources.assign(n, true);
  const auto announced = [&](size_t r) -> const Signature& { return from.announced(operation, static_cast<int>(r)); };
  // rows x what one row takes; the row's size agrees on all ranks, but is unknown to a rank whose tensor has no rows
  const auto nbytes_of = [&](size_t r) { return static_cast<size_t>(announced(r).nbytes); };

  switch (operation.kind) {
    case Kind::kBroadcast: {
      const TensorView& tensor = operation.dsts[0];
      job.sources.assign(n, false);
      job.sources[static_cast<size_t>(mine.root)] = true;
      job.takers.assign(n, true);
      job.takers[static_cast<size_t>(mine.root)] = false;
      job.largest_nbytes = tensor.nbytes();
      if (mine.root == rank) {
        job.outgoing.push_back({operation.srcs[0].data, tensor.nbytes()});
      } else {
        job.incoming.push_back({mine.root, 0, tensor.data, tensor.nbytes(), 0});
      }
      break;
    }
    case Kind::kAllgather:
    case Kind::kGather: {
      job.outgoing.push_back({operation.srcs[0].data, operation.srcs[0].nbytes()});
      for (size_t r = 0; r < n; ++r) {
        operation.counts.push_back(announced(r).dims[0]);
        operation.output_nbytes += nbytes_of(r);
        job.largest_nbytes = std::max(job.largest_nbytes, nbytes_of(r));
      }
      if (operation.kind == Kind::kGather) {
        job.takers.assign(n, false);
        job.takers[static_cast<size_t>(mine.root)] = true;
      }
      if (operation.kind == Kind::kGather && mine.root != rank) {
        operation.output_nbytes = 0;
        operation.counts.clear();
        break;
      }
      std::byte* dst = allocate_output(from, operation);
      for (size_t r = 0; r < n; ++r) {
        job.incoming.push_back({static_cast<int>(r), 0, dst, nbytes_of(r), 0});
        dst += nbytes_of(r);
      }
      break;
    }
    case Kind::kScatter: {
      const TensorView& tensor = operation.dsts[0];
      job.blocks = from.size();
      job.own_block = rank;
      job.sources.assign(n, false);
      job.sources[static_cast<size_t>(mine.root)] = true;
      job.largest_nbytes = tensor.nbytes();
      for (size_t r = 0; r < n && mine.root == rank; ++r) {
        job.outgoing.push_back({operation.srcs[0].data + r * tensor.nbytes(), tensor.nbytes()});
      }
      const size_t before = static_cast<size_t>(rank) * tensor.nbytes();
      job.incoming.push_back({mine.root, rank, tensor.data, tensor.nbytes(), before});
      break;
    }
    case Kind::kAlltoall: {
      job.blocks = from.size();
      job.own_block = rank;
      const auto splits_of = [&](size_t r, size_t to) {
        return split(from, operation, static_cast<int>(r), static_cast<int>(to));
      };
      const size_t row = operation.srcs[0].row_nbytes();
      const std::byte* src = operation.srcs[0].data;
      for (size_t to = 0; to < n; ++to) {
        const size_t nbytes = static_cast<size_t>(operation.splits[to]) * row;
        job.outgoing.push_back({src, nbytes});
        src += nbytes;
      }
      for (size_t r = 0; r < n; ++r) {
        operation.counts.push_back(splits_of(r, static_cast<size_t>(rank)));
        operation.output_nbytes += static_cast<size_t>(operation.counts.back()) * row;
        for (size_t to = 0; to < n; ++to) {
          job.largest_nbytes = std::max(job.largest_nbytes, static_cast<size_t>(splits_of(r, to)) * row);
        }
      }
      std::byte* dst = allocate_output(from, operation);
      for (size_t r = 0; r < n; ++r) {
        const size_t nbytes = static_cast<size_t>(operation.counts[r]) * row;
        size_t before = 0;
        for (size_t to = 0; to < static_cast<size_t>(rank); ++to) before += static_cast<size_t>(splits_of(r, to)) * row;
        job.incoming.push_back({static_cast<int>(r), rank, dst, nbytes, before});
        dst += nbytes;
      }
      break;
    }
    default:
      break;
  }
  return job;
}

}  // namespace rr
