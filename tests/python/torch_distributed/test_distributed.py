"""The torch.distributed backend: every collective, messages, futures, sub-groups, refusals, stores, launchers."""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from launched_scripts import RINGRUN, TORCHRUN, said
from tcp_jobs import tcp_environment

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from distributed_checks import every_movement, every_reduction, odd_reductions, same, value  # noqa: E402

import ringreduce.torch as hvd  # noqa: E402


def join(path: str, name: str = "store", timeout_s: float = 60) -> tuple[int, int]:
    rank, size = int(os.environ["RINGREDUCE_RANK"]), int(os.environ["RINGREDUCE_SIZE"])
    dist.init_process_group(
        "ringreduce",
        init_method=f"file://{path}/{name}",
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout_s),
    )
    return rank, size


def messages(rank: int, size: int) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    for shape, dtype in (((3,), torch.float32), ((0,), torch.int8), ((400, 1000), torch.float64), ((2,), torch.bool)):
        incoming = torch.empty(shape, dtype=dtype)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.irecv, incoming, left, tag=5),
                dist.P2POp(dist.isend, value(rank, shape, dtype), right, tag=5),
            ]
        )
        for work in works:
            work.wait()
        assert same(incoming, value(left, shape, dtype))
    column = torch.zeros(4, 2)
    if rank == 0:
        dist.send(value(0, (4,)), 1)
    elif rank == 1:
        assert dist.recv(column[:, 1], 0) == 0
        assert column[:, 1].tolist() == [1, 2, 3, 4]
        assert column[:, 0].tolist() == [0] * 4
    if rank == 0:
        seen = {}
        for _ in range(size - 1):
            incoming = torch.empty(2)
            source = dist.recv(incoming, tag=9)
            seen[source] = incoming.tolist()
        assert seen == {r: value(r, (2,)).tolist() for r in range(1, size)}
    else:
        dist.send(value(rank, (2,)), 0, tag=9)


def futures(rank: int, size: int) -> None:
    total = sum(value(r) for r in range(size))
    works = [dist.all_reduce(value(rank) * (i + 1), async_op=True) for i in range(20)]
    answers = [work.get_future().then(lambda f: f.value()[0] * 2) for work in works]
    for i, answer in reversed(list(enumerate(answers))):
        assert torch.equal(answer.wait(), total * (i + 1) * 2)
    assert all(work.is_completed() and work.is_success() and work.exception() is None for work in works)

    def again(future: Any) -> Any:  # a callback that waits for another operation, as some of DDP's hooks do
        return dist.all_reduce(future.value()[0], async_op=True).get_future().wait()[0] + 1

    nested = dist.all_reduce(value(rank), async_op=True).get_future().then(again).then(lambda f: f.value() * 2)
    assert torch.equal(nested.wait(), 2 * (size * total + 1))
    late = dist.all_reduce(value(rank), async_op=True)
    assert late.wait()
    assert torch.equal(late.get_future().value()[0], total)
    assert torch.equal(late.result()[0], total)
    outputs = [torch.empty(2, 3) for _ in range(size)]
    assert torch.equal(dist.all_gather(outputs, value(rank), async_op=True).get_future().wait()[1], value(1))
    stacked = dist.all_gather_into_tensor(torch.empty(size, 2, 3), value(rank), async_op=True).get_future().wait()[0]
    assert torch.equal(stacked, torch.stack([value(r) for r in range(size)]))
    # A message that does not come must not hold up the future of a collective.
    incoming = torch.empty(2, 3)
    work = dist.irecv(incoming, (rank - 1) % size)
    message = work.get_future()
    assert torch.equal(dist.all_reduce(value(rank), async_op=True).get_future().wait()[0], total)
    assert not work.is_completed()
    dist.barrier()
    dist.send(value(rank), (rank + 1) % size)
    assert torch.equal(message.wait()[0], value((rank - 1) % size))
    dist.barrier(async_op=True).wait()


def barriers(rank: int, size: int) -> None:
    """Each rank chooses for itself whether it waits at once, and for how long."""
    limited = dist.BarrierOptions()
    limited.timeout = timedelta(seconds=30)
    for turn in range(3):
        form = (rank + turn) % 3
        if form == 0:
            dist.barrier()
        elif form == 1:
            dist.barrier(async_op=True).wait()
        else:
            dist.group.WORLD.barrier(limited).wait()


def refusals(rank: int, size: int) -> None:
    wrong: list[tuple[type[Exception], str, Callable[[], Any]]] = [
        (hvd.UnavailableError, "meta memory", lambda: dist.all_reduce(torch.ones(2, device="meta"))),
        (ValueError, "Float8", lambda: dist.all_reduce(torch.ones(2).to(torch.float8_e4m3fn))),
        (ValueError, "complex tensors", lambda: dist.group.WORLD._reduce_scatter_base(
            torch.ones(1, dtype=torch.complex64), torch.ones(size, dtype=torch.complex64), product())),
        (ValueError, "BXOR has no meaning", lambda: dist.reduce(value(rank), 0, dist.ReduceOp.BXOR)),
        (ValueError, "bitwise_and has no meaning", lambda: dist.all_reduce(value(rank), dist.ReduceOp.BAND)),
        (ValueError, "times the elem", lambda: dist.all_gather_into_tensor(torch.empty(size + 1), torch.ones(1))),
        (ValueError, "times the elements", lambda: dist.reduce_scatter_tensor(torch.empty(1), torch.ones(size + 1))),
        (ValueError, "split sizes", lambda: dist.all_to_all_single(
            torch.empty(3), torch.ones(3), [1] * (size - 1), [1] * (size - 1))),
        (ValueError, "a list of", lambda: dist.group.WORLD.allgather([[torch.empty(1)]], [torch.ones(1)])),
    ]  # fmt: skip
    parts = [torch.ones(2 + r) for r in range(size)]
    wrong.append((ValueError, "its part of the input", lambda: dist.reduce_scatter(torch.empty(1), parts)))
    if rank == 0:
        wrong.append((ValueError, "each output has 2", lambda: dist.scatter(torch.empty(2), parts)))
    for kind, text, call in wrong:
        with pytest.raises(kind, match=text):
            call()
    sum_or_average = (dist.ReduceOp.AVG, dist.ReduceOp.SUM)[rank == 0]
    for shape, dense, op in (
        ((3 + rank,), (), dist.ReduceOp.SUM),
        ((3,), (), sum_or_average),
        ((3,), ((2, 3), (3, 2))[rank == 0], dist.ReduceOp.SUM),  # of the same size
        ((3,) * (1 + rank), (), dist.ReduceOp.SUM),
    ):
        indices, values = [[0]] * len(shape), torch.ones(1, *dense)
        mine = torch.sparse_coo_tensor(indices, values, shape + dense, check_invariants=True)
        with pytest.raises(hvd.MismatchError, match=r"rank \d of the group (SUM|AVG) .* sparse dimensions"):
            dist.all_reduce(mine, op)
    with pytest.raises(hvd.MismatchError, match="shape"):
        dist.all_reduce(torch.ones(3 + rank))
    work = dist.all_reduce(torch.ones(3 + rank), async_op=True)
    with pytest.raises(RuntimeError, match="Mismatched ALLREDUCE"):
        work.get_future().wait()
    assert isinstance(work.exception(), hvd.MismatchError)
    assert not work.is_success()
    with pytest.raises(hvd.MismatchError, match="have room for"):
        dist.all_gather([torch.empty(2) for _ in range(size)], torch.ones(2 + rank))
    mine = value(rank)
    dist.all_reduce(mine)  # the group is still good
    assert torch.equal(mine, sum(value(r) for r in range(size)))
    with pytest.raises(hvd.UnavailableError, match="no process group options"):
        dist.new_group(pg_options=object())


def product() -> Any:
    options = dist.ReduceScatterOptions()
    options.reduceOp = dist.ReduceOp.PRODUCT
    return options


def subgroups(rank: int, size: int) -> None:
    groups = {ranks: dist.new_group(list(ranks)) for ranks in ((0, 1), (1, 2), (2,), (0, 1, 2))}
    for ranks, group in groups.items():
        if rank not in ranks:
            continue
        mine = value(rank)
        dist.all_reduce(mine, group=group)
        assert torch.equal(mine, sum(value(r) for r in ranks))
        dist.broadcast(mine.copy_(value(rank)), ranks[-1], group=group)
        assert torch.equal(mine, value(ranks[-1]))
        assert (group.rank(), group.size()) == (ranks.index(rank), len(ranks))
        assert dist.get_backend(group) == "ringreduce"
        assert group.group_name == dist.distributed_c10d._world.pg_names[group]
        assert group._get_backend(torch.device("cpu")) is group
    orders = [((0, 1), (0, 1, 2)), ((1, 2), (0, 1, 2), (0, 1)), ((0, 1, 2), (1, 2))]  # differ, and must not matter
    works = [dist.all_reduce(value(rank), group=groups[ranks], async_op=True) for ranks in orders[rank]]
    for work in works:
        assert work.wait()
    if rank in (0, 1):
        dist.destroy_process_group(groups[(0, 1)])
        with pytest.raises(hvd.ShutdownError):
            groups[(0, 1)].allreduce([value(rank)])
    again = dist.new_group([0, 2])
    if rank != 1:
        mine = value(rank)
        dist.all_reduce(mine, group=again)
        assert torch.equal(mine, value(0) + value(2))


def forked(rank: int) -> None:
    child = os.fork()
    if child == 0:
        try:
            dist.all_reduce(torch.ones(1))
        except hvd.NotInitializedError as error:
            os._exit(0 if "forked" in str(error) else 1)
        os._exit(2)
    assert os.waitpid(child, 0)[1] == 0


def forked_without_the_group(rank: int, path: str) -> None:
    child = os.fork()
    if child == 0:
        dist.destroy_process_group()
        dist.init_process_group("gloo", store=dist.FileStore(f"{path}.child{rank}", 1), rank=0, world_size=1)
        mine = value(rank)
        dist.all_reduce(mine)
        os._exit(0 if torch.equal(mine, value(rank)) else 1)
    assert os.waitpid(child, 0)[1] == 0


def use_everything(path: str) -> None:
    rank, size = join(path)
    assert every_reduction(rank, size) == []
    odd_reductions(rank, size)
    every_movement(rank, size)
    messages(rank, size)
    futures(rank, size)
    barriers(rank, size)
    refusals(rank, size)
    if size > 2:
        subgroups(rank, size)
    forked(rank)
    forked_without_the_group(rank, path)
    dist.barrier()
    dist.destroy_process_group()
    join(path, "another", timedelta(days=30).total_seconds())
    mine = value(rank)
    dist.all_reduce(mine)
    assert torch.equal(mine, sum(value(r) for r in range(size)))
    if rank == 0:
        dist.destroy_process_group()  # the others leave it to the end of the process


@pytest.mark.parametrize("size", [2, 3])
def test_every_collective(size: int, run_ranks: Callable[..., Any], tmp_path: Path) -> None:
    run_ranks(use_everything, size, args=(str(tmp_path),))


def gather_from_within(path: str) -> None:
    """The input lies in the output: at the place of each rank in turn, and across two of them."""
    rank, size = join(path)
    for count in (4, 100_000):  # in one message, and by the ring
        for shift in [*range(0, size * count - count + 1, count), count // 2]:
            for as_list in (False, True):
                whole = torch.zeros(size * count)
                mine = whole[shift : shift + count].fill_(rank + 1.0)
                if as_list:
                    dist.all_gather(list(whole.chunk(size)), mine)
                else:
                    dist.all_gather_into_tensor(whole, mine)
                assert torch.equal(whole, torch.arange(1.0, size + 1).repeat_interleave(count)), (count, shift, as_list)
        whole = torch.zeros(size * count)
        mine = whole[rank * count : (rank + 1) * count].fill_(rank + 1.0)  # another place on each rank
        dist.all_gather_into_tensor(whole, mine)
        assert torch.equal(whole, torch.arange(1.0, size + 1).repeat_interleave(count))
        longer = torch.zeros(size * count + count - 1)  # of the input, only the last element lies in the output
        longer[:count] = rank + 1.0
        dist.all_gather_into_tensor(longer[count - 1 :], longer[:count])
        assert torch.equal(longer[count - 1 :], torch.arange(1.0, size + 1).repeat_interleave(count))


def test_all_gather_of_an_input_within_the_output(run_ranks: Callable[..., Any], tmp_path: Path) -> None:
    run_ranks(gather_from_within, 2, args=(str(tmp_path),))


def overwrite_the_input(path: str) -> None:
    """The output lies in the input: at the place of each rank in turn, one element further, and across two of them."""
    rank, size = join(path)
    for count in (4, 100_000):
        inputs = [torch.arange(size * count) + 10**6 * r for r in range(size)]

        def fresh(inputs: list[Any] = inputs) -> tuple[Any, Any]:
            """Memory that begins with this rank's input, and the input."""
            memory = torch.cat([inputs[rank], inputs[rank]])
            return memory, memory[: len(inputs[rank])]

        exchanged = torch.cat([each.chunk(size)[rank] for each in inputs])
        for shift in (0, 1, count):
            memory, mine = fresh()
            output = memory[shift : shift + size * count]
            dist.all_to_all_single(output, mine)
            assert torch.equal(output, exchanged), (count, shift)
            memory, mine = fresh()
            output = memory[shift : shift + size * count]
            dist.all_to_all(list(output.chunk(size)), list(mine.chunk(size)))
            assert torch.equal(output, exchanged), (count, shift)
        for shift in [*range(0, size * count, count), 1, count // 2]:
            memory, mine = fresh()
            output = memory[shift : shift + count]
            dist.reduce_scatter_tensor(output, mine)
            assert torch.equal(output, sum(inputs).chunk(size)[rank]), (count, shift)
            for root in range(size):
                memory, mine = fresh()
                output = memory[shift : shift + count]
                dist.scatter(output, list(mine.chunk(size)) if rank == root else None, src=root)
                assert torch.equal(output, inputs[root].chunk(size)[rank]), (count, shift, root)


@pytest.mark.parametrize("transport", ["auto", "tcp"])
def test_an_output_within_the_input(transport: str, run_ranks: Callable[..., Any], tmp_path: Path) -> None:
    env = tcp_environment(tmp_path) if transport == "tcp" else {}
    run_ranks(overwrite_the_input, 3, args=(str(tmp_path),), env=env)


def test_a_bad_value_names_the_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGREDUCE_CHUNK", "3.5")
    with pytest.raises(hvd.InvalidArgumentError, match=r"RINGREDUCE_CHUNK=3\.5: expected a whole number"):
        dist.init_process_group("ringreduce", store=dist.FileStore(f"{tmp_path}/store", 1), rank=0, world_size=1)


@pytest.mark.parametrize("backend", ["ringreduce", "cpu:ringreduce", "cpu:ringreduce,cuda:nccl"])
def test_one_rank_and_maps_of_devices(backend: str, tmp_path: Path) -> None:
    dist.init_process_group(backend, store=dist.FileStore(f"{tmp_path}/store", 1), rank=0, world_size=1)
    try:
        assert type(dist.group.WORLD).__module__ == "ringreduce.torch.distributed.group"  # whatever the map says
        mine = value(0)
        dist.all_reduce(mine)
        dist.broadcast(mine, 0)
        assert torch.equal(mine, value(0))
        outputs = [torch.empty(2, 3)]
        dist.all_gather(outputs, mine)
        assert torch.equal(outputs[0], mine)
        part = torch.empty(2, 3)
        dist.reduce_scatter_tensor(part, mine)
        assert torch.equal(part, mine)
        dist.barrier()
    finally:
        dist.destroy_process_group()


SCRIPT = """
    import sys, torch, torch.distributed as dist, ringreduce.torch
    assert "ringreduce.torch.distributed.group" not in sys.modules  # what it need not, importing does not load
    dist.init_process_group(sys.argv[1], **({"init_method": sys.argv[2]} if len(sys.argv) > 2 else {}))
    total = torch.full((3,), dist.get_rank() + 1.0)
    dist.all_reduce(total)
    print(f"{dist.get_rank()}/{dist.get_world_size()} {dist.get_backend()} {total.tolist()}\\n", end="", flush=True)
    dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("launcher", "arguments"), [(TORCHRUN, []), (RINGRUN, ["ringreduce://"])], ids=["torchrun", "ringrun"]
)
def test_launchers(launcher: Sequence[str], arguments: list[str], tmp_path: Path) -> None:
    lines = said(launcher, SCRIPT, tmp_path, "ringreduce", *arguments)
    assert lines == [f"{r}/2 ringreduce [3.0, 3.0, 3.0]" for r in range(2)]


TOLD = """
    import os, subprocess, sys, torch.distributed as dist, ringreduce.torch as hvd

    def said():
        return [os.environ.get(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]

    before = said()
    dist.init_process_group("ringreduce", init_method="ringreduce://")
    rank, size = dist.get_rank(), dist.get_world_size()
    assert before == [None] * 4, before
    assert said() == [str(value) for value in (rank, size, rank, size)], said()
    dist.destroy_process_group()
    hvd.shutdown()
    hvd.init()
    assert (hvd.rank(), hvd.size()) == (rank, size)
    print(f"{rank} of {size}\\n", end="", flush=True)
    if size == 2 and rank == 0:  # of inner ranks, the one of this rank's own number is the first to be mistaken
        done = subprocess.run([sys.executable, "-m", "ringreduce.launch.ringrun", "-np", "3", sys.executable, __file__])
        assert done.returncode == 0
"""


def test_frameworks_are_told_a_place_that_neither_this_job_nor_one_within_mistakes(tmp_path: Path) -> None:
    assert said(RINGRUN, TOLD, tmp_path) == ["0 of 2", "0 of 3", "1 of 2", "1 of 3", "2 of 3"]


LAUNCHED = """
    import os, torch.distributed as dist, ringreduce.torch
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    before = [os.environ[name] for name in names]
    dist.init_process_group("ringreduce", init_method="ringreduce://")
    assert [os.environ[name] for name in names] == before
"""


def test_what_a_launcher_has_told_stays(tmp_path: Path) -> None:
    said(TORCHRUN, LAUNCHED, tmp_path)
