"""ringreduce.tensorflow against Horovod 0.28.1's TensorFlow API: every name is there, and takes the same arguments.

SIGNATURES is Horovod's, as in horovod_names.py.
"""

import inspect

import pytest

tf = pytest.importorskip("tensorflow")

from horovod_names import (  # noqa: E402
    EVERYWHERE,
    FACTORS,
    OF_TENSORS,
    PAGE,
    SET,
    check_modules,
    check_name,
    check_tables,
    find,
    parameters,
)

import ringreduce  # noqa: E402
import ringreduce.tensorflow as hvd  # noqa: E402
from ringreduce.common import names  # noqa: E402

_NAME = "name=None, ignore_name_scope=False"
_REDUCED = "average=None, device_dense='', device_sparse='', compression=hvd.Compression.none, op=None"
_GRADIENTS = (
    "device_dense='', device_sparse='', compression=hvd.Compression.none, sparse_as_dense=False, op=hvd.Average, "
    f"gradient_predivide_factor=1.0, num_groups=0, groups=None, {SET}"
)

SIGNATURES = {
    **EVERYWHERE,
    **OF_TENSORS,
    "_executing_eagerly": "",
    "allreduce": f"tensor, {_REDUCED}, {FACTORS}, name=None, {SET}, ignore_name_scope=False",
    "grouped_allreduce": f"tensors, {_REDUCED}, {FACTORS}, {SET}, ignore_name_scope=False, name=None",
    "reducescatter": "tensor, device_dense='', compression=hvd.Compression.none, op=hvd.Average, name=None, "
    f"{SET}, ignore_name_scope=False, {FACTORS}",
    "allgather": f"tensor, {_NAME}, {SET}",
    "grouped_allgather": f"tensors, {_NAME}, {SET}",
    "broadcast": f"tensor, root_rank, {_NAME}, {SET}",
    "broadcast_": f"variables, root_rank, name=None, {SET}",
    "alltoall": f"tensor, splits=None, {_NAME}, {SET}",
    "join": "",
    "broadcast_variables": f"variables, root_rank, {SET}, inplace=False",
    "broadcast_object": f"obj, root_rank=0, session=None, name=None, {SET}",
    "broadcast_object_fn": f"root_rank=0, session=None, name=None, {SET}",
    "allgather_object": f"obj, session=None, name=None, {SET}",
    "broadcast_global_variables": "root_rank",
    "BroadcastGlobalVariablesHook": "root_rank, device=''",
    "DistributedOptimizer": "optimizer, name=None, use_locking=False, device_dense='', device_sparse='', "
    "compression=hvd.Compression.none, sparse_as_dense=False, backward_passes_per_step=1, op=hvd.Average, "
    "gradient_predivide_factor=1.0, average_aggregated_gradients=False, num_groups=0, groups=None, "
    f"{SET}, scale_local_gradients=True",
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
    "elastic.TensorFlowKerasState": "model, optimizer=None, backend=None",
    "elastic.TensorFlowState": "variables=None, session=None",
}
# grouped_reducescatter lacks ignore_name_scope in Horovod, where ours has the order of reducescatter's.
KEYWORDS = {
    "grouped_reducescatter": f"tensors, device_dense='', compression=hvd.Compression.none, op=hvd.Average, {SET}, "
    f"{FACTORS}",
    "gpu_available": "ext_base_name",
    "barrier": SET,
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


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name: str) -> None:
    check_name(name, SIGNATURES[name], hvd)


@pytest.mark.parametrize("name", KEYWORDS)
def test_keywords(name: str) -> None:
    ours = inspect.signature(find(name, hvd)).parameters
    for other in parameters(KEYWORDS[name], hvd):
        assert other.default is other.empty or ours[other.name].default == other.default, other
    assert inspect.getdoc(find(name, hvd))


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_the_tape(name: str) -> None:
    tape = hvd.DistributedGradientTape(tf.GradientTape())
    check_name(name, METHODS[name], tape)
    assert callable(tape.get_local_and_global_gradients)


def test_constants_and_places() -> None:
    assert {name: int(getattr(hvd, name)) for name in CONSTANTS} == CONSTANTS
    for name in PLACES:
        find(name, hvd)
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


def test_every_module() -> None:
    check_modules("tensorflow")


def test_every_name_is_in_the_migration_table() -> None:
    own = {name.split(".")[0] for name in {**SIGNATURES, **KEYWORDS}} - set(names.__all__)
    section = PAGE.split("\n## TensorFlow\n")[1].split("\n## ")[0]
    check_tables(section, own | {"mpi_ops", "util", "data.compute_service"})


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
