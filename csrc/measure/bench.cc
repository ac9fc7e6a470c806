#include "measure/bench.h"

#include <cstring>

#include "base/clock.h"

namespace rr {
namespace {

void call(Group& group, const BenchJob& job, Interrupt interrupt) {
  if (job.kind == Kind::kAllreduce && group.allreduce_quick(job.src, job.dst, job.reduction, interrupt)) return;
  Request request;
  request.kind = job.kind;
  if (job.kind != Kind::kBarrier) {
    request.srcs = {job.src};
    request.dsts = {job.dst};
    request.op = job.reduction.op;
    request.prescale = job.reduction.prescale;
    request.postscale = job.reduction.postscale;
  }
  if (job.kind == Kind::kBroadcast) {
    request.root = 0;
    request.dsts = {job.src};
  }
  group.wait(*group.submit(request, interrupt), -1, interrupt);
}

}  // namespace

std::vector<double> bench(Group& group, const BenchJob& job, Interrupt interrupt) {
  std::vector<double> seconds;
  BenchJob barrier;
  barrier.kind = Kind::kBarrier;
  if (!job.rewrite) {
    call(group, barrier, interrupt);
    const int64_t begin = now_ns();
    for (int i = 0; i < job.iters; ++i) call(group, job, interrupt);
    seconds.push_back(static_cast<double>(now_ns() - begin) * 1e-9 / job.iters);
    return seconds;
  }
  std::vector<std::byte> original(job.src.data, job.src.data + job.src.nbytes());
  for (int i = 0; i < job.iters; ++i) {
    std::memcpy(job.src.data, original.data(), original.size());
    call(group, barrier, interrupt);
    const int64_t begin = now_ns();
    call(group, job, interrupt);
    seconds.push_back(static_cast<double>(now_ns() - begin) * 1e-9);
  }
  return seconds;
}

}  // namespace rr
