"""The timeline of this process: who begins it, where its files are, and who ends it.

Every rank writes FOLDER/rank-0003.rr, in the form of timeline/record_file.py. Where a trace in Horovod's form is
wanted, FOLDER is the trace's path and ".ranks". Rank 0 then writes the trace while the job runs, from its own
operations. When the timeline ends, rank 0 writes the trace anew, from the files of all ranks that it sees.
"""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from ringreduce import _core, config
from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.timeline import blocks, record_file

_DYNAMIC = "DYNAMIC"
"""Horovod's value of HOROVOD_TIMELINE where start_timeline() will be called: nothing is begun before."""
_OTHERS_S = 2.0
"""Rank 0 waits so long for the ends of the other ranks' files: they come at once, unless a rank was killed."""
_MERGED_NBYTES_MOST = 64 << 20
"""Of records, a million of them, that rank 0 merges at the end by itself: in some seconds, with a GiB of memory."""


class Recording:
    """A timeline of this process that is on.

    Args:
        folder: for the records, made if it is not there.
        trace: for a trace in Horovod's form; None: none is written. Of rank 0.
        rank, size: of this process in its job.
        mark_cycles: whether the trace shows where a bucket's execution begins.

    Raises:
        UnavailableError: a file cannot be made, or this process has a timeline.
    """

    def __init__(self, folder: Path, trace: Path | None, rank: int, size: int, mark_cycles: bool) -> None:
        self._folder = folder
        self._trace = trace if rank == 0 else None
        self._mark_cycles = mark_cycles
        monotonic_ns, realtime_ns = time.monotonic_ns(), time.time_ns()
        process = {
            "format": "ringreduce timeline",
            "version": 1,
            "rank": rank,
            "size": size,
            "host": os.uname().nodename,
            "pid": os.getpid(),
            "boot": _clock_name(),
            "monotonic_ns": monotonic_ns,
            "realtime_ns": realtime_ns,
            "program": " ".join(sys.argv[:1]) or sys.executable,
            "kinds": _core.kinds(),
            "dtypes": [name for name, _ in _core.dtypes()],
            "ops": _core.ops(),
            "algorithms": _core.algorithms(),
        }
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if rank == 0:
                _remove_ranks_from(folder, size)
        except OSError as error:
            raise UnavailableError(f"the timeline's folder {folder} cannot be made: {error.strerror}") from error
        self._timeline = _core.Timeline(
            os.fspath(record_file.file_of(folder, rank)),
            rank,
            json.dumps(process),
            monotonic_ns,
            realtime_ns,
            os.fspath(self._trace) if self._trace is not None else "",
            mark_cycles,
        )

    def end(self, reason: str) -> None:
        """Writes what is left, and the trace of all ranks. Where that cannot be written, stderr says why."""
        self._timeline.stop(reason)
        if self._trace is None:
            return
        from ringreduce.timeline.export import horovod
        from ringreduce.timeline.job import Job

        try:
            _await_ends(self._folder)
            nbytes = sum(path.stat().st_size for path in self._folder.glob(record_file.FILES))
            if nbytes > _MERGED_NBYTES_MOST:
                command = f"ringreduce timeline merge {self._folder} --horovod {self._trace}"
                print(f"ringreduce: the timeline is long; for a trace of all ranks: {command}", file=sys.stderr)
                return
            horovod.write(Job.load(self._folder), self._trace, mark_cycles=self._mark_cycles)
        except Exception as error:  # whatever it is, it must not fail a training that has come to its end
            what = f"{type(error).__name__}: {error}"
            print(f"ringreduce: the timeline {self._trace} shows rank 0 alone: {what}", file=sys.stderr)

    def forget_after_fork(self) -> None:
        """For a forked child: the files are its parent's."""
        self._timeline.forget_after_fork()


_lock = threading.RLock()
_current: Recording | None = None


def begin(path: str | os.PathLike[str], rank: int, size: int, mark_cycles: bool) -> None:
    """Begins the timeline that start_timeline() asks for, and ends the one that is on.

    Args:
        path: an existing folder, for records; else a file, for a trace in Horovod's form.
        rank, size, mark_cycles: as Recording's.

    Raises:
        UnavailableError: as Recording.
    """
    _begin(Path(path), rank, size, mark_cycles, is_trace=not Path(path).is_dir())


def begin_by_environment(rank: int, size: int) -> None:
    """Begins the timeline that RINGREDUCE_TIMELINE or HOROVOD_TIMELINE asks for, unless one is on.

    Raises:
        InvalidArgumentError: the files cannot be made; names the variable.
    """
    knob = config.value("RINGREDUCE_TIMELINE")
    if not knob.value or knob.value == _DYNAMIC or _current is not None:
        return
    path = Path(knob.value).expanduser()
    is_trace = knob.origin != knob.name or path.suffix == ".json"
    mark_cycles = config.flag("RINGREDUCE_TIMELINE_MARK_CYCLES")
    try:
        _begin(path, rank, size, mark_cycles, is_trace)
    except UnavailableError as error:
        raise InvalidArgumentError(f"{knob.origin}={knob.value}: {error}") from error


def end(reason: str) -> None:
    """Ends the timeline that is on. Does nothing without one."""
    global _current
    with _lock:
        recording, _current = _current, None
        if recording is not None:
            recording.end(reason)


def _begin(path: Path, rank: int, size: int, mark_cycles: bool, is_trace: bool) -> None:
    global _current
    with _lock:
        end("another timeline has begun")
        path = path.absolute()
        folder = path.with_name(path.name + record_file.RANKS_SUFFIX) if is_trace else path
        _current = Recording(folder, path if is_trace else None, rank, size, mark_cycles)


def _remove_ranks_from(folder: Path, size: int) -> None:
    """Removes what ranks have left that this job does not have, of a larger one that wrote here before."""
    for path in folder.glob(record_file.FILES):
        number = path.stem.removeprefix("rank-")
        if number.isdigit() and int(number) >= size:
            path.unlink(missing_ok=True)


def _clock_name() -> str:
    """Equal where two processes have one CLOCK_MONOTONIC: the boot, and the namespace whose clock is shifted."""
    texts = []
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/timens_offsets"):
        with suppress(OSError):
            texts.append(" ".join(Path(path).read_text(encoding="ascii").split()))
    return " ".join(texts) or f"{os.uname().nodename} {os.getpid()}"


def _await_ends(folder: Path) -> None:
    deadline = time.monotonic() + _OTHERS_S
    left = sorted(folder.glob(record_file.FILES))
    while left and time.monotonic() < deadline:
        left = [path for path in left if not blocks.has_end(path)]
        if left:
            time.sleep(0.01)


def _forget_in_child() -> None:
    global _current, _lock
    _lock = threading.RLock()
    if _current is not None:
        _current.forget_after_fork()
        _current = None


os.register_at_fork(after_in_child=_forget_in_child)
atexit.register(end, "the process has ended")
