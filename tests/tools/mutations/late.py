"""Whom a job waits for: questions where a rank stands, their answers, and ranks that are late again and again."""

from __future__ import annotations

from .row import Mutation

ROWS = (
    Mutation(
        "status-answered-for",
        "csrc/engine/status_answers.cc",
        "    if (open.number != question) open = {question, now};\n",
        "    if (open.number == 0) open = {question, now};\n",
        ("rank_status_test::rank status: a rank that is asked again",),
    ),
    Mutation(
        "status-first-answer",
        "csrc/negotiation/rank_status.cc",
        "    if (question <= line(rank).answered.load(std::memory_order_relaxed)) return;\n",
        "",
        ("rank_status_test::rank status: a lock that somebody has",),
    ),
    Mutation(
        "status-answer-lost",
        "csrc/relay/status_relay.cc",
        "question == 0 || statuses_.answer(one->first, question, one->second);",
        "question == 0 || statuses_.answer(one->first, question, one->second) || true;",
        ("frames_test::frames: an answer waits",),
    ),
    Mutation(
        "status-other-host",
        "csrc/relay/status_relay.cc",
        "rank < static_cast<int>(asked_.size()) && hosts_.is_here(rank)",
        "rank < static_cast<int>(asked_.size())",
        ("frames_test::frames: what cannot be",),
    ),
    Mutation(
        "status-hanging-thread",
        "csrc/engine/status_answers.cc",
        "if (!finding.is_done && now - begun_ns_ < kPatienceNs) return;",
        "if (!finding.is_done) return;",
        ("rank_status_test::rank status: a thread that cannot look",),
        limit_s=30,
    ),
    Mutation(
        "late-speaker",
        "csrc/engine/group/late_operations.cc",
        "if (!runs || !parts_.negotiation.requests().has_announced_since(operation.ticket, r)) continue;",
        "if (runs || !runs) continue;",
        ("late_operations_test::late operations: one rank speaks",),
    ),
    Mutation(
        "late-told",
        "csrc/engine/group/late_operations.cc",
        "  if (is_told) return true;\n",
        "",
        ("late_operations_test::late operations: one rank speaks",),
    ),
    Mutation(
        "late-usual",
        "csrc/operations/usual_waits.cc",
        "std::min(kTimes * usual_s, usual_s + kMoreS)",
        "kTimes * usual_s",
        ("rank_status_test::usual waits",),
    ),
    Mutation(
        "late-many",
        "csrc/engine/late_ranks.cc",
        "!are_few || least_found_ns < kOthersTimes * most_other_ns",
        "least_found_ns < kOthersTimes * most_other_ns",
        ("late_ranks_test::late ranks: nobody",),
    ),
    Mutation(
        "late-once",
        "csrc/engine/late_ranks.cc",
        "  for (const Found& one : found) told_ns_[static_cast<size_t>(one.rank)] = now_ns;\n",
        "",
        ("late_ranks_test::late ranks: one is told",),
    ),
    Mutation(
        "late-pause",
        "csrc/engine/late_ranks.cc",
        " <= kLongestShare * static_cast<double>(sum.late_ns)",
        " <= static_cast<double>(sum.late_ns)",
        ("late_ranks_test::late ranks: operations that have piled up",),
    ),
    Mutation(
        "late-chain",
        "csrc/engine/wait_sampler.cc",
        "missed_in[at] != 0 && !waits.is_waiting[at] &&",
        "missed_in[at] != 0 &&",
        ("late_ranks_test::late ranks: who waits",),
    ),
    Mutation(
        "late-side-thread",
        "csrc/engine/wait_sampler.cc",
        "  if (!is_main_thread && is_main_thread_on_cpu(pid_of(rank))) return {};\n",
        "",
        ("late_ranks_test::late ranks: a thread that waits",),
    ),
    Mutation(
        "late-own-code",
        "ringreduce/job/main_thread.py",
        "[one for one in places if is_user_code(one.path)] or places",
        "places",
        ("test_stall.py",),
    ),
    Mutation(
        "report-since",
        "ringreduce/job/report_interval.py",
        "        if elapsed_s > 0:\n            self._before = now\n",
        "        pass\n",
        ("test_late_ranks.py",),
    ),
    Mutation(
        "report-log-interval",
        "ringreduce/common/report_log.py",
        "self._interval = ReportInterval()",
        "self._interval = basics._report_interval",
        ("test_report_log.py",),
    ),
)
