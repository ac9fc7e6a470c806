"""The timeline of this process: who begins it, where its files are, and who ends it.

Every rank writes FOLDER/rank-0003.rr, in the form of timeline/record_file.py. Where a trace in Horovod's form is
wanted, FOLDER is the trace's path and ".ranks". Rank 0 then writes the trace while the job runs, from its own
operations. When the timeline ends, rank 0 writes the trace anew, from the files of all ranks that it sees.
"""

from __future__ import annotations

import atexit
import errno
import fcntl
import json
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from ringreduce import _core, config
from ringreduce.errors import InvalidArgumentError, UnavailableError
from ringreduce.job import inheritance
from ringreduce.timeline import blocks, record_file

Place: TypeAlias = "tuple[Path, Path | None]"
"""The folder of a timeline's records, and its trace."""
_DYNAMIC = "DYNAMIC"
"""Horovod's value of HOROVOD_TIMELINE where start_timeline() will be called: nothing is begun before."""
VARIABLE = "_RINGREDUCE_TIMELINE_TAKEN"
"""A rank's mark in its environment, for the jobs that it starts: its process id and start time, and the folder of its
timeline by a variable: "4711.86400 /home/me/records". It stays when that timeline, or the rank, has ended: a timeline
in the same folder would write over its files. Not one of the user's knobs."""
_OTHERS_S = 2.0
"""Rank 0 waits so long for the ends of the other ranks' files: they come at once, unless a rank was killed."""
_NO_REASON_TO_END = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EAGAIN}
"""Of a training: a disk that is full or broken, and a file that another process writes (EAGAIN)."""
_MERGED_NBYTES_MOST = 64 << 20
"""Of records, a million of them, that rank 0 merges at the end by itself: in some seconds, with a GiB of memory."""


class Recording:
    """A timeline of this process that is on.

    Args:
        folder: for the records, made if it is not there.
        trace: for a trace in Horovod's form; None: none is written. Of rank 0.
        rank, size: of this process in its job.
        mark_cycles: whether the trace shows where a bucket's execution begins.
        is_asked_by_variable: whether it is on until the process ends.

    Raises:
        UnavailableError: a file cannot be made, or this process has a timeline.
    """

    def __init__(
        self, folder: Path, trace: Path | None, rank: int, size: int, mark_cycles: bool, is_asked_by_variable: bool
    ) -> None:
        self.is_asked_by_variable = is_asked_by_variable
        self.place = rank, size
        self.folder = folder
        self._trace = trace if rank == 0 else None
        self._mark_cycles = mark_cycles
        monotonic_ns, realtime_ns = time.monotonic_ns(), time.time_ns()
        process = {
            "format": record_file.FORMAT,
            "version": record_file.VERSION,
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
        _make(folder, is_named=trace is None)
        try:
            self._timeline = _core.Timeline(
                os.fsencode(record_file.file_of(folder, rank)),  # bytes: a path need not be UTF-8
                rank,
                json.dumps(process),
                monotonic_ns,
                realtime_ns,
                os.fsencode(self._trace) if self._trace is not None else "",
                mark_cycles,
            )
        except UnicodeDecodeError as error:  # the core's text for UnavailableError names such a path
            raise UnavailableError(os.fsdecode(error.object)) from error.__cause__
        if rank == 0:
            _remove_ranks_from(folder, size)

    def end(self, reason: str, next_place: Place | None = None) -> None:
        """Writes what is left, and the trace of all ranks. Where that cannot be written, stderr says why.

        next_place: where a timeline follows. In the same folder, other ranks may have emptied their files for it
        already, so no trace of all ranks is written.
        """
        if not self._timeline.stop(reason):  # the disk hangs, and this thread would hang with it
            return
        if self._trace is None or not self._trace.is_file():  # what is removed, or a device, is left alone
            return
        if next_place is not None and os.path.realpath(next_place[0]) == os.path.realpath(self.folder):
            if next_place[1] is None or os.path.realpath(next_place[1]) != os.path.realpath(self._trace):
                why = "another timeline has begun in its folder"
                print(f"ringreduce: the timeline {self._trace} shows rank 0 alone: {why}", file=sys.stderr)
            return
        from ringreduce.timeline.export import horovod
        from ringreduce.timeline.job import Job

        try:
            _await_ends(self.folder)
            nbytes = sum(path.stat().st_size for path in self.folder.glob(record_file.FILES))
            if nbytes > _MERGED_NBYTES_MOST:
                command = f"ringreduce timeline merge {self.folder} --horovod {self._trace}"
                print(f"ringreduce: the timeline is long; for a trace of all ranks: {command}", file=sys.stderr)
                return
            horovod.write(Job.load(self.folder), self._trace.resolve(), mark_cycles=self._mark_cycles)
        except Exception as error:  # whatever it is, it must not fail a training that has come to its end
            what = f"{type(error).__name__}: {error}"
            print(f"ringreduce: the timeline {self._trace} shows rank 0 alone: {what}", file=sys.stderr)


_lock = threading.RLock()
_current: Recording | None = None
_ended: dict[Path, str] = {}
"""Where timelines of a variable have ended before the process, and why: the next one would write over their files."""
_used: set[str] = set()
"""The real paths of folders in which this process, or the one that has forked it, has begun a timeline."""
_told: set[Path] = set()
"""Folders of which stderr says already that this process has no timeline there, or none any more."""
_ends_as_child = False
"""Whether this process is a child of multiprocessing, whose end ends the timeline."""


def begin(path: str | os.PathLike[str], rank: int, size: int, mark_cycles: bool) -> None:
    """Begins the timeline that start_timeline() asks for, and ends the one that is on.

    Args:
        path: an existing folder, for records; else a file, for a trace in Horovod's form.
        rank, size, mark_cycles: as Recording's.

    Raises:
        UnavailableError: as Recording. Where that is known before the files are made, the one that is on goes on.
    """
    _begin(Path(os.fsdecode(path)), rank, size, mark_cycles, is_asked_by_variable=False)


def begin_by_environment(rank: int, size: int) -> None:
    """Begins the timeline that RINGREDUCE_TIMELINE or HOROVOD_TIMELINE asks for, unless one is on.

    It is on until the process ends, or is of another rank or size, or calls start_timeline() or stop_timeline(). Its
    files stay as they are then: another one would write over them, and stderr says once that there is none. A process
    that has inherited the variable from another one whose timeline is on has none, and says so; likewise where the disk
    is full, or broken.

    Raises:
        InvalidArgumentError: the files cannot be made; names the variable.
    """
    if _current is not None and _current.is_asked_by_variable and _current.place != (rank, size):
        now, before = ("rank {} of {}".format(*place) for place in ((rank, size), _current.place))
        print(f"ringreduce: the timeline ends here: this process is {now} now, and was {before}", file=sys.stderr)
        folder = _current.folder
        end("the process has gone into another job")
        _told.add(folder)
    if _current is not None:
        return
    knob = config.value("RINGREDUCE_TIMELINE")
    if not knob.value or knob.value == _DYNAMIC:
        return
    mark_cycles = config.flag("RINGREDUCE_TIMELINE_MARK_CYCLES")
    try:
        path = Path(knob.value).expanduser()
        is_trace = knob.origin != knob.name or path.suffix == ".json"
        folder, _ = _places(path, is_trace)
        if why := _why_not_in(folder):
            if folder not in _told:
                print(f"ringreduce: no timeline of this process: {knob.origin}={knob.value}: {why}", file=sys.stderr)
            _told.add(folder)
            return
        _begin(path, rank, size, mark_cycles, is_asked_by_variable=True, is_trace=is_trace)
        os.environ[VARIABLE] = f"{inheritance.this_process()} {folder}"
    except (UnavailableError, RuntimeError) as error:  # RuntimeError: ~name of nobody
        what = f"{knob.origin}={knob.value}: {error}"
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in _NO_REASON_TO_END:
            raise InvalidArgumentError(what) from error
        print(f"ringreduce: no timeline of this process: {what}", file=sys.stderr)


def end(reason: str, is_last: bool = True, next_place: Place | None = None) -> None:
    """Ends the timeline that is on. Does nothing without one.

    is_last: also the timeline that a variable asked for. next_place: as Recording.end()'s.
    """
    global _current
    with _lock:
        if _current is None or (_current.is_asked_by_variable and not is_last):
            return
        recording, _current = _current, None
        if recording.is_asked_by_variable:
            _ended[recording.folder] = reason
        recording.end(reason, next_place)


def _begin(
    path: Path, rank: int, size: int, mark_cycles: bool, is_asked_by_variable: bool, is_trace: bool | None = None
) -> None:
    """is_trace: as _places()'s."""
    global _current
    with _lock:
        folder, trace = _places(path, is_trace)
        if _current is not None:  # which shall not end for one that cannot begin
            _make(folder, is_named=trace is None)
            _try(record_file.file_of(folder, rank), is_trace=False)
            if trace is not None and rank == 0:
                _try(trace, is_trace=True)
        replaces = rank == 0 and _has_records_of_another_run(folder, trace, size)
        end("another timeline has begun", next_place=(folder, trace))
        _current = Recording(folder, trace, rank, size, mark_cycles, is_asked_by_variable)
        _used.add(os.path.realpath(folder))
        if replaces:
            hint = "give each run a place of its own to keep both"
            print(
                f"ringreduce: the timeline of an earlier run in {trace or folder} is replaced; {hint}", file=sys.stderr
            )
        _end_as_child()


def _end_as_child() -> None:
    """Has a child of multiprocessing end its timeline, once it has left its jobs. Does nothing in another process.

    A forked child calls nothing that was registered with atexit before the fork, where this module was imported there.
    """
    global _ends_as_child
    process = sys.modules.get("multiprocessing.process")
    if _ends_as_child or process is None or process.parent_process() is None:
        return
    _ends_as_child = True
    after_leave = inheritance.CHILD_PRIORITY - 1  # the finalizer of the higher number comes first
    sys.modules["multiprocessing.util"].Finalize(None, end, ("the process has ended",), exitpriority=after_leave)


def _places(path: Path, is_trace: bool | None) -> Place:
    """The folder of the records, and the trace. is_trace: whether the path is a trace's; None: unless it is a folder.

    Raises UnavailableError.
    """
    try:
        path = path.absolute()
        is_trace = not path.is_dir() if is_trace is None else is_trace
        return (path.with_name(path.name + record_file.RANKS_SUFFIX), path) if is_trace else (path, None)
    except (OSError, ValueError) as error:
        raise UnavailableError(f"the timeline's path {str(path)!r:.80} cannot be one: {error}") from error


def _why_not_in(folder: Path) -> str:
    """Why this process shall begin no timeline of a variable in the folder; "" where it may."""
    if folder in _ended:
        return f"its former one is there, which ended when {_ended[folder]}, and would be written over"
    process, _, taken = os.environ.get(VARIABLE, "").partition(" ")
    if taken == str(folder) and process != inheritance.this_process():
        return (
            f"there is that of process {process.partition('.')[0]}, which has started this one; give it another place"
        )
    return ""


def _try(file: Path, is_trace: bool) -> None:
    """Opens a file as the recorder will, and leaves it as it is. Raises UnavailableError.

    A pipe is not opened: who reads it would see an end.
    """
    try:
        there = Path(os.path.realpath(file)) if is_trace and not file.exists() else file
        with suppress(FileExistsError):
            os.close(os.open(there, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
            there.unlink()
            return
        if not file.is_fifo():
            mode = os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK
            os.close(os.open(file, mode if is_trace else mode | os.O_NOFOLLOW))
    except OSError as error:
        raise UnavailableError(f"the timeline's file {file} cannot be made: {error.strerror}") from error


def _make(folder: Path, is_named: bool) -> None:
    """Makes the folder, unless it is there. is_named: by the user, and not after a trace.

    Where everybody may write, another user may have made a folder of that name, or a link.
    """
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o777 if is_named else 0o755, parents=True)
            return
        if not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        owners = {folder.lstat().st_uid, folder.stat().st_uid}
        # Who owns the folder around it has the trace in hand anyway. A network's file system may name one for all.
        known = {0, os.geteuid(), folder.parent.stat().st_uid}
    except OSError as error:
        raise UnavailableError(f"the timeline's folder {folder} cannot be made: {error.strerror}") from error
    if not is_named and not owners <= known:
        raise UnavailableError(
            f"the timeline's folder {folder} belongs to another user: remove it, or name another trace"
        )


def _has_records_of_another_run(folder: Path, trace: Path | None, size: int) -> bool:
    """Whether rank 0's timeline there will replace one of another process.

    A process that has executed another program is the same one: the mark in its environment says so.
    """
    if os.path.realpath(folder) in _used or os.environ.get(VARIABLE) == f"{inheritance.this_process()} {folder}":
        return False
    # Other ranks of this job may have begun already: the files of their numbers say nothing.
    mine = record_file.file_of(folder, 0)
    traces = () if trace is None else (trace,)  # which may be Horovod's own
    with suppress(OSError):
        return any(path.is_file() and path.stat().st_size != 0 for path in (mine, *traces, *_ranks_from(folder, size)))
    return False


def _ranks_from(folder: Path, size: int) -> list[Path]:
    """The files of ranks that a job of this size does not have."""
    numbers = {path: path.stem.removeprefix("rank-") for path in folder.glob(record_file.FILES)}
    return [path for path, number in numbers.items() if number.isdigit() and int(number) >= size]


def _remove_ranks_from(folder: Path, size: int) -> None:
    """Removes what ranks that this job does not have left here: those of a larger job that has ended."""
    for path in _ranks_from(folder, size):
        with suppress(OSError), path.open("r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink()


def _clock_name() -> str:
    """Equal where two processes have one CLOCK_MONOTONIC: the boot, and the namespace whose clock is shifted."""
    texts = []
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/timens_offsets"):
        with suppress(OSError):
            texts.append(" ".join(Path(path).read_text(encoding="ascii").split()))
    return " ".join(texts) or f"{os.uname().nodename} {os.getpid()}"


def _await_ends(folder: Path) -> None:
    deadline = time.monotonic() + _OTHERS_S
    left = [path for path in folder.glob(record_file.FILES) if path.is_file()]  # a pipe would be waited for
    while left and time.monotonic() < deadline:
        left = [path for path in left if not blocks.has_end(path)]
        if left:
            time.sleep(0.01)


def _forget_in_child() -> None:
    global _current, _ends_as_child, _lock
    _ends_as_child = False
    _lock = threading.RLock()
    _current = None  # its files are the parent's; what is behind it ends with the parent
    _ended.clear()  # the parent's, by whose mark the child has no timeline there
    _told.clear()
    _core.renew_recorder()


os.register_at_fork(after_in_child=_forget_in_child)
atexit.register(end, "the process has ended")
