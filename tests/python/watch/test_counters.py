"""The counters of a job whose process groups come and go: they never go down."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ranks import receive_from_test, send_to_test, start_ranks

from ringreduce.watch import prometheus
from ringreduce.watch.board import Board
from ringreduce.watch.jobs import Jobs
from ringreduce.watch.processes import Memory, Process


class Host:
    """Two processes, 11 and 12, which hold memories of contexts: by name the ranks in it, by process in the job."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.held: dict[str, list[int]] = {}
        self.operations: dict[str, int] = {}
        known = "ringreduce.watch.jobs.processes"
        monkeypatch.setattr(f"{known}.processes", lambda: [11, 12])
        monkeypatch.setattr(f"{known}.memories", self._memories)
        monkeypatch.setattr(f"{known}.process", lambda _: Process("S", 0.0, 1.0))
        monkeypatch.setattr(f"{known}.inner_pid", lambda pid: pid)
        monkeypatch.setattr(f"{known}.command", lambda _: "train.py")
        monkeypatch.setattr(f"{known}.opened", lambda path, _: _Opened(path))
        monkeypatch.setattr("ringreduce.watch.jobs._core.SegmentView", self._view)

    def _memories(self, pid: int) -> dict[Memory, str]:
        return {Memory(0, sum(name.encode())): name for name, pids in self.held.items() if pid in pids}

    def _view(self, name: str) -> SimpleNamespace:
        pids = list(self.held[name])
        return SimpleNamespace(size=len(pids), hosts=1, host=0, context=name, read=lambda: self._read(name, pids))

    def _read(self, name: str, pids: list[int]) -> dict[str, Any]:
        rank = {
            "host": 0, "hostname": "n", "age_s": 0.0, "attendance": "present", "has_joined": False, "cause": "",
            "wait": None, "waited_s": 0.5, "late_s": 0.25, "seen_late_s": 0.0, "links": [],
            "stats": {"operations": self.operations[name]},
        }  # fmt: skip
        ranks = [{**rank, "pid": pid, "job_rank": pid - 11} for pid in pids]
        return {"sampled_s": 1.0, "unsampled_s": 0.0, "late": "", "failure": "", "ranks": ranks}


class _Opened:
    def __init__(self, path: str) -> None:
        self.path = path

    def __enter__(self) -> str:
        return self.path

    def __exit__(self, *error: object) -> None:
        pass


def test_what_was_done_in_a_group_stays_when_it_is_destroyed(monkeypatch: pytest.MonkeyPatch) -> None:
    host, jobs = Host(monkeypatch), Jobs()

    def operations() -> list[int]:
        (job,) = jobs.look()
        return [rank.counters["operations"] for rank in job.read().ranks]

    host.held, host.operations = {"world": [11, 12], "a": [12]}, {"world": 5, "a": 100, "b": 0}
    assert operations() == [5, 105]
    host.operations["a"] = 130  # after the last look
    host.held = {"world": [11, 12]}
    assert operations() == [5, 135]
    assert operations() == [5, 135]
    host.held["b"], host.operations["b"] = [11, 12], 7
    assert operations() == [12, 142]
    host.held, host.operations["world"] = {"world": [11, 12]}, 6
    assert operations() == [13, 143]
    (job,) = jobs.look()
    assert [(rank.waited_s, rank.late_s) for rank in job.read().ranks] == [(1.0, 0.5), (1.5, 0.75)]
    host.held = {}
    assert jobs.look() == []
    host.held = {"c": [11, 12]}  # after another init()
    host.operations["c"] = 1
    assert operations() == [1, 1]


def comes_and_goes(path: str) -> None:
    import torch
    import torch.distributed as dist

    import ringreduce.torch.distributed  # noqa: F401, the backend

    rank, size = int(os.environ["RINGREDUCE_RANK"]), int(os.environ["RINGREDUCE_SIZE"])
    dist.init_process_group("ringreduce", init_method=f"file://{path}", rank=rank, world_size=size)
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(3))
    for _ in range(10):
        dist.all_reduce(torch.ones(3), group=group)
    send_to_test("two groups")
    receive_from_test()
    dist.destroy_process_group(group)
    send_to_test("one group")
    receive_from_test()
    dist.destroy_process_group()


def test_counters_of_prometheus_do_not_go_down_with_a_group_of_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr("ringreduce.watch.board.NEW_JOBS_S", 0.0)
    with start_ranks(comes_and_goes, 2, args=(str(tmp_path / "store"),)) as ranks:
        board: Board | None = None
        seen = []
        for told in ("two groups", "one group"):
            for rank in range(2):
                assert ranks.receive(rank) == told
            board = board or Board(ranks.procs[0].pid)
            (job,) = board.look()
            seen.append((job.groups, operations_of(prometheus.text([job]))))
            for rank in range(2):
                ranks.send(rank)
        assert all(outcome.status == 0 for outcome in ranks.wait()), ranks.report()
    (before, counted), (after, counted_after) = seen
    assert (before, after) == (1, 0)
    assert min(counted) >= 11
    assert all(now >= then for then, now in zip(counted, counted_after, strict=True))


def operations_of(text: str) -> list[int]:
    lines = (line for line in text.splitlines() if line.startswith("ringreduce_operations_total{"))
    return [int(line.split()[1]) for line in lines]
