"""A command that starts itself again, on ranks of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from ringreduce.bench import terminal
from ringreduce.launch import ringrun
from ringreduce.launch.python import run_module


def start(module: str, argv: Sequence[str], ranks: int, launch: Sequence[str]) -> int:
    """The module of this package with these arguments, and -np, on so many ranks. Returns the exit status.

    launch: ringrun's options besides.
    """
    if terminal.coloured(sys.stdout):
        os.environ["FORCE_COLOR"] = "1"  # what a rank prints comes here through a pipe
    words = ["-np", str(ranks), *launch, "--no-tag-output"]
    return ringrun.main([*words, *run_module(module, *argv, "-np", str(ranks))])
