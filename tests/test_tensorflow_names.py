"""ringreduce.tensorflow against Horovod 0.28.1's TensorFlow API: every name is there, and takes the same arguments.

SIGNATURES is Horovod's: the parameters of each public function in order, with their defaults, written as they are
called by scripts. Ours may have more after them, if these have defaults or are keyword-only.
"""

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")

import ringreduce  # noqa: E402
import ringreduce.tensorflow as hvd  # noqa: E402
from ringreduce.common import names  # noqa: E402

_FACTORS = "prescale_factor=1.0, postscale_factor=1.0"
_SET = "process_set=hvd.global_process_set"
_NAME = "name=None, ignore_name_scope=False"
_REDUCED = "average=None, device_dense='', device_sparse='', compression=hvd.Compression.none, op=None"
_GRADIENTS = (
    "device_dense='', device_sparse='', compression=hvd.Compression.none, sparse_as_dense=False, op=hvd.Average, "
    f"gradient_predivide_factor=1.0, num_groups=0, groups=None, {_SET}"
)

SIGNATURES = {
    "init": "comm=None, process_sets=None",
    **dict.fromkeys(["shutdown", "is_initialized", "rank", "size", "local_rank", "local_size"], ""),
    **dict.fromkeys(["cross_rank", "cross_size", "is_homogeneous", "stop_timeline", "mpi_threads_supported"], ""),
    **dict.fromkeys(["mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built", "nccl_built"], ""),
    **dict.fromkeys(["ddl_built", "ccl_built", "cuda_built", "rocm_built", "_executing_eagerly"], ""),
    "start_timeline": "file_path, mark_cycles=False",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    "allreduce": f"tensor, {_REDUCED}, {_FACTORS}, name=None, {_SET}, ignore_name_scope=False",
    "grouped_allreduce": f"tensors, {_REDUCED}, {_FACTORS}, {_SET}, ignore_name_scope=False, name=None",
    "reducescatter": "tensor, device_dense='', compression=hvd.Compression.none, op=hvd.Average, name=None, "
    f"{_SET}, ignore_name_scope=False, {_FACTORS}",
    "allgather": f"tensor, {_NAME}, {_SET}",
    "grouped_allgather": f"tensors, {_NAME}, {_SET}",
    "broadcast": f"tensor, root_rank, {_NAME}, {_SET}",
    "broadcast_": f"variables, root_rank, name=None, {_SET}",
    "alltoall": f"tensor, splits=None, {_NAME}, {_SET}",
    "join": "",
    "broadcast_variables": f"variables, root_rank, {_SET}, inplace=False",
    "broadcast_object": f"obj, root_rank=0, session=None, name=None, {_SET}",
    "broadcast_object_fn": f"root_rank=0, session=None, name=None, {_SET}",
    "allgather_object": f"obj, session=None, name=None, {_SET}",
    "broadcast_global_variables": "root_rank",
    "BroadcastGlobalVariablesHook": "root_rank, device=''",
    "DistributedOptimizer": "optimizer, name=None, use_locking=False, device_dense='', device_sparse='', "
    "compression=hvd.Compression.none, sparse_as_dense=False, backward_passes_per_step=1, op=hvd.Average, "
    "gradient_predivide_factor=1.0, average_aggregated_gradients=False, num_groups=0, groups=None, "
    f"{_SET}, scale_local_gradients=True",
    "DistributedGradientTape": f"gradtape, {_GRADIENTS}, scale_local_gradients=True",
    "PartialDistributedGradientTape": f"gradtape, {_GRADIENTS}, local_layers=None, scale_local_gradients=True",
    "SyncBatchNormalization": "fused=False",
    "rank_op": "name=None",
    "local_rank_op": "name=None",
    "size_op": "process_set_id=0, name=None",
    "local_size_op": "name=None",
    "process_set_included_op": "process_set_id=0, name=None",
    "check_num_rank_power_of_2": "num_rank",
    "handle_average_backwards_compatibility": "op, average",
    "vars_to_refs": "vars",
    "refs_to_vars": "refs",
    "_make_allreduce_grads_fn": "name, device_dense, device_sparse, compression, sparse_as_dense, op, "
    "gradient_predivide_factor, groups, process_set=hvd.global_process_set",
    "ProcessSet": "ranks_or_comm",
    "ProcessSet.size": "self",
    "ProcessSet.rank": "self",
    "ProcessSet.included": "self",
    "Compression.none.compress": "tensor",
    "Compression.none.decompress": "tensor, ctx",
    "Compression.fp16.compress": "tensor",
    "Compression.fp16.decompress": "tensor, ctx",
    "elastic.run": "func",
    "elastic.TensorFlowKerasState": "model, optimizer=None, backend=None",
    "elastic.TensorFlowState": "variables=None, session=None",
}
# grouped_reducescatter lacks ignore_name_scope in Horovod, where ours has the order of reducescatter's.
KEYWORDS = {
    "grouped_reducescatter": f"tensors, device_dense='', compression=hvd.Compression.none, op=hvd.Average, {_SET}, "
    f"{_FACTORS}",
    "gpu_available": "ext_base_name",
    "barrier": _SET,
}
METHODS = {
    "gradient": "target, sources, output_gradients=None, use_generic_names=False",
    "register_local_source": "source",
}
CONSTANTS = {"Average": 0, "Sum": 1, "Adasum": 2, "Min": 3, "Max": 4, "Product": 5}
PLACES = [
    "global_process_set",
    "HorovodInternalError",
    "mpi_ops._allreduce",
    "mpi_ops.allgather",
    "mpi_ops.broadcast",
    "mpi_ops.rank_op",
    "util.vars_to_refs",
    "util._executing_eagerly",
    "compression.Compression",
    "functions.broadcast_variables",
    "sync_batch_norm.SyncBatchNormalization",
    "elastic.TensorFlowState",
]


def find(name: str, within: Any = hvd) -> Any:
    for part in name.split("."):
        within = getattr(within, part)
    return within


def written(text: str) -> list[inspect.Parameter]:
    names: dict[str, Any] = {"hvd": hvd}
    exec(f"def function({text}): ...", names)
    return list(inspect.signature(names["function"]).parameters.values())


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name: str) -> None:
    theirs = written(SIGNATURES[name])
    ours = list(inspect.signature(find(name)).parameters.values())
    assert [p.name for p in ours[: len(theirs)]] == [p.name for p in theirs]
    for own, other in zip(ours, theirs, strict=False):
        assert own.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD, own
        assert own.default == other.default, own
    for more in ours[len(theirs) :]:
        assert more.default is not more.empty or more.kind is more.VAR_KEYWORD, f"{name} needs {more}"
    assert inspect.getdoc(find(name.removesuffix(".compress").removesuffix(".decompress"))) or name.startswith("_")


@pytest.mark.parametrize("name", KEYWORDS)
def test_keywords(name: str) -> None:
    ours = inspect.signature(find(name)).parameters
    for other in written(KEYWORDS[name]):
        assert other.default is other.empty or ours[other.name].default == other.default, other
    assert inspect.getdoc(find(name))


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_the_tape(name: str) -> None:
    tape = hvd.DistributedGradientTape(tf.GradientTape())
    theirs = written(METHODS[name])
    ours = list(inspect.signature(getattr(tape, name)).parameters.values())
    assert [(p.name, p.default) for p in ours[: len(theirs)]] == [(p.name, p.default) for p in theirs]
    assert inspect.getdoc(getattr(tape, name))
    assert callable(tape.get_local_and_global_gradients)


def test_constants_and_places() -> None:
    assert {name: int(getattr(hvd, name)) for name in CONSTANTS} == CONSTANTS
    for name in PLACES:
        find(name)
    for name in names.__all__:
        assert getattr(hvd, name) is getattr(names, name)
    public = {name for name in {**SIGNATURES, **KEYWORDS} if "." not in name and not name.startswith("_")}
    assert public | set(CONSTANTS) | {"Compression", "elastic", "mpi_ops", "util"} <= set(hvd.__all__)
    assert len(set(hvd.__all__)) == len(hvd.__all__)
    for name in hvd.__all__:
        assert getattr(hvd, name).__doc__, name
    assert hvd.DistributedOptimizer.__module__ == "ringreduce.tensorflow.optimizer"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        hvd.nothing  # noqa: B018


def test_every_name_is_in_the_migration_table() -> None:
    page = (Path(__file__).resolve().parents[1] / "docs" / "migrate-from-horovod.md").read_text()
    section = page.split("\n## TensorFlow\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \| (\w+) \| ([^|]*)\|$", section, re.MULTILINE)
    named = [name for cell, _, _ in rows for name in re.findall(r"`([^`]+)`", cell)]
    own = {name.split(".")[0] for name in {**SIGNATURES, **KEYWORDS}} - set(names.__all__)
    assert sorted(named) == sorted(own | {"mpi_ops", "util", "data.compute_service"})
    for cell, verdict, remark in rows:
        assert verdict in {"same", "better", "different", "reserved"}, cell
        assert remark.strip() or verdict in {"same", "reserved"}, cell


def test_helpers() -> None:
    assert [hvd.check_num_rank_power_of_2(ranks) for ranks in (0, 1, 2, 3, 4, 6, 8)] == [
        False,
        True,
        True,
        False,
        True,
        False,
        True,
    ]
    assert hvd.gpu_available("tensorflow") is bool(tf.config.list_physical_devices("GPU"))
    assert hvd._executing_eagerly()
    with tf.Graph().as_default():
        assert not hvd._executing_eagerly()
    combine = hvd.handle_average_backwards_compatibility
    assert [combine(None, None), combine(hvd.Max, None)] == [hvd.Average, hvd.Max]
    with pytest.warns(DeprecationWarning, match="average"):
        assert combine(None, False) == hvd.Sum
    with pytest.raises(ValueError, match="supersedes average"):
        combine(hvd.Sum, True)

    one, other, of_keras = tf.Variable(1.0), tf.Variable(1.0), tf.keras.Variable(1.0)
    refs = hvd.vars_to_refs([one, [other, of_keras]])
    assert refs == hvd.vars_to_refs([one, [other, of_keras]])
    assert hash(refs) == hash(hvd.vars_to_refs([one, [other, of_keras]]))
    assert refs != hvd.vars_to_refs([other, [one, of_keras]])
    first, (second, third) = hvd.refs_to_vars(refs)
    assert (first is one, second is other, third is of_keras) == (True, True, True)
    assert hvd.vars_to_refs(of_keras) == hvd.vars_to_refs(of_keras.value)


def test_what_is_reserved() -> None:
    from ringreduce.tensorflow.data import compute_service

    for call in (
        lambda: hvd.elastic.run(print),
        lambda: hvd.elastic.TensorFlowState(variables=[]),
        lambda: hvd.elastic.TensorFlowKerasState(None, optimizer=None, epoch=0),
        lambda: hvd.elastic.ObjectState(),
    ):
        with pytest.raises(hvd.UnavailableError, match=r"hvd\.elastic\.\w+: elastic training does not exist yet"):
            call()
    for name in ("TfDataServiceConfig", "tf_data_service", "send_to_data_service", "compute_worker_fn"):
        something = getattr(compute_service, name)
        count = (
            0
            if name in ("TfDataServiceConfig", "send_to_data_service")
            else len(inspect.signature(something).parameters)
        )
        with pytest.raises(hvd.UnavailableError, match=rf"{name}: there is no data service.*dataset\.shard"):
            something(*[None] * count)
    with pytest.raises(hvd.UnavailableError, match=r"TfDataServiceConfig\.read"):
        compute_service.TfDataServiceConfig.read("file")


def test_a_job_is_needed() -> None:
    variable = tf.Variable(1.0)
    with tf.GradientTape() as tape:
        loss = variable * 2.0
    for call in (
        lambda: hvd.DistributedGradientTape(tape).gradient(loss, variable),
        lambda: hvd.allreduce(variable),
        lambda: hvd.broadcast_variables([variable], 0),
        lambda: hvd.broadcast_object(1),
        lambda: hvd.allgather_object(1),
    ):
        with pytest.raises(ringreduce.HorovodInternalError, match=r"use hvd\.init\(\)"):
            call()
