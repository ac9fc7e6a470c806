// What a group of calls does once its stream has come to it.
#include <unistd.h>

#include <cstring>

#include "communicator.h"
#include "process.h"

namespace fake_nccl {
namespace {

size_t itemsize_of(const Call& call) { return rr::itemsize(dtype_of(call.type)); }

void put(const Call& call, const Bytes& bytes, size_t begin, size_t nbytes) {
  std::memcpy(memory(call.dst), bytes.data() + begin, nbytes);
}

// Whether all that the call needs from others is there; then it is done.
bool complete(const ncclComm& comm, Call& call) {
  for (const std::string& path : call.theirs) {
    if (!path.empty() && !exists(path)) return false;
  }
  std::vector<Bytes> inputs(call.theirs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string& path = call.theirs[i];
    if (!path.empty() && !read(path, inputs[i])) return false;  // whose it was has aborted since
  }
  const size_t nbytes = call.count * itemsize_of(call);
  switch (call.kind) {
    case Call::kAllReduce:
      put(call, rr_test::oracle(call.reduction, inputs), 0, nbytes);
      break;
    case Call::kReduce:
      if (comm.rank == call.peer) put(call, rr_test::oracle(call.reduction, inputs), 0, nbytes);
      break;
    case Call::kReduceScatter:
      put(call, rr_test::oracle(call.reduction, inputs), static_cast<size_t>(comm.rank) * nbytes, nbytes);
      break;
    case Call::kBroadcast:
      put(call, inputs[static_cast<size_t>(call.peer)], 0, nbytes);
      break;
    case Call::kAllGather: {
      Bytes all;
      for (const Bytes& one : inputs) all.insert(all.end(), one.begin(), one.end());
      put(call, all, 0, all.size());
      break;
    }
    case Call::kSend:
      break;
    case Call::kReceive:
      if (inputs[0].size() == nbytes) {
        put(call, inputs[0], 0, nbytes);
      } else {
        misuse("a message of " + std::to_string(inputs[0].size()) + " bytes where " + std::to_string(nbytes) +
               " are expected");
      }
      ::unlink(call.theirs[0].c_str());
      break;
  }
  return true;
}

struct Group {
  std::shared_ptr<ncclComm> comm;
  std::vector<Call> calls;
};

bool run(void* data) {
  Group& group = *static_cast<Group*>(data);
  if (group.comm->aborted.load()) return true;
  bool all = true;
  for (Call& call : group.calls) {  // everything is sent before anything is waited for
    if (!call.published && !call.mine.empty()) {
      const size_t blocks = call.kind == Call::kReduceScatter ? static_cast<size_t>(group.comm->size) : 1;
      publish(call.mine, memory(call.src), call.count * itemsize_of(call) * blocks);
    }
    call.published = true;
  }
  for (Call& call : group.calls) {
    if (!call.done) call.done = complete(*group.comm, call);
    all &= call.done;
  }
  return all;
}

}  // namespace

void launch(ncclComm& comm) {
  auto group = std::make_unique<Group>(Group{comm.shared_from_this(), std::move(comm.calls)});
  comm.calls.clear();
  for (Call& call : group->calls) {
    if (call.kind == Call::kSend || call.kind == Call::kReceive) {
      const bool sends = call.kind == Call::kSend;
      const int number = sends ? comm.sent[call.peer]++ : comm.got[call.peer]++;
      const int from = sends ? comm.rank : call.peer;
      const int to = sends ? call.peer : comm.rank;
      const std::string path =
          comm.base + "-p" + std::to_string(from) + "." + std::to_string(to) + "." + std::to_string(number);
      if (sends) {
        call.mine = path;
      } else {
        call.theirs = {path};
      }
      continue;
    }
    const std::string what = std::to_string(comm.issued++);
    const bool gives = call.kind != Call::kBroadcast || call.peer == comm.rank;
    for (int r = 0; r < comm.size; ++r) {
      const bool given = call.kind != Call::kBroadcast || call.peer == r;
      call.theirs.push_back(given ? comm.file(what, r) : "");
    }
    if (gives) {
      call.mine = comm.file(what, comm.rank);
      comm.files.insert(call.mine);
    }
  }
  ++comm.executed;
  enqueue(
      comm.device, comm.stream, run, [](void* data) { std::unique_ptr<Group>(static_cast<Group*>(data)).reset(); },
      group.release());
}

rr::DType dtype_of(rr::NcclType type) {
  constexpr rr::DType kTypes[] = {rr::DType::kInt8,    rr::DType::kUInt8,   rr::DType::kInt32,   rr::DType::kUInt32,
                                  rr::DType::kInt64,   rr::DType::kUInt64,  rr::DType::kFloat16, rr::DType::kFloat32,
                                  rr::DType::kFloat64, rr::DType::kBFloat16};
  return kTypes[static_cast<int>(type)];
}

}  // namespace fake_nccl
