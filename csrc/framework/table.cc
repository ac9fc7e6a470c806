#include "framework/calls.h"

#include <memory>
#include <new>
#include <utility>

struct RrOutcome {
  rr::Failure failure;
  bool interrupted = false;
  int64_t answer = 0;
  std::vector<rr::OperationPtr> operations;
};

namespace rr {
namespace {

TensorView view_of(const RrTensor& tensor) {
  TensorView view;
  view.data = static_cast<std::byte*>(tensor.data);
  view.dtype = dtype_from_code(tensor.dtype);
  view.set_shape(static_cast<size_t>(tensor.ndim), [&](size_t i) { return static_cast<uint64_t>(tensor.dims[i]); });
  return view;
}

Kind kind_from_code(int code) {
  constexpr int kCount = 0
#define RR_COUNT(id, upper, lower) +1
      RR_KINDS(RR_COUNT)
#undef RR_COUNT
      ;
  if (code < 0 || code >= kCount) throw InvalidArgumentError("no collective has the number " + std::to_string(code));
  return static_cast<Kind>(code);
}

Call call_of(const RrCall& plain) {
  Call call;
  call.process_set = plain.process_set;
  call.name = plain.name;
  Request& request = call.request;
  request.kind = kind_from_code(plain.kind);
  request.op = op_from_code(plain.op);
  request.prescale = plain.prescale;
  request.postscale = plain.postscale;
  request.root = plain.root_rank;
  if (plain.splits_count == 0)
    throw InvalidArgumentError("Number of entries in splits does not equal number of workers.");
  for (int64_t i = 0; i < plain.splits_count; ++i) {
    if (plain.splits[i] < 0) {
      throw InvalidArgumentError("alltoall expects splits of at least 0 rows, got " + std::to_string(plain.splits[i]));
    }
    request.splits.push_back(static_cast<uint64_t>(plain.splits[i]));
  }
  for (size_t i = 0; i < plain.srcs_count; ++i) request.srcs.push_back(view_of(plain.srcs[i]));
  for (size_t i = 0; i < plain.dsts_count; ++i) request.dsts.push_back(view_of(plain.dsts[i]));
  return call;
}

int64_t answer_of(Calls& calls, RrQuestion question, int process_set) {
  switch (question) {
    case kRrRank:
      return calls.place().rank;
    case kRrSize:
      return calls.size(process_set);
    case kRrLocalRank:
      return calls.place().local_rank;
    case kRrLocalSize:
      return calls.place().local_size;
    case kRrIncluded:
      return calls.included(process_set) ? 1 : 0;
    case kRrGroupRank:
      return calls.rank(process_set);
    case kRrJoin:
      return calls.join(process_set, SignalWatch::look);
  }
  throw InvalidArgumentError("no question has the number " + std::to_string(question));
}

template <class Work>
RrOutcome* outcome_of(Work work) noexcept {
  auto outcome = std::unique_ptr<RrOutcome>(new (std::nothrow) RrOutcome());
  if (outcome == nullptr) return nullptr;
  try {
    work(*outcome);
  } catch (const InterruptedCall& signal) {
    outcome->interrupted = true;
    outcome->failure.text = signal.what();
    outcome->operations = signal.operations;
  } catch (...) {
    outcome->failure = failure_of(std::current_exception());
  }
  return outcome.release();
}

extern "C" {

static RrOutcome* run(void* state, const RrCall* plain, size_t count) {
  return outcome_of([&](RrOutcome& outcome) {
    std::vector<Call> calls;
    for (size_t i = 0; i < count; ++i) calls.push_back(call_of(plain[i]));
    const Calls::InKernel in_kernel(Calls::Framework::kTensorFlow);
    outcome.operations = static_cast<Calls*>(state)->run(calls, SignalWatch::look);
  });
}

static RrOutcome* ask(void* state, RrQuestion question, int32_t process_set) {
  return outcome_of([&](RrOutcome& outcome) {
    const Calls::InKernel in_kernel(Calls::Framework::kTensorFlow);
    outcome.answer = answer_of(*static_cast<Calls*>(state), question, process_set);
  });
}

static int32_t error(const RrOutcome* outcome) {
  return outcome->interrupted ? kRrInterrupted : static_cast<int32_t>(outcome->failure.code);
}
static const char* text(const RrOutcome* outcome) { return outcome->failure.text.c_str(); }
static int64_t answer(const RrOutcome* outcome) { return outcome->answer; }

static const uint64_t* counts(const RrOutcome* outcome, size_t call, size_t* length) {
  const std::vector<uint64_t>& list = outcome->operations[call]->counts;
  *length = list.size();
  return list.data();
}

static void* take_output(RrOutcome* outcome, size_t call, size_t* nbytes) {
  *nbytes = outcome->operations[call]->output_nbytes;
  return outcome->operations[call]->output.release();
}

static void free_output(void* output) { const Output freed(static_cast<std::byte*>(output)); }
static void release(RrOutcome* outcome) { const std::unique_ptr<RrOutcome> released(outcome); }

}  // extern "C"
}  // namespace

RrTable table_of(Calls& calls) {
  return {kRrTableVersion, sizeof(RrTable), &calls,      run,         ask,    error, text,
          answer,          counts,          take_output, free_output, release};
}

const RrTable& process_table() {
  static const RrTable table = table_of(Calls::of_process());
  return table;
}

}  // namespace rr
