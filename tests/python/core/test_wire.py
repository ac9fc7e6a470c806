"""Wires: float32 between hosts as fp16, bf16 or int8. What the codecs do, what an all-reduce makes of it, training."""

from __future__ import annotations

import hashlib
import json
import os
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mpis
import numpy as np
import pytest

import ringreduce as rr
from ringreduce import _core

FOLDER = "RR_TEST_SAYS"
WIRES = ("fp16", "bf16", "int8")
ROUNDING = {"fp16": 2.0**-11, "bf16": 2.0**-8}
STEP = 1 / 253  # of int8: |x - q s| <= 0.501 s, and s <= max|x| / 127
LAYOUTS: dict[str, Sequence[int] | None] = {"3 x 1": None, "2 x 2": (0, 0, 1, 1), "2 + 1": (0, 0, 1)}
"""The host of each rank; None: RINGREDUCE_TRANSPORT=mpi, which makes each rank a host of its own."""


def through(wire: str, values: Any) -> Any:
    """A copy of float32 values that has gone through a codec."""
    copy = np.array(values, np.float32)
    _core.wire_round_trip(wire, copy.ctypes.data, copy.size)
    return copy


def test_codecs_are_torchs_casts() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 2**32, 1 << 20, dtype=np.uint32)
    bits[::3] &= 0xFFFFE000  # of which fp16 keeps all but what it cannot hold, with every tie below
    bits[1::3] = bits[1::3] & 0xFFFFE000 | 0x1000
    for values in (bits.view(np.float32), rng.normal(0, 1e-3, 99_999).astype(np.float32)):
        tensor = torch.from_numpy(values.copy())
        for wire, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
            wanted = tensor.to(dtype).float().numpy()
            assert np.array_equal(through(wire, values), wanted, equal_nan=True)
    assert np.array_equal(through("none", [1.1, np.inf]), np.array([1.1, np.inf], np.float32))
    assert _core.wires() == ["none", *WIRES]
    with pytest.raises(
        rr.InvalidArgumentError, match='no wire codec named "fp8"; the names are none, fp16, bf16, int8'
    ):
        through("fp8", [1.0])


def test_int8_is_the_formula() -> None:
    rng = np.random.default_rng(6)
    for count in (1, 255, 256, 257, 100_000):
        x = (rng.normal(0, 1, count) * np.repeat(10.0 ** rng.integers(-20, 20, -(-count // 256)), 256)[:count]).astype(
            np.float32
        )
        y = through("int8", x)
        assert np.array_equal(through("int8", y), y)
        for at in range(0, count, 256):
            block = x[at : at + 256].astype(np.float64)
            scale = np.abs(block).max() / 127
            fraction, exponent = np.frexp(scale)
            scale = np.ldexp(np.floor(fraction * 2**17) / 2**17, exponent)
            assert np.allclose(y[at : at + 256], np.round(block / scale) * scale, rtol=0, atol=1e-3 * scale) or (
                np.abs(y[at : at + 256] - block).max() <= 0.501 * scale
            )


# --- all-reduce between hosts, under mpirun ---------------------------------------------------------------------------


def ask(layout: str, check: str, folder: Path) -> list[Any]:
    """What check() of this module returned on each rank."""
    hosts = LAYOUTS[layout]
    size = len(hosts) if hosts is not None else 3
    extra = {FOLDER: str(folder)} | ({"RINGREDUCE_TRANSPORT": "mpi"} if hosts is None else {})
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import test_wire; "
    mpis.first().run(size, program + f"test_wire.answer({check!r}, {hosts!r})", extra=extra)
    return [json.loads((folder / str(rank)).read_text()) for rank in range(size)]


def answer(check: str, hosts: Sequence[int] | None) -> None:
    """Within a rank: calls a check, in a job on these hosts, and leaves what it returns for ask()."""
    from mpi4py import MPI

    from ringreduce.job import communicators

    if hosts is not None:
        name = f"host{hosts[MPI.COMM_WORLD.rank]}"
        communicators.rendezvous.host_identity = name.encode  # type: ignore[attr-defined]
        communicators.os = types.SimpleNamespace(  # type: ignore[attr-defined]
            uname=lambda: types.SimpleNamespace(nodename=name), environ=os.environ
        )
    with rr.init(comm=MPI.COMM_WORLD) as world:
        told = globals()[check]()
        Path(os.environ[FOLDER], str(world.rank)).write_text(json.dumps(told))


def values_of(rank: int, count: int) -> Any:
    rng = np.random.default_rng([rank, count])
    return (rng.normal(0, 1 + rank, count) * np.linspace(0.1, 3, count)).astype(np.float32)


def same_on_all_ranks(array: Any) -> bool:
    digest = np.frombuffer(hashlib.sha256(np.asarray(array).tobytes()).digest(), np.uint8)
    return bool((rr.allgather(digest[None]) == digest).all())


def bound(wire: str, inputs: Sequence[Any], result: Any, factor: float) -> Any:
    """How far a sum over a wire may be from the exact one: sums are float32, and rounded are each input and the result,
    or, from 1 MiB on, each partial sum on the way round the ring."""
    times = len(inputs) - 1 if inputs[0].nbytes >= 1 << 20 else 1
    if wire == "int8":
        limit = STEP * (sum(np.abs(x).max() for x in inputs) * factor + np.abs(result).max())
    else:
        limit = ROUNDING[wire] * (times * sum(np.abs(x) for x in inputs) * factor + np.abs(result)) * 1.01 + 2.0**-24
    return limit + 1e-6 * sum(np.abs(x) for x in inputs) * factor


def all_reduce_over_wires() -> list[str]:
    """What was wrong."""
    size, me = rr.size(), rr.rank()
    assert rr.global_process_set.spans_hosts()
    wrong = []
    for count in (1, 20, 5000, 70_001, 300_000):
        inputs = [values_of(rank, count) for rank in range(size)]
        exact = sum(x.astype(np.float64) for x in inputs)
        for wire in WIRES:
            calls: dict[str, tuple[float, Any]] = {
                "sum": (1.0, lambda x, wire=wire: rr.allreduce(x, op=rr.Sum, wire=wire)),
                "average": (1 / size, lambda x, wire=wire: rr.allreduce_(x, wire=wire)),
                "scaled": (
                    1.5,
                    lambda x, wire=wire: rr.allreduce_async(
                        x, name="scaled", op=rr.Sum, prescale_factor=0.5, postscale_factor=3.0, wire=wire
                    ).wait(),
                ),
                "grouped": (1.0, lambda x, wire=wire: joined(rr.grouped_allreduce(cut(x), op=rr.Sum, wire=wire))),
                "fused": (1.0, lambda x, wire=wire: joined(fused(cut(x), wire))),
            }
            for what, (factor, call) in calls.items():
                result = call(inputs[me].copy())
                limit = bound(wire, inputs, exact * factor, factor)
                if not same_on_all_ranks(result):
                    wrong.append(f"{what} of {count} over {wire} has different bits")
                if not (np.abs(result - exact * factor) <= limit).all():
                    wrong.append(f"{what} of {count} over {wire} is off by {np.abs(result - exact * factor).max()}")
        for wire in WIRES[:2]:
            for op, fold in ((rr.Min, np.minimum), (rr.Max, np.maximum)):
                result = rr.allreduce(inputs[me], op=op, wire=wire)
                plain = fold.reduce(inputs)
                if not ((result == plain) | (result == through(wire, plain))).all():
                    wrong.append(f"{op.name} of {count} over {wire}")
    special = np.ones(70_000, np.float32)
    special[[300, 60_000]] = np.inf, np.nan
    for wire in WIRES:
        finite = np.isfinite(rr.allreduce(special if me == size - 1 else np.ones_like(special), wire=wire))
        if finite[300] or finite[60_000] or not finite[1000:50_000].all():
            wrong.append(f"infinity and NaN over {wire}")
    try:
        rr.allreduce(special, wire="fp16" if me == 0 else "bf16")
    except rr.MismatchError as error:
        if "One rank sent wire fp16, but another rank sent wire bf16" not in str(error):
            wrong.append(str(error))
    else:
        wrong.append("different wires")
    return wrong


def cut(x: Any) -> list[Any]:
    return [np.ascontiguousarray(part) for part in np.array_split(x, 3)]


def joined(parts: Sequence[Any]) -> Any:
    return np.concatenate(parts)


def fused(parts: Sequence[Any], wire: str) -> list[Any]:
    handles = [rr.allreduce_async_(part, op=rr.Sum, wire=wire) for part in parts]
    return [handle.wait() for handle in handles]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_reduces_over_wires_are_within_bounds_and_the_same_everywhere(layout: str, tmp_path: Path) -> None:
    answers = ask(layout, "all_reduce_over_wires", tmp_path)
    assert answers == [[]] * len(answers)


# --- training ---------------------------------------------------------------------------------------------------------


def train_over_wires() -> dict[str, Any]:
    """For each compression: the loss, how far the parameters are from those without one, and what else was seen."""
    import torch

    import ringreduce.torch as hvd

    torch.set_num_threads(1)
    size, me = hvd.size(), hvd.rank()
    x = torch.sin(torch.arange(24.0 * size * 64).reshape(24 * size, 64) * 0.7) + 0.1
    y = torch.tanh(x @ torch.cos(torch.arange(64.0 * 16).reshape(64, 16))) * 0.5
    mine = slice(me * 24, me * 24 + 24)
    compressions = {
        "none": hvd.Compression.none,
        "fp16": hvd.Compression.fp16,
        "bf16": hvd.Compression.bf16,
        "int8": hvd.Compression.int8,
        "gathered": hvd.Compression.int8(block=64),
    }
    seen: dict[str, Any] = {}
    plain = start = torch.zeros(0)
    for name, compression in compressions.items():
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(64, 300), torch.nn.Tanh(), torch.nn.Linear(300, 16))
        start = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
        inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(inner, compression=compression)
        for step in range(30):
            if step == 1:
                before = hvd.stats()["bytes_on_wire"]
            optimizer.zero_grad()
            (model(x[mine]) - y[mine]).pow(2).mean().backward()
            optimizer.step()
        weights = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
        plain = weights if name == "none" else plain
        assert same_on_all_ranks(weights.numpy()), f"{name}: parameters differ"
        exchanges = [type(one).__name__ for reducer in optimizer._reducers for one in reducer.exchanges]
        seen[name] = {
            "loss": (model(x) - y).pow(2).mean().item(),
            "off": ((weights - plain).norm() / (plain - start).norm()).item(),
            "nbytes": hvd.stats()["bytes_on_wire"] - before,
            "exchanges": exchanges,
        }
    return seen


def test_training_over_wires_ends_where_training_without_does(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for seen in ask("2 + 1", "train_over_wires", tmp_path):
        exact = seen["none"]["loss"]
        for name, limit in {"none": 0.0, "fp16": 2e-3, "bf16": 2e-2, "int8": 5e-2, "gathered": 5e-2}.items():
            assert seen[name]["off"] <= limit, seen
            assert abs(seen[name]["loss"] - exact) <= 0.05 * exact, seen
            assert name == "none" or seen[name]["off"] > 0, seen
        assert seen["fp16"]["exchanges"] == seen["bf16"]["exchanges"] == []  # in registered memory, nothing is cast
        assert seen["int8"]["exchanges"] == ["WiredInt8"]
        assert seen["gathered"]["exchanges"] == ["GatheredInt8"]
        plain = seen["none"]["nbytes"]
        if plain > 1000:  # else the rank takes no part between hosts
            for name, limit in {"fp16": 0.51, "bf16": 0.51, "int8": 0.27}.items():
                assert limit / 2 < seen[name]["nbytes"] / plain <= limit, seen


def torch_over_wires() -> dict[str, Any]:
    """Which calls take a wire, by the dtype that the core sees; and what error feedback keeps."""
    import torch

    import ringreduce.torch as hvd
    from ringreduce.torch.compression import BF16Compressor, FP16Compressor, wire_for

    class Own(FP16Compressor):
        """Casts as its base does, and is not known to."""

    size, me = hvd.size(), hvd.rank()
    everybody = hvd.global_process_set
    single, double = torch.float32, torch.float64
    seen: dict[str, Any] = {
        "wires": [
            wire_for(FP16Compressor, [single], hvd.Average, everybody),
            wire_for(BF16Compressor, [single, single], hvd.Max, everybody),
            wire_for(FP16Compressor, [single], hvd.Product, everybody),
            wire_for(FP16Compressor, [single, double], hvd.Sum, everybody),
            wire_for(Own, [single], hvd.Sum, everybody),
            wire_for(hvd.Compression.none, [single], hvd.Sum, everybody),
            wire_for(hvd.Compression.int8(), [single], hvd.Sum, everybody),
        ]
    }
    alone = hvd.add_process_set([0])
    seen["alone"] = wire_for(FP16Compressor, [single], hvd.Sum, alone)
    # 4097 takes 13 bits: sums of what was cast would be of 4096.
    big = torch.full((20_000,), 4097.0)
    fp16 = hvd.Compression.fp16
    results = {
        "allreduce": hvd.allreduce(big, op=hvd.Sum, compression=fp16),
        "strided": hvd.allreduce(big.reshape(100, 200).t(), op=hvd.Sum, compression=fp16).reshape(-1),
        "grouped": torch.cat(hvd.grouped_allreduce([big[:9000], big[9000:]], op=hvd.Sum, compression=fp16)),
        "double": hvd.allreduce(big.double(), op=hvd.Sum, compression=fp16),
        "own": hvd.allreduce(big, op=hvd.Sum, compression=Own),
        "with a gradient": hvd.allreduce(big.clone().requires_grad_(), op=hvd.Sum, compression=fp16).detach(),
    }
    for name, result in results.items():
        assert result.shape == (20_000,)
        assert (result - 4097.0 * size).abs().max() <= 4097.0 * size * 2.0**-10, name
        assert same_on_all_ranks(result.numpy()), name
    model = torch.nn.Linear(300, 100, bias=False)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.0), op=hvd.Sum, compression=hvd.Compression.int8
    )
    given = torch.zeros(100, 300)
    applied = torch.zeros(100, 300)
    for step in range(8):
        gradients = [torch.from_numpy(values_of(10 * rank + step, 30_000)).view(100, 300) for rank in range(size)]
        optimizer.zero_grad()
        (model.weight * gradients[me]).sum().backward()
        optimizer.step()
        applied += model.weight.grad
        given += sum(gradients)
    (state,) = optimizer.compression_state_dict()[0]
    left = hvd.allreduce(state["exchange"]["error"][:30_000], op=hvd.Sum).view(100, 300)
    seen["lost"] = (applied + left - given).abs().max().item()
    seen["left"] = left.abs().max().item()
    seen["rounding"] = 8 * STEP * sum(gradient.abs().max().item() for gradient in gradients)
    return seen


def test_which_calls_of_torch_take_a_wire_and_what_int8_feeds_back(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    for seen in ask("3 x 1", "torch_over_wires", tmp_path):
        assert seen["wires"] == ["fp16", "bf16", None, None, None, None, None]
        assert seen["alone"] is None
        assert seen["left"] > 0
        assert seen["lost"] <= seen["rounding"]  # of the results; what ranks gave is not lost
