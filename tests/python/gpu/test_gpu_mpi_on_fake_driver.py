"""The MPI path: GPU memory that a real MPI is given as it is, under each mpirun, each rank a host of its own.

The driver is the fake one, whose memory the host can read, so every MPI can send from it and receive into it:
RINGREDUCE_MPI_CUDA=on says so, as a user says it of an MPI that cannot be asked.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import cuda_devices
import mpis
import numpy as np
import oracle
import pytest
from fake_cuda import Array, Gpu, Stream
from fake_gpu_ranks import coming, on, total, whole

FOLDER = "RR_TEST_SAYS"
BLOCK_NBYTES = 64 << 20  # an all-reduce goes in blocks of this size
NAMED = 6  # all-reduces that are in flight together, each by its name


@pytest.fixture(name="mpi", params=mpis.SAMPLED)
def each_mpi(request: pytest.FixtureRequest) -> mpis.Mpi:
    return mpis.get(request.param)


def program(function: str) -> list[str]:
    """A function of this file as a rank's program."""
    here = Path(__file__)
    code = f"import sys; sys.path.insert(0, {str(here.parent)!r}); import {here.stem} as m; m.{function}()"
    return [sys.executable, "-c", code]


def environment(folder: Path, **more: str) -> dict[str, str]:
    everyone = cuda_devices.fake_environment(RINGREDUCE_TRANSPORT="mpi", RINGREDUCE_TIMEOUT="60")
    return everyone | {FOLDER: str(folder), "RINGREDUCE_MPI_CUDA": "on"} | more


def ask(mpi: mpis.Mpi, ranks: int, function: str, folder: Path, **more: str) -> tuple[list[Any], str]:
    """What each rank said, when mpirun ends well, and all that was printed."""
    done = mpi.attempt(ranks, *program(function), extra=environment(folder, **more))
    assert done.returncode == 0, done.stdout
    return [json.loads((folder / str(rank)).read_text()) for rank in range(ranks)], done.stdout


def say(rank: int, what: Any) -> None:
    Path(os.environ[FOLDER], str(rank)).write_text(json.dumps(what))


def folded(inputs: list[oracle.Array]) -> oracle.Array:
    """The sum in the order of the ranks: floats of 16 bits in float32 and rounded once, others in their own type."""
    dtype = inputs[0].dtype
    work = np.dtype(np.float32) if dtype.itemsize == 2 and dtype.name in ("float16", "bfloat16") else dtype
    sums = inputs[0].astype(work)
    for values in inputs[1:]:
        sums = (sums + values.astype(work)).astype(work)
    return sums.astype(dtype)


# --- every collective, compared bit for bit ---------------------------------------------------------------------------


def collectives() -> None:
    import ringreduce as rr

    with rr.init() as world:
        rank, size, stream = world.rank, world.size, Gpu().stream()
        digests = reductions(rr, rank, size, stream)
        movements(rr, rank, size, stream)
        one_by_one = rr.stats()["cuda_mpi"]
        out_of_order(rr, rank, size, stream)
        after = rr.stats()
        assert (after["cuda_staged"], after["cuda_ipc"], after["cuda_nccl"]) == (0, 0, 0), after
        # What this path does not do goes by the next one, and says so in the figures.
        rows = coming(whole(rank, 5, (7, 300)), stream)
        forced = os.environ.get("RINGREDUCE_GPU_PATH") == "mpi"
        refused = ""
        try:
            mine = on(stream, rr.reducescatter_async(rows, op=rr.Sum, name="rows").wait(timeout=30))
            assert np.array_equal(mine, np.array_split(total(size, 5, (7, 300)), size)[rank])
        except rr.HorovodInternalError as error:
            refused = str(error)
        assert bool(refused) == forced, refused
        again = rr.allreduce(coming(whole(rank, 6, 33), stream), op=rr.Sum)
        assert np.array_equal(on(stream, again), total(size, 6, 33)), "the group goes on"
        fused = after["cuda_mpi"] - one_by_one
        say(rank, {"digests": digests, "one by one": one_by_one, "fused": fused, "refused": refused})


def reductions(rr: Any, rank: int, size: int, stream: Stream) -> list[str]:
    digests = []

    def right(result: Any, inputs: list[oracle.Array], what: object) -> None:
        found, wanted = on(stream, result), folded(inputs)
        assert found.tobytes() == wanted.tobytes(), what
        digests.append(oracle.digest(found))

    def given(seed: int, count: int, name: str) -> list[oracle.Array]:
        return [oracle.values(seed, r, count, name) for r in range(size)]

    names = ("float32", "float64", "float16", "bfloat16", "int8", "int32", "int64", "uint8")
    for seed, name in enumerate(names):
        for count in (0, 1, 100_003) if name in ("float32", "bfloat16") else (size - 1, 1009):
            inputs = given(seed, count, name)
            right(rr.allreduce(coming(inputs[rank], stream), op=rr.Sum), inputs, (name, count))
    # A bucket of several types, a maximum, an average.
    group = [given(30 + i, 5 + 4099 * i, names[i % 4]) for i in range(7)]
    for i, y in enumerate(rr.grouped_allreduce([coming(one[rank], stream) for one in group], op=rr.Sum)):
        right(y, group[i], f"tensor {i} of a group")
    inputs = given(40, 5000, "float32")
    largest = on(stream, rr.allreduce(coming(inputs[rank], stream), op=rr.Max))
    assert np.array_equal(largest, np.max(inputs, axis=0))
    mean = on(stream, rr.allreduce(coming(inputs[rank], stream), op=rr.Average))
    assert not (bad := oracle.wrong(mean, inputs, oracle.AVERAGE)), bad
    return digests


def out_of_order(rr: Any, rank: int, size: int, stream: Stream) -> None:
    """Each rank's order is the other's backwards: names match them, and as many as are ready together are fused."""
    order = range(NAMED) if rank % 2 else range(NAMED - 1, -1, -1)
    handles = {i: rr.allreduce_async(coming(whole(rank, i, 1000 + i), stream), name=f"n{i}", op=rr.Sum) for i in order}
    for i, handle in handles.items():
        assert np.array_equal(on(stream, handle.wait()), total(size, i, 1000 + i))


def movements(rr: Any, rank: int, size: int, stream: Stream) -> None:
    for shape in ((0, 3), (4, 3), (2000, 170)):
        for root in range(size):
            y = rr.broadcast(coming(whole(rank, root, shape), stream), root)
            assert np.array_equal(on(stream, y), whole(root, root, shape)), (shape, root)
        gathered = rr.allgather(coming(whole(rank, 1, shape, np.int16), stream))
        assert np.array_equal(on(stream, gathered), np.concatenate([whole(r, 1, shape, "i2") for r in range(size)]))
    ragged = coming(whole(rank, 2, (5 * rank, 9)), stream)
    everything = np.concatenate([whole(r, 2, (5 * r, 9)) for r in range(size)])
    assert np.array_equal(on(stream, rr.allgather_async(ragged, name="ragged").wait()), everything)
    at_root = rr.gather(ragged, size - 1)
    assert (at_root is None) == (rank != size - 1)
    if at_root is not None:
        assert np.array_equal(on(stream, at_root), everything)
    part = stream.gpu.empty((600,), "f4", stream)
    rr.scatter(coming(whole(0, 3, (size, 600)), stream) if rank == 0 else None, part, 0)
    assert np.array_equal(on(stream, part), whole(0, 3, (size, 600))[rank])
    splits = [[(r + to) % 3 * 400 for to in range(size)] for r in range(size)]
    received, counts = rr.alltoall(coming(whole(rank, 5, (sum(splits[rank]), 4)), stream), splits[rank])
    begins = [sum(splits[r][:rank]) for r in range(size)]
    sent = [whole(r, 5, (sum(splits[r]), 4))[begins[r] : begins[r] + splits[r][rank]] for r in range(size)]
    assert counts.tolist() == [splits[r][rank] for r in range(size)]
    assert np.array_equal(on(stream, received), np.concatenate(sent))
    if size > 2:  # a set's ranks are not the world's
        pair = rr.add_process_set([0, 2])
        if rank != 1:
            y = rr.allreduce(coming(whole(rank, 7, 5000), stream), op=rr.Sum, process_set=pair)
            assert np.array_equal(on(stream, y), whole(0, 7, 5000) + whole(2, 7, 5000))


def long_ones() -> None:
    """More than one block, in place; the last one is short."""
    import ringreduce as rr

    with rr.init() as world:
        stream = Gpu().stream()
        count = BLOCK_NBYTES // 8 + 4097
        x = stream.gpu.array(whole(world.rank, 1, count, np.float64), stream)
        assert rr.allreduce_(x, op=rr.Sum) is x
        assert np.array_equal(on(stream, x), total(world.size, 1, count, np.float64))
        say(world.rank, rr.stats()["cuda_mpi"])


def check(everyone: list[Any], forced: bool) -> None:
    first = everyone[0]
    size = len(everyone)
    reduced, moved = 18 + 3, 3 * size + 3 + 4 + (size > 2)  # a group is one; a set's all-reduce is the last one
    assert first["one by one"] == reduced + moved, first
    assert 1 <= first["fused"] <= NAMED, first
    for one in everyone:
        assert one["digests"] == first["digests"], "the same bits on all ranks"
        if forced:
            assert "RINGREDUCE_GPU_PATH=mpi" in one["refused"], one
            assert "it has no reduce and no reduce-scatter" in one["refused"], one


def test_collectives_by_default(mpi: mpis.Mpi, tmp_path: Path) -> None:
    everyone, printed = ask(mpi, 3, "collectives", tmp_path, RINGREDUCE_LOG_LEVEL="info")
    check(everyone, forced=False)
    assert re.search(r"operations go by the path 'mpi': every rank's MPI takes addresses of GPU memory", printed)


def test_collectives_when_forced(tmp_path: Path) -> None:
    everyone, _ = ask(mpis.first(), 2, "collectives", tmp_path, RINGREDUCE_GPU_PATH="mpi")
    check(everyone, forced=True)


def test_blocks(tmp_path: Path) -> None:
    assert ask(mpis.first(), 2, "long_ones", tmp_path)[0] == [1, 1]


# --- whose MPI may not be given addresses -----------------------------------------------------------------------------


def refusals() -> None:
    """Rank 1's MPI takes no addresses, so nobody's is given any; then the MPI itself is asked."""
    import ringreduce as rr
    from ringreduce.job import mpi

    found: dict[str, Any] = {}
    for setting in ("one", "asked"):
        os.environ["RINGREDUCE_MPI_CUDA"] = "auto"
        if setting == "one":
            os.environ["RINGREDUCE_MPI_CUDA"] = "off" if os.environ["RR_TEST_RANK"] == "1" else "on"
        for path in ("auto", "mpi"):
            os.environ["RINGREDUCE_GPU_PATH"] = path
            with rr.init() as world:
                rank, size, stream = world.rank, world.size, Gpu().stream()
                refused = ""
                try:
                    y = rr.allreduce_async(coming(whole(rank, 1, 70_001), stream), op=rr.Sum).wait(timeout=30)
                    assert np.array_equal(on(stream, y), total(size, 1, 70_001))
                except rr.MismatchError as error:
                    refused = str(error)
                assert rr.allreduce(np.ones(3), op=rr.Sum).tolist() == [size] * 3, "the group goes on"
                counts = rr.stats()
                found[f"{setting} {path}"] = [refused, counts["cuda_mpi"], counts["cuda_staged"]]
    found["takes"] = mpi.cuda_path().takes_pointers
    say(rank, found)


def test_an_mpi_that_takes_no_addresses(tmp_path: Path) -> None:
    mpi = mpis.first()
    code = "import os, sys; from mpi4py import MPI; os.environ['RR_TEST_RANK'] = str(MPI.COMM_WORLD.rank);"
    start = program("refusals")
    everyone = environment(tmp_path)
    done = mpi.attempt(2, *start[:2], code + start[2], extra=everyone)
    assert done.returncode == 0, done.stdout
    for rank in range(2):
        found = json.loads((tmp_path / str(rank)).read_text())
        for setting, takes in (("one", False), ("asked", found["takes"])):
            refused, by_mpi, staged = found[f"{setting} auto"]
            assert (refused, by_mpi, staged) == ("", int(takes), int(not takes)), found
            refused, by_mpi, staged = found[f"{setting} mpi"]
            assert (by_mpi, staged) == (int(takes), 0), found
            words = (
                "RINGREDUCE_GPU_PATH=mpi: not every rank's MPI takes addresses of GPU memory",
                "ringreduce doctor",
            )
            assert takes or all(word in refused for word in words), found


# --- ranks that call with other memory, that leave, and that are killed -----------------------------------------------


def strangers() -> None:
    import ringreduce as rr

    rr.init()
    stream = Gpu().stream()
    mine = np.ones(3000, np.float32) if rr.rank() == 1 else coming(np.ones(3000, np.float32), stream)
    with pytest.raises(rr.MismatchError) as raised:
        rr.allreduce_async(mine, op=rr.Sum).wait(timeout=40)
    say(rr.rank(), str(raised.value))


def test_other_memory_on_another_host(tmp_path: Path) -> None:
    texts, _ = ask(mpis.first(), 2, "strangers", tmp_path)
    assert texts[0] == texts[1]
    assert texts[0].startswith("Mismatched CPU/GPU device selection: rank 1 waits in allreduce with a CPU tensor"), (
        texts
    )
    assert "rank 0 in 'device.allreduce.0', a call without a name, with a GPU tensor" in texts[0]


def endless() -> None:
    import ringreduce as rr

    world = rr.init()
    stream = Gpu().stream()
    x: Array = stream.gpu.array(np.ones(3_000_000, np.float32), stream)
    for _ in range(5):
        rr.allreduce_(x, op=rr.Max)
    stream.synchronize()
    if world.rank == 1:
        rr.allreduce_(x, op=rr.Max)  # on its way when this rank ends
        print("KILLED AT", time.monotonic(), flush=True)
        if os.environ["RR_TEST_END"] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        with world:
            raise RuntimeError("rank 1 has had enough")
    while True:
        rr.allreduce_(x, op=rr.Max)
        stream.synchronize()


@pytest.mark.parametrize("how", ["killed", "raised"])
def test_a_rank_that_ends(how: str, tmp_path: Path) -> None:
    mpi = mpis.first()
    extra = environment(tmp_path, RR_TEST_END=how)
    output = mpis.end_of_a_killed_job(mpi.command(3, *program("endless")), mpi.environment(extra))
    if how == "raised":
        assert "RuntimeError: rank 1 has had enough" in output
        assert re.search(r"PeerLostError: \[ringreduce rank [02]/3 on .*\] lost rank 1: RuntimeError: ", output)
