#!/usr/bin/env python3
"""`make check`: builds and lints what has changed since the last commit, and runs the quick tests of its rooms.

    make check                    # what git says has changed
    make check ARGS="FILE ..."    # as if these files had changed

A file belongs to the room with the longest prefix in ROOMS. A test file is its own quick test.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from files_of_tests import path_of

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent

# Prefix of a file's path: its C++ tests, its Python tests (files in any room of tests/python).
ROOMS: dict[str, tuple[str, str]] = {
    "csrc/": ("collectives_test", "test_package.py"),
    "csrc/base/": ("config_test negotiation_test plan_test", "test_environment.py test_package.py"),
    "csrc/data/": ("reduce_test reduce_half_test reduction_test codec_test", "test_package.py"),
    "csrc/os/": ("os_test failure_test link_test", "test_memory.py test_package.py"),
    "csrc/recorder/": ("recorder_test status_frames_test", "test_recording.py test_package.py"),
    "csrc/gpu/": ("cuda_device_test cuda_memory_test cuda_streams_test cuda_tables_test", "test_package.py"),
    "csrc/transport/": ("link_test mpi_test stage_writer_test collectives_test", "test_package.py"),
    "csrc/collective/": ("plan_test collectives_test movement_test pull_test", "test_package.py"),
    "csrc/negotiation/": (
        "negotiation_test join_test failure_test deadlock_timeout_test rank_status_test negotiation_steps_test",
        "test_package.py",
    ),
    "csrc/planner/": ("collectives_test movement_test pull_test hosts_test", "test_package.py"),
    "csrc/planner/gpu/": (
        "gpu_paths_test cuda_hosts_test cuda_nccl_engine_test cuda_errors_test cuda_room_test",
        "test_gpu_mpi_on_fake_driver.py test_package.py",
    ),
    "csrc/engine/": (
        "collectives_test hosts_test failure_test rank_status_test late_ranks_test late_operations_test",
        "test_stall.py test_late_ranks.py test_package.py",
    ),
    "csrc/operations/": ("collectives_test failure_test negotiation_test rank_status_test", "test_package.py"),
    "csrc/measure/": ("bench_test tuning_test", "test_bench.py test_package.py"),
    "csrc/engine/gpu/": ("device_queue_test cuda_messages_test cuda_errors_test", "test_package.py"),
    "csrc/relay/": (
        (
            "frames_test decision_frames_test status_frames_test hosts_test held_links_test join_hosts_test "
            "deadlock_hosts_test rank_status_test"
        ),
        "test_package.py",
    ),
    "csrc/framework/": ("calls_test", "test_package.py"),
    "csrc/python/": ("", "test_buffers.py test_collectives.py test_package.py"),
    "CMakeLists.txt": ("", "test_build.py"),
    "setup.py": ("", "test_build.py test_compat.py"),
    "ringreduce/": ("", "test_package.py test_collectives.py test_lifecycle.py"),
    "ringreduce/bench/": ("", "test_bench.py test_package.py"),
    "ringreduce/bench/train/": ("", "test_bench_train_parts.py test_bench_train_methods.py"),
    "ringreduce/collectives/": ("", "test_collectives.py test_buffers.py test_memory.py test_package.py"),
    "ringreduce/compat/": ("", "test_compat.py test_package.py"),
    "ringreduce/doctor/": ("", "test_doctor.py"),
    "ringreduce/gpu/": ("", "test_gpu_libraries.py test_gpu_on_fake_driver.py"),
    "ringreduce/jax/": ("", "test_jax_collectives.py"),
    "ringreduce/job/": ("", "test_lifecycle.py test_rendezvous.py test_process_sets.py test_package.py"),
    "ringreduce/job/failure/": ("", "test_uncaught.py test_package.py"),
    "ringreduce/keras/": ("", "test_keras_names.py"),
    "ringreduce/lab/": ("", "test_lab.py"),
    "ringreduce/launch/": ("", "test_launch.py test_launch_parts.py test_launch_output.py"),
    "ringreduce/launch/command_line/": ("", "test_launch_parts.py test_horovod_settings.py"),
    "ringreduce/launch/remote/": ("", "test_remote_parts.py test_ringrun_hosts.py"),
    "ringreduce/tensorflow/": ("", "test_tensorflow_names.py test_tensorflow_ops.py"),
    "ringreduce/timeline/": (
        "",
        "test_timeline_job.py test_record_file.py test_thread_time.py test_late.py test_report.py test_chrome_trace.py",
    ),
    "ringreduce/torch/": ("", "test_torch.py test_torch_collectives.py test_optimizer.py"),
    "ringreduce/torch/local_sgd/": ("", "test_local_sgd.py"),
    "ringreduce/torch/distributed/": ("", "test_distributed.py"),
    "ringreduce/torch/optimizer/": ("", "test_optimizer.py test_optimizer_sharded.py test_same_start.py"),
    "ringreduce/tuning/": ("", "test_tune.py test_plan.py"),
    "ringreduce/watch/": ("", "test_top.py test_top_views.py"),
    "tests/cpp/": ("collectives_test negotiation_test", ""),
    "tests/fake_": ("cuda_device_test cuda_nccl_test", ""),
    "tests/": ("", "test_collectives.py test_errors_api.py"),
    "benchmarks/": ("", "test_record.py test_network_figures.py"),
    "docs/": ("", "test_pages.py"),
    "examples/": ("", "test_examples.py"),
    "examples/parallel/": ("", "test_parallel_shapes.py test_parallel_state.py"),
}


def changed() -> list[str]:
    """Files that differ from the last commit, and new ones that git does not ignore."""
    listed = (
        ["git", "ls-files", "--modified", "--others", "--exclude-standard"],
        ["git", "diff", "--cached", "--name-only"],
    )
    names = {name for command in listed for name in output(command).splitlines()}
    return sorted(name for name in names if (ROOT / name).is_file())


def output(command: Sequence[str]) -> str:
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout


def quick_tests(files: Sequence[str]) -> tuple[set[str], set[str]]:
    """C++ tests and Python tests for these files."""
    cpp: set[str] = set()
    python: set[str] = set()
    for name in files:
        path = Path(name)
        if path.match("tests/cpp/*/*_test.cc"):
            cpp.add(path.stem)
        elif path.match("tests/python/*/test_*.py"):
            python.add(path.name)
        elif rooms := [room for room in ROOMS if name.startswith(room)]:
            own_cpp, own_python = ROOMS[max(rooms, key=len)]
            cpp |= set(own_cpp.split())
            python |= set(own_python.split())
    return cpp, python


def lint(files: Sequence[str]) -> list[list[str | Path]]:
    """The linters' commands for these files."""
    python = [name for name in files if name.endswith((".py", ".pyi"))]
    cpp = [name for name in files if name.endswith((".cc", ".h", ".cu"))]
    commands: list[list[str | Path]] = []
    if python:
        commands.append([BIN / "ruff", "check", "--quiet", *python])
        commands.append([BIN / "ruff", "format", "--quiet", "--check", *python])
    if any(name.startswith("ringreduce/") for name in python):
        commands.append([BIN / "mypy", "--no-error-summary"])
    if cpp:
        commands.append([BIN / "clang-format", "--dry-run", "-Werror", *cpp])
    return commands


def main(files: list[str]) -> int:
    files = files or changed()
    if not files:
        print("nothing has changed since the last commit")
        return 0
    begin = time.monotonic()
    cpp, python = quick_tests(files)
    commands: list[list[str | Path]] = []
    if any(not name.endswith((".py", ".pyi", ".md")) for name in files):
        commands.append(["make", "build"])
    commands += lint(files)
    if cpp:
        pattern = f"^({'|'.join(sorted(cpp))})$"
        commands.append([BIN / "ctest", "--test-dir", "build/cmake", "--output-on-failure", "-j2", "-Q", "-R", pattern])
    if python:
        commands.append([sys.executable, "-m", "pytest", "-q", "-x", *map(str, map(path_of, sorted(python)))])
    for command in commands:
        print("--", *(Path(word).name if isinstance(word, Path) else word for word in command), flush=True)
        if (status := subprocess.run(command, cwd=ROOT, check=False).returncode) != 0:
            return status
    print(f"== make check: {len(files)} files, all well in {time.monotonic() - begin:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
