"""benchmarks/: the promised figures are judged as they are written, and a record that became slower is noticed."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ringreduce.bench import comparison

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
SIZE = 2 << 20
META = {"cpu": "c", "cores_online": 1, "kernel": "k", "isa": "i", "ringreduce": "0", "load_average": 0.0}


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def row(competitor: str, turn: int, p50: float, fraction: float | None = None) -> dict[str, Any]:
    return {
        "competitor": competitor,
        "level": "c",
        "nbytes": SIZE,
        "round": turn,
        "time_us": {"min": p50, "p50": p50, "p99": p50},
        "algbw_GBps": SIZE / p50 * 1e-3,
        "busbw_GBps": SIZE / p50 * 1e-3,
        "wrong": 0,
        "fraction_of_limit": fraction,
    }


def record(registered: float, private: float) -> dict[str, Any]:
    rows = []
    for turn, noise in enumerate((1.0, 1.1, 0.9)):
        rows += [row("ringreduce registered", turn, registered * noise, 0.9)]
        rows += [row("ringreduce private", turn, private), row("openmpi 5.0", turn, 100), row("mpich 5.0", turn, 300)]
    cells = [{"competitor": one["competitor"], "level": "c", "nbytes": SIZE, "status": "ok"} for one in rows]
    found = {"meta": {"rounds": 3}, "results": rows, "cells": cells, "ratios": comparison.ratios(rows)}
    return {"meta": {}, "comparisons": {"allreduce": found}, "training": {}}


def test_a_promise_is_judged_against_the_peer_that_is_hardest_to_beat() -> None:
    import targets

    judged = {one.what: one for one in targets.judge(record(25, 110))}
    fast = judged["all-reduce, registered, 2 MiB, beside openmpi 5.0"]
    assert (fast.value, fast.promise, fast.reached) == ("4.00x", ">= 3x", True)
    slow = judged["all-reduce, private, 2 MiB, beside openmpi 5.0"]
    assert (slow.value, slow.reached) == ("0.91x", False)
    limit = judged["all-reduce, registered, 2 MiB: fraction of the memory's limit"]
    assert (limit.value, limit.reached) == ("0.90", True)


def test_a_promise_whose_figure_did_not_come_is_missed() -> None:
    import targets

    found = record(25, 110)
    compared = found["comparisons"]["allreduce"]
    compared["results"] = [one for one in compared["results"] if one["competitor"] != "ringreduce registered"]
    compared["ratios"] = comparison.ratios(compared["results"])
    found["training"]["train mlp"] = {"results": [{"mode": "ddp-gloo", "samples_per_s": 1.0}]}
    missed = {one.what: one for one in targets.judge(found) if one.value == targets.UNMEASURED}
    assert list(missed) == [
        "all-reduce, registered, 2 MiB, beside openmpi and mpich",  # and not beside Gloo, which is not here
        "all-reduce, registered, 2 MiB: fraction of the memory's limit",
        "train mlp, ringreduce: fraction of the communication-free bound",
        "train mlp, ringreduce-shard: fraction of the communication-free bound",
        "train mlp: DDP on ringreduce beside DDP on Gloo",
    ]
    assert not any(one.reached for one in missed.values())


def test_only_what_is_slower_beyond_the_noise_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import compare_records

    files = [tmp_path / "old.json", tmp_path / "noisy.json", tmp_path / "slow.json"]
    for file, registered in zip(files, (25.0, 27.0, 40.0), strict=True):
        file.write_text(json.dumps(record(registered, 90)))
    assert compare_records.main([str(files[0]), str(files[1])]) == 0
    assert compare_records.main([str(files[0]), str(files[2])]) == 1
    assert "ringreduce registered (c), 2097152 B, beside openmpi 5.0: 4.00x" in capsys.readouterr().out
    assert compare_records.main([]) == 2


def test_what_has_no_counterpart_in_the_other_record_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import compare_records

    old, new = tmp_path / "old.json", tmp_path / "new.json"
    found = record(25, 90)
    old.write_text(json.dumps(found))
    ratios = found["comparisons"]["allreduce"]["ratios"]
    found["comparisons"]["allreduce"]["ratios"] = [ratio for ratio in ratios if ratio["peer"] != "mpich 5.0"]
    new.write_text(json.dumps(found))
    assert compare_records.main([str(old), str(new)]) == 0
    said = capsys.readouterr().out
    assert f"# only in {old}: allreduce: ringreduce private (c), 2097152 B, beside mpich 5.0\n" in said
    assert said.count("# only in") == 2
    found["comparisons"]["allreduce"]["ratios"] = []
    new.write_text(json.dumps(found))
    assert compare_records.main([str(old), str(new)]) == 2
    assert "no ratio in common" in capsys.readouterr().err


def test_the_readme_gets_its_table_between_the_markers(tmp_path: Path) -> None:
    import record as script

    page = tmp_path / "README.md"
    page.write_text(f"before\n{script.MARKERS[0]}\nold\n{script.MARKERS[1]}\nafter\n")
    script.readme(record(25, 90), page)
    text = page.read_text()
    assert text.startswith(f"before\n{script.MARKERS[0]}\n| size |")
    assert "| 2 MiB | 25.0 | 90.0 | 100 | 4.0x / 1.1x | - |" in text
    assert text.endswith(f"{script.MARKERS[1]}\nafter\n")
    assert "old" not in text


@pytest.mark.parametrize(("status", "text"), [(1, json.dumps(record(25, 90)["comparisons"]["allreduce"])), (3, None)])
def test_a_part_that_fails_is_the_records_exit_status(
    status: int, text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import record as script

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        if text is not None:
            Path(command[command.index("--json") + 1]).write_text(text)
        return subprocess.CompletedProcess(command, status, "")

    monkeypatch.setattr(script.subprocess, "run", run)
    found, returned = script._bench(["broadcast"])
    assert (found is None, returned) == (text is None, status)
    monkeypatch.setattr(script, "RESULTS", tmp_path)
    monkeypatch.setattr(script.machine, "facts", lambda: META)
    monkeypatch.setattr(script.versus_table, "tail", str)
    assert script.main(["--only", "small"]) == 1
    assert f"small 4 ranks: ringreduce bench ended with status {status}\n" in capsys.readouterr().err
    (written,) = tmp_path.glob("*.json")
    assert len(json.loads(written.read_text())["comparisons"]) == (0 if text is None else 2)


def test_every_part_of_a_record_is_a_command_that_exists() -> None:
    import record as script

    from ringreduce.bench.options import parse

    for what in script.parts(5).values():
        if what[0] != "train":
            assert parse(what).vs
