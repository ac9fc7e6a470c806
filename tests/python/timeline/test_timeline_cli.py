"""`ringreduce timeline merge`: which files it writes, what it says, and how it ends."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from deadlines import SOON_S
from timeline_files import RankFile, steady_job, write_all
from trace_reader import perfetto_trace

from ringreduce.errors import InvalidArgumentError
from ringreduce.timeline import cli
from ringreduce.timeline.whole_file import check_writable, whole_file


def records(folder: Path) -> Path:
    return write_all(steady_job(2, 2), folder / "records")


def test_merge_writes_each_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(records(tmp_path))
    chrome, other, perfetto = (tmp_path / name for name in ("job.json", "hvd.json", "job.pftrace"))
    assert cli.main(["merge", folder, "-o", str(chrome), "--horovod", str(other), "--mark-cycles"]) == 0
    assert cli.main(["merge", folder, "--output", str(perfetto)]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert said.out.splitlines() == [
        f"{path}: 4 operations, 2 of 2 ranks, one clock" for path in (chrome, other, perfetto)
    ]
    assert len(json.loads(chrome.read_text())["traceEvents"]) > 4
    assert "CYCLE_START" in other.read_text()
    assert len(perfetto_trace(perfetto).slices) == 4 * 2 * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hvd.json", "job.json", "job.pftrace", "records"]


def test_the_file_of_start_timeline_stands_for_its_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_all(steady_job(2, 2), tmp_path / "job.json.ranks")
    out = tmp_path / "out.json"
    assert cli.main(["merge", str(tmp_path / "job.json"), "-o", str(out)]) == 0  # it need not be there
    assert out.exists()
    assert cli.main(["merge", str(tmp_path / "other.json"), "-o", str(out)]) == 2
    assert "other.json.ranks" in capsys.readouterr().err


def test_warnings_go_to_stderr_and_the_clocks_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [RankFile(rank, 3, host=f"node{rank}") for rank in range(2)]
    files[1].question(0, 20_000, 40_000, files[0])
    write_all(files, tmp_path)
    assert cli.main(["merge", str(tmp_path), "--horovod", str(tmp_path / "job.json")]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("warning: rank 2 of 3 left no file here")
    assert "0 operations, 2 of 3 ranks, clocks within " in said.out
    files[1].records.clear()
    write_all(files, tmp_path)
    assert cli.main(["merge", str(tmp_path), "--horovod", str(tmp_path / "job.json")]) == 0
    assert "wall clocks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ([], "give -o FILE.json"),
        (["-o", "job.json", "--mark-cycles"], "--mark-cycles needs --horovod"),
        (["-o", "no/such/folder/job.json"], "no/such/folder/job.json: cannot be written: there is no folder"),
        (["--horovod", "no/such/folder/job.json"], "cannot be written: there is no folder"),
    ],
)
def test_what_cannot_be_done_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str
) -> None:
    assert cli.main(["merge", str(records(tmp_path)), *options]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("argv", [[], ["merge"], ["merge", "x", "-o", "job.svg"], ["other", "x"]])
def test_arguments_that_mean_nothing_end_with_the_usage(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(argv)
    assert ended.value.code == 2
    assert "usage: ringreduce timeline" in capsys.readouterr().err


def test_a_file_that_fails_leaves_the_former_one(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text("former")
    with suppress(ZeroDivisionError), whole_file(path) as file:
        file.write(b"half")
        raise ZeroDivisionError
    assert path.read_text() == "former"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(InvalidArgumentError, match="cannot be written"), whole_file(path):
        raise OSError(28, "No space left on device")


def test_what_cannot_be_written_is_known_before(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text("former")
    check_writable(path)
    assert (list(tmp_path.iterdir()), path.read_text()) == ([path], "former")
    for wrong in (tmp_path, tmp_path / "no" / "job.json", path / "job.json"):
        with pytest.raises(InvalidArgumentError, match="cannot be written"):
            check_writable(wrong)


def test_a_file_is_readable_as_the_umask_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.json"
    former = os.umask(0o027)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(os, "umask", None)  # other threads make files meanwhile
            with whole_file(path) as file:
                file.write(b"x")
    finally:
        os.umask(former)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_a_file_keeps_the_rights_of_the_former_one(tmp_path: Path) -> None:
    """From before its first byte on."""
    path = tmp_path / "job.json"
    former = os.umask(0o022)
    try:
        for mode in (0o600, 0o640, 0o604, 0o666):
            path.write_text("former")
            path.chmod(mode)
            check_writable(path)
            with whole_file(path) as file:
                assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == mode
                file.write(b"x")
            assert path.read_text() == "x"
            assert stat.S_IMODE(path.stat().st_mode) == mode
    finally:
        os.umask(former)


@pytest.mark.parametrize(
    ("is_allowed", "mode", "tried"), [(True, 0o640, [(4711, 4712)]), (False, 0o600, [(4711, 4712), (-1, 4712)])]
)
def test_a_file_keeps_the_group_of_the_former_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_allowed: bool, mode: int, tried: list[tuple[int, int]]
) -> None:
    """Where that is not allowed, its group may do what everybody may: it is not the one that was given the right."""
    path = tmp_path / "job.json"
    path.write_text("former")
    path.chmod(0o640)
    owners = []

    def fchown(handle: int, owner: int, group: int) -> None:
        assert stat.S_IMODE(os.fstat(handle).st_mode) == 0o600  # nobody else may open it yet
        owners.append((owner, group))
        if not is_allowed:
            raise PermissionError(1, "Operation not permitted")

    real, here = os.stat, path.resolve()

    def of_others(name: object, **options: bool) -> os.stat_result:
        found = real(name, **options)  # type: ignore[arg-type]
        return os.stat_result((*found[:4], 4711, 4712, *found[6:])) if name == here else found

    monkeypatch.setattr(os, "fchown", fchown)
    monkeypatch.setattr(os, "stat", of_others)
    with whole_file(path) as file:
        assert owners == tried
        assert stat.S_IMODE(os.fstat(file.fileno()).st_mode) == mode


def test_rights_that_cannot_be_given_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "job.json"
    path.write_text("former")

    def fchmod(handle: int, mode: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchmod", fchmod)
    handles = set(os.listdir("/proc/self/fd"))
    with pytest.raises(InvalidArgumentError, match="cannot be written: Operation not permitted"), whole_file(path):
        pass
    assert list(tmp_path.iterdir()) == [path]
    assert set(os.listdir("/proc/self/fd")) == handles


@pytest.mark.parametrize("flags", [os.O_APPEND, 0])
def test_a_file_behind_a_descriptor_goes_on_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: int
) -> None:
    """As /dev/stdout of `>> file` or `> file`: it has what was written before, and what is written later."""
    folder, path, link = str(records(tmp_path)), tmp_path / "out", tmp_path / "link"
    handle = os.open(path, os.O_CREAT | os.O_RDWR | flags, 0o666)
    try:
        os.write(handle, b"before\n")
        there = os.stat(path).st_ino
        for name in (f"/dev/fd/{handle}", f"/proc/self/fd/{handle}", f"/proc/{os.getpid()}/fd/{handle}", str(link)):
            if name == str(link):
                link.symlink_to(f"/dev/fd/{handle}")
            check_writable(Path(name))
            assert cli.main(["merge", folder, "--horovod", name]) == 0
            assert cli.main(["report", folder, "--html", name]) == 0
            os.write(handle, b"after\n")
    finally:
        os.close(handle)
    assert os.stat(path).st_ino == there
    text = path.read_text()
    assert text.startswith("before\n[")
    assert [text.count(part) for part in ("NEGOTIATE_ALLREDUCE", "</html>", "\nafter\n")].count(0) == 0
    assert text.count("</html>") == text.count("after\n") == 4
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link", "out", "records"]
    capsys.readouterr()


def test_a_file_behind_another_processes_descriptor_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("before\n")
    with path.open("ab") as out, subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=out) as other:
        with whole_file(Path(f"/proc/{other.pid}/fd/1")) as file:
            file.write(b"after\n")
        other.communicate(timeout=SOON_S)
    assert path.read_text() == "before\nafter\n"


def test_a_descriptor_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "in"
    path.write_text("former")
    with path.open("rb") as file:
        name = Path(f"/dev/fd/{file.fileno()}")
        with pytest.raises(InvalidArgumentError, match=f"{name}: cannot be written"):
            check_writable(name)
        with pytest.raises(InvalidArgumentError, match=f"{name}: cannot be written"), whole_file(name) as out:
            out.write(b"x")
    with pytest.raises(InvalidArgumentError, match="cannot be written"):
        check_writable(name)  # closed
    assert path.read_text() == "former"
