"""How ringreduce's packages are compared with Horovod 0.28.1's: by signatures, and by the tables of the migration page.

A signature is Horovod's: the parameters of a public function in order, with their defaults, written as scripts call
it. Ours may have more after them, if these have defaults.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ringreduce.compat import finder

FACTORS = "prescale_factor=1.0, postscale_factor=1.0"
SET = "process_set=hvd.global_process_set"

EVERYWHERE = {
    "init": "comm=None, process_sets=None",
    **dict.fromkeys(["shutdown", "is_initialized", "rank", "size", "local_rank", "local_size"], ""),
    **dict.fromkeys(["cross_rank", "cross_size", "stop_timeline", "mpi_threads_supported"], ""),
    **dict.fromkeys(["mpi_enabled", "mpi_built", "gloo_enabled", "gloo_built", "nccl_built"], ""),
    **dict.fromkeys(["ddl_built", "ccl_built", "cuda_built", "rocm_built"], ""),
    "start_timeline": "file_path, mark_cycles=False",
    "Compression.none.compress": "tensor",
    "Compression.none.decompress": "tensor, ctx",
    "Compression.fp16.compress": "tensor",
    "Compression.fp16.decompress": "tensor, ctx",
    "elastic.run": "func",
}
"""The signatures that Horovod's packages for PyTorch, TensorFlow and Keras have in common."""

OF_TENSORS = {
    "is_homogeneous": "",
    "add_process_set": "process_set",
    "remove_process_set": "process_set",
    "ProcessSet": "ranks_or_comm",
    "ProcessSet.size": "self",
    "ProcessSet.rank": "self",
    "ProcessSet.included": "self",
}
"""Those that its packages for PyTorch and TensorFlow have besides."""

BASICS = (
    "ccl_built cross_rank cross_size cuda_built ddl_built gloo_built gloo_enabled init is_initialized local_rank "
    "local_size mpi_built mpi_enabled mpi_threads_supported nccl_built rank rocm_built shutdown size start_timeline "
    "stop_timeline "
)
MODULES = {
    "common.basics": "HorovodBasics MPI",
    "common.elastic": "ObjectState State notification_manager run_fn",
    "common.exceptions": "HorovodInternalError HorovodVersionMismatchError HostsUpdatedInterrupt "
    "get_version_mismatch_message",
    "common.process_sets": "HorovodBasics MPI ProcessSet add_process_set global_process_set remove_process_set",
    "common.util": "EXTENSIONS ccl_built check_extension check_installed_version ddl_built env extension_available "
    "get_average_backwards_compatibility_fun get_ext_suffix get_extension_full_path gloo_built "
    "gpu_available is_iterable is_version_greater_equal_than mpi_built nccl_built num_rank_is_power_2 "
    "split_list",
    "torch": BASICS
    + "Adasum Average Compression DistributedOptimizer HorovodInternalError Max Min ProcessSet Product Sum "
    "SyncBatchNorm add_process_set allgather allgather_async allgather_object allreduce allreduce_ "
    "allreduce_async allreduce_async_ alltoall alltoall_async barrier broadcast broadcast_ "
    "broadcast_async broadcast_async_ broadcast_object broadcast_optimizer_state broadcast_parameters "
    "check_extension elastic global_process_set grouped_allgather grouped_allgather_async "
    "grouped_allreduce grouped_allreduce_ grouped_allreduce_async grouped_allreduce_async_ "
    "grouped_reducescatter grouped_reducescatter_async join poll reducescatter reducescatter_async "
    "remove_process_set sparse_allreduce_async synchronize",
    "torch.compression": "Compression Compressor FP16Compressor NoneCompressor",
    "torch.functions": "allgather_object broadcast_object broadcast_optimizer_state broadcast_parameters",
    "torch.mpi_ops": BASICS
    + "Adasum Average Compression HorovodAllgather HorovodAllreduce HorovodAlltoall HorovodBroadcast "
    "HorovodGroupedAllgather HorovodGroupedAllreduce HorovodGroupedReducescatter HorovodInternalError "
    "HorovodReducescatter Max Min ProcessSet Product Sum add_process_set allgather allgather_async "
    "allreduce allreduce_ allreduce_async allreduce_async_ alltoall alltoall_async barrier broadcast "
    "broadcast_ broadcast_async broadcast_async_ check_installed_version "
    "get_average_backwards_compatibility_fun global_process_set gpu_available grouped_allgather "
    "grouped_allgather_async grouped_allreduce grouped_allreduce_ grouped_allreduce_async "
    "grouped_allreduce_async_ grouped_reducescatter grouped_reducescatter_async "
    "handle_average_backwards_compatibility is_homogeneous join mpi_lib num_rank_is_power_2 poll "
    "reducescatter reducescatter_async remove_process_set sparse_allreduce_async synchronize",
    "torch.optimizer": "DistributedOptimizer",
    "torch.sync_batch_norm": "SyncBatchNorm",
    "torch.elastic": "ElasticSampler TorchState init run run_fn shutdown",
    "torch.elastic.sampler": "ElasticSampler",
    "torch.elastic.state": "ModelStateHandler OptimizerStateHandler SamplerStateHandler StateHandler TorchState "
    "get_handler_registry set_handler_registry",
    "tensorflow": BASICS
    + "Adasum Average BroadcastGlobalVariablesHook Compression DistributedGradientTape DistributedOptimizer "
    "LocalGradientAggregationHelper Max Min PartialDistributedGradientTape ProcessSet Product Sum "
    "SyncBatchNormalization add_process_set allgather allgather_object allreduce alltoall broadcast "
    "broadcast_ broadcast_global_variables broadcast_object broadcast_object_fn broadcast_variables "
    "check_extension check_num_rank_power_of_2 elastic global_process_set gpu_available grouped_allgather "
    "grouped_allreduce grouped_reducescatter handle_average_backwards_compatibility is_homogeneous join "
    "local_rank_op local_size_op process_set_included_op rank_op reducescatter refs_to_vars "
    "remove_process_set size_op split_list vars_to_refs",
    "tensorflow.compression": "Compression Compressor FP16Compressor NoneCompressor",
    "tensorflow.elastic": "TensorFlowKerasState TensorFlowState run",
    "tensorflow.functions": "allgather_object broadcast_object broadcast_object_fn broadcast_variables",
    "tensorflow.gradient_aggregation": "LocalGradientAggregationHelper apply_op_to_not_none_tensors "
    "get_not_none_from_list",
    "tensorflow.gradient_aggregation_eager": "LocalGradientAggregationHelperEager",
    "tensorflow.mpi_ops": BASICS
    + "Adasum Average MPI_LIB Max Min ProcessSet Product Sum add_process_set allgather alltoall broadcast "
    "broadcast_ check_installed_version check_num_rank_power_of_2 get_average_backwards_compatibility_fun "
    "get_ext_suffix global_process_set gpu_available grouped_allgather "
    "handle_average_backwards_compatibility is_homogeneous join local_rank_op local_size_op "
    "num_rank_is_power_2 process_set_included_op rank_op remove_process_set size_op",
    "tensorflow.sync_batch_norm": "SyncBatchNormalization",
    "tensorflow.util": "refs_to_vars vars_to_refs",
    "tensorflow.data.compute_service": "TfDataServiceConfig compute_worker_fn send_to_data_service tf_data_service",
    "tensorflow.data.compute_worker": "main parsed_args parser",
    "tensorflow.keras": BASICS
    + "Average Compression DistributedOptimizer ProcessSet Sum add_process_set allgather allreduce "
    "broadcast broadcast_global_variables callbacks elastic global_process_set "
    "is_version_greater_equal_than load_model reducescatter remove_process_set",
    "tensorflow.keras.callbacks": "BestModelCheckpoint BroadcastGlobalVariablesCallback LearningRateScheduleCallback "
    "LearningRateWarmupCallback MetricAverageCallback",
    "tensorflow.keras.elastic": "CommitStateCallback KerasState UpdateBatchStateCallback UpdateEpochStateCallback",
    "keras": BASICS
    + "Adasum Average Compression DistributedOptimizer PartialDistributedOptimizer Sum allgather allreduce "
    "broadcast broadcast_global_variables callbacks elastic global_process_set load_model reducescatter",
    "keras.callbacks": "BestModelCheckpoint BroadcastGlobalVariablesCallback LearningRateScheduleCallback "
    "LearningRateWarmupCallback MetricAverageCallback",
    "keras.elastic": "CommitStateCallback KerasState UpdateBatchStateCallback UpdateEpochStateCallback",
    "data": "AsyncDataLoaderMixin BaseDataLoader",
    "data.data_loader_base": "AsyncDataLoaderMixin BaseDataLoader",
}
"""The public names of Horovod's modules: those that one defines, and those that a package or mpi_ops imports."""

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "user" / "migrate-from-horovod.md").read_text()


def find(name: str, within: Any) -> Any:
    """What a dotted name stands for."""
    for part in name.split("."):
        within = getattr(within, part)
    return within


def parameters(text: str, hvd: Any) -> list[inspect.Parameter]:
    """Those of a written signature."""
    known: dict[str, Any] = {"hvd": hvd}
    exec(f"def written({text}): ...", known)
    return list(inspect.signature(known["written"]).parameters.values())


def check_signature(ours: Any, text: str, hvd: Any) -> None:
    """Ours takes what Horovod's takes."""
    theirs = parameters(text, hvd)
    own = list(inspect.signature(ours).parameters.values())
    assert [(p.name, p.default, p.kind) for p in own[: len(theirs)]] == [(p.name, p.default, p.kind) for p in theirs]
    for more in own[len(theirs) :]:
        assert more.default is not more.empty or more.kind is more.VAR_KEYWORD, f"it needs {more}"


def check_name(name: str, text: str, hvd: Any) -> None:
    """A name is there, takes what Horovod's takes, and has a docstring, or for compressors its class has."""
    check_signature(find(name, hvd), text, hvd)
    assert inspect.getdoc(find(name.removesuffix(".compress").removesuffix(".decompress"), hvd)), name


def check_modules(*packages: str) -> None:
    """Each public name of Horovod's modules is at the same place here, or in the page's table of those that are not."""
    absent = PAGE.split("\n## Names that are not there\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[^|]*) \| ([^|]+) \|$", absent, re.MULTILINE)
    named = [name for cell, _ in rows for name in re.findall(r"`([^`]+)`", cell)]
    missing = [
        f"{module}.{name}"
        for module, names in MODULES.items()
        if module.partition(".")[0] in packages
        for name in names.split()
        if not hasattr(_counterpart(module), name)
    ]
    assert sorted(missing) == sorted(name for name in named if name.partition(".")[0] in packages)


def _counterpart(module: str) -> Any:
    """What a script that imports horovod.MODULE gets; None where there is no such module."""
    for place in (finder._ours(f"horovod.{module}"), f"ringreduce.compat.path.horovod.{module}"):
        try:
            return importlib.import_module(place or "")
        except (ModuleNotFoundError, ValueError):
            continue
    return None


def check_tables(section: str, names: Iterable[str]) -> None:
    """The tables of a part of the page have each of the names once, with a verdict, and reasons where one is needed."""
    rows = re.findall(r"^\| (`[^|]*) \| (\w+) \| ([^|]*)\|$", section, re.MULTILINE)
    named = [name for cell, _, _ in rows for name in re.findall(r"`([^`]+)`", cell)]
    assert sorted(named) == sorted(names)
    for cell, verdict, remark in rows:
        assert verdict in {"same", "better", "different", "reserved"}, cell
        assert remark.strip() or verdict in {"same", "reserved"}, cell
