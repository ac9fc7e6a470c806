"""The tools of tests/tools: what `make check` runs for a change, and what `make test` says about the time it took."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rank_pool import modules_of, source_of

TESTS = Path(__file__).resolve().parents[2]
ROOT = TESTS.parent
sys.path.insert(0, str(TESTS / "tools"))

import check  # noqa: E402
import files_of_tests  # noqa: E402
import parts  # noqa: E402


def test_every_room_of_a_quick_check_is_there_and_so_are_its_tests() -> None:
    for room, (cpp, python) in check.ROOMS.items():
        assert list(ROOT.glob(f"{room}*")), room
        assert cpp or python, room
        for name in cpp.split():
            assert files_of_tests.cpp_path_of(name).is_file(), f"{room}: {name}"
        for name in python.split():
            assert files_of_tests.path_of(name).is_file(), f"{room}: {name}"


def test_every_folder_of_code_has_a_room() -> None:
    folders = [path for top in ("csrc", "ringreduce") for path in (ROOT / top).iterdir() if path.is_dir()]
    without = []
    for folder in folders:
        name = f"{folder.relative_to(ROOT)}/"
        if folder.name not in ("__pycache__", "common") and name not in check.ROOMS:
            without.append(name)
    assert not without


@pytest.mark.parametrize(
    ("file", "cpp", "python"),
    [
        ("csrc/data/codec.cc", "codec_test", "test_package.py"),
        ("csrc/engine/gpu/device_queue.cc", "device_queue_test", "test_package.py"),
        ("ringreduce/torch/distributed/work.py", None, "test_distributed.py"),
        ("ringreduce/torch/optimizer/buckets.py", None, "test_optimizer.py"),
        ("tests/cpp/engine/join_test.cc", "join_test", None),
        ("tests/python/core/test_async.py", None, "test_async.py"),
    ],
)
def test_a_change_runs_the_tests_of_the_closest_room(file: str, cpp: str | None, python: str | None) -> None:
    found_cpp, found_python = check.quick_tests([file])
    assert (cpp in found_cpp) if cpp else not found_cpp
    assert (python in found_python) if python else not found_python


def test_only_what_can_be_linted_is_linted() -> None:
    assert check.lint(["README.md"]) == []
    assert [str(command[0]).rpartition("/")[2] for command in check.lint(["tests/support/oracle.py"])] == [
        "ruff",
        "ruff",
    ]
    assert [command[-1] for command in check.lint(["csrc/base/log.h"])] == ["csrc/base/log.h"]
    assert any("mypy" in str(command[0]) for command in check.lint(["ringreduce/config.py"]))


def test_a_part_past_its_budget_is_named_in_the_last_line_and_others_are_not() -> None:
    budget = {"build": 10.0, "lint": 5.0}
    assert parts.last_line({"build": 9.6, "lint": 4.0}, budget) == "== make test: all passed in 14 s"
    assert parts.last_line({"build": 11.0, "lint": 4.0}, budget) == (
        "== make test: all passed in 15 s; past their budget: build 11 s of 10"
    )


def test_every_part_has_a_budget_and_every_budget_a_part() -> None:
    makefile = (ROOT / "Makefile").read_text()
    (named,) = [line.split(":=")[1].split() for line in makefile.splitlines() if line.startswith("TEST_PARTS")]
    assert set(json.loads(parts.BUDGET.read_text())) == set(named)


def test_ranks_start_from_what_their_test_imports() -> None:
    """Else all ranks would be forks of processes with torch, which end in another way than the interpreter does."""
    rooms = TESTS / "python"
    torch_of = {
        name: {module for module in modules_of(source_of(str(rooms / name))) if "torch" in module}
        for name in ("core/test_collectives.py", "torch/test_training.py", "torch/test_torch_compile.py")
    }
    with_torch = {"torch", "torch._dynamo.config", "ringreduce.torch"}
    compiler = {"torch._inductor.compile_fx", "torch._dynamo.backends.common"}
    assert list(torch_of.values()) == [set(), with_torch, with_torch | compiler]


OPTIMIZER_THEN_COMPILER = """
import sys
import torch
parameter = torch.nn.Parameter(torch.ones(2))
optimizer = torch.optim.SGD([parameter], lr=0.5)
parameter.sum().backward()
optimizer.step()
module = sys.modules["torch._dynamo"]
print(len([name for name in sys.modules if name.startswith("torch._dynamo")]))
compiled = torch.compile(optimizer.step, backend="eager")
compiled()
optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
from torch._dynamo import config, utils
print(parameter.tolist(), torch._dynamo is module, config is utils.config, len(utils.counters["stats"]) > 0)
"""


def test_the_compiler_is_executed_where_it_is_needed() -> None:
    """By scripts of tests: startup/uncompiled.py."""
    path = os.pathsep.join([str(TESTS / "support/startup"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", OPTIMIZER_THEN_COMPILER]
    output = subprocess.run(command, env=os.environ | {"PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert output.stdout.splitlines() == ["1", "[0.0, 0.0] True True True"]
