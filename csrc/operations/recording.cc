#include "operations/recording.h"

namespace rr {
namespace {

bool is_message(const Operation& operation) { return operation.ticket.tag == 0 && operation.peer != -1; }

Record record_of(const Resources& from, const Operation& operation) {
  const Signature& signature = operation.signature;
  const bool has_peer = operation.peer >= 0;
  Record record;
  record.number = is_message(operation)    ? operation.number
                  : operation.name.empty() ? operation.ticket.tag
                                           : operation.recorded.number;
  record.name = operation.recorded.name;
  record.group = from.recorded_group.number;
  if (has_peer) record.peer = static_cast<int16_t>(from.recorded_group.ranks[static_cast<size_t>(operation.peer)]);
  record.kind = static_cast<uint8_t>(operation.kind);
  record.dtype = static_cast<uint8_t>(signature.dtype);
  record.op = static_cast<uint8_t>(signature.op);
  return record;
}

}  // namespace

void record_end(const Resources& from, const Operation& operation, bool has_failed) {
  const RecordedCall& call = operation.recorded;
  if (call.timeline == 0) return;
  const Signature& signature = operation.signature;
  Record record = record_of(from, operation);
  record.type = is_message(operation) ? RecordType::kMessage : RecordType::kOperation;
  record.called_ns = operation.submitted_ns;
  record.ended_ns = call.in_cycles ? from.recorder.moment() : now_ns();
  record.started_ns = call.started_ns == RecordedCall::kAtItsEnd ? record.ended_ns : call.started_ns;
  record.nbytes = signature.nbytes;
  record.algorithm = call.algorithm;
  record.flags = static_cast<uint8_t>((signature.is_async != 0 ? kRecordAsync : 0) | (has_failed ? kRecordFailed : 0) |
                                      (operation.quick ? kRecordQuick : 0) | (call.is_fused ? kRecordFused : 0) |
                                      (call.in_cycles ? kRecordInCycles : 0) |
                                      (signature.place == Place::kDevice ? kRecordOnGpu : 0));
  record.thread = call.thread;
  from.recorder.add(call.timeline, record);
}

void RecordedWait::write() const {
  Record record;
  if (operation_ != nullptr) {
    record = record_of(from_, *operation_);
  } else {
    record.kind = kJoinRecorded;
    record.group = from_.recorded_group.number;
  }
  record.type = RecordType::kWait;
  record.called_ns = began_ns_;
  record.ended_ns = now_ns();
  record.thread = thread_number();
  if (record.thread != 0) record.nbytes = static_cast<uint64_t>(main_thread_cpu_ns() - main_cpu_ns_);
  from_.recorder.add(timeline_, record);
}

}  // namespace rr
