"""What is compared: the README's table, small messages on more ranks, calls from Python, training, and the hosts."""

from __future__ import annotations

import re
from collections.abc import Sequence

from .local import Bench, Calls, Steps
from .turns import Case, Group

SIZES = ("8", "512", "4K", "64K", "256K", "1M", "2M", "16M", "128M")
"""The README's."""
PYTHON_SIZES = ("8", "1M")
HOSTS_SIZES = ("8", "4K", "64K", "1M", "16M")
SEVERAL = ("float16", "reducescatter", "allgather", "broadcast")
"""What hosts of several ranks do; float16: an all-reduce."""
SEVERAL_SIZES = ("64K", "1M", "16M")
"""Of the whole tensor."""
HOW = {"idle": ("call",), "computing": ("exposed", "step")}
"""What the ranks do between calls, and what is measured: calls.py."""
TRAINING = ("mlp plain", "mlp shard", "mlp ddp", "lenet plain", "lenet shard", "lenet ddp")

QUICK = "|".join(
    (
        r"^2 ranks c (registered|private) (8|64K|2M|16M)$",
        r"^8 ranks c",
        r"^2 ranks python",
        r"^2 ranks (un)?named 1M",
        r"^training mlp plain",
    )
)
"""--quick: two minutes of the fourteen."""


def here() -> list[Case]:
    """Those of one host."""
    found = [Case(Bench(2, "c", buffers), size) for buffers in ("registered", "private") for size in SIZES]
    found += [Case(Bench(ranks, "c"), "8") for ranks in (4, 8)]
    found += [Case(Bench(ranks, "python"), "8") for ranks in (2, 4, 8)]
    found += called(Calls(2), PYTHON_SIZES)
    found += [Case(Steps(), order, "step") for order in TRAINING]
    return found


def across(group: Group) -> list[Case]:
    """Those of several hosts of one rank."""
    return called(group, HOSTS_SIZES)


def across_of_several(group: Group) -> list[Case]:
    """Those of several hosts of several ranks."""
    return [Case(group, f"{name} {size} idle", "call") for name in SEVERAL for size in SEVERAL_SIZES]


def called(group: Group, sizes: Sequence[str]) -> list[Case]:
    """Named and unnamed, idle and computing, at these sizes."""
    return [
        Case(group, f"{name} {size} {how}", measure)
        for size in sizes
        for name in ("unnamed", "named")
        for how, measures in HOW.items()
        for measure in measures
    ]


def chosen(cases: Sequence[Case], pattern: str | None) -> list[Case]:
    """Those in whose name the regular expression is found; all where there is none."""
    return [case for case in cases if pattern is None or re.search(pattern, case.name)]
