"""The figures of report(), written every few seconds to the logger that a program has already.

    log = ringreduce.ReportLog(SummaryWriter())
    for step, batch in enumerate(batches):
        train(batch)
        log.step(step)

A logger is known by its methods; nothing is imported for it.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from ringreduce import basics
from ringreduce.errors import InvalidArgumentError
from ringreduce.job.report_interval import Reported, ReportInterval

Write = Callable[[dict[str, float], int], Any]
"""Writes figures by their whole names, with the number of the training step."""


class ReportLog:
    """Writes the figures of report() to a logger, about every so many seconds; each object for an interval of its own.

    Call step() once in a training step. The names are those of report(), after the prefix: "ringreduce/late_share".
    Shares are of the time since the last writing, or since the first step(); counters go on from init(). After a
    shutdown() and another init() the figures begin anew. report() and other objects of this class are not disturbed.

    Args:
        target: where to: a TensorBoard writer (torch.utils.tensorboard.SummaryWriter, tensorboardX), a writer of
            tf.summary.create_file_writer(), the module wandb or a run of it, a logger of Lightning or the module mlflow
            (log_metrics()), or a function of (dict, step). None where a rank that does not write has no logger.
        every_s: seconds between two writings, 0 or more. Waits are sampled twenty times a second: shares of less than
            1 s are coarse.
        prefix: of the names.
        rank: which rank writes; on the others step() does nothing. None: every rank, each to its own target.
        group: a process group of torch.distributed whose backend is "ringreduce": its figures and its ranks, instead of
            those of init()'s job. With DDP that is torch.distributed.group.WORLD.

    Raises:
        InvalidArgumentError: target has no interface that is known here, or another argument has a bad value.
    """

    __slots__ = ("_due_s", "_every_s", "_has_begun", "_interval", "_of", "_prefix", "_rank", "_write")

    def __init__(
        self,
        target: Any,
        every_s: float = 30.0,
        prefix: str = "ringreduce/",
        rank: int | None = 0,
        *,
        group: Any = None,
    ) -> None:
        if isinstance(every_s, bool) or not isinstance(every_s, int | float) or not 0 <= every_s < math.inf:
            raise InvalidArgumentError(f"ReportLog(every_s={every_s!r}): seconds, 0 or more")
        if not isinstance(prefix, str):
            raise InvalidArgumentError(f"ReportLog(prefix={prefix!r}): a string that names begin with")
        if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int) or rank < 0):
            raise InvalidArgumentError(f"ReportLog(rank={rank!r}): a rank, or None for every rank")
        if group is not None and not callable(getattr(group, "reported", None)):
            raise InvalidArgumentError(
                f'ReportLog(group={group!r}): a process group of torch.distributed whose backend is "ringreduce"'
            )
        self._write = None if target is None else _writing(target, prefix)
        self._every_s = every_s
        self._prefix = prefix
        self._rank = rank
        self._of: Callable[[], Reported] = basics.reported if group is None else group.reported
        self._interval = ReportInterval()
        self._has_begun = False
        self._due_s = -math.inf

    def step(self, step: int) -> bool:
        """Writes the figures if every_s has passed since they were written last; the first call begins the first wait.

        A call that writes nothing costs about a look at the clock. What the logger raises is raised here.

        Args:
            step: the number of the training step.

        Returns:
            Whether the figures have been written, on this rank. Later than every_s if nothing has been sampled yet.

        Raises:
            NotInitializedError: there is no job; said by the first call, and by one that would write.
            InvalidArgumentError: the job has no such rank, or this is the rank and target is None; likewise.
        """
        now_s = time.monotonic()
        if now_s < self._due_s:
            return False
        if not self._has_begun:
            self._interval.begin(self._reported().context)
            self._has_begun = True
            self._due_s = now_s + self._every_s
            return False
        return self.write(step)

    def write(self, step: int) -> bool:
        """Writes the figures now, if there are new ones: at the end of training, say, or of an epoch.

        The next step() that writes is every_s later. Arguments, result and errors are those of step().
        """
        of = self._reported()
        self._has_begun = True
        if self._write is None or self._rank not in (None, of.rank):
            self._due_s = time.monotonic() + self._every_s
            return False
        figures = self._interval.figures(of)
        if figures["sampled_s"] <= 0 and of.context.world.size > 1:
            return False  # zeros would be wrong; the next step() looks again
        self._due_s = time.monotonic() + self._every_s
        self._write({self._prefix + name: value for name, value in figures.items()}, step)
        return True

    def _reported(self) -> Reported:
        of = self._of()
        size = of.context.world.size
        if self._rank is not None and self._rank >= size:
            raise InvalidArgumentError(f"ReportLog(rank={self._rank}): there are ranks 0 to {size - 1}")
        if self._rank == of.rank and self._write is None:
            raise InvalidArgumentError(f"ReportLog(target=None): rank {of.rank} is the one that writes")
        return of


def _writing(target: Any, prefix: str) -> Write:
    """How this logger is written to. Raises InvalidArgumentError for what is none."""
    if not isinstance(target, type):  # of which an object was forgotten to be made
        if _has(target, "log_metrics"):  # Lightning, MLflow
            return lambda figures, step: target.log_metrics(figures, step=step)
        if _has(target, "add_scalar"):
            return lambda figures, step: _add_scalars(target, figures, step)
        if _has(target, "as_default", "set_as_default"):
            return lambda figures, step: _write_summaries(target, figures, step)
        if _has(target, "log", "define_metric"):
            return lambda figures, step: _log_to_wandb(target, prefix, figures, step)
        if callable(target) and _takes_two(target):
            return lambda figures, step: target(figures, step)
    raise InvalidArgumentError(
        f"ReportLog(target={target!r}): a TensorBoard writer (it has add_scalar()), a writer of "
        "tf.summary.create_file_writer(), the module wandb or a run of it, an object with log_metrics(dict, step=) as "
        "Lightning's loggers are, or a function of (dict, step)"
    )


def _has(target: Any, *methods: str) -> bool:
    return all(callable(getattr(target, method, None)) for method in methods)


def _takes_two(function: Callable[..., Any]) -> bool:
    """Whether it can be called with two arguments, as far as it says so."""
    import inspect  # most programs have it, this package does without

    try:
        inspect.signature(function).bind({}, 0)
    except TypeError:
        return False
    except ValueError:  # a builtin that does not say
        return True
    return True


def _add_scalars(writer: Any, figures: Mapping[str, float], step: int) -> None:
    for name, value in figures.items():
        writer.add_scalar(name, value, step)


def _write_summaries(writer: Any, figures: Mapping[str, float], step: int) -> None:
    scalar = sys.modules["tensorflow"].summary.scalar  # who has a writer has imported it
    with writer.as_default():
        for name, value in figures.items():
            scalar(name, value, step=step)


def _log_to_wandb(run: Any, prefix: str, figures: Mapping[str, float], step: int) -> None:
    """Into the row that the program's next log() writes, or the run's end, with an axis of their own.

    W&B's own step only goes forward, and log() of a step that has passed is dropped. So a step= of ours would have
    W&B drop the program's rows, where it counts otherwise, and a row of our own would end a step that the program
    still adds to.
    """
    run.define_metric(f"{prefix}*", step_metric=f"{prefix}step")  # each time: the module may have begun another run
    run.log({**figures, f"{prefix}step": step}, commit=False)
