"""The table of tests/tools/mutation.py: every row still fits the program, every room has one, and samples rotate."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tests" / "tools"))
from files_of_tests import cpp_path_of, path_of  # noqa: E402
from mutant import Unfit, broken  # noqa: E402
from mutation import sample  # noqa: E402
from mutations import MUTATIONS, Mutation  # noqa: E402

LEAST = 30


@pytest.mark.parametrize("row", MUTATIONS, ids=lambda row: row.name)
def test_a_row_fits(row: Mutation) -> None:
    mutant = broken(row)
    assert mutant != (ROOT / row.file).read_text()
    if row.is_python:
        compile(mutant, row.file, "exec")
    assert row.tests
    for name in row.tests:
        file, _, function = name.partition("::")
        if not row.is_python:
            source = cpp_path_of(file).read_text()
            assert re.search(r'TEST_CASE\(\s*"' + re.escape(function), source)
            continue
        tree = ast.parse(path_of(file).read_text())
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        assert not function or function in functions


def test_rows_are_many_and_everywhere() -> None:
    names = [row.name for row in MUTATIONS]
    assert len(set(names)) == len(names)
    assert len(names) >= LEAST
    rooms = {path.name for path in (ROOT / "csrc").iterdir() if path.is_dir()}
    assert {row.room for row in MUTATIONS} == rooms | {"python"}
    files = [row.file for row in MUTATIONS]
    for file in ("negotiation/join.cc", "relay/", "data/codec.cc", "data/kernels/kernels_codec.h"):
        assert any(name.startswith(f"csrc/{file}") for name in files), file
    assert sum(name.startswith("ringreduce/torch/") for name in files) >= 5


def test_a_row_that_no_longer_fits_is_an_error_by_name() -> None:
    row = MUTATIONS[0]._replace(name="gone", text="no such text")
    with pytest.raises(Unfit, match=r"gone: .* holds the text 0 times"):
        broken(row)


def test_samples_have_python_and_different_rooms_and_rotate() -> None:
    seen = set()
    for seed in range(2000):  # a row of a room of thirty comes once in a hundred
        rows = sample(MUTATIONS, 5, seed)
        assert rows == sample(MUTATIONS, 5, seed)
        assert len({row.room for row in rows}) == 5
        assert "python" in {row.room for row in rows}
        seen |= {row.name for row in rows}
    assert seen == {row.name for row in MUTATIONS}
    assert sorted(sample(MUTATIONS, len(MUTATIONS), 0)) == sorted(MUTATIONS)
