"""Prometheus' file where its folder or its disk refuses: old figures are not left, and the exporter goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from ringreduce.errors import InvalidArgumentError
from ringreduce.watch import prometheus
from ringreduce.watch.board import Board

BOARD = cast(Board, SimpleNamespace(look=list))
Between = Callable[[int], None]


def write(path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int, between: Between = lambda _: None) -> None:
    """Writes so often; the wait for the next round calls between(), with the rounds so far."""
    seen = [0]

    def sleep(_: float) -> None:
        seen[0] += 1
        between(seen[0])
        if seen[0] == rounds:
            raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", sleep)
    prometheus.write_again_and_again(BOARD, path, 1.0)


def in_a_folder_without_rights(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As root sees it, who may do everything: only the file that is there can be written."""
    path.touch()

    def unlink(refused: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(refused))

    monkeypatch.setattr(Path, "unlink", unlink)
    monkeypatch.setattr(os, "access", lambda asked, _: os.fspath(asked) == os.fspath(path))


def test_a_file_that_cannot_be_removed_is_emptied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "ringreduce.prom"
    in_a_folder_without_rights(path, monkeypatch)
    sizes = []
    with pytest.raises(KeyboardInterrupt):
        write(path, monkeypatch, 2, lambda _: sizes.append(path.stat().st_size))
    assert min(sizes) > 0
    assert path.read_text() == ""


def test_a_file_that_can_neither_be_removed_nor_emptied_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ringreduce.prom"
    in_a_folder_without_rights(path, monkeypatch)

    def truncate(refused: Path, _: int) -> None:
        raise OSError(5, "Input/output error", str(refused))

    monkeypatch.setattr(os, "truncate", truncate)
    with pytest.raises(KeyboardInterrupt):
        write(path, monkeypatch, 1)
    assert capsys.readouterr().err == f"ringreduce top: {path} keeps its last figures: Input/output error\n"


def test_a_write_that_fails_is_said_once_and_does_not_end_the_exporter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, away = tmp_path / "folder", tmp_path / "away"
    path = folder / "ringreduce.prom"
    folder.mkdir()
    was_there = []

    def between(rounds: int) -> None:
        was_there.append(path.is_file())
        if rounds in (1, 4, 6):
            path.unlink()
            folder.rename(away)
        elif rounds in (3, 5):
            away.rename(folder)

    with pytest.raises(KeyboardInterrupt):
        write(path, monkeypatch, 7, between)
    assert was_there == [True, False, False, True, False, True, False]
    assert capsys.readouterr().err.splitlines() == [
        f"ringreduce top: {path}: cannot be written: there is no folder {folder}; make it first; tried again every 1 s"
    ]


def test_figures_are_not_left_where_the_next_ones_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ringreduce.prom"

    def full(_: Path) -> None:
        raise InvalidArgumentError(f"{path}: cannot be written: No space left on device")

    def between(rounds: int) -> None:
        was_there.append(path.is_file())
        monkeypatch.setattr(prometheus, "whole_file", full)

    was_there: list[bool] = []
    with pytest.raises(KeyboardInterrupt):
        write(path, monkeypatch, 2, between)
    assert was_there == [True, False]


def test_the_exporter_ends_where_nobody_reads_its_pipe_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)

    def broken(_: Path) -> None:
        raise InvalidArgumentError(f"{path}: cannot be written: Broken pipe")

    try:
        with pytest.raises(InvalidArgumentError, match="Broken pipe"):
            write(path, monkeypatch, 3, lambda _: monkeypatch.setattr(prometheus, "whole_file", broken))
    finally:
        os.close(reader)


def test_a_file_behind_a_descriptor_has_every_rounds_figures_and_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As /dev/stdout of `>> file`."""
    path = tmp_path / "out"
    path.write_text("before\n")
    handle = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        with pytest.raises(KeyboardInterrupt):
            write(Path(f"/dev/fd/{handle}"), monkeypatch, 3)
    finally:
        os.close(handle)
    assert path.read_text() == "before\n" + 3 * prometheus.text([])
    assert list(tmp_path.iterdir()) == [path]
