"""Horovod's environment variables that have no effect here, with the reason or what to set instead.

Those that have one are aliases in the core's table of knobs, or tell a rank its place (environment.py).
"""

from __future__ import annotations

ALGORITHM = "set RINGREDUCE_ALGORITHM to choose an algorithm"
AUTOTUNE = "init() calibrates by itself; `ringreduce tune` shows how"
_BACKEND = "set RINGREDUCE_TRANSPORT to choose how ranks are linked"
_ELASTIC = "elastic jobs do not exist yet"
_GLOO = "Gloo is not used"
NO_CYCLE = "there are no cycles: an operation starts when its last rank has called"
_NOTHING = "there is nothing of the kind here"
_SPARK = "jobs in Spark do not exist here"

WITHOUT_EFFECT = {
    "HOROVOD_ADASUM_MPI_CHUNK_SIZE": "Adasum gathers all tensors and has no chunks",
    "HOROVOD_AUTOTUNE": AUTOTUNE,
    "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": AUTOTUNE,
    "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE": AUTOTUNE,
    "HOROVOD_AUTOTUNE_LOG": AUTOTUNE,
    "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE": AUTOTUNE,
    "HOROVOD_AUTOTUNE_WARMUP_SAMPLES": AUTOTUNE,
    "HOROVOD_BATCH_D2D_MEMCOPIES": _NOTHING,
    "HOROVOD_CCL_CACHE": "oneCCL is not used",
    "HOROVOD_CONTROLLER": _BACKEND,
    "HOROVOD_CPU_OPERATIONS": _BACKEND,
    "HOROVOD_CYCLE_TIME": NO_CYCLE,
    "HOROVOD_DISABLE_GROUP_FUSION": "a group is one operation; RINGREDUCE_FUSION_THRESHOLD=0 fuses no others",
    "HOROVOD_DISABLE_NVTX_RANGES": _NOTHING,
    "HOROVOD_ELASTIC": _ELASTIC,
    "HOROVOD_ELASTIC_TIMEOUT": _ELASTIC,
    "HOROVOD_ENABLE_ASYNC_COMPLETION": "synchronize() waits until the result is in GPU memory",
    "HOROVOD_ENABLE_XLA_OPS": "no XLA operations for TensorFlow: no jit_compile=True around a collective",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR": _GLOO,
    "HOROVOD_GLOO_TIMEOUT_SECONDS": f"{_GLOO}; set RINGREDUCE_TIMEOUT",
    "HOROVOD_HIERARCHICAL_ALLGATHER": ALGORITHM,
    "HOROVOD_HIERARCHICAL_ALLREDUCE": ALGORITHM,
    "HOROVOD_HOSTNAME": "ranks find their hosts by themselves",
    "HOROVOD_LOG_HIDE_TIME": "lines of the log have no time",
    "HOROVOD_MPI_THREADS_DISABLE": "MPI's threads are chosen by mpi4py.rc",
    "HOROVOD_NUM_NCCL_STREAMS": _NOTHING,
    "HOROVOD_SPARK_PYTHONPATH": _SPARK,
    "HOROVOD_SPARK_START_TIMEOUT": _SPARK,
    "HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX": _SPARK,
    "HOROVOD_SPARK_WORK_DIR": _SPARK,
    "HOROVOD_THREAD_AFFINITY": "ringrun --bind core binds a rank with all its threads",
    "HOROVOD_TORUS_ALLREDUCE": ALGORITHM,
}
