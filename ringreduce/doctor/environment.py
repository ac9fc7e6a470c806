"""The environment of the process: the machine's settings, the launcher, the variables that are set."""

from __future__ import annotations

import math
import os
import platform
import resource
from collections.abc import Iterator

from ringreduce import config, plan
from ringreduce.bench import machine
from ringreduce.doctor.finding import Finding
from ringreduce.errors import Error, InvalidArgumentError, UnavailableError
from ringreduce.horovod_variables import WITHOUT_EFFECT
from ringreduce.job.environment import rendezvous_secret
from ringreduce.job.own_place import own_place
from ringreduce.job.pidfd import check_pidfds
from ringreduce.launch.quota import cpu_quota

FEW_FILES = 1024


def hardware() -> Iterator[Finding]:
    """The kernel, cores, huge pages, limits."""
    allowed, online = machine.allowed_cores(), os.cpu_count() or 1
    yield Finding("machine", "cpu", plan.processor())
    yield _kernel()
    yield Finding("machine", "cores", f"{len(allowed)} allowed of {online} online")
    quota = cpu_quota()
    if quota < math.inf:
        few = quota < len(allowed)
        hint = "ranks that wait for one another are paused by the quota: start no more ranks than it has cores"
        yield Finding("machine", "cpu quota", f"{quota:g} cores", "note" if few else "ok", hint if few else "")
    pages = machine.huge_pages()
    never = pages["shmem_enabled"] in ("never", "deny")
    yield Finding(
        "machine",
        "huge pages",
        f"{pages['enabled']}; for shared memory: {pages['shmem_enabled']}",
        "note" if never else "ok",
        "faster: echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled" if never else "",
    )
    yield Finding("machine", "/dev/shm", "not needed: shared memory is anonymous files")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    low = soft != resource.RLIM_INFINITY and soft < FEW_FILES
    yield Finding(
        "machine",
        "open files",
        f"{_limit(soft)} (at most {_limit(hard)})",
        "note" if low else "ok",
        "every rank holds a descriptor for every other: ulimit -n 4096" if low else "",
    )


def _kernel() -> Finding:
    release = f"Linux {platform.release()}"
    try:
        check_pidfds()
    except UnavailableError as error:
        return Finding("machine", "kernel", release, "problem", str(error))
    return Finding("machine", "kernel", release)


def launcher() -> Iterator[Finding]:
    """Who started this process, by the variables that are set."""
    try:
        place = own_place()
        rendezvous_secret()
    except Error as error:
        yield Finding("launcher", "detected", str(error), "problem", "start it with ringrun, mpirun, torchrun or srun")
        return
    if place.source == "single":
        yield Finding("launcher", "detected", "none: a process of its own")
    else:
        yield Finding("launcher", "detected", f"{place.source}: rank {place.rank} of {place.size}")


def knobs() -> Iterator[Finding]:
    """RINGREDUCE_* and HOROVOD_* variables that are set, and what becomes of them."""
    explained = set()
    for knob in config.describe():
        if knob.origin != "default":
            explained.add(knob.origin)
            is_plan = knob.name == plan.VARIABLE and knob.value
            yield _plan(knob.value) if is_plan else Finding("knobs", knob.origin, f"{knob.value} ({knob.meaning})")
    for name, nearest in config.unknown(os.environ).items():
        if name not in explained:
            explained.add(name)
            hint = f"did you mean {nearest}?" if nearest else ""
            yield Finding("knobs", name, "unknown to this version", "note", hint)
    for name in sorted(os.environ.keys() & WITHOUT_EFFECT.keys()):
        explained.add(name)
        yield Finding("knobs", name, "no effect here", "note", WITHOUT_EFFECT[name])
    others = sorted(name for name in os.environ if name.startswith("HOROVOD_") and name not in explained)
    if others:
        yield Finding("knobs", "also set", ", ".join(others))
    elif not explained:
        yield Finding("knobs", "set", "none")


def _plan(path: str) -> Finding:
    try:
        ranks = plan.read(path).ranks
    except InvalidArgumentError as error:
        return Finding("knobs", plan.VARIABLE, str(error), "problem")
    return Finding("knobs", plan.VARIABLE, f"{path} (a plan for {plan.layout(ranks)})")


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)
