"""ringreduce.torch against Horovod 0.28.1's torch API: every name is there, and takes the same arguments.

SIGNATURES is Horovod's, as in horovod_names.py.
"""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from horovod_names import EVERYWHERE, FACTORS, OF_TENSORS, SET, check_modules, check_name, find  # noqa: E402

import ringreduce  # noqa: E402
import ringreduce.torch as hvd  # noqa: E402

_ASYNC = f"average=None, name=None, op=None, {FACTORS}, {SET}"
_SYNC = f"average=None, name=None, compression=hvd.Compression.none, op=None, {FACTORS}, {SET}"

SIGNATURES = {
    **EVERYWHERE,
    **OF_TENSORS,
    "_check_has_gpu": "",
    "allreduce": f"tensor, {_SYNC}",
    "allreduce_": f"tensor, {_ASYNC}",
    "allreduce_async": f"tensor, {_ASYNC}",
    "allreduce_async_": f"tensor, {_ASYNC}",
    "grouped_allreduce": f"tensors, {_SYNC}",
    "grouped_allreduce_": f"tensors, {_ASYNC}",
    "grouped_allreduce_async": f"tensors, {_ASYNC}",
    "grouped_allreduce_async_": f"tensors, {_ASYNC}",
    "sparse_allreduce_async": f"tensor, name, op, {SET}",
    "allgather": f"tensor, name=None, {SET}",
    "allgather_async": f"tensor, name=None, {SET}",
    "grouped_allgather": f"tensors, name=None, {SET}",
    "grouped_allgather_async": f"tensors, name=None, {SET}",
    **dict.fromkeys(
        ["broadcast", "broadcast_", "broadcast_async", "broadcast_async_"], f"tensor, root_rank, name=None, {SET}"
    ),
    "alltoall": f"tensor, splits=None, name=None, {SET}",
    "alltoall_async": f"tensor, splits=None, name=None, {SET}",
    "reducescatter": f"tensor, name=None, compression=hvd.Compression.none, op=hvd.Average, {SET}, {FACTORS}",
    "reducescatter_async": f"tensor, name=None, op=hvd.Average, {SET}, {FACTORS}",
    "grouped_reducescatter": f"tensors, name=None, compression=hvd.Compression.none, op=hvd.Average, {SET}, {FACTORS}",
    "grouped_reducescatter_async": f"tensors, name=None, op=hvd.Average, {SET}, {FACTORS}",
    "join": "device=-1",
    "barrier": SET,
    "poll": "handle",
    "synchronize": "handle",
    "broadcast_parameters": "params, root_rank",
    "broadcast_optimizer_state": "optimizer, root_rank, model=None",
    "broadcast_object": f"obj, root_rank=0, name=None, {SET}",
    "allgather_object": "obj, name=None",
    "DistributedOptimizer": "optimizer, named_parameters=None, compression=hvd.Compression.none, "
    "backward_passes_per_step=1, op=hvd.Average, gradient_predivide_factor=1.0, num_groups=0, groups=None, "
    f"sparse_as_dense=False, {SET}",
    "SyncBatchNorm": "num_features, eps=1e-5, momentum=0.1, affine=True, track_running_stats=True",
    "elastic.ElasticSampler": "dataset, shuffle=True, seed=0",
    "elastic.ElasticSampler.set_epoch": "self, epoch",
    "elastic.ElasticSampler.record_batch": "self, batch_idx, batch_size",
    "elastic.ElasticSampler.load_state_dict": "self, state_dict",
    "elastic.ElasticSampler.state_dict": "self",
    "elastic.ElasticSampler.reset": "self",
}

CONSTANTS = {"Average": 0, "Sum": 1, "Adasum": 2, "Min": 3, "Max": 4, "Product": 5}
PLACES = [
    "global_process_set",
    "HorovodInternalError",
    "elastic.TorchState",
    "mpi_ops.allreduce_async_",
    "mpi_ops.synchronize",
    "mpi_ops.Sum",
    "mpi_ops.is_homogeneous",
    "mpi_ops.start_timeline",
    "compression.Compression",
    "functions.broadcast_parameters",
    "optimizer.DistributedOptimizer",
    "sync_batch_norm.SyncBatchNorm",
    "elastic.sampler.ElasticSampler",
    "elastic.state.TorchState",
    "elastic.init",
    "functions.allgather_object",
    "functions.broadcast_object",
    "mpi_ops.rank",
    "mpi_ops.barrier",
    "mpi_ops.join",
    "mpi_ops.ProcessSet",
]
CORE = [
    "mpi_enabled",
    "mpi_built",
    "gloo_enabled",
    "gloo_built",
    "nccl_built",
    "ddl_built",
    "ccl_built",
    "cuda_built",
    "rocm_built",
    "mpi_threads_supported",
    "start_timeline",
    "stop_timeline",
    "is_homogeneous",
]


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name: str) -> None:
    check_name(name, SIGNATURES[name], hvd)


def test_constants_and_places() -> None:
    assert {name: int(getattr(hvd, name)) for name in CONSTANTS} == CONSTANTS
    for name in PLACES:
        find(name, hvd)
    for name in CORE:
        assert getattr(ringreduce, name) is getattr(hvd, name)
    assert set(CORE) <= set(ringreduce.__all__)
    public = {name for name in SIGNATURES if "." not in name and not name.startswith("_")}
    assert public | set(CONSTANTS) | {"Compression", "elastic", "mpi_ops"} <= set(hvd.__all__)


def test_every_module() -> None:
    check_modules("common", "torch", "data")
    from ringreduce.torch.elastic import state

    for use in (
        lambda: state.ModelStateHandler(None),
        lambda: state.set_handler_registry([]),
        lambda: hvd.elastic.run_fn(print, print),
    ):
        with pytest.raises(hvd.UnavailableError, match=r"hvd\.elastic\.[\w.]+: elastic training does not exist yet"):
            use()


APPLIED = {
    "HorovodAllreduce": "tensor, average, name, op, prescale_factor, postscale_factor, process_set",
    "HorovodGroupedAllreduce": "average, name, op, prescale_factor, postscale_factor, process_set, *tensors",
    "HorovodAllgather": "tensor, name, process_set",
    "HorovodGroupedAllgather": "name, process_set, *tensors",
    "HorovodBroadcast": "tensor, root_rank, name, process_set",
    "HorovodAlltoall": "tensor, splits, name, process_set",
    "HorovodReducescatter": "tensor, name, op, process_set, prescale_factor, postscale_factor",
    "HorovodGroupedReducescatter": "name, op, process_set, prescale_factor, postscale_factor, *tensors",
}


@pytest.mark.parametrize("name", APPLIED)
def test_arguments_of_autograd_functions(name: str) -> None:
    check_name(f"{name}.apply", APPLIED[name], hvd.mpi_ops)


def apply_functions() -> list[Any]:
    """What each autograd function gives for [rank + 1, rank + 2], and the gradient of twice its sum."""
    world = hvd.init()
    ops, every = hvd.mpi_ops, hvd.global_process_set
    calls: list[Callable[[torch.Tensor], Any]] = [
        lambda x: ops.HorovodAllreduce.apply(x, None, "a", hvd.Sum, 2.0, 0.5, every),
        lambda x: ops.HorovodAllreduce.apply(x, True, "b", None, 1.0, 1.0, every),
        lambda x: ops.HorovodGroupedAllreduce.apply(False, "c", None, 1.0, 1.0, every, x, 2 * x),
        lambda x: ops.HorovodAllgather.apply(x, "d", every),
        lambda x: ops.HorovodGroupedAllgather.apply("e", every, x, 2 * x),
        lambda x: ops.HorovodBroadcast.apply(x, 1, "f", every),
        lambda x: ops.HorovodAlltoall.apply(x, None, "g", every),
        lambda x: ops.HorovodAlltoall.apply(x, torch.tensor([1, 1]), "h", every),
        lambda x: ops.HorovodReducescatter.apply(x, "i", hvd.Sum, every, 1.0, 3.0),
        lambda x: ops.HorovodGroupedReducescatter.apply("j", hvd.Sum, every, 1.0, 3.0, x, 2 * x),
    ]
    results = []
    for call in calls:
        x = torch.tensor([world.rank + 1.0, world.rank + 2.0], requires_grad=True)
        outputs = call(x)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        (2 * sum(output.sum() for output in outputs if output.requires_grad)).backward()
        assert x.grad is not None
        results.append([[output.tolist() for output in outputs], x.grad.tolist()])
    hvd.shutdown()
    return results


def test_autograd_functions(run_ranks: Callable[..., Any]) -> None:
    zero, one = run_ranks(apply_functions, 2)
    assert [outputs for outputs, _ in zero] == [
        [[3.0, 5.0]],
        [[1.5, 2.5]],
        [[3.0, 5.0], [6.0, 10.0]],
        [[1.0, 2.0, 2.0, 3.0]],
        [[1.0, 2.0, 2.0, 3.0], [2.0, 4.0, 4.0, 6.0]],
        [[2.0, 3.0]],
        [[1.0, 2.0]],
        [[1.0, 2.0], [1, 1]],
        [[9.0]],
        [[9.0], [18.0]],
    ]
    # Horovod's gradients: of a gather the averaged one, of a scattered sum the gathered one times the ranks.
    same = [[4.0] * 2, [2.0] * 2, [12.0] * 2, [2.0] * 2, [6.0] * 2, None, [2.0] * 2, [2.0] * 2, [12.0] * 2, [36.0] * 2]
    for rank, results in enumerate((zero, one)):
        expected = [[2.0 * rank] * 2 if some is None else some for some in same]
        assert [gradient for _, gradient in results] == expected


def test_exceptions_where_horovod_has_them() -> None:
    from ringreduce.common import exceptions

    assert exceptions.HorovodInternalError is hvd.HorovodInternalError
    assert exceptions.HostsUpdatedInterrupt(skip_sync=True).skip_sync
    assert not issubclass(exceptions.HostsUpdatedInterrupt, hvd.HorovodInternalError)
    error = exceptions.HorovodVersionMismatchError("torch", "1.0", "2.0")
    assert isinstance(error, ImportError)
    assert (error.name, error.version, error.installed_version) == ("torch", "1.0", "2.0")


def test_what_a_build_and_a_job_have() -> None:
    assert hvd.nccl_built() >= 0
    assert type(hvd.nccl_built()) is int
    assert hvd.mpi_built() is True
    for name in ("mpi_enabled", "gloo_built", "gloo_enabled", "ddl_built", "ccl_built", "rocm_built"):
        assert getattr(hvd, name)() is False
    assert isinstance(hvd.cuda_built(), bool)
    assert hvd._check_has_gpu() is torch.cuda.is_available()
    assert not hvd.is_initialized()
    for call in (hvd.mpi_threads_supported, hvd.stop_timeline, lambda: hvd.start_timeline("trace.json")):
        with pytest.raises(hvd.NotInitializedError, match=r"use hvd\.init\(\)"):
            call()
    for wrong in (None, 7, ""):
        with pytest.raises(hvd.InvalidArgumentError, match="file_path"):
            hvd.start_timeline(wrong)  # type: ignore[arg-type]


def ask_and_resume() -> list[Any]:
    """Queries within a job, the reserved names, and init()'s errors; then the indices that a sampler deals out."""
    world = hvd.init(comm=list(range(hvd.init().size)))
    hvd.stop_timeline()  # there is none
    with pytest.raises(hvd.UnavailableError, match="cannot be made"):
        hvd.start_timeline("/dev/null/trace.json", mark_cycles=True)
    with pytest.raises(ValueError, match="Horovod MPI is not enabled"):
        hvd.mpi_threads_supported()
    assert hvd.is_homogeneous()

    with pytest.raises(hvd.UnavailableError, match=r"hvd\.elastic\.run: elastic training does not exist yet"):

        @hvd.elastic.run
        def train(state: Any) -> None: ...

    with pytest.raises(hvd.UnavailableError, match=r"hvd\.elastic\.TorchState"):
        hvd.elastic.TorchState(model=torch.nn.Linear(1, 1), epoch=0)
    hvd.shutdown()

    wrong: list[tuple[dict[str, Any], str]] = [
        ({"comm": "all"}, "Invalid type of argument comm. Expected list of rank integers or mpi4py.MPI.Comm object"),
        ({"comm": [0, "1"]}, "Invalid type of argument comm"),
        ({"comm": [world.size - 1]}, "Horovod has not been built with MPI support"),
        ({"process_sets": [[0], [1], [0]]}, r"process_sets entry number 2 is a duplicate: ProcessSet\(.*ranks=\[0\]"),
        ({"process_sets": [hvd.ProcessSet(range(world.size))]}, "process_sets entry number 0 is a duplicate"),
        ({"process_sets": [[0, 99]]}, "rank 99 does not exist: this job has ranks 0 to 1"),
        ({"process_sets": [[98, 99]]}, r"ranks \[98, 99\] do not exist"),
    ]
    for arguments, text in wrong:
        with pytest.raises(ValueError, match=text):
            hvd.init(**arguments)
        assert not hvd.is_initialized()
    sets = [hvd.ProcessSet([0]), hvd.ProcessSet([1])]
    hvd.init([], sets)
    assert [one.process_set_id for one in sets] == [1, 2]  # as in Horovod: those of a failed init() do not count

    dataset = [str(index) for index in range(11)]
    sampler = hvd.elastic.ElasticSampler(dataset, shuffle=True, seed=3)
    first = list(sampler)
    assert list(sampler) == first
    sampler.record_batch(0, 2)
    sampler.record_batch(1, 1)
    saved = sampler.state_dict()
    loaded = hvd.elastic.ElasticSampler(dataset, seed=3)
    loaded.load_state_dict(saved)
    rest = list(loaded)
    loaded.set_epoch(1)
    second = list(torch.utils.data.DataLoader(dataset, sampler=loaded, batch_size=None))
    plain = list(hvd.elastic.ElasticSampler(dataset, shuffle=False))
    loaded.processed_num = 11
    loaded.reset()
    assert list(loaded) == []
    assert len(loaded) == 0
    with pytest.raises(ValueError, match="processed_num"):
        loaded.load_state_dict({"epoch": 1})
    hvd.shutdown()
    return [saved, first, rest, [int(text) for text in second], plain]


def test_answers_within_a_job_and_the_elastic_sampler(run_ranks: Callable[..., Any]) -> None:
    results = run_ranks(ask_and_resume, 2)
    assert [result[0] for result in results] == [{"epoch": 0, "processed_num": 6}] * 2
    first, rest, second, plain = ([result[part] for result in results] for part in range(1, 5))
    for dealt in (first, second, plain):
        assert [len(share) for share in dealt] == [6, 6]
        order = [index for pair in zip(*dealt, strict=True) for index in pair]
        assert sorted(order[:11]) == list(range(11))
        assert order[11] == order[0]
    order = [index for pair in zip(*first, strict=True) for index in pair][:11]
    assert order != list(range(11))
    assert [index for pair in zip(*rest, strict=True) for index in pair] == [*order[6:], order[6]]
    assert plain == [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 0]]
    assert first != second


def test_the_sampler_needs_a_job() -> None:
    with pytest.raises(hvd.NotInitializedError):
        hvd.elastic.ElasticSampler([1, 2, 3])
