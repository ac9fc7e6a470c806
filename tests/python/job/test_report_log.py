"""ReportLog: which figures it writes, when, on which rank, and how to each kind of logger."""

from __future__ import annotations

import contextlib
import io
import logging
import time
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from page_programs import program
from ranks import run_ranks

import ringreduce
from ringreduce.errors import InvalidArgumentError, NotInitializedError
from ringreduce.job.report_interval import Reported, ReportInterval

# --- one interval for each who asks -----------------------------------------------------------------------------------


class Times:
    """A context of two ranks, whose times a test sets."""

    def __init__(self) -> None:
        self.now = (0.0, [0.0, 0.0], [0.0, 0.0])
        self.links_now: list[tuple[int, int, int, float]] = []

    def links(self) -> list[tuple[int, int, int, float]]:
        return self.links_now

    def times(self) -> tuple[float, list[float], list[float]]:
        return self.now


def of(times: Any) -> Reported:
    return Reported(times, 0, lambda: {"operations": 7})


def test_the_busiest_link_is_of_the_interval() -> None:
    times = Times()
    interval = ReportInterval()
    names = ("busiest_link_from", "busiest_link_to", "busiest_link_share", "busiest_link_rate")
    times.now = (1.0, [0.0, 0.0], [0.0, 0.0])
    times.links_now = [(0, 1, 500, 0.5), (1, 0, 300, 0.1)]
    figures = interval.figures(of(times))
    assert [figures[name] for name in names] == [0, 1, 0.5, 1000.0]
    times.now = (3.0, [0.0, 0.0], [0.0, 0.0])
    times.links_now = [(0, 1, 600, 0.5), (1, 0, 800, 0.6)]
    figures = interval.figures(of(times))
    assert [figures[name] for name in names] == pytest.approx([1, 0, 0.25, 1000.0])


def test_intervals_are_one_after_the_other_and_do_not_disturb_each_other() -> None:
    times = Times()
    one, other = ReportInterval(), ReportInterval()
    times.now = (1.0, [0.5, 0.0], [0.0, 0.5])
    none = {"busiest_link_from": -1, "busiest_link_to": -1, "busiest_link_share": 0, "busiest_link_rate": 0}
    expected = {**none, "sampled_s": 1.0, "waited_share": 0.5, "late_share": 0.0, "latest_rank": 1, "latest_share": 0.5}
    assert one.figures(of(times)) == {**expected, "operations": 7}
    times.now = (3.0, [0.5, 1.0], [1.0, 0.5])
    assert one.figures(of(times)) == pytest.approx(
        {
            **none,
            "sampled_s": 2.0,
            "waited_share": 0,
            "late_share": 0.5,
            "latest_rank": 0,
            "latest_share": 0.5,
            "operations": 7,
        }
    )
    both = other.figures(of(times))
    assert (both["sampled_s"], both["waited_share"]) == (3.0, pytest.approx(0.5 / 3))
    nothing = one.figures(of(times))
    assert (nothing["sampled_s"], nothing["late_share"], nothing["latest_rank"]) == (0.0, 0.0, -1)


def test_another_job_begins_a_new_interval_and_the_old_one_is_not_kept() -> None:
    first, interval = Times(), ReportInterval()
    first.now = (100.0, [90.0, 0.0], [0.0, 90.0])
    interval.begin(of(first).context)
    second = Times()
    second.now = (2.0, [1.0, 0.0], [0.0, 1.0])
    assert interval.figures(of(second))["sampled_s"] == 2.0
    second.now = (3.0, [1.0, 0.0], [0.0, 1.0])
    assert interval.figures(of(second))["sampled_s"] == 1.0
    second_is_there = weakref.ref(second)
    del second
    assert second_is_there() is None


# --- two ranks, one of them late --------------------------------------------------------------------------------------


def late() -> dict[str, Any]:
    """Steps in which rank 1 is late, until both ranks have written twice. The same again in a second job."""
    import ringreduce as rr

    def train(logs: dict[str, rr.ReportLog], rows: dict[str, list[Any]]) -> int:
        x, step, is_over = np.ones(1000, np.float32), 0, False
        while not is_over:
            if rr.rank() == 1:
                time.sleep(0.05)
            rr.allreduce_(x, name="gradients")
            step += 1
            for name, log in logs.items():
                before = len(rows[name])
                has_written = log.step(step)
                assert has_written == (len(rows[name]) > before)
            mine = min(len(rows[name]) for name in ("often", "seldom"))
            is_over = rr.allreduce(np.array([mine]), name="over", op=rr.Min)[0] >= 2
        return step

    rows: dict[str, list[Any]] = {name: [] for name in ("often", "seldom", "only 1", "at the end")}

    def to(name: str) -> Callable[[dict[str, float], int], None]:
        return lambda figures, step: rows[name].append((step, figures))

    often = rr.ReportLog(to("often"), 0.2, prefix="", rank=None)
    seldom = rr.ReportLog(to("seldom"), 0.4, prefix="", rank=None)
    only_1 = rr.ReportLog(to("only 1"), 0.2, rank=1)
    at_the_end = rr.ReportLog(to("at the end"), 1000, prefix="", rank=None)
    result: dict[str, Any] = {}
    for number in ("first", "second"):
        with rr.init():
            for name in rows:
                rows[name] = []
            train({"often": often, "seldom": seldom, "only 1": only_1, "at the end": at_the_end}, rows)
            assert at_the_end.write(-1)
            result[number] = {"rows": dict(rows), "report": rr.report(), "operations": rr.stats()["operations"]}
    with pytest.raises(NotInitializedError):
        at_the_end.write(0)
    return result


def test_a_late_rank_and_others_who_ask() -> None:
    for rank, result in enumerate(run_ranks(late, 2)):
        for number in ("first", "second"):
            rows, report = result[number]["rows"], result[number]["report"]
            ((step, whole),) = rows["at the end"]
            assert step == -1
            assert whole["latest_rank"] == 1
            assert (whole["late_share"] > whole["waited_share"]) == (rank == 1)
            assert whole["operations"] <= result[number]["operations"]
            for name in ("often", "seldom"):  # neither has taken anything from the other, nor from report()
                figures = [one for _, one in rows[name]]
                assert len(figures) >= 2
                assert all(one["sampled_s"] > 0 for one in figures)
                assert sum(one["sampled_s"] for one in figures) <= report["sampled_s"] + 1e-9
                counted = [one["operations"] for one in figures]
                assert counted == sorted(counted)
            assert report["sampled_s"] >= whole["sampled_s"]
            assert bool(rows["only 1"]) == (rank == 1)
            assert all(name.startswith("ringreduce/") for _, figures in rows["only 1"] for name in figures)
        assert [step for step, _ in result["first"]["rows"]["often"]] == sorted(
            {step for step, _ in result["first"]["rows"]["often"]}
        )


# --- targets ----------------------------------------------------------------------------------------------------------


class Wandb:
    """A run of W&B, or its module: the signatures of wandb 0.31, which is too large to be installed for this (100 MB).

    Rows are kept as W&B keeps them: commit=False adds to the row of the next log(), and finish() writes what is left.
    That the real one does so in its offline mode was looked at once.
    """

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.axes: dict[str, str | None] = {}
        self._row: dict[str, Any] = {}

    def log(self, data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        self._row |= data
        if commit is None:
            commit = step is None
        if commit:
            self.finish()

    def define_metric(
        self,
        name: str,
        step_metric: str | None = None,
        step_sync: bool | None = None,
        hidden: bool | None = None,
        summary: str | None = None,
        goal: str | None = None,
        overwrite: bool | None = None,
    ) -> None:
        self.axes[name] = step_metric

    def finish(self) -> None:
        self.rows.append(self._row)
        self._row = {}


class Logger:
    """As a logger of Lightning is, whatever else it has."""

    def __init__(self) -> None:
        self.calls: list[tuple[dict[str, float], int | None]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.calls.append((metrics, step))

    def log(self, *_: Any) -> None:
        raise AssertionError("this is not how it is logged to")


class Writer:
    """As a writer of TensorBoard is."""

    def __init__(self) -> None:
        self.scalars: dict[str, tuple[float, int | None]] = {}

    def add_scalar(self, tag: str, scalar_value: float, global_step: int | None = None) -> None:
        self.scalars[tag] = (scalar_value, global_step)


def each_kind() -> None:
    import ringreduce as rr

    def written(target: Any, **options: Any) -> None:
        log = rr.ReportLog(target, **options)
        assert log.write(12)

    with rr.init():
        rr.allreduce(np.ones(2))
        figures = rr.report()
        named = {f"ringreduce/{name}": value for name, value in figures.items()}

        logger = Logger()
        written(logger)
        assert logger.calls == [(named, 12)]

        writer = Writer()
        written(writer, prefix="a.")
        assert writer.scalars == {f"a.{name}": (value, 12) for name, value in figures.items()}

        calls: list[Any] = []
        written(lambda figures, step: calls.append((figures, step)), prefix="")
        assert calls == [(figures, 12)]
        assert all(type(value) in (int, float) for value in figures.values())

        wandb = Wandb()
        module: Any = types.ModuleType("wandb")
        module.log, module.define_metric = wandb.log, wandb.define_metric
        for run in (wandb, module):
            written(run)
            wandb.log({"loss": 1.0})
            assert wandb.rows.pop() == {**named, "ringreduce/step": 12, "loss": 1.0}
            assert wandb.axes == {"ringreduce/*": "ringreduce/step"}
            written(run)
            wandb.log({"loss": 2.0}, step=7, commit=True)
            assert wandb.rows.pop()["loss"] == 2.0


def test_each_kind_of_logger_gets_what_it_takes() -> None:
    run_ranks(each_kind, 1)


class ModelWithLog:
    def log(self, name: str, value: float) -> None: ...


@pytest.mark.parametrize(
    "target",
    [3, "runs", {}, [Writer()], Writer, logging.getLogger(), ModelWithLog(), lambda figures: None],
    ids=lambda target: type(target).__name__,
)
def test_what_is_no_logger(target: Any) -> None:
    with pytest.raises(InvalidArgumentError, match=r"function of \(dict, step\)"):
        ringreduce.ReportLog(target)


@pytest.mark.parametrize(
    "options",
    [
        {"every_s": -1},
        {"every_s": float("nan")},
        {"every_s": float("inf")},
        {"every_s": "30"},
        {"prefix": None},
        {"rank": -1},
        {"rank": "0"},
        {"rank": True},
        {"group": "world"},
    ],
    ids=str,
)
def test_other_arguments(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        ringreduce.ReportLog(print, **options)


# --- when it writes ---------------------------------------------------------------------------------------------------


def alone() -> None:
    import ringreduce as rr

    rows: list[Any] = []

    def to(figures: dict[str, float], step: int) -> None:
        rows.append((step, figures["ringreduce/operations"]))

    log = rr.ReportLog(to, every_s=0)
    for use in (log.step, log.write):
        with pytest.raises(NotInitializedError):
            use(0)
    with rr.init():
        rr.allreduce(np.ones(2))
        assert not log.step(1)  # begins
        assert log.step(2)
        seldom = rr.ReportLog(to, every_s=1000)
        assert [seldom.step(3), seldom.step(4), seldom.write(5), seldom.step(6)] == [False, False, True, False]
        with pytest.raises(InvalidArgumentError, match="ranks 0 to 0"):
            rr.ReportLog(to, rank=1).step(0)
        nowhere = rr.ReportLog(None, 0, rank=None)  # no rank is expected to have a logger
        assert [nowhere.step(0), nowhere.step(1), nowhere.write(2)] == [False] * 3
        with pytest.raises(InvalidArgumentError, match="rank 0 is the one that writes"):
            rr.ReportLog(None).step(0)

        def full(figures: dict[str, float], step: int) -> None:
            raise OSError("the disk is full")

        broken = rr.ReportLog(full, 0)
        broken.step(0)
        with pytest.raises(OSError, match="full"):
            broken.step(1)
    with pytest.raises(NotInitializedError):
        log.step(7)
    with rr.init():
        assert log.step(8)
    assert rows == [(2, 1), (5, 1), (8, 0)]  # counters began anew


def test_when_it_writes_and_what_is_told() -> None:
    run_ranks(alone, 1)


def pages_programs() -> list[str]:
    """Those of docs/user/slow.md that need nothing installed."""
    import ringreduce as rr

    wandb: Any = types.ModuleType("wandb")
    run = Wandb()
    wandb.init = lambda project: run
    names = {"hvd": rr, "wandb": wandb, "batches": range(3)}
    with rr.init():
        names |= {"train": lambda batch: rr.barrier()}
        exec(program("slow.md", "In a logger", "wandb.init"), dict(names))
        if rr.rank() == 0:
            assert [row["loss"] for row in run.rows] == [None] * 3
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            text = program("slow.md", "In a logger", "print(").replace("rank=None", "rank=None, every_s=0")
            is_over = np.zeros(1)
            while not is_over[0]:
                exec(text, dict(names))
                is_over = rr.allreduce(np.array([float(printed.tell() > 0)]), op=rr.Min)
    return printed.getvalue().splitlines()


def test_programs_of_the_page() -> None:
    for lines in run_ranks(pages_programs, 2):
        step, late_share = lines[0].split()
        assert int(step) in range(3)
        assert 0 <= float(late_share) <= 1
