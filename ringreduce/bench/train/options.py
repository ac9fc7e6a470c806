"""The arguments of `ringreduce bench train`: parsing and nothing else."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ringreduce.bench.options import positive, seconds
from ringreduce.bench.train.frameworks import FRAMEWORKS
from ringreduce.bench.train.modes import ALWAYS, METHODS, MODES
from ringreduce.bench.train.optimizers import OPTIMIZERS
from ringreduce.errors import InvalidArgumentError
from ringreduce.launch.command_line.host_options import add_host_options, host_list, refuse_for_others, ringrun_words
from ringreduce.launch.command_line.hosts import Host, is_this_host
from ringreduce.launch.command_line.options import MAX_RANKS

DATA = ("fashion-mnist", "synthetic")
DEFAULT_RANKS = 2
DEFAULT_SECONDS = 3.0
DEFAULT_EVERY = 50


@dataclass(frozen=True)
class Defaults:
    """What depends on the model. batch_size is global, except for resnet50 where it is one rank's.

    Batch norm amplifies rounding: ResNet-18's loss on one thread and on two is 1e-7 apart, after two steps 2e-5, after
    three 6e-4. Hence few checked steps there. loss_tolerance is relative; ResNet-50 has the tighter one because two
    steps change its loss so little that a mode which never reduces stays within 1e-3.
    """

    batch_size: int = 256
    lr: float = 0.05
    check_steps: int = 10
    warmup: int = 3
    windows: int = 1
    steps_per_window: int | None = None
    timeout_s: float = 300.0
    loss_tolerance: float = 1e-3


MODELS = {
    "lenet": Defaults(),
    "mlp": Defaults(),
    "resnet18": Defaults(lr=0.01, check_steps=2),
    "resnet50": Defaults(32, 0.01, 2, warmup=10, windows=10, steps_per_window=10, timeout_s=3600, loss_tolerance=1e-4),
}
"""The last one is measured by the usual synthetic benchmark: random images, 10 warm-up batches, 10 x 10 batches."""


@dataclass(frozen=True)
class Options:
    """What to measure; the names of the settings are those of Defaults."""

    framework: str
    model: str
    ranks: int
    modes: tuple[str, ...]
    rounds: int
    seconds: float
    data: str | None
    seed: int
    optimizer: str
    bind: str
    threads: int | None
    json: str | None
    settings: Defaults
    hosts: tuple[Host, ...]
    """None: this one."""
    ringrun: tuple[str, ...]
    """ringrun's options for these hosts."""
    every: int
    """Steps between two averagings, of the methods that average parameters."""
    link: str | None
    """The rate of a link between hosts that are made of this machine, one for each rank; None: there are none."""
    plot: str | None
    inside: tuple[str, ...] = ()
    """What runs ringrun on the first of those hosts."""

    @property
    def per_rank(self) -> bool:
        """Whether each rank has a batch of its own (resnet50) instead of a share of a global one."""
        return self.model == "resnet50"

    @property
    def global_batch(self) -> int:
        """Samples of one step over all ranks."""
        return self.settings.batch_size * (self.ranks if self.per_rank else 1)


def parse(argv: Sequence[str]) -> Options:
    """Options from the command line. Exits with status 2 and a usage line on a bad one.

    Raises:
        InvalidArgumentError: an unknown mode, a model that the framework has not, fewer samples than ranks, or hosts
            that are none.
    """
    args = _parser().parse_args(argv)
    chosen = MODELS[args.model]
    framework = FRAMEWORKS[args.framework]
    hosts = host_list(args)
    slots = sum(host.slots for host in hosts)
    words = ringrun_words(args, hosts)
    if hosts and all(is_this_host(host.name) for host in hosts):
        refuse_for_others(args)
        hosts, words = [], []
    if slots and args.ranks not in (None, slots):
        raise InvalidArgumentError(f"ringreduce bench train: -np {args.ranks}, and the hosts have {slots} slots")
    methods = _listed(args.method, METHODS, "--method", "method")
    options = Options(
        framework=args.framework,
        model=args.model,
        ranks=slots or args.ranks or DEFAULT_RANKS,
        modes=_modes(("none" if methods else framework.vs) if args.vs is None else args.vs, methods),
        rounds=args.rounds,
        seconds=args.seconds or DEFAULT_SECONDS,
        data=args.data,
        seed=args.seed,
        optimizer=args.optimizer,
        bind=args.bind or ("core" if args.link is None else "none"),
        threads=args.threads,
        json=args.json,
        settings=Defaults(
            batch_size=args.batch_size or chosen.batch_size,
            lr=chosen.lr,
            check_steps=args.check_steps or chosen.check_steps,
            warmup=args.warmup or chosen.warmup,
            windows=args.iters or chosen.windows,
            steps_per_window=args.batches_per_iter or (chosen.steps_per_window if args.seconds is None else None),
            timeout_s=args.timeout or chosen.timeout_s,
            loss_tolerance=chosen.loss_tolerance,
        ),
        hosts=tuple(hosts),
        ringrun=tuple(words),
        every=args.every or DEFAULT_EVERY,
        link=args.link,
        plot=args.plot,
    )
    if args.link is not None:
        _check_link(args, options)
    if args.seconds is not None and args.batches_per_iter is not None:
        raise InvalidArgumentError(
            "ringreduce bench train: --seconds and --batches-per-iter both say how long a window is; give one of them"
        )
    if args.every is not None and not any(METHODS[method].averages for method in methods):
        averaging = ", ".join(name for name, method in METHODS.items() if method.averages)
        raise InvalidArgumentError(f"ringreduce bench train --every: say by --method what averages: {averaging}")
    for method in methods:
        if options.every < METHODS[method].least_every:
            raise InvalidArgumentError(
                f"ringreduce bench train --method {method} --every {options.every}: expected at least "
                f"{METHODS[method].least_every}"
            )
    if options.model not in framework.models:
        raise InvalidArgumentError(
            f"ringreduce bench train --framework {options.framework} --model {options.model}: "
            f"there are {', '.join(framework.models)}"
        )
    if options.ranks > MAX_RANKS:
        raise InvalidArgumentError(f"ringreduce bench train -np {options.ranks}: expected 1 to {MAX_RANKS}")
    if options.global_batch < options.ranks:
        raise InvalidArgumentError(
            f"ringreduce bench train: a batch of {options.global_batch} leaves some of {options.ranks} ranks idle"
        )
    if options.per_rank and options.data == "fashion-mnist":
        raise InvalidArgumentError("ringreduce bench train: resnet50 takes random images (--data synthetic)")
    return options


def _check_link(args: argparse.Namespace, options: Options) -> None:
    """Raises InvalidArgumentError for what --link cannot be with."""
    from ringreduce.lab.lab import NAMES

    if args.hosts or args.hostfile:
        raise InvalidArgumentError("ringreduce bench train --link: it makes hosts of this one, -H names others")
    if options.bind == "core":
        raise InvalidArgumentError("ringreduce bench train --link: its hosts share all cores, nothing can be bound")
    if options.ranks > len(NAMES):
        raise InvalidArgumentError(f"ringreduce bench train --link -np {options.ranks}: expected 1 to {len(NAMES)}")


def _modes(vs: str, methods: set[str]) -> tuple[str, ...]:
    """The modes in the order of the table: those asked for, and those always measured."""
    wanted = _listed(vs, [name for name in MODES if name not in METHODS], "--vs", "mode")
    return tuple(name for name in MODES if name in wanted | methods or name in ALWAYS)


def _listed(text: str, known: Iterable[str], option: str, what: str) -> set[str]:
    """The names in a list of words. Raises InvalidArgumentError for one that is not known."""
    names = {name.strip() for name in text.split(",")} - {"", "none"}
    if unknown := sorted(names - set(known)):
        raise InvalidArgumentError(
            f"ringreduce bench train {option} {','.join(unknown)}: no such {what}; there are {', '.join(known)}"
        )
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ringreduce bench train",
        description="Times training on N ranks, of this host or of several, beside other ways to train on the same "
        "cores. Every measurement is a job of its own; modes alternate within a round. Exit status 1 when a mode's "
        "loss differs or ringreduce fails.",
    )
    add = parser.add_argument
    add("--framework", choices=list(FRAMEWORKS), default="torch", help="default %(default)s")
    add("--model", choices=list(MODELS), default="lenet", help="default %(default)s")
    add("-np", dest="ranks", type=positive, metavar="N", help=f"ranks (default: the slots of -H, else {DEFAULT_RANKS})")
    add_host_options(parser, "ranks on these hosts, host:slots,...; modes of one process stay on this host")
    add(
        "--link",
        metavar="RATE",
        help="each rank on a host of its own, made of this machine, with a link of this rate, as tc spells it: 100mbit "
        "(root; see ringreduce lab)",
    )
    add(
        "--bind",
        choices=["core", "none"],
        help="bind each rank to its share of its host's cores (default: core; with --link: none)",
    )
    add("--threads", type=positive, metavar="N", help="of each rank (default: one for each core of its share)")
    defaults = "; ".join(f"{each.name}: {each.vs}" for each in FRAMEWORKS.values())
    add("--vs", metavar="LIST", help=f'beside {" and ".join(ALWAYS)}, or "none" (default for {defaults})')
    add(
        "--method",
        metavar="LIST",
        default="",
        help=f"ways to send less, beside synchronous whole gradients: {','.join(METHODS)}; --vs is none then (torch)",
    )
    add("--every", type=positive, metavar="H", help=f"steps between two averagings (default {DEFAULT_EVERY})")
    add("--rounds", type=positive, default=3, metavar="R", help="default %(default)s")
    add("--seconds", type=seconds, metavar="S", help=f"length of a timed window (default {DEFAULT_SECONDS:g})")
    add("--batch-size", type=positive, metavar="N", help="global (256), or per rank for resnet50 (32)")
    add(
        "--data",
        choices=DATA,
        help="default: fashion-mnist if its files are there and all ranks on this host, else synthetic",
    )
    add("--optimizer", choices=list(OPTIMIZERS), default="sgd", help="default %(default)s; momentum is 0.9")
    add("--seed", type=int, default=0, help="of weights, data and order (default %(default)s)")
    add(
        "--check-steps",
        type=positive,
        metavar="N",
        help="steps whose losses are compared (10, resnets 2)",
    )
    add("--warmup", type=positive, metavar="N", help="untimed steps after those (3, resnet50 10)")
    add("--iters", type=positive, metavar="N", help="timed windows per job (1, resnet50 10)")
    add("--batches-per-iter", type=positive, metavar="N", help="steps per window instead of --seconds (resnet50 10)")
    add("--timeout", type=seconds, metavar="S", help="deadline of one measurement (300, resnet50 3600)")
    add("--json", metavar="FILE", help="also write every round's figures here; -: print them, in the last line")
    add("--plot", metavar="FILE", help="also draw loss against time and samples/s: png, svg, pdf (matplotlib)")
    return parser
