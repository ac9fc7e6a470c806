"""Records of operations: lost, torn, miscounted, or of an operation that was another one."""

from __future__ import annotations

from .row import Mutation

ROWS = (
    Mutation(
        "record-never-free",
        "csrc/recorder/record_ring.cc",
        "cell.sequence.store(taken_ + cells_.size(), std::memory_order_release);",
        "cell.sequence.store(taken_ + 2 * cells_.size(), std::memory_order_release);",
        ("recorder_test::recorder: a full ring",),
    ),
    Mutation(
        "record-group-of-name",
        "csrc/recorder/recorder.cc",
        "  std::string key(reinterpret_cast<const char*>(&group), sizeof group);\n",
        "  std::string key;\n",
        ("recorder_test::recorder: names are numbered",),
    ),
    Mutation(
        "record-names-for-ever",
        "csrc/recorder/recorder.cc",
        "names->known.size() >= kNamesMost",
        "names->known.size() >= 2 * kNamesMost",
        ("recorder_test::recorder: names without end",),
    ),
    Mutation(
        "record-names-kept",
        "csrc/recorder/recorder.cc",
        "    *names = Names();\n",
        "",
        ("recorder_test::recorder: names are numbered",),
    ),
    Mutation(
        "record-sum-of-words",
        "csrc/recorder/record_file.cc",
        "    sum += word;\n",
        "    sum ^= word;\n",
        ("recorder_test::recorder: a timeline's file",),
    ),
    Mutation(
        "record-unescaped",
        "csrc/recorder/json_text.h",
        """if (c == '"' || c == '\\\\') {""",
        """if (c == '\\\\') {""",
        ("recorder_test::recorder: a timeline's file",),
        objects=("record_file.cc",),
    ),
    Mutation(
        "record-not-failed",
        "csrc/operations/pending_operations.cc",
        "record_end(from, operation, state == State::kFailed);",
        "record_end(from, operation, false);",
        ("recorder_test::recorder: an operation that fails",),
    ),
    Mutation(
        "record-not-started",
        "csrc/engine/group/executor.cc",
        "      record_start(*operation, started_ns,",
        "      record_start(*operation, 0,",
        ("recorder_test::recorder: of each operation",),
    ),
    Mutation(
        "record-number-of-call",
        "csrc/operations/recording.cc",
        ": operation.name.empty() ? operation.ticket.tag",
        ": operation.name.empty() ? operation.number",
        ("recorder_test::recorder: of each operation",),
    ),
    Mutation(
        "clock-asked-at-once",
        "csrc/relay/clock_relay.cc",
        "  if (asked_ns_ != 0) return;\n",
        "",
        ("frames_test::frames: the first host's clock",),
    ),
    Mutation(
        "clock-without-question",
        "csrc/relay/clock_relay.cc",
        'frame.expect(asked_ns_ != 0, "tells',
        'frame.expect(true, "tells',
        ("frames_test::frames: what cannot be",),
    ),
    Mutation(
        "clock-by-thread",
        "csrc/relay/clock_relay.cc",
        "  return arrived == 0 ? now_ns() :",
        "  return true ? now_ns() :",
        ("frames_test::frames: the first host's",),
    ),
    Mutation(
        "clock-answer-takes-no-time",
        "csrc/relay/clock_relay.cc",
        "  record.called_ns = asked_ns_ + made_ns",
        "  record.called_ns = asked_ns_ + 0 * made_ns",
        ("frames_test::frames: the first host's clock",),
    ),
    Mutation(
        "arrival-of-a-full-room",
        "csrc/os/arrival_times.cc",
        "static_cast<size_t>(n) == nbytes || ",
        "",
        ("os_test::bytes have arrived",),
    ),
    Mutation(
        "arrival-when-read",
        "csrc/os/arrival_times.cc",
        "latest_ns_ = ns_of(times.ts[0]) - ahead_ns_;",
        "latest_ns_ = now_ns();",
        ("os_test::bytes have arrived",),
    ),
)
