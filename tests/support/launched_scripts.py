"""Scripts that a test starts on two ranks by a launcher's module."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

from processes import completed
from ranks import clean_environment

RINGRUN = ("ringreduce.launch.ringrun", "-np", "2", sys.executable)
TORCHRUN = ("torch.distributed.run", "--nproc-per-node", "2")


def said(launcher: Sequence[str], code: str, folder: Path, *arguments: str) -> list[str]:
    """The lines that the ranks of a script print, sorted. Fails unless the launcher says that all is well."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(code))
    done = completed(
        [sys.executable, "-m", *launcher, str(script), *arguments], env=clean_environment() | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.split("\n")[:-1])
