"""One measurement is one job: its processes are started, waited for until a deadline, and all gone afterwards."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ringreduce.bench.train import results
from ringreduce.bench.train.modes.mode import Mode
from ringreduce.bench.train.options import Options
from ringreduce.bench.train.spec import Spec, name_of
from ringreduce.errors import Error
from ringreduce.launch.python import run_module
from ringreduce.launch.supervise import Supervisor

STOP_S = 2.0  # between a SIGTERM and the next, sterner signal
TAIL = 4000  # characters of output to keep of a job that went wrong
WORKER = "ringreduce.bench.train.worker"


@dataclass(frozen=True)
class Outcome:
    """How a job ended. Only one that is "ok" has what its ranks said; the others have the end of their output."""

    status: str
    """ok | failed | timeout"""
    seconds: float
    ranks: list[dict[str, Any]] = field(default_factory=list)
    output: str = ""


def spec_of(mode: Mode, options: Options, data: str, folder: str) -> Spec:
    """What the processes of a job of this mode are told, with a new mark."""
    settings = options.settings
    return Spec(
        mode=name_of(mode),
        framework=options.framework,
        model=options.model,
        ranks=options.ranks,
        batch_size=settings.batch_size,
        data=data,
        seed=options.seed,
        lr=settings.lr,
        optimizer=options.optimizer,
        seconds=options.seconds,
        check_steps=settings.check_steps,
        warmup=settings.warmup,
        windows=settings.windows,
        steps_per_window=settings.steps_per_window,
        every=options.every,
        bind=options.bind,
        threads=options.threads,
        folder=folder,
        mark=results.new_mark(),
        timeout_s=settings.timeout_s,
    )


def run(mode: Mode, options: Options, data: str) -> Outcome:
    """Runs one job; takes at most its deadline and some seconds to stop it. Never raises for what the job does."""
    with tempfile.TemporaryDirectory(prefix="ringreduce-train-") as folder:
        spec = spec_of(mode, options, data, folder)
        command = mode.command(options, run_module(WORKER, spec.text()))
        environ = {**os.environ, **mode.environ()}
        start = time.monotonic()
        with Path(folder, "output").open("w+b") as output:
            status = _supervise(command, environ, output.fileno(), start + spec.timeout_s)
            seconds = time.monotonic() - start
            output.seek(0)
            said = output.read().decode(errors="replace")
    end = results.without(spec.mark, said)[-TAIL:]
    if status != "ok":
        return Outcome(status, seconds, output=end)
    try:
        return Outcome(status, seconds, results.find(spec.mark, said, mode.processes(options.ranks)))
    except Error as error:
        return Outcome("failed", seconds, output=f"{end}\nexit status 0, but {error}")


def _supervise(command: list[str], environ: dict[str, str], output: int, until: float) -> str:
    """Starts a command and waits for it until time.monotonic() == until. Returns the status of an Outcome.

    A launcher that is told to stop once passes that on to its ranks, and told twice it kills them. Leaving the block
    kills its process group, and the kernel kills ringrun's ranks when ringrun dies.
    """
    with Supervisor(STOP_S, lambda line: None) as job:
        try:
            job.start(command, environ, None, subprocess.DEVNULL, output, output)
        except OSError as error:
            os.write(output, f"cannot run {command[0]!r}: {error.strerror}\n".encode())
            return "failed"
        if job.run(until):
            return "ok" if job.exit_status() == 0 else "failed"
        for _ in range(2):
            job.send(signal.SIGTERM)
            if job.run(time.monotonic() + STOP_S):
                break
        return "timeout"
