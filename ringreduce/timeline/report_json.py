"""The report of a job's timeline as JSON: flat rows whose keys say their units, for loggers and scripts."""

from __future__ import annotations

from ringreduce.timeline.analysis.conclusions import conclusions
from ringreduce.timeline.analysis.found import Analysis
from ringreduce.timeline.clocks import UNKNOWN_NS

VERSION = 1


def as_json(found: Analysis) -> dict[str, object]:
    """What json.dumps takes. Times with _s are in seconds since the first record; shares are from 0 to 1.

    * ranks (of which there are records), size (of the job), hosts, program, begin_unix_s, span_s, operations, nbytes
      (of each operation the largest rank's), clock_error_s (null: the hosts' clocks were never compared)
    * warnings, conclusions: sentences
    * late_ranks: those that the conclusions name, the latest first
    * computing_share, waiting_share, exposed_share, message_share: of the time of the ranks' main threads, 1 together;
      overlap_share: of communication time, in which they computed
    * nameless_wait_s: waits in operations that do not tell who was last, in the mean over the ranks
    * per_rank: one row each: rank, host, begin_s, span_s, operations, nbytes, computing_s, waiting_s (up to the last
      rank's call), exposed_s (after it), message_s: these four make up span_s; communication_s, overlap_s (of that,
      computing); last_in of judged_operations; others_waited_s, the mean over the other ranks, of which longest_wait_s
      in one operation; path_computing_s: its part of the critical path; others_stood_s: how long the others stood still
      meanwhile, in the mean
    * by_name: the 20 kinds and names that were longest under way: kind, name, operations, nbytes, time_s (the mean over
      ranks), p50_s, p99_s, max_s, busbw_GBps (the median of large ones; null: none), on_gpu (times are of issuing)
    * critical_path: span_s, computing_s, communication_s, message_s, is_sure, and by_name: kind, name, communication_s
    * links: between hosts, one row each, the slow ones first: from_rank, to_rank (the lowest of each host), from_host,
      to_host, nbytes, busy_s (it had bytes that the network did not take yet), busy_share, busy_rate (bytes a second
      meanwhile; null: never busy), is_slow (it held up the others)
    * steps: null, or marker_kind, marker_name, marker_nbytes, count, p50_s, p99_s, max_s, and slowest: number, begin_s,
      step_s, late_rank (null: nobody stands out), others_waited_s
    """
    job = found.job
    return {
        "format": "ringreduce timeline report",
        "version": VERSION,
        "program": job.files[0].program,
        "ranks": len(found.times),
        "size": job.files[0].size,
        "hosts": job.host_count,
        "begin_unix_s": job.base_realtime_ns / 1e9,
        "span_s": job.span_ns / 1e9,
        "operations": len(job.operations),
        "nbytes": found.nbytes,
        "clock_error_s": job.clock_error_ns / 1e9 if job.clock_error_ns != UNKNOWN_NS else None,
        "warnings": list(job.warnings),
        "conclusions": conclusions(found),
        "late_ranks": found.late,
        "computing_share": found.share("computing_ns"),
        "waiting_share": found.share("waiting_ns"),
        "exposed_share": found.share("exposed_ns"),
        "message_share": found.share("message_ns"),
        "overlap_share": found.overlap,
        "nameless_wait_s": found.lateness.nameless_ns / 1e9,
        "per_rank": _per_rank(found),
        "by_name": _by_name(found),
        "critical_path": _critical_path(found),
        "links": _links(found),
        "steps": _steps(found),
    }


def _per_rank(found: Analysis) -> list[dict[str, object]]:
    return [
        {
            "rank": time.rank,
            "host": time.host,
            "begin_s": time.begin_ns / 1e9,
            "span_s": time.span_ns / 1e9,
            "operations": len(time.rows),
            "nbytes": time.nbytes,
            "computing_s": time.computing_ns / 1e9,
            "waiting_s": time.waiting_ns / 1e9,
            "exposed_s": time.exposed_ns / 1e9,
            "message_s": time.message_ns / 1e9,
            "communication_s": time.communication_ns / 1e9,
            "overlap_s": time.hidden_ns / 1e9,
            "last_in": late.last_in,
            "judged_operations": late.judged,
            "others_waited_s": late.others_waited_ns / 1e9,
            "longest_wait_s": late.longest_ns / 1e9,
            "path_computing_s": found.path.computing_ns.get(time.rank, 0) / 1e9,
            "others_stood_s": found.path.others_stood_ns[time.rank] / 1e9,
        }
        for time, late in zip(found.times, found.lateness.ranks, strict=True)
    ]


def _by_name(found: Analysis) -> list[dict[str, object]]:
    return [
        {
            "kind": found.job.kinds[row.kind],
            "name": found.job.names[row.name],
            "operations": row.operations,
            "nbytes": row.nbytes,
            "time_s": row.time_ns / 1e9,
            "p50_s": row.p50_ns / 1e9,
            "p99_s": row.p99_ns / 1e9,
            "max_s": row.max_ns / 1e9,
            "busbw_GBps": row.busbw_GBps,
            "on_gpu": row.on_gpu,
        }
        for row in found.table
    ]


def _critical_path(found: Analysis) -> dict[str, object]:
    path, job = found.path, found.job
    return {
        "span_s": path.span_ns / 1e9,
        "computing_s": path.all_computing_ns / 1e9,
        "communication_s": path.all_communication_ns / 1e9,
        "message_s": path.message_ns / 1e9,
        "is_sure": not path.doubt,
        "by_name": [
            {"kind": job.kinds[kind], "name": job.names[name], "communication_s": ns / 1e9}
            for (kind, name), ns in path.communication_ns.items()
        ],
    }


def _links(found: Analysis) -> list[dict[str, object]]:
    return [
        {
            "from_rank": link.from_rank,
            "to_rank": link.to_rank,
            "from_host": link.from_host,
            "to_host": link.to_host,
            "nbytes": link.nbytes,
            "busy_s": link.busy_s,
            "busy_share": link.busy_share,
            "busy_rate": link.busy_rate if link.busy_s > 0 else None,
            "is_slow": link.is_slow,
        }
        for link in found.links
    ]


def _steps(found: Analysis) -> dict[str, object] | None:
    steps = found.steps
    if steps is None:
        return None
    marker = found.job.operations[steps.marker]
    return {
        "marker_kind": found.job.kinds[marker["kind"]],
        "marker_name": found.job.names[marker["name"]],
        "marker_nbytes": int(marker["nbytes"]),
        "count": len(steps.lengths_ns),
        "p50_s": steps.quantile_ns(0.5) / 1e9,
        "p99_s": steps.quantile_ns(0.99) / 1e9,
        "max_s": steps.quantile_ns(1.0) / 1e9,
        "slowest": [
            {
                "number": step.number,
                "begin_s": step.begin_ns / 1e9,
                "step_s": step.ns / 1e9,
                "late_rank": step.late_rank if step.late_rank >= 0 else None,
                "others_waited_s": step.others_waited_ns / 1e9,
            }
            for step in steps.slowest
        ],
    }
