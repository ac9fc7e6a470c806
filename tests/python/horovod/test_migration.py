"""docs/user/migrate-from-horovod.md, PyTorch: programs run on two ranks, commands start, tables are complete."""

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from example_runs import RINGRUN, run
from horovod_names import PAGE, check_tables

pytest.importorskip("torch")

from test_horovod_names import CONSTANTS, SIGNATURES

TORCH = PAGE[: PAGE.index("\n## TensorFlow\n")]
"""The part for PyTorch; tests/python/tensorflow has the rest."""
PROGRAMS = re.findall(r"^```python\n(.*?)^```", TORCH, re.MULTILINE | re.DOTALL)
COMMANDS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def execute(programs: list[str]) -> int:
    """One program after the other, each in a job of its own; how many there were."""
    import ringreduce.torch as hvd

    for number, program in enumerate(programs):
        exec(compile(program, f"<program {number} of the page>", "exec"), {})
        hvd.shutdown()
    return len(programs)


def test_programs(run_ranks: Callable[..., Any]) -> None:
    assert len(PROGRAMS) >= 6
    assert run_ranks(execute, 2, args=(PROGRAMS,)) == [len(PROGRAMS)] * 2


def test_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(PROGRAMS[0])
    monkeypatch.chdir(tmp_path)
    programs = {"ringrun": str(RINGRUN), "python": sys.executable}
    (command,) = COMMANDS
    lines = run(*[programs.get(word, word) for word in shlex.split(command)]).splitlines()
    values = {match[2] for line in lines if (match := re.fullmatch(r"rank ([01]) of 2: mean loss (\d+\.\d+)", line))}
    assert len([line for line in lines if line.startswith("rank ")]) == 2  # on a busy machine warnings stand there, too
    assert len(values) == 1


def test_every_name_is_in_a_table_once() -> None:
    horovods = {name.split(".")[0] for name in SIGNATURES} | set(CONSTANTS)
    names = TORCH[TORCH.index("\n## Names\n") : TORCH.index("\n## Errors\n")]
    check_tables(names, horovods | {"global_process_set", "mpi_ops", "HorovodInternalError"})
