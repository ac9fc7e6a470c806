"""docs/reference/collectives.md against the packages.

Forms are compared by their names, gradients and graphs by running each on two ranks.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tensorflow_ranks import ENV

PACKAGES = ["ringreduce", "torch", "tensorflow", "keras", "jax"]
FORMS = {"yes": {""}, "async": {"_async"}, "in place": {"_"}}
WORDS = {"no", "gradient", "compiled", *FORMS}

Call = Callable[[Any], Any]


def table() -> dict[str, dict[str, list[str]]]:
    """The words of each package, by collective."""
    page = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "collectives.md").read_text()
    lines = page.split("## Gradients")[0].splitlines()
    head, *rows = (line.strip("| ").split(" | ") for line in lines if line.startswith("| "))
    assert head == ["collective", *PACKAGES]
    return {
        name.strip("`"): dict(zip(PACKAGES, (cell.split(", ") for cell in cells), strict=True)) for name, *cells in rows
    }


TABLE = table()


def claims(package: str, word: str) -> set[str]:
    return {name for name, cells in TABLE.items() if word in cells[package]}


def test_the_words() -> None:
    assert len(TABLE) == 17
    for cells in TABLE.values():
        for words in cells.values():
            assert set(words) <= WORDS
            assert len(set(words)) == len(words)
            assert words == ["no"] or words[0] == "yes"


@pytest.mark.parametrize("name", PACKAGES)
def test_the_forms(name: str) -> None:
    if name != "ringreduce":
        pytest.importorskip(name)
    package = importlib.import_module("ringreduce" if name == "ringreduce" else f"ringreduce.{name}")
    for call, cells in TABLE.items():
        expected = set[str]().union(*(FORMS.get(word, set()) for word in cells[name]))
        expected |= {"_async_"} if {"_", "_async"} <= expected else set()
        there = {form for form in ("", "_async", "_", "_async_") if callable(getattr(package, call + form, None))}
        assert there == expected, call


def calls(hvd: Any) -> dict[str, Call]:
    """Each collective of (4, 2) numbers. Where the package has a token, it is the result on ranks without another."""
    rank = hvd.rank()
    every: dict[str, Call] = {
        "allreduce": lambda x: hvd.allreduce(x),
        "grouped_allreduce": lambda x: hvd.grouped_allreduce([x])[0],
        "reducescatter": lambda x: hvd.reducescatter(x),
        "grouped_reducescatter": lambda x: hvd.grouped_reducescatter([x])[0],
        "allgather": lambda x: hvd.allgather(x),
        "grouped_allgather": lambda x: hvd.grouped_allgather([x])[0],
        "broadcast": lambda x: hvd.broadcast(x, 0),
        "alltoall": lambda x: hvd.alltoall(x),
        "reduce": lambda x: hvd.reduce(x, 0),
        "gather": lambda x: hvd.gather(x, 0),
        "scatter": lambda x: hvd.scatter(x if rank == 0 else None, x[:2] * 1, 0),
        "send": lambda x: hvd.send(x, 1) if rank == 0 else hvd.recv(x, 0),
        "recv": lambda x: hvd.recv(x, 1) if rank == 0 else hvd.send(x, 0),
        "barrier": lambda x: hvd.barrier(),
        "broadcast_object": lambda x: hvd.broadcast_object(rank, 0),
        "allgather_object": lambda x: hvd.allgather_object(rank),
        "join": lambda x: hvd.join(),
    }
    return {name: call for name, call in every.items() if hasattr(hvd, name)}


Found = tuple[set[str], set[str]]
"""What has a gradient, on this rank, and what is compiled."""


def in_torch() -> Found:
    import torch

    import ringreduce.torch as hvd

    gradients, compiled = set(), set()
    with hvd.init():
        for name, call in calls(hvd).items():
            x = torch.ones(4, 2, requires_grad=True)
            result = call(x)
            if isinstance(result, torch.Tensor) and result.requires_grad:
                result.sum().backward()
                gradients |= {name} if x.grad is not None and x.grad.any() else set()
            try:
                torch.compile(call, backend="eager", fullgraph=True)(torch.ones(4, 2))
                compiled.add(name)
            except torch._dynamo.exc.Unsupported:
                pass
    return gradients, compiled


def in_tensorflow() -> Found:
    import tensorflow as tf

    import ringreduce.tensorflow as hvd

    hvd.init()
    gradients, compiled = set(), set()
    for name, call in calls(hvd).items():
        x = tf.ones([4, 2])
        with tf.GradientTape() as tape:
            tape.watch(x)
            result = call(x)
            loss = tf.reduce_sum(result) if tf.is_tensor(result) and result.dtype.is_floating else None
        grad = None if loss is None else tape.gradient(loss, x)
        gradients |= {name} if grad is not None and grad.numpy().any() else set()
        function = tf.function(call).get_concrete_function(tf.TensorSpec([4, 2]))
        function(x)
        nodes = {node.type for node in function.graph.get_operations()}
        if any(node.startswith(("Ringreduce", "EagerPyFunc")) for node in nodes):
            compiled.add(name)
    return gradients, compiled


def in_jax() -> Found:
    import jax

    import ringreduce.jax as hvd

    hvd.init()
    gradients, compiled = set(), set()
    for name, call in calls(hvd).items():
        x = jax.numpy.ones((4, 2))
        if isinstance(call(x), jax.Array):
            gradients |= {name} if jax.grad(lambda x, call=call: call(x).sum())(x).any() else set()
        jitted = jax.jit(call)
        if "ringreduce" in jitted.lower(x).as_text():
            jax.block_until_ready(jitted(x))
            compiled.add(name)
    hvd.shutdown()
    return gradients, compiled


@pytest.mark.parametrize("name", ["torch", "tensorflow", "jax"])
def test_gradients_and_graphs(name: str, run_ranks: Callable[..., Any]) -> None:
    pytest.importorskip(name)
    found = run_ranks({"torch": in_torch, "tensorflow": in_tensorflow, "jax": in_jax}[name], 2, env=ENV)
    assert set[str]().union(*(gradients for gradients, _ in found)) == claims(name, "gradient")
    for _, compiled in found:
        assert compiled == claims(name, "compiled")
