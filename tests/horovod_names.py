"""How ringreduce's packages are compared with Horovod 0.28.1's: by signatures, and by the tables of the migration page.

A signature is Horovod's: the parameters of a public function in order, with their defaults, written as scripts call
it. Ours may have more after them, if these have defaults.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

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

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "migrate-from-horovod.md").read_text()


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


def check_tables(section: str, names: Iterable[str]) -> None:
    """The tables of a part of the page have each of the names once, with a verdict, and reasons where one is needed."""
    rows = re.findall(r"^\| (`[^|]*) \| (\w+) \| ([^|]*)\|$", section, re.MULTILINE)
    named = [name for cell, _, _ in rows for name in re.findall(r"`([^`]+)`", cell)]
    assert sorted(named) == sorted(names)
    for cell, verdict, remark in rows:
        assert verdict in {"same", "better", "different", "reserved"}, cell
        assert remark.strip() or verdict in {"same", "reserved"}, cell
