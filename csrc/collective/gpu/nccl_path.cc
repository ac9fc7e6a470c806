#include "collective/gpu/nccl_path.h"

#include "base/errors.h"

namespace rr {
namespace {

NcclOp op_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kProduct:
      return NcclOp::kProduct;
    case ReduceOp::kMax:
      return NcclOp::kMax;
    case ReduceOp::kMin:
      return NcclOp::kMin;
    default:
      return NcclOp::kSum;
  }
}

bool is_scaled(const Reduction& reduction) {
  const bool adds = reduction.op == ReduceOp::kSum || reduction.op == ReduceOp::kAverage;
  return adds && nccl_factor(reduction) != 1.0;
}

class NcclPath final : public Algorithm {
 public:
  NcclPath(std::shared_ptr<NcclTeams> teams, Team team, NcclJob job)
      : teams_(std::move(teams)), team_(std::move(team)), job_(std::move(job)) {
    teams_->begin();
    teams_->begin_preparing();
  }

  ~NcclPath() override {
    // The group has failed: whoever is dead will not take part, and kernels that wait for it must end.
    if (state_ != State::kDone) teams_->abort();
    if (state_ == State::kMeet || state_ == State::kLaunch) teams_->end_preparing();
    teams_->end();
  }

  Step step() override {
    Device& device = teams_->device();
    const auto current = device.make_current();
    switch (state_) {
      case State::kMeet:
        // A communicator is made from another one only while that has nothing under way.
        if (!teams_->has(team_) && !teams_->is_alone()) return Step::kIdle;
        communicator_ = teams_->communicator(team_);
        if (communicator_ == nullptr || !communicator_->settled()) return Step::kIdle;
        issue(device);
        state_ = State::kLaunch;
        [[fallthrough]];
      case State::kLaunch:
        if (!communicator_->settled()) return Step::kIdle;
        finish(device);
        teams_->end_preparing();
        state_ = State::kRun;
        return Step::kIssued;
      case State::kRun:
        // This throws what has gone wrong, after which kernels let go, too.
        if (!communicator_->settled() || !device.passed(mark_)) return Step::kIdle;
        state_ = State::kDone;
        break;
      case State::kDone:
        break;
    }
    return Step::kDone;
  }

  bool needs(int rank) const override {
    if (state_ == State::kDone || rank == team_.rank()) return false;
    for (const int r : team_.members) {
      if (r == rank) return true;
    }
    return false;
  }

 private:
  enum class State { kMeet, kLaunch, kRun, kDone };

  void issue(Device& device) {
    for (const NcclJob::Move& move : job_.before) {
      device.move(teams_->work_stream(), move.parts, move.dtype, move.dtype, 1.0);
    }
    const NcclLibrary& nccl = communicator_->library();
    for (const NcclCall& call : job_.calls) ops_.push_back(op(nccl, call));
    communicator_->check(nccl.GroupStart(), "ncclGroupStart");
    try {
      for (size_t i = 0; i < job_.calls.size(); ++i)
        enqueue(nccl, job_.calls[i], ops_[i], device.stream(teams_->work_stream()));
    } catch (...) {
      // A group is the thread's: one left open would swallow whatever the thread asks of NCCL later, torch's calls too.
      nccl.GroupEnd();
      throw;
    }
    communicator_->check(nccl.GroupEnd(), "ncclGroupEnd");
  }

  // A scaled sum is an operation that the communicator makes; the calls of a bucket with the same reduction share it.
  NcclOp op(const NcclLibrary& nccl, const NcclCall& call) {
    const Reduction& one = call.reduction;
    if (!is_scaled(one)) return op_of(one.op);
    for (size_t i = 0; i < ops_.size(); ++i) {
      const Reduction& other = job_.calls[i].reduction;
      if (is_scaled(other) && other.dtype == one.dtype && nccl_factor(other) == nccl_factor(one)) return ops_[i];
    }
    NcclOp made = NcclOp::kSum;
    std::array<std::byte, 8> scalar = nccl_scalar(one.dtype, nccl_factor(one));
    communicator_->check(nccl.RedOpCreatePreMulSum(&made, scalar.data(), nccl_type(one.dtype),
                                                   NcclScalar::kHostImmediate, communicator_->handle()),
                         "ncclRedOpCreatePreMulSum");
    made_.push_back(made);
    return made;
  }

  void enqueue(const NcclLibrary& nccl, const NcclCall& call, NcclOp op, Stream stream) {
    ncclComm* const comm = communicator_->handle();
    const auto type = [&call] { return nccl_type(call.reduction.dtype); };
    constexpr NcclType kBytes = NcclType::kUInt8;
    switch (call.kind) {
      case NcclCall::Kind::kAllReduce:
        return check(nccl.AllReduce(call.src, call.dst, call.count, type(), op, comm, stream), "ncclAllReduce", call);
      case NcclCall::Kind::kReduce:
        return check(nccl.Reduce(call.src, call.dst, call.count, type(), op, call.peer, comm, stream), "ncclReduce",
                     call);
      case NcclCall::Kind::kReduceScatter:
        return check(nccl.ReduceScatter(call.src, call.dst, call.count, type(), op, comm, stream), "ncclReduceScatter",
                     call);
      case NcclCall::Kind::kBroadcast:
        return check(nccl.Broadcast(call.src, call.dst, call.count, kBytes, call.peer, comm, stream), "ncclBroadcast",
                     call);
      case NcclCall::Kind::kAllGather:
        return check(nccl.AllGather(call.src, call.dst, call.count, kBytes, comm, stream), "ncclAllGather", call);
      case NcclCall::Kind::kSend:
        return check(nccl.Send(call.src, call.count, kBytes, call.peer, comm, stream), "ncclSend", call);
      case NcclCall::Kind::kReceive:
        return check(nccl.Recv(call.dst, call.count, kBytes, call.peer, comm, stream), "ncclRecv", call);
    }
  }

  void check(NcclResult code, const char* name, const NcclCall& call) const {
    if (code == NcclResult::kSuccess || code == NcclResult::kInProgress) return;
    communicator_->check(code, std::string(name) + " of " + std::to_string(call.count) + " elements, peer " +
                                   std::to_string(call.peer) + ",");
  }

  // NCCL has put its kernels into the stream: what follows comes behind them.
  void finish(Device& device) {
    const NcclLibrary& nccl = communicator_->library();
    for (const NcclOp made : made_) {
      communicator_->check(nccl.RedOpDestroy(made, communicator_->handle()), "ncclRedOpDestroy");
    }
    for (const NcclJob::Move& move : job_.after) {
      device.move(teams_->work_stream(), move.parts, move.dtype, move.dtype, 1.0);
    }
    mark_ = device.mark(teams_->work_stream());
  }

  std::shared_ptr<NcclTeams> teams_;
  Team team_;
  NcclJob job_;
  State state_ = State::kMeet;
  NcclCommunicator* communicator_ = nullptr;
  std::vector<NcclOp> ops_;   // of each call
  std::vector<NcclOp> made_;  // those of them that have to be given back
  Mark mark_;
};

}  // namespace

std::unique_ptr<Algorithm> nccl_path(std::shared_ptr<NcclTeams> teams, Team team, NcclJob job) {
  return std::make_unique<NcclPath>(std::move(teams), std::move(team), std::move(job));
}

}  // namespace rr
