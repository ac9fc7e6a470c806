"""ringreduce.run(): a function's results by rank, and the first failure with its traceback."""

from __future__ import annotations

import atexit
import builtins
import math
import os
import pickle
import re
import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from deadlines import HANG_S
from processes import completed
from ranks import clean_environment

import ringreduce
from ringreduce.errors import Error, InvalidArgumentError, MismatchError, TimeoutError, UnavailableError
from ringreduce.job.tcp.agents_secret import new_name
from ringreduce.launch import events
from ringreduce.launch.call import Result
from ringreduce.launch.job import Rank
from ringreduce.launch.run import run
from ringreduce.launch.worker import LENGTH


def place(word: str, *, end: str = "") -> tuple[int, int, str]:
    return int(os.environ["RINGREDUCE_RANK"]), int(os.environ["RINGREDUCE_SIZE"]), word + end


def test_results_come_back_by_rank() -> None:
    assert run(place, args=("hello",), kwargs={"end": "!"}, np=3) == [(rank, 3, "hello!") for rank in range(3)]


def summed(count: int) -> list[float]:
    import numpy

    with ringreduce.init() as world:
        return ringreduce.allreduce(numpy.arange(count) + world.rank, op=ringreduce.Sum).tolist()


def test_the_ranks_are_a_job() -> None:
    assert ringreduce.run(summed, args=(3,), np=2) == [[1, 3, 5]] * 2


def interrupted(parent: int, signum: int, folder: Path) -> None:
    with ringreduce.init() as world:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            ringreduce.barrier()
            if world.rank == 0:
                os.kill(parent, signum)
            time.sleep(HANG_S)
        finally:
            (folder / f"saved.{world.rank}").touch()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGUSR1])
def test_the_ranks_end_by_themselves_where_a_signal_ends_the_call(signum: int, tmp_path: Path) -> None:
    def end(*_: Any) -> None:
        raise KeyboardInterrupt if signum == signal.SIGINT else builtins.TimeoutError("of a handler")

    before = signal.signal(signum, end)
    try:
        with pytest.raises((KeyboardInterrupt, builtins.TimeoutError)):
            run(interrupted, args=(os.getpid(), int(signum), tmp_path), np=2)
    finally:
        signal.signal(signum, before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved.0", "saved.1"]


def large(nbytes: int) -> bytes:
    return bytes([int(os.environ["RINGREDUCE_RANK"])]) * nbytes


def test_a_process_without_stdout_is_told() -> None:
    code = "import ringreduce; ringreduce.run(max, args=(3, 4), np=1)"
    done = completed(["sh", "-c", f'exec "$0" -c "{code}" >&-', sys.executable], env=clean_environment())
    assert done.returncode == 1
    assert "InvalidArgumentError: run(): stdin, stdout or stderr was closed" in done.stderr


def test_results_may_be_large() -> None:
    assert run(large, args=(20_000_000,), np=2) == [bytes(20_000_000), b"\1" * 20_000_000]


def fail_on(rank: int, value: Any) -> None:
    if int(os.environ["RINGREDUCE_RANK"]) == rank:
        raise KeyError(value)


def test_a_failure_carries_rank_traceback_and_cause() -> None:
    with pytest.raises(Error, match="rank 1 of 2 exited with status 1") as caught:
        run(fail_on, args=(1, "missing"))
    assert "in fail_on" in str(caught.value)
    assert "KeyError: 'missing'" in str(caught.value)
    assert isinstance(caught.value.__cause__, KeyError)


class Unpicklable(Exception):
    def __reduce__(self) -> Any:
        raise TypeError("stays here")


def fail_oddly() -> None:
    raise Unpicklable("odd")


def test_an_exception_that_cannot_travel_leaves_its_traceback() -> None:
    with pytest.raises(Error, match="Unpicklable: odd") as caught:
        run(fail_oddly, np=1)
    assert caught.value.__cause__ is None


def die(signum: int) -> None:
    if os.environ["RINGREDUCE_RANK"] == "0":
        os.kill(os.getpid(), signum)
    time.sleep(60)


def test_a_rank_that_is_killed_is_named() -> None:
    begin = time.monotonic()
    with pytest.raises(Error, match=r"rank 0 of 2 was killed by signal 9 \(SIGKILL"):
        run(die, args=(signal.SIGKILL,))
    assert time.monotonic() - begin < 20


def leave() -> None:
    os._exit(0)


def test_a_rank_that_leaves_without_a_result_is_an_error() -> None:
    with pytest.raises(Error, match="rank 0 exited before the function returned"):
        run(leave, np=1)


def hang() -> None:
    signal.pause()


def children() -> set[str]:
    """Processes that this one has to wait for, those that have ended included."""
    return {pid for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()}


def test_timeout_names_who_is_late_and_leaves_nobody() -> None:
    before = set(os.listdir("/proc/self/fd")), children()
    with pytest.raises(TimeoutError, match=r"ranks \[0, 1\] of 2 were still running after 0.5 s") as caught:
        run(hang, timeout_s=0.5)
    assert isinstance(caught.value, builtins.TimeoutError)
    assert (set(os.listdir("/proc/self/fd")), children()) == before


@pytest.mark.parametrize("seconds", [30 * 86400, 1e300, math.inf])
def test_a_timeout_may_be_longer_than_poll_counts(seconds: float) -> None:
    assert run(max, args=(3, 4), np=1, timeout_s=seconds) == [4]


def test_a_wait_in_parts_ends_at_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LONGEST_S", 0.01)
    begin = time.monotonic()
    with pytest.raises(TimeoutError, match=r"still running after 0\.5 s"):
        run(hang, timeout_s=0.5)
    assert time.monotonic() - begin >= 0.5


def test_a_timeout_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="timeout_s=nan: expected seconds, or None for no limit"):
        run(max, args=(3, 4), np=1, timeout_s=math.nan)


def test_too_few_files_for_all_ranks() -> None:
    code = (
        "import ringreduce\ntry: ringreduce.run(len, ([],), np=40)\nexcept ringreduce.UnavailableError as e: print(e)"
    )
    done = completed(["sh", "-c", 'ulimit -n 64; exec "$@"', "sh", sys.executable, "-c", code], env=clean_environment())
    assert done.stdout == "[run] no file descriptor is left for one of 40 ranks: raise ulimit -n (now 64)\n", (
        done.stderr
    )


def test_env_is_added() -> None:
    assert run(os.getenv, args=("GREETING",), np=1, env={"GREETING": "hi"}) == ["hi"]


def test_what_cannot_be_sent_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    with pytest.raises(InvalidArgumentError, match=r"cannot be sent.*cloudpickle"):
        run(lambda: 1)
    monkeypatch.setattr(place, "__module__", "__main__")
    with pytest.raises(InvalidArgumentError, match="__main__"):
        run(place)


def test_horovods_arguments(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.warns(
        RuntimeWarning, match=r"run\(\): without effect here: use_gloo \(Gloo is not used; .*, ssh_port"
    ) as seen:
        places = run(
            *(place, ("hi",)),
            num_proc=3,
            hosts="localhost:4",
            use_gloo=True,
            use_mpi=False,
            min_num_proc=None,
            ssh_port=22,
            verbose=2,
            executable=sys.executable,
            output_filename=str(tmp_path),
        )
    assert [one.filename for one in seen] == [__file__]
    assert places == [(rank, 3, "hi") for rank in range(3)]
    assert capfd.readouterr().err.count("ringreduce.run: rank ") == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank.0", "rank.1", "rank.2"]
    assert run(os.getenv, args=("RINGREDUCE_INIT_TIMEOUT",), hosts="localhost:1", start_timeout=9.5) == ["9.5"]


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        ({"np": 2, "num_proc": 2}, InvalidArgumentError, "two names of one argument"),
        ({"np": 3, "hosts": "localhost:2"}, InvalidArgumentError, "np=3: the hosts have 2 slots"),
        ({"use_mpi": True}, UnavailableError, r"run\(use_mpi=True\): .*ringrun --mpi"),
        ({"min_num_proc": 1}, UnavailableError, r"run\(min_num_proc=1\): elastic jobs do not exist yet"),
        ({"nprocs": 1}, TypeError, "unexpected keyword argument 'nprocs'"),
    ],
)
def test_arguments_that_cannot_be_met(wrong: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        run(place, **wrong)


def test_where_the_end_of_a_rank_cannot_be_learned() -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(InvalidArgumentError, match="ignores SIGCHLD"):
            run(max, args=(3, 4), np=1)
    finally:
        signal.signal(signal.SIGCHLD, before)


@pytest.mark.parametrize("np", [0, -1])
def test_np_out_of_range(np: int) -> None:
    with pytest.raises(InvalidArgumentError, match="np="):
        run(place, np=np)


def test_output_appears(capfd: pytest.CaptureFixture[str]) -> None:
    run(print, args=("from a rank",), np=2)
    assert capfd.readouterr().out == "from a rank\n" * 2


def test_files_of_the_output_that_cannot_be_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for rank in range(3):
        (tmp_path / f"rank.{rank}").mkdir()
        (tmp_path / f"rank.{rank}" / "stdout").symlink_to("/dev/full")
    file = rf"{re.escape(str(tmp_path))}/rank\.\d/stdout: No space left on device"
    words = rf"^run\(\): the end of the ranks' output may be missing: {file}; {file}; and 1 more$"
    with pytest.warns(RuntimeWarning, match=words) as seen:
        run(print, args=("from a rank",), np=3, output_filename=str(tmp_path))
    assert [one.filename for one in seen] == [__file__]
    assert capfd.readouterr().out == "from a rank\n" * 3


def test_a_result_that_is_cut_is_none() -> None:
    """Of a rank that was killed while it wrote."""
    answer = pickle.dumps((True, "", pickle.dumps("value")))
    whole = LENGTH.pack(len(answer)) + answer
    with ExitStack() as stack:
        for cut in range(len(whole)):
            result = Result(3, stack)
            result.feed(whole[:cut])
            with pytest.raises(Error, match=r"^\[run\] rank 3 exited before the function returned"):
                result.value(Rank(3, "h", 1, 0.0), "")
        result.feed(whole[-1:])
        assert result.value(Rank(3, "h", 1, 0.0), "") == "value"
        with pytest.raises(MismatchError, match="more than the answer of rank 3"):
            result.feed(b"x")


def forks(value: str) -> str:
    if os.fork() == 0:
        return value + " of the child"
    os.wait()
    return value


def test_a_child_that_returns_too_answers_nothing() -> None:
    assert run(forks, args=("value",), np=2) == ["value", "value"]


def ends_badly() -> str:
    atexit.register(os._exit, 7)
    return "value"


def test_a_rank_that_fails_after_it_has_returned() -> None:
    words = r"^\[run\] rank 0 of 1 exited with status 7 after .* s, on host .*, after the function had returned$"
    with pytest.raises(Error, match=words):
        run(ends_badly, np=1)


class Unknown:
    """Made where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, ("raise ImportError('only there')",)


def unknown() -> Unknown:
    return Unknown()


def test_a_result_that_cannot_be_unpickled_here() -> None:
    with pytest.raises(Error, match=r"result of rank 0 on host .* cannot be unpickled here: ImportError: only there"):
        run(unknown, np=1)


def test_variables_are_strings() -> None:
    with pytest.raises(InvalidArgumentError, match="names and values of variables are strings"):
        run(unknown, np=1, env={"A": 1})  # type: ignore[dict-item]


def place_of_a_nested_job() -> list[Any]:
    os.environ |= {"RINGREDUCE_ADDRESS": "192.0.2.1:5000", "RINGREDUCE_SECRET_FILE": f"/dev/shm/{new_name()}"}
    return run(summed, args=(1,), np=2)


def test_a_job_within_a_job_has_places_of_its_own() -> None:
    """Within one that agents have started, whose variables these are."""
    assert run(place_of_a_nested_job, np=1) == [[[1], [1]]]
