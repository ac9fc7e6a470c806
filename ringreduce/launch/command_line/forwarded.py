"""Which variables ringrun gives its ranks: of other hosts an allow-list, by what training scripts and their libraries
read; of all hosts those of -x."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ringreduce.errors import InvalidArgumentError
from ringreduce.job.environment import TORCH_MARK, TORCH_PLACE, is_told_by_us
from ringreduce.job.tcp.agents_secret import is_of_an_agent

PREFIXES = (
    *("RINGREDUCE_", "HOROVOD_", "PYTHON", "OMP_", "MPI4PY_", "NCCL_", "CUDA_", "TORCH", "PYTORCH_", "TF_"),
    *("KERAS_", "XLA_", "JAX_", "MKL_", "KMP_", "OPENBLAS_", "NUMEXPR_", "HF_", "CONDA_"),
)
NAMES = (
    *("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV", "XDG_CACHE_HOME", "TZ", "LANG"),
    "_RINGREDUCE_TIMELINE_TAKEN",  # of a rank that has started ringrun: job/recording.py
)
OF_ONE_HOST = frozenset({"CUDA_VISIBLE_DEVICES"})
"""What stays on its host though PREFIXES has it: other hosts have other GPUs, or other ones are free there."""
PLACES = frozenset(
    prefix + place
    for prefix in ("RINGREDUCE_", "HOROVOD_")
    for place in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "RENDEZVOUS")
)
"""Variables of a job within which ringrun itself runs; its ranks have places of their own."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def without_places(environ: Mapping[str, str]) -> dict[str, str]:
    """All variables but those of another job. Its agents (remote/agent.py) have also said where its rank 0 listens."""
    of_agent = is_of_an_agent(environ.get("RINGREDUCE_SECRET_FILE", ""))
    others = PLACES | {"RINGREDUCE_SECRET_FILE", "RINGREDUCE_ADDRESS"} if of_agent else PLACES
    if is_told_by_us(environ):
        others = others.union(TORCH_PLACE, [TORCH_MARK])
    return {name: value for name, value in environ.items() if name not in others}


def is_forwarded(name: str) -> bool:
    """Whether a variable goes to other hosts without being asked for."""
    return (name.startswith(PREFIXES) and name not in OF_ONE_HOST) or name in NAMES


def asked_for(words: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of -x NAME and -x NAME=VALUE. Raises InvalidArgumentError."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not NAME.fullmatch(name):
            raise InvalidArgumentError(f"-x {word}: expected NAME or NAME=VALUE")
        if name in PLACES:
            raise InvalidArgumentError(f"-x {name}: ringrun sets this variable, for each rank its own")
        if not equals and name not in environ:
            raise InvalidArgumentError(f"-x {name}: this variable is not set; -x {name}=VALUE sets it")
        found[name] = value if equals else environ[name]
    return found
