"""horovodrun's options for ringrun, horovod.run()'s for run(): taken over, without effect here, or errors.

Options that both have under one name (-np, -H, --hostfile, --mpi-args, --verbose, --check-build, --output-filename) are
in options.py.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ringreduce.errors import UnavailableError
from ringreduce.horovod_variables import ALGORITHM, AUTOTUNE, NO_CYCLE


class ForwardedOption(NamedTuple):
    """An option that becomes a variable of the ranks."""

    flag: str
    variable: str
    metavar: str
    kind: Callable[[str], Any] = int
    to_text: Callable[[Any], str] = str


TAKEN = (
    ForwardedOption(
        "--fusion-threshold-mb", "RINGREDUCE_FUSION_THRESHOLD", "MB", int, lambda megabytes: str(megabytes << 20)
    ),
    ForwardedOption("--start-timeout", "RINGREDUCE_INIT_TIMEOUT", "S", float, "{:g}".format),
    ForwardedOption("--stall-check-warning-time-seconds", "RINGREDUCE_STALL_WARNING", "S", float, "{:g}".format),
    ForwardedOption("--stall-check-shutdown-time-seconds", "RINGREDUCE_TIMEOUT", "S", float, "{:g}".format),
    ForwardedOption("--log-level", "RINGREDUCE_LOG_LEVEL", "LEVEL", str.lower),
    ForwardedOption("--timeline-filename", "HOROVOD_TIMELINE", "FILE", str),
)

CACHE_CAPACITY = ForwardedOption("--cache-capacity", "HOROVOD_CACHE_CAPACITY", "NAMES")
"""Taken too, but for 0, by which Horovod remembers nothing. RINGREDUCE_CACHE_CAPACITY would limit names in flight."""
_NO_CACHE = "no checks are remembered"
_TIMES = "lines of the log have no time"

BETWEEN_HOSTS = ("--network-interface", "--network-interfaces", "--ssh-args", "--ssh-port", "--ssh-identity-file")
"""Options of ringrun, which horovod.run() has as arguments."""
_LOCAL = "all ranks are on this host"

WITHOUT_EFFECT: dict[tuple[str, ...], tuple[int, str]] = {
    ("--autotune", "--no-autotune"): (0, AUTOTUNE),
    ("--autotune-log-file", "--autotune-warmup-samples", "--autotune-steps-per-sample"): (1, AUTOTUNE),
    ("--autotune-bayes-opt-max-samples", "--autotune-gaussian-process-noise"): (1, AUTOTUNE),
    ("--cycle-time-ms",): (1, NO_CYCLE),
    ("--disable-cache",): (0, _NO_CACHE),
    ("--gloo",): (0, "Gloo is not used; ranks of one host share memory"),
    ("--gloo-timeout-seconds",): (1, "Gloo is not used; set RINGREDUCE_TIMEOUT"),
    ("--hierarchical-allreduce", "--no-hierarchical-allreduce"): (0, ALGORITHM),
    ("--hierarchical-allgather", "--no-hierarchical-allgather"): (0, ALGORITHM),
    ("--torus-allreduce", "--no-torus-allreduce"): (0, ALGORITHM),
    ("--log-with-timestamp", "--log-without-timestamp"): (0, _TIMES),
    ("--log-hide-timestamp", "--no-log-hide-timestamp"): (0, _TIMES),
    ("-prefix-timestamp", "--prefix-output-with-timestamp"): (0, "lines are not stamped; pipe them through `ts`"),
    ("--mpi-threads-disable", "--no-mpi-threads-disable"): (0, "MPI's threads are chosen by mpi4py.rc"),
    ("--no-timeline-mark-cycles",): (0, "cycles are not marked unless --timeline-mark-cycles is given"),
    ("--num-nccl-streams",): (1, "there is nothing of the kind here"),
    ("--stall-check",): (0, "it is on already, with RINGREDUCE_STALL_WARNING seconds"),
    ("--thread-affinity",): (1, "--bind core binds a rank with all its threads"),
}
"""Options: how many arguments each has, and why it does nothing or what does it here."""

_MPI = "run() starts its ranks without MPI; `ringrun --mpi -np N script.py` has mpirun start a script"
_ELASTIC = "elastic jobs do not exist yet; start a fixed number of ranks with -np N"

REFUSED: dict[tuple[str, ...], tuple[int, str]] = {
    ("--min-np", "--min-num-proc", "--max-np", "--max-num-proc", "--slots-per-host"): (1, _ELASTIC),
    ("--elastic-timeout", "--reset-limit", "--host-discovery-script"): (1, _ELASTIC),
    ("--blacklist-cooldown-range",): (2, _ELASTIC),
    ("--binding-args",): (
        1,
        "give --bind core or --bind none; with --transport mpi, mpirun's own options by --mpi-args",
    ),
    ("--config-file",): (1, "such files are not read; set RINGREDUCE_* variables or give options (ringrun --help)"),
    ("--jsrun",): (0, "ringrun does not call jsrun; start the ranks with jsrun itself"),
    ("--tcp",): (0, 'hosts are connected by TCP anyway; for MPI over TCP: --mpi --mpi-args="--mca btl tcp,self"'),
}
"""Likewise, for those without which a job would not be the one that was asked for."""


_ALIKE = (
    *("disable_cache", "network_interface", "network_interfaces", "ssh_args", "ssh_port", "ssh_identity_file"),
    *("host_discovery_script", "min_np", "min_num_proc", "max_np", "max_num_proc", "reset_limit"),
)
ARGUMENTS = {
    **{name: "--" + name.replace("_", "-") for name in _ALIKE},
    "slots": "--slots-per-host",
    "cooldown_range": "--blacklist-cooldown-range",
    "use_gloo": "--gloo",
}
"""Arguments of horovod.run() that say the same as an option that has no effect here or is refused."""


def unused_arguments(given: Mapping[str, Any], spans_hosts: bool) -> list[str]:
    """Which of horovod.run()'s arguments have no effect, each with the reason; None and False are as good as not given.

    spans_hosts: whether ranks run on other hosts than this one.

    Raises:
        UnavailableError: one asks for what does not exist here.
        TypeError: horovod.run() has no such argument.
    """
    unused = []
    for name, value in given.items():
        if name in ("use_mpi", "mpi_args"):
            refused, why = True, _MPI
        elif name in ARGUMENTS:
            refused, why = _reason(ARGUMENTS[name])
        else:
            raise TypeError(f"run() got an unexpected keyword argument {name!r}")
        if value is None or value is False or (spans_hosts and ARGUMENTS.get(name) in BETWEEN_HOSTS):
            continue
        if refused:
            raise UnavailableError(f"run({name}={value!r}): {why}")
        unused.append(f"{name} ({why})")
    return unused


def _reason(flag: str) -> tuple[bool, str]:
    """(whether an option is refused, why it has no effect or is)."""
    tables = ((False, WITHOUT_EFFECT), (False, {BETWEEN_HOSTS: (1, _LOCAL)}), (True, REFUSED))
    return next((refused, why) for refused, rows in tables for flags, (_, why) in rows.items() if flag in flags)


def add_to(parse: argparse.ArgumentParser) -> None:
    """Adds the options. Afterwards `variables` has what to set for the ranks, `unused` what to tell the user."""
    parse.set_defaults(variables={}, unused=[])
    add = parse.add_argument_group("horovodrun's options").add_argument
    for row in TAKEN:
        add(row.flag, action=_Call, call=_set(row), type=row.kind, metavar=row.metavar, help=f"sets {row.variable}")
    add(
        CACHE_CAPACITY.flag,
        action=_Call,
        call=_set_cache_capacity,
        type=CACHE_CAPACITY.kind,
        metavar=CACHE_CAPACITY.metavar,
        help=f"sets {CACHE_CAPACITY.variable}; 0 has no effect",
    )
    add("--no-stall-check", action=_Call, call=_disable_stall_check, nargs=0, help="sets RINGREDUCE_STALL_WARNING=0")
    add(
        "--timeline-mark-cycles",
        action=_Call,
        call=_mark_cycles,
        nargs=0,
        help="sets RINGREDUCE_TIMELINE_MARK_CYCLES=1",
    )
    add("--mpi", dest="transport", action="store_const", const="mpi", help="the same as --transport mpi")
    for table, meaning in ((WITHOUT_EFFECT, _tell), (REFUSED, _refuse)):
        for flags, (arguments, why) in table.items():
            add(*flags, action=_Call, call=meaning(why), nargs=arguments, help=argparse.SUPPRESS)


Call: TypeAlias = Callable[[argparse.Namespace, str, Any], None]
"""What an option does: given what is parsed so far, the option as written, and its values."""


class _Call(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, call: Call, **kwargs: Any) -> None:
        super().__init__(option_strings, argparse.SUPPRESS, **kwargs)
        self._call = call

    def __call__(self, parser: object, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        self._call(namespace, str(option), values)


def _set(row: ForwardedOption) -> Call:
    def call(namespace: argparse.Namespace, option: str, value: Any) -> None:
        namespace.variables[row.variable] = row.to_text(value)

    return call


def _set_cache_capacity(namespace: argparse.Namespace, option: str, value: Any) -> None:
    meaning = _set(CACHE_CAPACITY) if value else _tell(_NO_CACHE)
    meaning(namespace, option if value else f"{option} 0", value)


def _disable_stall_check(namespace: argparse.Namespace, option: str, values: Any) -> None:
    namespace.variables["RINGREDUCE_STALL_WARNING"] = "0"


def _mark_cycles(namespace: argparse.Namespace, option: str, values: Any) -> None:
    namespace.variables["RINGREDUCE_TIMELINE_MARK_CYCLES"] = "1"


def _tell(why: str) -> Call:
    def call(namespace: argparse.Namespace, option: str, values: Any) -> None:
        namespace.unused.append(f"{option} ({why})")

    return call


def _refuse(why: str) -> Call:
    def call(namespace: argparse.Namespace, option: str, values: Any) -> None:
        raise UnavailableError(f"{option}: {why}")

    return call
