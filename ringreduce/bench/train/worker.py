"""`python -m ringreduce.bench.train.worker SPEC`: one process of one measurement, on any host; SPEC is JSON (spec.py).

First some deterministic steps whose losses are compared between modes, then untimed ones, then timed windows. What one
process of a job saw it prints in one line (results.py); the command adds the lines up.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from ringreduce.bench.train import batches, results
from ringreduce.bench.train.curves import Curve
from ringreduce.bench.train.frameworks import FRAMEWORKS
from ringreduce.bench.train.spec import Spec, mode_of

if TYPE_CHECKING:
    from ringreduce.bench.train.frameworks.framework import Learner
    from ringreduce.bench.train.modes.mode import Team

ALARM_AFTER_S = 20  # past the job's deadline: for a worker whose launcher died without ending it
FEWEST_STEPS = 3  # of a window
BEGUN_AGAIN = "BENCH_TRAIN_BEGUN_AGAIN"  # a variable: the mark of the job for which this process has


class Trainer:
    """What one process of a team does with its model.

    period: in how many steps everything happens once that belongs to training; windows are whole periods.
    """

    def __init__(self, spec: Spec, team: Team, learner: Learner, period: int) -> None:
        self.spec = spec
        self.team = team
        self.learner = learner
        self.period = period
        self.curve = Curve()

    def step(self, parts: int, mine: range) -> float:
        """One step on some parts of the next global batch. Returns their part of its loss."""
        loss = self.learner.step(self.curve.steps, parts, mine)
        self.curve.add(loss)
        return loss

    def whole_periods(self, steps: float) -> int:
        """At least so many steps."""
        return math.ceil(steps / self.period) * self.period

    def check(self) -> list[float]:
        """This process's part of the loss before each checked step, and after the last.

        A process that is alone takes all parts that N ranks take, so that the losses of all modes are the same but for
        rounding.
        """
        parts = self.spec.ranks
        mine = range(parts) if self.team.size == 1 else range(self.team.rank, self.team.rank + 1)
        losses = [self.step(parts, mine) for _ in range(self.spec.check_steps)]
        losses.append(self.learner.loss(self.curve.steps, parts, mine))
        return losses

    def run(self, steps: int) -> float:
        """Seconds for so many steps on this process's share."""
        size, mine = self.team.size, range(self.team.rank, self.team.rank + 1)
        start = time.perf_counter()
        for _ in range(steps):
            self.step(size, mine)
        return time.perf_counter() - start

    def windows(self) -> tuple[list[dict[str, float]], dict[str, float] | None]:
        """Timed windows, each begun by all processes together, and what this process sends in one of their steps."""
        size, rank = self.team.size, self.team.rank
        count = self.learner.count(size)
        share = batches.share(count, rank, size)
        warmup = self.whole_periods(self.spec.warmup)
        per_step_s = self.team.slowest(self.run(warmup)) / warmup
        steps = self.whole_periods(self.spec.steps_per_window or max(FEWEST_STEPS, self.spec.seconds / per_step_s))
        windows = []
        before = self.team.sent()
        for _ in range(self.spec.windows):
            self.team.slowest(0.0)
            seconds = self.run(steps)
            windows.append({"steps": steps, "samples": (share.stop - share.start) * steps, "seconds": seconds})
        after = self.team.sent()
        if before is None or after is None:
            return windows, None
        taken = steps * self.spec.windows
        return windows, {
            "nbytes": (after.nbytes - before.nbytes) / taken,
            "wire_nbytes": (after.wire_nbytes - before.wire_nbytes) / taken,
        }


def measure(spec: Spec, team: Team, threads: int, period: int) -> dict[str, Any]:
    """What one process has measured; memory in KiB, other units in the names."""
    learner = FRAMEWORKS[spec.framework].learner(spec, team, threads)
    trainer = Trainer(spec, team, learner, period)
    losses = trainer.check()
    windows, step_sent = trainer.windows()
    return {
        "rank": team.rank,
        "size": team.size,
        "threads": learner.threads,
        "losses": losses,
        "windows": windows,
        "gradient_nbytes": learner.nbytes,
        "step_sent": step_sent,
        "curve": trainer.curve.points(),
        "peak_memory_KiB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }


def main(text: str) -> int:
    """Runs one process of the job. Returns 0."""
    spec = Spec.read(text)
    signal.alarm(math.ceil(spec.timeout_s) + ALARM_AFTER_S)
    mode = mode_of(spec.mode)
    place = mode.place()
    cpus = mode.cpus(place, spec)
    if spec.bind == "core":
        os.sched_setaffinity(0, cpus)  # before the framework starts threads
    threads = mode.threads(cpus, place, spec)
    framework = FRAMEWORKS[spec.framework]
    variables = {"OMP_NUM_THREADS": str(threads), **framework.environ(threads)}
    if os.environ.get(BEGUN_AGAIN) != spec.mark and any(os.environ.get(name) != variables[name] for name in variables):
        # Libraries have read theirs already, and started threads elsewhere: once more, with these and on these CPUs.
        os.environ.update(variables | {BEGUN_AGAIN: spec.mark})
        os.execv(sys.executable, sys.orig_argv)
    framework.prepare(threads)
    team = mode.join(spec)
    results.say(spec.mark, measure(spec, team, threads, mode.period(spec)))
    team.leave()
    return 0


if __name__ == "__main__":
    status = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    # Not sys.exit(): Gloo's threads may still release DDP's tensors while the interpreter ends, and abort the process
    # (torch 2.13: every second job). Everything is written and left by now.
    os._exit(status)
