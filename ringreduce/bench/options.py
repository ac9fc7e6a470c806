"""The arguments of `ringreduce bench`: parsing and nothing else."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass

from ringreduce.bench.collectives import COLLECTIVES
from ringreduce.bench.oracle import DTYPES, OPS
from ringreduce.errors import InvalidArgumentError
from ringreduce.launch.command_line.host_options import add_launch_options, hosts_and_ranks, ringrun_words
from ringreduce.launch.command_line.hosts import Host

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
DEFAULT_RANKS = 2
DEFAULT_BIND = "core"
DEFAULT_SIZES = "8,512,4K,64K,1M,16M,128M"
DEFAULT_BEGIN, DEFAULT_FACTOR = "8", 2
DEFAULT_ROUNDS, DEFAULT_DEADLINE_S = 3, 120.0


@dataclass(frozen=True)
class Options:
    """What to measure. iters and warmup are None where each size chooses its own, bind where nobody says."""

    collective: str
    ranks: int | None
    sizes: tuple[int, ...]
    dtype: str
    op: str
    buffers: str
    level: str
    in_place: bool
    iters: int | None
    warmup: int | None
    bind: str | None
    check: bool
    json: str | None
    limit: bool = False
    vs: tuple[str, ...] = ()
    rounds: int = DEFAULT_ROUNDS
    deadline_s: float = DEFAULT_DEADLINE_S
    plot: str | None = None
    html: str | None = None
    hosts: tuple[Host, ...] = ()
    """None: this one."""
    ringrun: tuple[str, ...] = ()
    """ringrun's options for these hosts."""


def parse(argv: Sequence[str]) -> Options:
    """Options from the command line. Exits with status 2 and a usage line on a bad one.

    Raises:
        InvalidArgumentError: a size that is no number of bytes, hosts that are none, an option that another one makes
            meaningless.
    """
    args = _parser().parse_args(argv)
    vs = tuple(name.strip() for name in args.vs.split(",")) if args.vs is not None else ()
    _refuse_unused(args)
    _refuse_one_file_twice(args)
    hosts, ranks = hosts_and_ranks(args, "ringreduce bench")
    sizes = _sizes(args)
    level = args.level or "c"
    return Options(
        collective=args.collective,
        ranks=ranks,
        sizes=tuple(sizes),
        dtype=args.dtype,
        op=args.op,
        buffers=args.buffers or ("both" if vs else "private"),
        level=level,
        in_place=args.in_place,
        iters=args.iters,
        warmup=args.warmup,
        bind=args.bind,
        check=args.check,
        json=args.json,
        limit=args.limit if args.limit is not None else level == "c",
        vs=vs,
        rounds=args.rounds or DEFAULT_ROUNDS,
        deadline_s=args.deadline or DEFAULT_DEADLINE_S,
        plot=args.plot,
        html=args.html,
        hosts=tuple(hosts),
        ringrun=tuple(ringrun_words(args, hosts)),
    )


def nbytes(text: str) -> int:
    """Bytes in "8", "4K", "1M" or "2G" (powers of 1024, as in nccl-tests). Raises InvalidArgumentError."""
    digits = text.strip().upper().removesuffix("B").removesuffix("I")
    unit = UNITS.get(digits[-1:], 1)
    number = digits if unit == 1 else digits[:-1]
    if not number.isdecimal():
        raise InvalidArgumentError(f"ringreduce bench: a size is a number of bytes such as 8, 4K or 1M, not {text!r}")
    return int(number) * unit


def _refuse_unused(args: argparse.Namespace) -> None:
    """Raises InvalidArgumentError for an option that means nothing without --vs, or with it."""
    compares = {"--rounds": args.rounds, "--deadline": args.deadline, "--plot": args.plot, "--html": args.html}
    alone = {"--level": args.level, "--limit and --no-limit": args.limit}
    for option, value in (compares if args.vs is None else alone).items():
        if value is None:
            continue
        if args.vs is None:
            raise InvalidArgumentError(f"ringreduce bench: {option} is for a comparison: say with whom by --vs")
        raise InvalidArgumentError(
            f"ringreduce bench: leave out {option} with --vs: a peer has its level, and ours is measured at the peers'"
        )


def _refuse_one_file_twice(args: argparse.Namespace) -> None:
    """Raises InvalidArgumentError where one output would replace another."""
    taken: dict[str, str] = {}
    for option, path in (("--json", args.json), ("--plot", args.plot), ("--html", args.html)):
        if path is None:
            continue
        earlier = taken.setdefault(os.path.realpath(path), option)
        if earlier != option:
            raise InvalidArgumentError(f"ringreduce bench: {earlier} and {option} both name {path}; give two files")


def _sizes(args: argparse.Namespace) -> list[int]:
    """Those of -b, -e and -f, else those of --sizes; 0 for a barrier, which carries nothing."""
    given = [
        option for option, value in (("-b", args.begin), ("-e", args.end), ("-f", args.factor)) if value is not None
    ]
    if args.collective == "barrier":
        if given or args.sizes is not None:
            raise InvalidArgumentError(f"ringreduce bench: a barrier has no size: leave out {(*given, '--sizes')[0]}")
        return [0]
    if not given:
        return [nbytes(text) for text in (DEFAULT_SIZES if args.sizes is None else args.sizes).split(",")]
    if args.sizes is not None:
        raise InvalidArgumentError(f"ringreduce bench: --sizes and {given[0]} both say which sizes; give one of them")
    if given[-1] == "-f" and args.end is None:
        raise InvalidArgumentError("ringreduce bench: -f needs the largest size: -b 8 -e 128M -f 2")
    begin = DEFAULT_BEGIN if args.begin is None else args.begin
    factor = DEFAULT_FACTOR if args.factor is None else args.factor
    return _range(begin, begin if args.end is None else args.end, factor)


def _range(begin: str, end: str, factor: int) -> list[int]:
    size, last = nbytes(begin), nbytes(end)
    if not 0 < size <= last or factor < 2:
        raise InvalidArgumentError(f"ringreduce bench: -b {begin} -e {end} -f {factor} is an empty range of sizes")
    sizes = []
    while size <= last:
        sizes.append(size)
        size *= factor
    return sizes


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ringreduce bench",
        description="Times a collective and checks its result. One row per size; exit status 1 when a result is wrong.",
    )
    flag = argparse.BooleanOptionalAction
    add = parser.add_argument
    add("collective", choices=list(COLLECTIVES))
    add("-np", "--np", dest="ranks", type=positive, metavar="N", help="ranks to start (default 2, or those started)")
    add_launch_options(parser, "ranks on these hosts, host:slots,...: the limit is then that of the links between them")
    add("--sizes", metavar="LIST", help=f"bytes per rank, such as 8,4K,1M (default {DEFAULT_SIZES})")
    add("-b", dest="begin", metavar="SIZE", help=f"the smallest of sizes instead of --sizes (default {DEFAULT_BEGIN})")
    add("-e", dest="end", metavar="SIZE", help="the largest of them (default: that of -b, and no other one)")
    add("-f", dest="factor", type=int, metavar="N", help=f"each is N times the one before (default {DEFAULT_FACTOR})")
    add("--dtype", default="float32", choices=list(DTYPES))
    add("--op", default="sum", choices=list(OPS))
    add("--buffers", choices=["private", "registered"], help="memory of the operands (default private; with --vs both)")
    add("--level", choices=["c", "python"], help="loop inside the core (default), or over the Python functions")
    add("--in-place", action=flag, default=True, help="allreduce: the result replaces the input (default)")
    add("--iters", type=positive, metavar="N", help="calls to time (default: by size)")
    add("--warmup", type=positive, metavar="N", help="calls before (default: by size)")
    add("--check", action=flag, default=True, help="compare every element of every rank with the exact result")
    add(
        "--json", metavar="FILE", help="also write the results here, on the first host; -: print them, in the last line"
    )
    add("--limit", action=flag, help="measure what the machine allows as well (default at level c)")
    add("--vs", metavar="LIST", help="beside these, in turns: gloo,openmpi,mpich,mpi4py,horovod,nccl")
    add("--rounds", type=positive, metavar="N", help=f"--vs: everyone's turns at each size (default {DEFAULT_ROUNDS})")
    add(
        "--deadline",
        type=seconds,
        metavar="S",
        help=f"--vs: a cell that takes longer says timeout ({DEFAULT_DEADLINE_S:g})",
    )
    add("--plot", metavar="FILE", help="--vs: time, bus bandwidth and ratios as FILE.png or .svg (needs matplotlib)")
    add("--html", metavar="FILE", help="--vs: a report in one file (needs matplotlib)")
    return parser


def positive(text: str) -> int:
    """An argument that must be at least 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def seconds(text: str) -> float:
    """An argument that is a time."""
    value = float(text)
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError("must be a number of seconds above 0")
    return value
