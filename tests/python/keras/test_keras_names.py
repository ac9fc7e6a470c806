"""ringreduce.keras and ringreduce.tensorflow.keras against Horovod 0.28.1's: every name, with the same arguments.

SIGNATURES is Horovod's, as in horovod_names.py. This process may have any backend: nothing here communicates.
"""

from __future__ import annotations

import pytest

pytest.importorskip("keras")

from horovod_names import EVERYWHERE, PAGE, SET, check_modules, check_name, check_signature, check_tables

import ringreduce
import ringreduce.keras as hvd
from ringreduce.common import names

_PLACED = "device_dense='', device_sparse='', compression=hvd.Compression.none, sparse_as_dense=False"
_GRADIENTS = f"optimizer, name=None, {_PLACED}, gradient_predivide_factor=1.0, op=hvd.Average"
_PASSES = "backward_passes_per_step=1, average_aggregated_gradients=False"

SIGNATURES = {
    **EVERYWHERE,
    "DistributedOptimizer": f"{_GRADIENTS}, num_groups=0, groups=None",
    "PartialDistributedOptimizer": f"{_GRADIENTS}, {_PASSES}, groups=None, {SET}, local_layers=None, "
    "scale_local_gradients=True",
    "broadcast_global_variables": "root_rank",
    "allreduce": "value, name=None, average=None, prescale_factor=1.0, postscale_factor=1.0, op=None, "
    "compression=hvd.Compression.none",
    "allgather": "value, name=None",
    "broadcast": "value, root_rank, name=None",
    "reducescatter": "value, name=None, op=hvd.Average",
    "load_model": "filepath, custom_optimizers=None, custom_objects=None, compression=hvd.Compression.none, "
    "legacy_opts=False",
    "callbacks.BroadcastGlobalVariablesCallback": "root_rank, device='', local_variables=None",
    "callbacks.BroadcastGlobalVariablesCallback.register_local_var": "self, var",
    "callbacks.MetricAverageCallback": "device=''",
    "callbacks.LearningRateScheduleCallback": "initial_lr, multiplier, start_epoch=0, end_epoch=None, staircase=True, "
    "momentum_correction=True, steps_per_epoch=None",
    "callbacks.LearningRateWarmupCallback": "initial_lr, warmup_epochs=5, momentum_correction=True, "
    "steps_per_epoch=None, verbose=0",
    "callbacks.BestModelCheckpoint": "monitor='val_loss', verbose=0, mode='auto', save_freq='epoch'",
    "elastic.KerasState": "model, optimizer=None",
    "elastic.CommitStateCallback": "state, batches_per_commit=1",
    "elastic.UpdateBatchStateCallback": "state",
    "elastic.UpdateEpochStateCallback": "state",
    "elastic.run": "func",
}
CONSTANTS = {"Average": 0, "Sum": 1, "Adasum": 2}
PROCESS_SETS = ["ProcessSet", "add_process_set", "global_process_set", "remove_process_set"]
CHECKPOINT_IN_TENSORFLOW = "monitor='val_loss', verbose=0, save_weights_only=False, mode='auto', save_freq='epoch'"
IN_TENSORFLOW = f"{_GRADIENTS}, {_PASSES}, num_groups=0, groups=None, {SET}, scale_local_gradients=True"


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name: str) -> None:
    check_name(name, SIGNATURES[name], hvd)


def test_constants_and_the_names_of_every_framework() -> None:
    assert {name: int(getattr(hvd, name)) for name in CONSTANTS} == CONSTANTS
    for name in names.__all__:
        assert getattr(hvd, name) is getattr(names, name)
    public = {name.split(".")[0] for name in SIGNATURES} | set(CONSTANTS) | set(PROCESS_SETS)
    assert public <= set(hvd.__all__)
    assert len(set(hvd.__all__)) == len(hvd.__all__)
    for name in hvd.__all__:
        assert getattr(hvd, name).__doc__, name


def test_every_module() -> None:
    check_modules("keras")


def test_elastic_is_reserved() -> None:
    for use in (
        lambda: hvd.elastic.run(print),
        lambda: hvd.elastic.KerasState(None, epoch=0),
        lambda: hvd.elastic.CommitStateCallback(None),
        lambda: hvd.elastic.UpdateBatchStateCallback(None),
        lambda: hvd.elastic.UpdateEpochStateCallback(None),
    ):
        with pytest.raises(hvd.UnavailableError, match=r"hvd\.elastic\.\w+: elastic training does not exist yet"):
            use()


def test_the_other_name() -> None:
    pytest.importorskip("tensorflow")
    import ringreduce.tensorflow.keras as other
    from ringreduce.tensorflow.keras import callbacks, elastic

    assert set(other.__all__) == set(hvd.__all__)
    for name in set(other.__all__) - {"DistributedOptimizer", "callbacks", "elastic"}:
        assert getattr(other, name) is getattr(hvd, name)
    check_signature(other.DistributedOptimizer, IN_TENSORFLOW, hvd)
    assert other.DistributedOptimizer.__doc__
    for ours, theirs in ((callbacks, hvd.callbacks), (elastic, hvd.elastic)):
        assert set(ours.__all__) == set(theirs.__all__)
        for name in set(ours.__all__) - {"BestModelCheckpoint"}:
            assert getattr(ours, name) is getattr(theirs, name)
    check_signature(callbacks.BestModelCheckpoint, CHECKPOINT_IN_TENSORFLOW, hvd)
    assert issubclass(callbacks.BestModelCheckpoint, hvd.callbacks.BestModelCheckpoint)
    for package, args in ((hvd, ("max", 7)), (other, (True, "max", 7))):
        made = package.callbacks.BestModelCheckpoint("loss", 1, *args)
        assert (made.monitor, made.verbose, made.save_freq, made.mode) == ("loss", 1, 7, "max")
        assert made.save_weights_only == (package is other)
    for package, third in ((hvd, True), (other, "max"), (other, 1)):
        with pytest.raises(hvd.InvalidArgumentError, match=r"mode is a string and save_weights_only a bool"):
            package.callbacks.BestModelCheckpoint("loss", 1, third)
    import keras

    settings = {"op": hvd.Sum, "backward_passes_per_step": 2, "average_aggregated_gradients": True}
    given = other.DistributedOptimizer(
        keras.optimizers.SGD(1.0), "n", "", "", hvd.Compression.fp16, True, 1.0, *settings.values(), 0, 3
    )._reduction.settings
    assert (given.name, given.compression, given.sparse_as_dense, given.groups) == ("n", hvd.Compression.fp16, True, 3)
    assert {name: getattr(given, name) for name in settings} == settings
    assert other.DistributedOptimizer(keras.optimizers.SGD(1.0), groups=5)._reduction.settings.groups == 5


def test_every_name_is_in_the_migration_table() -> None:
    own = {name for name in SIGNATURES if not name.startswith("Compression.")} - set(names.__all__)
    own -= {name for name in own if name.startswith("elastic.") or name.endswith("register_local_var")}
    check_tables(PAGE.split("\n## Keras\n")[1].split("\n## ")[0], own | {"Compression", "elastic"})
    assert ringreduce.__version__ == hvd.__version__
