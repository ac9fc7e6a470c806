"""GPU arrays by NCCL, on the fake CUDA driver and a fake NCCL (tests/fake_nccl): a GPU for each rank."""

from __future__ import annotations

import os
from pathlib import Path

import fake_cuda
import fake_gpu_ranks
import numpy as np
import pytest
from fake_cuda import Gpu
from fake_gpu_ranks import coming, on, total, whole
from kills import survivors
from ranks import receive_from_test, run_ranks, send_to_test, start_ranks

from ringreduce import features
from ringreduce.gpu import nccl

NCCL = fake_cuda.LIBRARY.parent / "fake_nccl" / "libfakenccl.so"


def environment(folder: Path, **more: str) -> dict[str, str | None]:
    """Ranks whose data goes through the folder."""
    if not NCCL.exists():
        pytest.skip(f"no fake NCCL: {NCCL.name} is built with RR_TESTS=ON")
    own = {"RINGREDUCE_NCCL_LIBRARY": str(NCCL), "FAKE_CUDA_DEVICES": "4", "FAKE_NCCL_DIR": str(folder)}
    return fake_gpu_ranks.environment(**{**own, **more})


def collectives() -> None:
    import ringreduce as rr

    with rr.init() as world:
        rank, size = world.rank, world.size
        stream = Gpu(rank).stream()
        handles = [rr.allreduce_async_(coming(whole(rank, i, 1 + 30_000 * i), stream), op=rr.Sum) for i in range(5)]
        for i, handle in enumerate(handles):
            assert np.array_equal(on(stream, rr.synchronize(handle)), total(size, i, 1 + 30_000 * i)), i
        group = [coming(whole(rank, i, (3, i + 1), ["f4", "f8", "i8", "f2"][i % 4]), stream) for i in range(8)]
        for i, y in enumerate(rr.grouped_allreduce(group, op=rr.Sum)):
            assert np.array_equal(on(stream, y), total(size, i, (3, i + 1), group[i].dtype)), i
        y = rr.allreduce(coming(whole(rank, 1, 4000), stream), op=rr.Average, prescale_factor=6)
        assert np.allclose(on(stream, y), total(size, 1, 4000) * 6 / size, rtol=1e-6)
        rows = coming(whole(rank, 5, (7, 300)), stream)
        mine = on(stream, rr.reducescatter(rows, op=rr.Sum))
        assert np.array_equal(mine, np.array_split(total(size, 5, (7, 300)), size)[rank])
        y = rr.broadcast(coming(whole(rank, 6, (40, 3), "i2"), stream), size - 1)
        assert np.array_equal(on(stream, y), whole(size - 1, 6, (40, 3), "i2"))
        for shapes in ([(4, 9)] * size, [(5 * r, 9) for r in range(size)]):
            y = rr.allgather(coming(whole(rank, 2, shapes[rank]), stream))
            assert np.array_equal(on(stream, y), np.concatenate([whole(r, 2, shapes[r]) for r in range(size)]))
        y = rr.alltoall(coming(whole(rank, 4, (2 * size, 50)), stream))
        sent = [whole(r, 4, (2 * size, 50))[2 * rank : 2 * rank + 2] for r in range(size)]
        assert np.array_equal(on(stream, y), np.concatenate(sent))
        counts = rr.stats()
        assert counts["cuda_nccl"] >= 7
        assert counts["cuda_ipc"] == counts["cuda_staged"] == 0, counts
        # Integers with a factor are not NCCL's to do.
        y = rr.allreduce(coming(whole(rank, 7, 100, "i4"), stream), op=rr.Average)
        assert np.array_equal(on(stream, y), np.trunc(total(size, 7, 100) / size))
        assert rr.stats()["cuda_nccl"] == counts["cuda_nccl"]


@pytest.mark.parametrize("size", [2, 3])
def test_every_kind(size: int, tmp_path: Path) -> None:
    run_ranks(collectives, size, env=environment(tmp_path))
    left = [path.name for path in tmp_path.iterdir() if "-end-" not in path.name]
    assert not left


def share(several_hosts: bool) -> None:
    """Ranks on one GPU, which NCCL takes only for ranks of several hosts."""
    import ringreduce as rr

    with rr.init() as world:
        if several_hosts:
            os.environ["NCCL_HOSTID"] = f"host {world.rank}"
        stream = Gpu(0).stream()
        y = rr.allreduce(coming(whole(world.rank, 1, 1000), stream), op=rr.Sum)
        assert np.array_equal(on(stream, y), total(world.size, 1, 1000))
        assert rr.stats()["cuda_nccl"] == several_hosts


@pytest.mark.parametrize("several_hosts", [False, True])
def test_ranks_share_a_gpu_if_nccl_is_told_that_they_are_on_several_hosts(several_hosts: bool, tmp_path: Path) -> None:
    run_ranks(share, 2, args=(several_hosts,), env=environment(tmp_path, FAKE_CUDA_DEVICES="1"))


def goes_on() -> str:
    import ringreduce as rr

    world = rr.init()
    stream = Gpu(world.rank).stream()
    x = coming(whole(world.rank, 1, 200_000), stream)
    rr.allreduce_(x, op=rr.Sum)
    stream.synchronize()
    send_to_test("ready")
    if world.rank == 1:
        receive_from_test()
    while True:  # rank 1 may be in the middle of one when it dies
        handle = rr.allreduce_async_(x, op=rr.Sum, name="step")
        try:
            rr.synchronize(handle)
            handle.wait(timeout=30)
        except rr.PeerLostError as error:
            stream.synchronize()  # nothing is left that waits
            return str(error)


def test_a_rank_is_killed(tmp_path: Path) -> None:
    with start_ranks(goes_on, 3, env=environment(tmp_path)) as job:
        _, others = survivors(job, 1, "ready")
    assert all("lost rank 1" in text for text in others), others


def reports() -> str:
    import ringreduce as rr

    world = rr.init()
    stream = Gpu(world.rank).stream()
    handle = rr.allreduce_async_(coming(np.ones(1000), stream), op=rr.Sum, name="step")
    with pytest.raises(rr.HorovodInternalError) as caught:
        handle.wait(timeout=30)
    stream.synchronize()
    return str(caught.value)


def test_what_nccl_reports_reaches_all_ranks(tmp_path: Path) -> None:
    for text in run_ranks(reports, 2, env=environment(tmp_path, FAKE_NCCL_FAIL="1:0:2")):
        assert "NCCL 2.27.5" in text
        assert "unhandled system error; last error: what the fake says last (code 2)" in text
        assert "RINGREDUCE_GPU_PATH" in text


def test_the_version_and_why_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGREDUCE_NCCL_LIBRARY", os.devnull)
    version, why = nccl.version()
    assert version == 0
    assert why.startswith(f"NCCL: RINGREDUCE_NCCL_LIBRARY={os.devnull}: ")
    assert features.nccl_built() == 0
    if not NCCL.exists():
        pytest.skip(f"no fake NCCL: {NCCL.name} is built with RR_TESTS=ON")
    monkeypatch.setenv("RINGREDUCE_NCCL_LIBRARY", str(NCCL))
    assert nccl.version() == (22705, f"NCCL 2.27.5 ({NCCL})")
    assert features.nccl_built() == (22705 if features.cuda_built() else 0)
