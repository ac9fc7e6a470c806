"""The programs that `make gpu-check` measures with: the ranks' on the CPU, the kernels' on the fake driver."""

import json
import os
from pathlib import Path

import pytest
import ranks
from processes import completed

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))


@pytest.mark.parametrize("arguments", [["allreduce", "--sizes", "8,4096,1000000"], ["step", "--model", "tiny"]])
def test_the_ranks_program(arguments: list[str], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    import gpu
    from gpus import record

    part = gpu._ranks("tried", 2, arguments[0], [*arguments[1:], "--device", "cpu"], 60, {})
    rows = tmp_path / "rows.jsonl"
    command = [str(rows) if word == part.rows else word for word in part.command]
    done = completed(command, env=ranks.clean_environment())
    assert done.returncode == 0, done.stderr
    found = record.with_limits(record.read_rows(rows))
    assert [row["ranks"] for row in found] == [2] * len(found)
    assert [row["wrong"] for row in found] == [0] * len(found)
    assert all(row["time_us"] > 0 for row in found)
    if arguments[0] == "allreduce":
        assert [(row["nbytes"], row["library"], row["path"]) for row in found] == [
            (nbytes, "ringreduce", "auto") for nbytes in (8, 4096, 1000000)
        ]
    else:
        assert [(row["model"], row["way"]) for row in found] == [("tiny", "eager")]


def test_the_kernels_program_on_the_fake_driver() -> None:
    import cuda_devices
    import gpu
    from gpus import record

    env = {**os.environ, **cuda_devices.fake_environment()}
    if not gpu.PROGRAM.exists():
        pytest.skip("tests/cuda has not been built: -DRR_GPU_CHECK=ON or -DRR_TESTS=ON")
    done = completed([gpu.PROGRAM, "check", "few"], env=env)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["cases"] > 300
    bench = [gpu.PROGRAM, "bench", "1", "three=1000,1,70000"]
    done = completed(bench, env=env)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert {row["what"] for row in rows} == {"copy", "pack", "unpack", "scale", "cast"}
    assert [row["nbytes"] for row in rows if row["list"] == "three"] == [4 * 71001] * 4
    assert all(row["wrong"] == 0 and row["GBps"] > 0 for row in rows)
    assert record.with_limits(rows) == rows
