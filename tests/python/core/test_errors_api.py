"""Errors of the Python API: class, text, on every rank, and the job stays usable where it should."""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import completed
from ranks import clean_environment, run_ranks

import ringreduce

HVD_NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."
SAME_NAME = (
    "Requested to allreduce, allgather, or broadcast a tensor with the same name as another tensor that is currently "
    "being processed.  If you want to request another tensor, use a different tensor name."
)


def caught(call: Any) -> str:
    """The class and text of what a call raises."""
    try:
        return f"no error but {call()!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


EVERY_CALL = {
    "rank": (),
    "size": (),
    "local_rank": (),
    "local_size": (),
    "cross_rank": (),
    "cross_size": (),
    "is_homogeneous": (),
    "stats": (),
    "allreduce": (np.ones(2),),
    "allreduce_": (np.ones(2),),
    "allreduce_async": (np.ones(2),),
    "allreduce_async_": (np.ones(2),),
    "grouped_allreduce": ([np.ones(2)],),
    "grouped_allreduce_": ([np.ones(2)],),
    "grouped_allreduce_async": ([np.ones(2)],),
    "grouped_allreduce_async_": ([np.ones(2)],),
    "allgather": (np.ones(2),),
    "allgather_async": (np.ones(2),),
    "gather": (np.ones(2), 0),
    "scatter": (np.ones(2), np.ones(2), 0),
    "broadcast": (np.ones(2), 0),
    "broadcast_": (np.ones(2), 0),
    "broadcast_async_": (np.ones(2), 0),
    "alltoall": (np.ones(2),),
    "reducescatter": (np.ones(2),),
    "reduce": (np.ones(2), 0),
    "send": (np.ones(2), 0),
    "recv": (np.ones(2), 0),
    "barrier": (),
    "join": (),
    "symmetric_empty": (3,),
    "add_process_set": ([0],),
}


@pytest.mark.parametrize("name", EVERY_CALL)
def test_every_call_before_init(name: str) -> None:
    with pytest.raises(ringreduce.NotInitializedError) as caught_error:
        getattr(ringreduce, name)(*EVERY_CALL[name])
    assert str(caught_error.value).startswith("ringreduce has not been initialized; use ringreduce.init().")
    assert HVD_NOT_INITIALIZED in str(caught_error.value)
    assert isinstance(caught_error.value, ValueError)  # what Horovod's rank() raises
    assert isinstance(caught_error.value, ringreduce.HorovodInternalError)  # what its collectives raise


def test_handles_that_are_none() -> None:
    for call in (ringreduce.poll, ringreduce.synchronize):
        with pytest.raises(ringreduce.InvalidArgumentError, match="Handle 7 was not created or has been cleared"):
            call(7)  # type: ignore[arg-type]


def operations_that_are_none() -> list[str]:
    import ringreduce as rr

    x = np.ones(2)
    with rr.init():
        calls = [
            lambda op: rr.allreduce(x, op=op),
            lambda op: rr.allreduce_(x, op=op),
            lambda op: rr.allreduce_async(x, op=op),
            lambda op: rr.allreduce_async_(x, op=op),
            lambda op: rr.grouped_allreduce([x], op=op),
            lambda op: rr.grouped_allreduce_([x], op=op),
            lambda op: rr.reducescatter(x, op=op),
            lambda op: rr.grouped_reducescatter([x], op=op),
            lambda op: rr.reduce(x, 0, op=op),
        ]
        return [caught(lambda call=call, op=op: call(op)) for op in ("sum", None, 1.5) for call in calls]


def test_what_is_no_operation_is_told() -> None:
    (texts,) = run_ranks(operations_that_are_none, 1)
    text = "InvalidArgumentError: op='sum' is a string: write op=hvd.Sum, or ringreduce.Sum"
    assert texts[:9] == [text] * 9
    for op, some in ((None, texts[9:18]), (1.5, texts[18:])):
        for one in some:
            assert one.startswith(f"InvalidArgumentError: op={op} is no reduce operation; these are Average, Sum, ")


def one_process() -> list[Any]:
    import ringreduce as rr

    seen: list[Any] = [rr.is_initialized()]
    with rr.init() as world:
        assert rr.init().rank == world.rank  # idempotent
        seen += [rr.rank(), rr.size(), rr.local_rank(), rr.local_size(), rr.cross_rank(), rr.cross_size()]
        seen += [rr.is_homogeneous(), rr.is_initialized(), rr.join(), float(rr.allreduce(2.0)), int(rr.allreduce(7))]
        x = np.arange(3.0)
        assert rr.allreduce_(x) is x
        for result in (rr.allgather(x), rr.broadcast(x, 0), rr.reducescatter(x), rr.alltoall(x), rr.gather(x, 0)):
            assert np.array_equal(result, x)
        assert np.array_equal(rr.scatter(x, np.empty(3), 0), x)
        assert np.array_equal(rr.reduce(x, 0), x)
        for call in (rr.send, rr.recv):
            assert "must be another rank" in caught(lambda call=call: call(x, 0))
        rr.barrier()
    return [*seen, rr.is_initialized()]


def test_one_process_without_a_launcher() -> None:
    names = ["RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE"]
    env = {f"{prefix}_{name}": None for prefix in ("RINGREDUCE", "HOROVOD") for name in names}
    expected = [False, 0, 1, 0, 1, 0, 1, True, True, 0, 2.0, 7, False]
    assert run_ranks(one_process, 1) == [expected]
    assert run_ranks(one_process, 1, env={**env, "RINGREDUCE_RENDEZVOUS": None}) == [expected]


def without_memory() -> list[str]:
    """Rank 1 has no memory for what rank 0 gives; then it has, but the job is over."""
    import resource

    import ringreduce as rr

    rr.init()
    rr.allgather(np.ones(1))
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    if rr.rank() == 1:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 20), most))
    texts = [caught(lambda: rr.allgather(np.ones((256 << 20) if rr.rank() == 0 else 1, np.int8)))]
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    return [*texts, caught(lambda: rr.allreduce(1.0))]


def test_a_rank_without_memory_is_named_by_all() -> None:
    for rank, texts in enumerate(run_ranks(without_memory, 2)):
        for text, operation in zip(texts, ("allgather #1", "allreduce"), strict=True):
            place = rf"\[ringreduce rank {rank}/2 on \S+ shm, {operation}\]"
            found = r"\[ringreduce rank 1/2 on \S+ shm, allgather #1\]"
            told = found if (rank, operation) == (1, "allgather #1") else f"{place} the group has failed: {found}"
            why = f"out of memory for its result of {(256 << 20) + 1} bytes; raise the limit"
            assert re.match(f"HorovodInternalError: {told} {why}", text), text


def mismatches() -> list[tuple[str, str]]:
    """(what differed, what was raised), one after the other in one job; the last is a sum that works."""
    import ringreduce as rr

    with rr.init() as world:
        me = world.rank
        odd = me == world.size - 1  # the last rank is the one that differs
        x = np.ones((17, 17), np.float32)
        y = np.ones((18, 18) if odd else (17, 17), np.float32)
        z = np.ones((4, 10 + 10 * odd), np.float32)
        ranks3 = np.ones((4, 4, 4) if odd else (4, 4), np.float32)
        calls: dict[str, Any] = {
            "shape": lambda: rr.allreduce(y),
            "shape, named": lambda: rr.allreduce(y, name="t"),
            "shape, async": lambda: rr.allreduce_async(y, name="t").wait(),
            "dtype": lambda: rr.allreduce(x.astype(np.int32) if odd else x),
            "op": lambda: rr.allreduce(x, op=rr.Min if odd else rr.Sum),
            "factors": lambda: rr.allreduce(x, op=rr.Sum, prescale_factor=2.0 if odd else 1.0),
            "postscale": lambda: rr.allreduce(x, op=rr.Sum, postscale_factor=2.0 if odd else 1.0),
            "thirds": lambda: rr.allreduce(x, op=rr.Sum, prescale_factor=float(np.float32(1) / 3) if odd else 1 / 3),
            "tiny": lambda: rr.allreduce(x, op=rr.Sum, prescale_factor=2e-7 if odd else 1e-7),
            "zeros": lambda: rr.allreduce(x, op=rr.Sum, prescale_factor=-0.0 if odd else 0.0),
            "wire": lambda: rr.allreduce(x, wire="fp16" if odd else None),
            "wire, named": lambda: rr.allreduce(x, name="w", wire="fp16" if odd else None),
            "wire, async": lambda: rr.allreduce_async_(x, wire="fp16" if odd else None).wait(),
            "wire, grouped": lambda: rr.grouped_allreduce([x, x], wire="fp16" if odd else None),
            "kind": lambda: rr.allgather(x) if odd else rr.allreduce(x),
            "kind, named": lambda: rr.allgather(x, name="k") if odd else rr.allreduce(x, name="k"),
            "root": lambda: rr.broadcast(x, 1 if odd else 0),
            "broadcast shape": lambda: rr.broadcast(y, 0),
            "allgather dims": lambda: rr.allgather(ranks3),
            "allgather dim 5": lambda: rr.allgather(np.ones((1, 1, 1, 1, 2, 4 if odd else 3))),
            "allgather dim 1": lambda: rr.allgather(z),
            "alltoall dim 1": lambda: rr.alltoall(z, [0] * world.size),
            "reducescatter shape": lambda: rr.reducescatter(y),
            "grouped": lambda: rr.grouped_allreduce([x, y]),
            "grouped count": lambda: rr.grouped_allreduce([x] * (2 + odd)),
            "small": lambda: rr.allreduce(np.ones(1 + odd)),
            "small dtype": lambda: rr.allreduce(np.ones(1, np.int64 if odd else np.float64)),
            "barrier": lambda: rr.barrier() if odd else rr.allreduce(np.ones(1)),
            "names": lambda: rr.allreduce(x, name="p" if odd else "q"),  # every rank blocked, nothing complete
            "named and unnamed": lambda: rr.allreduce(x, name="p" if odd else None),
            "nothing": lambda: float(rr.allreduce(x, op=rr.Sum)[0, 0]),
        }
        return [(what, caught(call)) for what, call in calls.items()]


PHRASES = {
    "shape": "Mismatched ALLREDUCE tensor shapes: One rank sent a tensor of shape [17, 17], but another rank sent a "
    "tensor of shape [18, 18].",
    "dtype": "Mismatched data types: One rank had type float32, but another rank had type int32.",
    "op": "Mismatched reduction operation: One rank sent reduction op 1",
    "factors": "Mismatched prescale and/or postscale factors: One rank sent factors (1, 1), but another rank sent "
    "factors (2, 1).",
    "thirds": "One rank sent factors (0.3333333333333333, 1), but another rank sent factors (0.3333333432674408, 1).",
    "tiny": "One rank sent factors (1e-07, 1), but another rank sent factors (2e-07, 1).",
    "allgather dim 5": "Mismatched ALLGATHER tensor shapes: Two ranks sent tensors that differ in dimension 4 or a "
    "later one.",
    "zeros": "Mismatched prescale and/or postscale factors: One rank sent factors (0, 1), but another rank sent "
    "factors (-0, 1).",
    "wire": "Mismatched wire codecs: One rank sent wire none, but another rank sent wire fp16.",
    "kind": "Mismatched operations: One rank did an ALLREDUCE, but another rank did an ALLGATHER.",
    "root": "Mismatched BROADCAST root ranks: One rank specified root rank 0, but another rank specified root rank 1.",
    "broadcast shape": "Mismatched BROADCAST tensor shapes: One rank sent a tensor of shape [17, 17], but another",
    "allgather dims": "Mismatched ALLGATHER tensor shapes: One rank sent a tensor of rank 2, but another rank sent a "
    "tensor of rank 3.",
    "allgather dim 1": "Mismatched ALLGATHER tensor shapes: One rank sent a tensor with dimension 1 equal to 10, but "
    "another rank sent a tensor with dimension 1 equal to 20.",
}


@pytest.mark.parametrize("size", [2, 3])
def test_mismatches_raise_everywhere_and_leave_the_job_usable(size: int) -> None:
    for seen in run_ranks(mismatches, size):
        for what, text in seen[:-1]:
            assert text.startswith("MismatchError: "), f"{what}: {text}"
            assert PHRASES.get(what.split(",")[0], "") in text, f"{what}: {text}"
        assert seen[-1] == ("nothing", f"no error but {float(size)!r}")


def bad_arguments() -> list[tuple[str, str, str]]:
    """(expected class, expected phrase, what was raised) for calls that are wrong in the same way on every rank."""
    import ringreduce as rr

    with rr.init() as world:
        x = np.ones((2 * world.size + 1, 2))
        half = np.ones(3, np.float16)
        one = np.ones(5000, np.float32)
        known = "InvalidArgumentError"
        calls: list[tuple[str, str, Any]] = [
            (known, "bitwise_and has no meaning for float64", lambda: rr.allreduce(x, op=rr.BitwiseAnd)),
            (known, "average has no meaning for bool", lambda: rr.allreduce(np.ones(2, bool))),
            ("UnavailableError", "adasum is computed by ringreduce.torch", lambda: rr.allreduce(half, op=rr.Adasum)),
            (known, "prescale_factor", lambda: rr.allreduce(np.ones(2, bool), op=rr.Max, prescale_factor=2.0)),
            (known, 'no wire codec named "fp8"; the names are none, fp16,', lambda: rr.allreduce(x, wire="fp8")),
            (known, "wire=5: None or the name of a codec is expected, 'fp16', ", lambda: rr.allreduce(x, wire=5)),
            (known, "wire=5: None or", lambda: rr.allreduce_async(x, wire=5)),  # type: ignore[arg-type]
            (known, "prescale_factor=None: a number is expected", lambda: rr.allreduce(x, prescale_factor=None)),
            (known, "postscale_factor='1': a number", lambda: rr.reducescatter(x, postscale_factor="1")),
            (known, "prescale_factor=[2]: a number", lambda: rr.reduce(x, 0, prescale_factor=[2])),
            (known, "prescale_factor: the number is too large", lambda: rr.allreduce(x, prescale_factor=10**400)),
            (known, "timeout=nan: seconds or None", lambda: rr.allreduce_async(x, name="t").wait(math.nan)),
            (
                known,
                "wire fp16 is for float32 with sum, average, min and max, not",
                lambda: rr.allreduce(x, wire="fp16"),
            ),
            (
                known,
                "not for product of float32; leave wire out",
                lambda: rr.allreduce(one, op=rr.Product, wire="bf16"),
            ),
            (
                known,
                "wire int8 is for float32 with sum and average, not",
                lambda: rr.allreduce(one, op=rr.Max, wire="int8"),
            ),
            (
                known,
                "not for sum of int32",
                lambda: rr.grouped_allreduce([one, one.astype("i4")], op=rr.Sum, wire="int8"),
            ),
            (known, "reduce operation code 77 is unknown", lambda: rr.allreduce(x, op=77)),
            (known, r"name='caf\udce9': a str of whole characters", lambda: rr.allreduce(x, name="caf\udce9")),
            (known, "name=7: a str of whole characters is expected", lambda: rr.allreduce(x, name=7)),
            (known, "allreduce 'a': the name goes on after a NUL", lambda: rr.allreduce(x, name="a\0b")),
            (known, "tag=2147483648: a whole number from 0 to", lambda: rr.send(x, 1 - rr.rank(), tag=2**31)),
            (known, "tag=0.5: a whole number from 0 to", lambda: rr.recv(x, 1 - rr.rank(), tag=0.5)),
            (known, "Reducescatter does not support scalar inputs", lambda: rr.reducescatter(1.0)),
            (known, "broadcast received invalid root rank 9", lambda: rr.broadcast(x, 9)),
            (known, "received invalid root rank -1", lambda: rr.reduce(x, -1)),
            (known, "alltoall expects a 1D splits tensor", lambda: rr.alltoall(x, [[1]])),
            (known, "alltoall expects splits to contain", lambda: rr.alltoall(x, [0.5] * world.size)),
            (known, "Sum of splits entries is greater than the", lambda: rr.alltoall(x, [99] * world.size)),
            (known, "Number of entries in splits does not equal", lambda: rr.alltoall(x, [1] * (world.size + 1))),
            (known, "splits not provided, but first dimension", lambda: rr.alltoall(x)),
            (known, "size", lambda: rr.scatter(x[:3], np.empty(7), world.rank)),
            ("", "rank-zero tensor", lambda: rr.allgather(1.0)),
            (known, "is not supported", lambda: rr.allreduce(np.ones(2, complex))),
            (known, "given", lambda: rr.init(rank=0) if rr.shutdown() is None else None),
        ]
        return [(kind, phrase, caught(call)) for kind, phrase, call in calls]


def test_bad_arguments() -> None:
    for seen in run_ranks(bad_arguments, 2):
        for kind, phrase, text in seen:
            if phrase != "size":
                assert kind in text, (phrase, text)
                assert phrase in text, text


def same_name() -> list[str]:
    import ringreduce as rr

    seen = []
    with rr.init() as world:
        x = np.ones(3)
        if world.rank == 0:
            first = rr.allreduce_async(x, name="twice", op=rr.Sum)
            seen.append(caught(lambda: rr.allreduce_async(x, name="twice")))
            seen.append(caught(lambda: rr.allreduce(x, name="twice")))
            seen.append(caught(lambda: rr.allgather(x, name="twice")))
            rr.allreduce_async(x, name="other", op=rr.Sum).wait()
            seen.append(str(first.wait()[0]))
        else:
            rr.allreduce(x, name="other", op=rr.Sum)
            seen.append(str(rr.allreduce(x, name="twice", op=rr.Sum)[0]))
        seen.append(str(rr.allreduce(x, name="twice", op=rr.Sum)[0]))
    return seen


def test_the_same_name_twice() -> None:
    first, second = run_ranks(same_name, 2)
    assert first[:3] == [f"InvalidArgumentError: {SAME_NAME}"] * 3 or all(SAME_NAME in text for text in first[:3])
    assert all(text.startswith("InvalidArgumentError") for text in first[:3])
    assert first[3:] == second == ["2.0", "2.0"]


def messages_that_do_not_fit() -> list[str]:
    """Rank 1 receives what rank 0 sends, with another dtype, another tag, another size; the next message is right."""
    import ringreduce as rr

    texts = []
    with rr.init() as world:
        for sent, into, tag in (
            (np.ones(2, np.float32), np.zeros(2, np.int32), 0),
            (np.ones(2, np.float32), np.zeros(2, np.float32), 7),
            (np.ones(3, np.float32), np.zeros(2, np.float32), 0),
            (np.ones(2, np.float32), np.zeros(2, np.float32), 0),
            (np.ones(0, np.float32), np.zeros(0, np.int32), 0),
        ):
            if world.rank == 0:
                rr.send(sent, 1)
            else:
                texts.append(caught(lambda into=into, tag=tag: rr.recv(into, 0, tag=tag)))
    return texts


def test_a_message_of_another_dtype_tag_or_size_is_a_mismatch() -> None:
    _, texts = run_ranks(messages_that_do_not_fit, 2)
    arrived = "but the next message from that rank has tag 0, {} bytes and dtype float32"
    assert [text.startswith("MismatchError") for text in texts] == [True] * 3 + [False] * 2
    assert "expected tag 0, 8 bytes and dtype int32, " + arrived.format(8) in texts[0]
    assert "expected tag 7, 8 bytes and dtype float32, " + arrived.format(8) in texts[1]
    assert "expected tag 0, 8 bytes and dtype float32, " + arrived.format(12) in texts[2]


SMALL_FILES = """
import resource
import ringreduce as rr

resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, resource.RLIM_INFINITY))
try:
    rr.init()
except rr.Error as error:
    print(error)
"""


def test_a_limit_of_file_sizes_is_named_with_its_cure() -> None:
    done = completed([sys.executable, "-c", SMALL_FILES], env=clean_environment())
    assert "(errno 27); raise the limit of a file's size (ulimit -f unlimited)" in done.stdout, done.stderr
