"""`ringreduce bench train`: asks the modes who is there, measures, prints the table, writes the JSON."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ringreduce.bench import machine, report, terminal
from ringreduce.bench.drawing import check_picture
from ringreduce.bench.start import refuse_within_job
from ringreduce.bench.train import data, drawing, figures, losses, rounds, table
from ringreduce.bench.train.figures import Row
from ringreduce.bench.train.frameworks import FRAMEWORKS
from ringreduce.bench.train.losses import Verdict
from ringreduce.bench.train.modes import ALWAYS, METHODS, MODES
from ringreduce.bench.train.modes.mode import Mode
from ringreduce.bench.train.options import Options, parse
from ringreduce.errors import Error, UnavailableError
from ringreduce.exit_on_signal import exit_on_signal
from ringreduce.launch.binding import cores_of, cpu_shares, thread_share
from ringreduce.launch.command_line.host_options import hosts_text
from ringreduce.launch.command_line.hosts import Host


def main(argv: Sequence[str]) -> int:
    """Runs the command.

    Returns:
        0; 1 when a mode's loss differs, or when ringreduce, a method or their bound could not be measured in some
        round, or ended with a loss that is no number (a peer that fails does not count); 2 when the arguments ask for
        what there is not, or this process is one of several ranks of a job.
    """
    try:
        with exit_on_signal():  # jobs, hosts and folders go
            options = parse(argv)
            refuse_within_job("ringreduce bench train")
            FRAMEWORKS[options.framework].need()
            report.check(options.json)
            if options.plot is not None:
                check_picture("ringreduce bench train --plot", options.plot)
            is_synthetic = options.per_rank or (options.hosts and options.data is None)
            chosen = "synthetic" if is_synthetic else data.choose(options.data)
            with linked(options) as placed:
                return run(placed, chosen)
    except Error as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2


@contextmanager
def linked(options: Options) -> Iterator[Options]:
    """The options, with a host for each rank where --link asks for that. Raises UnavailableError."""
    if options.link is None:
        yield options
        return
    from ringreduce.lab import requirements
    from ringreduce.lab.lab import Lab

    if reason := requirements.missing():
        raise UnavailableError(f"ringreduce bench train --link: {reason}")
    cores = max(1, cores_of(machine.allowed_cores()) // options.ranks)
    data_folder = data.find()  # which may lie below /tmp, where each host has files of its own
    with Lab(options.ranks, options.link, shared=[data_folder] if data_folder else []) as lab:
        hosts = [Host(name, 1) for name in lab.hosts]
        yield replace(
            options,
            hosts=tuple(hosts),
            ringrun=("-H", hosts_text(hosts), f"--ssh-args=-F {lab.ssh.parent / 'config'}"),
            threads=options.threads or thread_share(cores, options.ranks),
            inside=tuple(lab.inside(lab.hosts[0])),
        )


def run(options: Options, chosen: str) -> int:
    """Measures everything. Returns the exit status."""
    reasons = {mode: _absent(MODES[mode], options) for mode in options.modes}
    absent = {mode: why for mode, why in reasons.items() if why is not None}
    modes = [mode for mode in options.modes if mode not in absent]
    facts = meta(options, chosen)
    cells = rounds.measure(options, modes, chosen)
    facts |= machine.facts_after()
    rows = figures.rows(cells, {mode: MODES[mode].processes(options.ranks) for mode in modes})
    facts["threads_per_rank"] = next(row.threads for row in rows if row.mode == ALWAYS[-1])
    judge, verdicts = losses.judge(cells, options.settings.loss_tolerance)
    terminal.show(table.render(facts, rows, absent, judge, verdicts))
    if options.json is not None:
        document = {
            "meta": {**facts, "loss_judge": judge},
            "results": [result(row, verdicts.get(row.mode)) for row in rows],
            "absent": [{"mode": mode, "why": why} for mode, why in absent.items()],
        }
        report.save(options.json, _finite(document))
    if options.plot is not None:
        drawing.plot(Path(options.plot), facts, rows)
    wrong = any(not verdict.same for verdict in verdicts.values())
    broken = any(not row.went_well for row in rows if row.mode in (*ALWAYS, *METHODS))
    return 1 if wrong or broken else 0


def _absent(mode: Mode, options: Options) -> str | None:
    """Why a mode is not measured; None if it is."""
    if options.hosts and mode.one_host:
        return mode.one_host
    return mode.absent(options.framework)


def meta(options: Options, chosen: str) -> dict[str, Any]:
    """What the figures cannot be read without, but for the ranks' threads, which they say themselves."""
    bound_here = options.bind == "core" and not options.hosts
    versions = FRAMEWORKS[options.framework].versions()
    return {
        **machine.facts(),
        "framework": options.framework,
        "versions": versions,
        **versions,
        "model": options.model,
        "ranks": options.ranks,
        "hosts": [hosts_text([host]) for host in options.hosts],
        "link": options.link,
        "every": options.every,
        "bind": options.bind,
        "binding": [sorted(share) for share in cpu_shares(options.ranks)] if bound_here else None,
        "batch_size": options.settings.batch_size,
        "batch_per_rank": options.per_rank,
        "global_batch_size": options.global_batch,
        "data": chosen,
        "seed": options.seed,
        "optimizer": options.optimizer,
        "lr": options.settings.lr,
        "rounds": options.rounds,
        "seconds": None if options.settings.steps_per_window else options.seconds,
        "check_steps": options.settings.check_steps,
        "warmup": options.settings.warmup,
        "iters": options.settings.windows,
        "batches_per_iter": options.settings.steps_per_window,
        "timeout_s": options.settings.timeout_s,
        "loss_tolerance": options.settings.loss_tolerance,
    }


def result(row: Row, verdict: Verdict | None) -> Mapping[str, Any]:
    """One entry of "results"."""
    entry = asdict(row)
    rate = entry.pop("rank_rate")
    entry["samples_per_s_per_process"] = rate and {"mean": rate[0], "plus_minus": rate[1]}
    entry["loss"] = verdict.loss if verdict else None
    entry["loss_difference"] = verdict.difference if verdict else None
    entry["same_loss"] = verdict.same if verdict else None
    return entry


def _finite(value: Any) -> Any:
    """The same with null for what JSON has no number for, such as the loss of a training that diverged."""
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
