"""Horovod's environment variables and horovodrun's options: each is taken, named as without effect, or an error.

docs/user/migrate-from-horovod.md says the same of each as the code. The lists are those of Horovod 0.28.1.
"""

from __future__ import annotations

import os
import re
import sys
import warnings

import pytest
from horovod_names import PAGE
from processes import completed
from ranks import clean_environment

from ringreduce import config
from ringreduce.errors import Error, UnavailableError
from ringreduce.horovod_variables import WITHOUT_EFFECT
from ringreduce.job.environment import detect
from ringreduce.launch import ringrun
from ringreduce.launch.command_line import horovodrun, options
from ringreduce.launch.python import run_module

VARIABLES = """
ADASUM_MPI_CHUNK_SIZE AUTOTUNE AUTOTUNE_BAYES_OPT_MAX_SAMPLES AUTOTUNE_GAUSSIAN_PROCESS_NOISE AUTOTUNE_LOG
AUTOTUNE_STEPS_PER_SAMPLE AUTOTUNE_WARMUP_SAMPLES BATCH_D2D_MEMCOPIES CACHE_CAPACITY CCL_CACHE CONTROLLER
CPU_OPERATIONS CROSS_RANK CROSS_SIZE CYCLE_TIME DISABLE_GROUP_FUSION DISABLE_NVTX_RANGES DYNAMIC_PROCESS_SETS ELASTIC
ELASTIC_TIMEOUT ENABLE_ASYNC_COMPLETION ENABLE_XLA_OPS FUSION_THRESHOLD GLOO_IFACE GLOO_RENDEZVOUS_ADDR
GLOO_RENDEZVOUS_PORT GLOO_TIMEOUT_SECONDS HIERARCHICAL_ALLGATHER HIERARCHICAL_ALLREDUCE HOSTNAME LOCAL_RANK LOCAL_SIZE
LOG_HIDE_TIME LOG_LEVEL MPI_THREADS_DISABLE NUM_NCCL_STREAMS RANK SIZE SPARK_PYTHONPATH SPARK_START_TIMEOUT
SPARK_USE_LOCAL_RANK_GPU_INDEX SPARK_WORK_DIR STALL_CHECK_DISABLE STALL_CHECK_TIME_SECONDS STALL_SHUTDOWN_TIME_SECONDS
START_TIMEOUT THREAD_AFFINITY TIMELINE TIMELINE_MARK_CYCLES TORUS_ALLREDUCE
"""
"""Read while a job runs or starts; without the prefix HOROVOD_."""

BUILD_VARIABLES = """
ALLOW_MIXED_GPU_IMPL BUILD_ARCH_FLAGS BUILD_CUDA_CC_LIST CMAKE CPU_OPERATIONS_DEFAULT CUDA_HOME DEBUG GPU GPU_ALLGATHER
GPU_ALLREDUCE GPU_ALLTOALL GPU_BROADCAST GPU_OPERATIONS GPU_REDUCESCATTER LOCAL_VERSION NCCL_HOME NCCL_INCLUDE NCCL_LIB
NCCL_LINK NVTX_INCLUDE ROCM_HOME SKIP_COMPILE WITHOUT_GLOO WITHOUT_MPI WITHOUT_MXNET WITHOUT_NVTX WITHOUT_PYTORCH
WITHOUT_TENSORFLOW WITH_GLOO WITH_MPI WITH_MXNET WITH_NVTX WITH_PYTORCH WITH_TENSORFLOW
"""

OPTIONS: dict[str, str] = {
    **dict.fromkeys(["--autotune", "--no-autotune", "--disable-cache", "--gloo", "--jsrun", "--mpi", "--tcp"], ""),
    **dict.fromkeys(["--hierarchical-allgather", "--no-hierarchical-allgather"], ""),
    **dict.fromkeys(["--hierarchical-allreduce", "--no-hierarchical-allreduce"], ""),
    **dict.fromkeys(["--torus-allreduce", "--no-torus-allreduce", "--stall-check", "--no-stall-check"], ""),
    **dict.fromkeys(["--log-with-timestamp", "--log-without-timestamp"], ""),
    **dict.fromkeys(["--log-hide-timestamp", "--no-log-hide-timestamp"], ""),
    **dict.fromkeys(["-prefix-timestamp", "--prefix-output-with-timestamp"], ""),
    **dict.fromkeys(["--mpi-threads-disable", "--no-mpi-threads-disable"], ""),
    **dict.fromkeys(["--timeline-mark-cycles", "--no-timeline-mark-cycles"], ""),
    **dict.fromkeys(["--check-build", "-cb", "--verbose", "-v", "--version"], ""),
    **dict.fromkeys(["--autotune-log-file", "--config-file", "--host-discovery-script"], "file"),
    **dict.fromkeys(["--output-filename", "--timeline-filename", "-i", "--ssh-identity-file"], "file"),
    **dict.fromkeys(["--autotune-steps-per-sample", "--autotune-warmup-samples"], "3"),
    **dict.fromkeys(["--autotune-bayes-opt-max-samples", "--autotune-gaussian-process-noise"], "0.8"),
    **dict.fromkeys(["--min-np", "--min-num-proc", "--max-np", "--max-num-proc", "--slots-per-host"], "2"),
    **dict.fromkeys(["--elastic-timeout", "--reset-limit", "--start-timeout", "--gloo-timeout-seconds"], "30"),
    **dict.fromkeys(["--stall-check-shutdown-time-seconds", "--stall-check-warning-time-seconds"], "60"),
    **dict.fromkeys(["--fusion-threshold-mb", "--cache-capacity", "--num-nccl-streams", "--thread-affinity"], "64"),
    **dict.fromkeys(["-p", "--ssh-port"], "22"),
    **dict.fromkeys(["--network-interface", "--network-interfaces"], "eth0,eth1"),
    **dict.fromkeys(["-np", "--num-proc"], "2"),
    **dict.fromkeys(["-H", "--hosts"], "localhost:2"),
    **dict.fromkeys(["-hostfile", "--hostfile"], "HOSTFILE"),
    "--binding-args": "--rankfile f",
    "--blacklist-cooldown-range": "60 300",
    "--cycle-time-ms": "3.5",
    "--log-level": "DEBUG",
    "--mpi-args": "--mca btl tcp,self",
}
"""horovodrun's options, each with arguments that it takes there."""


def rows(heading: str) -> dict[str, str]:
    """The verdict on each name, or pattern "NAME_*", of a section's table; each is there once."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    found: dict[str, str] = {}
    for cell, verdict in re.findall(r"^\| (`[^|]*) \| ([a-z ]+) \| [^|]*\|$", section, re.MULTILINE):
        for name in re.findall(r"`([^`]+)`", cell):
            assert name not in found
            found[name] = verdict
    return found


def patterns_for(name: str, table: dict[str, str]) -> set[str]:
    """What of a table fits a name: the name itself, else patterns."""
    fitting = {row for row in table if row == name or (row.endswith("*") and name.startswith(row[:-1]))}
    return {name} if name in fitting else fitting


def fate_of_variable(name: str) -> str:
    """As the code has it."""
    if name in WITHOUT_EFFECT:
        return "no effect"
    is_alias = any(knob.alias == name for knob in config.describe())
    return "taken" if is_alias or reads(name) else "unknown"


def reads(name: str) -> bool:
    """Whether the variables that are no aliases in the table of knobs change what they should."""
    if name == "HOROVOD_GLOO_RENDEZVOUS_PORT":
        base = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "1"}
        base |= {"HOROVOD_CROSS_RANK": "0", "HOROVOD_CROSS_SIZE": "1"}
        return (
            detect(environ=base | {name: "1"}, network=False).job
            != detect(environ=base | {name: "2"}, network=False).job
        )
    return name == "HOROVOD_STALL_CHECK_DISABLE"  # tests/cpp/base/config_test.cc


def test_the_page_has_every_variable_with_what_the_code_does() -> None:
    table = rows("Environment variables")
    used = set()
    for short in VARIABLES.split():
        (row,) = patterns_for("HOROVOD_" + short, table)
        used.add(row)
        assert table[row] == fate_of_variable("HOROVOD_" + short), short
    for short in BUILD_VARIABLES.split():
        (row,) = patterns_for("HOROVOD_" + short, table)
        used.add(row)
        assert table[row] == "build", short
    assert used == set(table)


def test_the_code_knows_no_variable_that_horovod_does_not_have() -> None:
    known = {*WITHOUT_EFFECT, *(knob.alias for knob in config.describe() if knob.alias)}
    assert {name for name in known if name.startswith("HOROVOD_")} <= {
        "HOROVOD_" + short for short in VARIABLES.split()
    }


def test_one_warning_names_all_variables_without_effect() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        config.warn(WITHOUT_EFFECT)
    (warning,) = seen
    assert str(warning.message).count(" has no effect: ") == len(WITHOUT_EFFECT)
    assert warning.filename == __file__


BETWEEN_HOSTS = {*horovodrun.BETWEEN_HOSTS, "-p", "-i"}


def fate_of_option(option: str, value: str, hostfile: str) -> str:
    """What ringrun does with it."""
    arguments = [] if not value else [value] if option == "--binding-args" or "tcp" in value else value.split()
    joined = option.startswith("--") and len(arguments) == 1  # `--mpi-args "--mca ..."` needs the equal sign there too
    words = [f"{option}={arguments[0]}"] if joined else [option, *arguments]
    words = [word.replace("HOSTFILE", hostfile) for word in words]
    ranks = [] if option in ("-np", "--num-proc") else ["-np", "1"]
    where = ["--mpi"] if option == "--mpi-args" else ["-H", "elsewhere:1"] if option in BETWEEN_HOSTS else []
    try:
        read = options.read([*ranks, *where, *words, "true"], "ringrun")
    except UnavailableError as error:
        return "error" if option in str(error) else str(error)
    if read.unused:
        assert [text.split(" ")[0] for text in read.unused] == [option]
        return "no effect"
    return "taken" if read.command == ["true"] else f"taken for the command {read.command}"


def test_the_page_has_every_option_with_what_ringrun_does(tmp_path: os.PathLike[str]) -> None:
    hostfile = os.path.join(tmp_path, "hosts")
    with open(hostfile, "w", encoding="utf-8") as file:
        file.write("localhost slots=2\n")
    does = {option: fate_of_option(option, value, hostfile) for option, value in OPTIONS.items()}
    assert rows("horovodrun's options") == does


def test_options_without_effect_are_told_in_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert ringrun.main(["-np", "1", "--gloo", "--cycle-time-ms", "3.5", "-p", "22", "true"]) == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("ringrun: without effect here: --gloo (Gloo is not used;")
    assert "--cycle-time-ms (there are no cycles" in line
    assert "--ssh-port (the ranks are on this host)" in line


def test_a_cache_that_is_switched_off_by_its_capacity_is_no_error(capfd: pytest.CaptureFixture[str]) -> None:
    """Horovod's way, which was a capacity that no rank could have."""
    rank = [sys.executable, "-c", "import ringreduce; ringreduce.init()"]
    assert ringrun.main(["-np", "1", "--cache-capacity", "0", *rank]) == 0
    assert capfd.readouterr().err == "ringrun: without effect here: --cache-capacity 0 (no checks are remembered)\n"


MANY_IN_FLIGHT = """
import numpy as np
import ringreduce as rr

rr.init()
order = range(1100) if rr.rank() == 0 else reversed(range(1100))
works = [rr.allreduce_async(np.ones(1), name=str(name), op=rr.Sum) for name in order]
print({float(rr.synchronize(work)[0]) for work in works})
"""


@pytest.mark.parametrize("capacity", ["8", "1024"])
def test_a_cache_of_few_names_does_not_limit_names_in_flight(capacity: str) -> None:
    """Horovod's number is of what is remembered. Ours is of what is in flight too, which Horovod does not limit."""
    words = ["-np", "2", "--cache-capacity", capacity, sys.executable, "-c", MANY_IN_FLIGHT]
    done = completed([*run_module("ringreduce.launch.ringrun"), *words], env=clean_environment())
    assert done.stdout == "{2.0}\n" * 2, done.stderr


@pytest.mark.parametrize("option", ["--min-np=2", "--jsrun"])
def test_an_option_that_cannot_be_met_is_status_2(option: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert ringrun.main(["-np", "1", option, "true"]) == 2
    assert capfd.readouterr().err.startswith(f"ringrun: {option.partition('=')[0]}: ")


def test_values_are_those_of_the_knobs() -> None:
    words = ["--fusion-threshold-mb", "2", "--cache-capacity", "99", "--start-timeout", "7.5", "--log-level", "DEBUG"]
    words += ["--stall-check-warning-time-seconds", "3", "--stall-check-shutdown-time-seconds", "0"]
    words += ["--timeline-filename", "t.json", "--timeline-mark-cycles", "--timeline", "records"]
    assert options.read(["-np", "1", *words, "true"], "ringrun").variables == {
        "RINGREDUCE_FUSION_THRESHOLD": "2097152",
        "HOROVOD_CACHE_CAPACITY": "99",
        "RINGREDUCE_INIT_TIMEOUT": "7.5",
        "RINGREDUCE_LOG_LEVEL": "debug",
        "RINGREDUCE_STALL_WARNING": "3",
        "RINGREDUCE_TIMEOUT": "0",
        "HOROVOD_TIMELINE": "t.json",
        "RINGREDUCE_TIMELINE_MARK_CYCLES": "1",
        "RINGREDUCE_TIMELINE": "records",
    }
    with pytest.raises((SystemExit, Error)):
        options.read(["-np", "1", "--fusion-threshold-mb", "some", "true"], "ringrun")
