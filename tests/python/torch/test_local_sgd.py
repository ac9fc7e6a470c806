"""LocalSGD, step by step beside a twin in NumPy that knows all ranks; its state, its errors, ranks that leave early."""

from __future__ import annotations

import copy
import io
import os
import warnings
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks, start_ranks

torch = pytest.importorskip("torch")

import ringreduce.torch as hvd  # noqa: E402  # after the check that torch is there
from ringreduce.torch.local_sgd.mixin import Schedule, split  # noqa: E402

SHAPES = ((4, 3), (5,), (2, 2), (7,))
LR = 0.05
STEPS = 23
METHODS: dict[str, dict[str, Any]] = {
    "averaging": {"every": 4},
    "averaging in each step": {"every": 1},
    "post-local": {"every": 3, "warmup": 7},
    "DiLoCo": {"every": 5, "outer": ("diloco", 0.7, 0.9)},
    "SlowMo": {"every": 4, "outer": ("slowmo", 0.5, 1.0)},
    "EASGD": {"every": 3, "outer": ("elastic", 0.6)},
    "streaming": {"every": 6, "outer": ("diloco", 0.7, 0.9), "fragments": 3, "overlap": 2, "mix": 0.5},
    "overlapped averaging": {"every": 5, "fragments": 2, "overlap": 4, "mix": 0.25},
    "all together": {"every": 4, "warmup": 3, "outer": ("slowmo", 0.3, 0.8), "fragments": 4, "overlap": 1},
}


def start(shape: tuple[int, ...], number: int) -> Any:
    return np.sin(np.arange(float(np.prod(shape))) + number).reshape(shape)


def gradient(x: Any, rank: int, step: int, number: int) -> Any:
    """Of a loss that pulls each rank somewhere else, and nonlinearly."""
    return x - np.cos(step + number + rank * np.arange(x.size, dtype=float)).reshape(x.shape) + 0.1 * x**3


class Twin:
    """All ranks' parameters, with plain SGD of momentum 0.5 on each, in float64."""

    def __init__(self, size: int, arguments: dict[str, Any]) -> None:
        self.size, self.a = size, {"warmup": 0, "outer": None, "fragments": 1, "overlap": 0, "mix": 0.0} | arguments
        self.x = [[start(shape, n) for n, shape in enumerate(SHAPES)] for _ in range(size)]
        self.v = [[np.zeros(shape) for shape in SHAPES] for _ in range(size)]
        self.m = [x.copy() for x in self.x[0]]
        self.u: list[Any] = [None] * len(SHAPES)
        self.sent: dict[int, tuple[int, Any]] = {}
        parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
        parts = split(parameters, self.a["fragments"])
        self.fragment_of = [next(f for f, part in enumerate(parts) if any(p is q for q in part)) for p in parameters]

    def step(self, step: int) -> None:
        a = self.a
        for n in range(len(SHAPES)):
            gradients = [gradient(self.x[r][n], r, step, n) for r in range(self.size)]
            if step <= a["warmup"]:
                gradients = [sum(gradients) / self.size] * self.size
            for r in range(self.size):
                self.v[r][n] = 0.5 * self.v[r][n] + gradients[r]
                self.x[r][n] = self.x[r][n] - LR * self.v[r][n]
            if step <= a["warmup"]:
                self.m[n] = self.x[0][n].copy()
        t = step - a["warmup"]
        for n, fragment in enumerate(self.fragment_of):
            if n in self.sent and self.sent[n][0] == t:
                self.take(n, self.sent.pop(n)[1])
            end = (fragment + 1) * a["every"] // a["fragments"]
            if t > 0 and (t - end) % a["every"] == 0:
                mean = sum(self.x[r][n] for r in range(self.size)) / self.size
                if a["overlap"]:
                    self.sent[n] = (t + a["overlap"], mean)
                else:
                    self.take(n, mean)

    def take(self, n: int, mean: Any) -> None:
        before, mix, outer = self.m[n], self.a["mix"], self.a["outer"]
        d = before - mean
        if outer is None:
            self.m[n] = mean
        elif outer[0] == "elastic":
            beta = outer[1]
            self.m[n] = (1 - beta) * before + beta * mean
            for r in range(self.size):
                self.x[r][n] = self.x[r][n] - beta / self.size * (self.x[r][n] - before)
            return
        else:
            lr, momentum = (outer[1], outer[2]) if outer[0] == "diloco" else (outer[2], outer[1])
            self.u[n] = d.copy() if self.u[n] is None else momentum * self.u[n] + d
            self.m[n] = before - lr * (d + momentum * self.u[n] if outer[0] == "diloco" else self.u[n])
        for r in range(self.size):
            self.x[r][n] = mix * self.x[r][n] + (1 - mix) * self.m[n]


def made(arguments: dict[str, Any], dtype: Any = torch.float64, **more: Any) -> tuple[list[Any], Any]:
    parameters = [torch.nn.Parameter(torch.tensor(start(shape, n), dtype=dtype)) for n, shape in enumerate(SHAPES)]
    arguments = dict(arguments)
    if outer := arguments.get("outer"):
        kind, *numbers = outer
        factories: dict[str, Any] = {"diloco": hvd.diloco, "slowmo": hvd.slowmo, "elastic": hvd.ElasticAveraging}
        factory = (factories | {"refuses": lambda: refuse_vectors}).get(kind)
        arguments["outer"] = factory(*numbers) if factory else getattr(torch.optim, kind)
    return parameters, hvd.LocalSGD(torch.optim.SGD(parameters, lr=LR, momentum=0.5), **arguments, **more)


def refuse_vectors(parameters: list[Any]) -> Any:
    """An outer optimizer that takes matrices alone, as Muon does."""
    if any(p.dim() != 2 for p in parameters):
        raise ValueError("of vectors")
    return torch.optim.SGD(parameters, 0.1)


def give_gradients(parameters: list[Any], rank: int, step: int) -> None:
    for n, p in enumerate(parameters):
        p.grad = torch.tensor(gradient(p.detach().double().numpy(), rank, step, n), dtype=p.dtype)


def differences() -> dict[str, float]:
    """By method: how far this rank's parameters are from the twin's, after any step."""
    found = {}
    with hvd.init() as world:
        for method, arguments in METHODS.items():
            parameters, optimizer = made(arguments)
            twin = Twin(world.size, arguments)
            found[method] = 0.0
            for step in range(1, STEPS + 1):
                give_gradients(parameters, world.rank, step)
                optimizer.step()
                twin.step(step)
                for p, x in zip(parameters, twin.x[world.rank], strict=True):
                    found[method] = max(found[method], float(np.abs(p.detach().numpy() - x).max()))
            assert optimizer.local_steps == STEPS
    return found


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_method_is_its_equations(size: int) -> None:
    for found in run_ranks(differences, size):
        assert found.keys() == METHODS.keys()
        assert max(found.values()) < 1e-12, found


def compressed() -> dict[str, tuple[float, float]]:
    """By compression: how far this rank is from the twin after DiLoCo, and how far the twin has moved."""
    found = {}
    with hvd.init() as world:
        for name in ("fp16", "bf16", "int8"):
            arguments = {"every": 5, "outer": ("diloco", 0.7, 0.9)}
            parameters, optimizer = made(arguments, torch.float32, compression=getattr(hvd.Compression, name))
            twin = Twin(world.size, arguments)
            moved = 0.0
            for step in range(1, STEPS + 1):
                give_gradients(parameters, world.rank, step)
                optimizer.step()
                twin.step(step)
                first = [start(shape, n) for n, shape in enumerate(SHAPES)]
                moved = max(moved, *(float(np.abs(x - y).max()) for x, y in zip(twin.m, first, strict=True)))
            off = [np.abs(p.detach().numpy() - x).max() for p, x in zip(parameters, twin.x[world.rank], strict=True)]
            found[name] = (float(max(off)), moved)
    return found


def test_compressed_changes_are_off_by_their_rounding() -> None:
    """Four averagings, each of a change below 1, off by half a unit in the last place each time, times lr and momentum
    at most 5: 4 * 5 * 2^-12 (fp16), 2^-9 (bf16), 1/254 (int8)."""
    for found in run_ranks(compressed, 2):
        for name, unit in (("fp16", 2**-12), ("bf16", 2**-9), ("int8", 1 / 254)):
            off, moved = found[name]
            assert 0 < off < 20 * unit, (name, off)
            assert moved > 0.3


def averaged_by_hand() -> bool:
    with hvd.init() as world:
        torch.manual_seed(world.rank)
        ours, optimizer = made({"every": 1}, torch.float32)
        theirs = [p.detach().clone().requires_grad_() for p in ours]
        by_hand = torch.optim.SGD(theirs, lr=LR, momentum=0.5)
        same = True
        for _ in range(10):
            for p, q in zip(ours, theirs, strict=True):
                p.grad = torch.randn(p.shape)
                q.grad = p.grad.clone()
            optimizer.step()
            by_hand.step()
            with torch.no_grad():
                for q in theirs:
                    q.copy_(hvd.allreduce(q, op=hvd.Average))
            same = same and all(torch.equal(p, q) for p, q in zip(ours, theirs, strict=True))
        return same


def test_averaging_in_each_step_is_parameter_averaging_bit_for_bit() -> None:
    assert run_ranks(averaged_by_hand, 3) == [True] * 3


def resumed(method: str, stop: int) -> bool:
    """Whether a rank that saves after some steps and loads into a new optimizer goes on with the same bits."""
    with hvd.init() as world:
        whole, optimizer = made(METHODS[method])
        for step in range(1, STEPS + 1):
            give_gradients(whole, world.rank, step)
            optimizer.step()
        first, optimizer = made(METHODS[method])
        for step in range(1, stop + 1):
            give_gradients(first, world.rank, step)
            optimizer.step()
        file = io.BytesIO()
        torch.save({"parameters": [p.detach() for p in first], "optimizer": optimizer.state_dict()}, file)
        file.seek(0)
        saved = torch.load(file, weights_only=True)
        second, optimizer = made(METHODS[method])
        with torch.no_grad():
            for p, x in zip(second, saved["parameters"], strict=True):
                p.copy_(x)
        optimizer.load_state_dict(saved["optimizer"])
        for step in range(stop + 1, STEPS + 1):
            give_gradients(second, world.rank, step)
            optimizer.step()
        return all(torch.equal(p, q) for p, q in zip(whole, second, strict=True))


@pytest.mark.parametrize("stop", [2, 7, 13, 14])
def test_a_saved_state_goes_on_with_the_same_bits(stop: int) -> None:
    env = {"RINGREDUCE_CHECK_PARAMETERS": "error"}  # which says nothing of ranks that differ between averagings
    for method in ("streaming", "all together", "averaging", "EASGD"):
        assert run_ranks(resumed, 2, args=(method, stop), env=env) == [True, True]


def uneven() -> tuple[list[float], int]:
    """Rank 1 leaves after 6 of 12 steps. The parameters after the last step, and who joined last."""
    with hvd.init() as world:
        parameters, optimizer = made({"every": 3})
        for step in range(1, (6 if world.rank == 1 else 12) + 1):
            give_gradients(parameters, world.rank, step)
            optimizer.step()
        last = hvd.join()
        hvd.broadcast_parameters(parameters, last)
        return [float(p.sum()) for p in parameters], last


def test_the_others_go_on_when_a_rank_has_joined() -> None:
    outcomes = run_ranks(uneven, 3)
    twin = Twin(3, {"every": 3})
    for step in range(1, 7):
        twin.step(step)
    two = Twin(2, {"every": 3})
    two.x, two.v = [twin.x[0], twin.x[2]], [twin.v[0], twin.v[2]]
    ranks = [0, 2]
    for step in range(7, 13):
        for n in range(len(SHAPES)):
            for at, rank in enumerate(ranks):
                two.v[at][n] = 0.5 * two.v[at][n] + gradient(two.x[at][n], rank, step, n)
                two.x[at][n] = two.x[at][n] - LR * two.v[at][n]
            if step % 3 == 0:
                mean = (two.x[0][n] + two.x[1][n]) / 2
                two.x[0][n] = two.x[1][n] = mean
    for sums, last in outcomes:
        assert last in ranks
        assert sums == pytest.approx([float(x.sum()) for x in two.x[0]], abs=1e-12)


def uneven_epochs(arguments: dict[str, Any], counts: list[list[int]]) -> list[bool]:
    """counts: by epoch, the steps of each rank. By epoch, whether all ranks have the same after synchronize()."""
    alike = []
    with hvd.init() as world:
        parameters, optimizer = made(arguments)
        for steps in counts:
            for step in range(1, steps[world.rank] + 1):
                give_gradients(parameters, world.rank, step)
                optimizer.step()
            if len(set(steps)) == 1:
                optimizer.synchronize()
            else:
                hvd.broadcast_parameters(parameters, hvd.join())
                if len(alike) == 1:
                    optimizer.synchronize()
            whole = torch.cat([p.detach().flatten() for p in parameters])
            alike.append(bool(torch.equal(hvd.allgather(whole[None])[0], whole)))
    return alike


@pytest.mark.parametrize(
    "counts", [[[9, 5], [8, 8]], [[3, 0], [9, 9]], [[9, 5], [2, 0], [0, 7], [8, 8]], [[8, 8], [9, 5], [8, 8]]]
)
@pytest.mark.parametrize("method", ["averaging", "post-local", "DiLoCo", "EASGD", "streaming", "overlapped averaging"])
def test_periods_begin_afresh_after_a_join(method: str, counts: list[list[int]]) -> None:
    assert run_ranks(uneven_epochs, 2, args=(METHODS[method], counts)) == [[True] * len(counts)] * 2


def loaded_after_a_join() -> bool:
    """A state that was saved before join() is what training goes on from."""
    with hvd.init() as world:
        found = []
        for joins in (False, True):
            parameters, optimizer = made(METHODS["DiLoCo"])
            for step in range(1, 13):
                if joins and step == 8:
                    saved = copy.deepcopy(([p.detach() for p in parameters], optimizer.state_dict()))
                    hvd.join()
                    for parameter, value in zip(parameters, saved[0], strict=True):
                        parameter.data.copy_(value)
                    optimizer.load_state_dict(saved[1])
                give_gradients(parameters, world.rank, step)
                optimizer.step()
            found.append(torch.cat([p.detach().flatten() for p in parameters]))
        return bool(torch.equal(*found))


def test_a_state_that_is_loaded_after_a_join() -> None:
    assert run_ranks(loaded_after_a_join, 2) == [True] * 2


def made_with_powersgd(**arguments: Any) -> tuple[Any, Any]:
    """A matrix of zeros that PowerSGD compresses, and an optimizer that leaves it alone between averagings."""
    matrix = torch.nn.Parameter(torch.zeros(8, 8))
    matrix.grad = torch.zeros_like(matrix)
    compression = hvd.Compression.powersgd(rank=1)
    return matrix, hvd.LocalSGD(torch.optim.SGD([matrix], 0.0), every=4, compression=compression, **arguments)


def joined_under_way() -> str:
    """Rank 0 joins between the two parts of an averaging; what rank 1 is told where it takes the second."""
    with hvd.init() as world:
        matrix, optimizer = made_with_powersgd(overlap=2)
        for _ in range(3):
            optimizer.step()
        with torch.no_grad():
            matrix += 2 * (world.rank == 0)
        optimizer.step()
        text = ""
        if world.rank == 1:
            optimizer.step()
            with pytest.raises(hvd.MismatchError) as raised:
                optimizer.step()
            text = str(raised.value)
            assert not matrix.any()
        hvd.join()
        return text


def test_a_join_between_the_parts_of_an_averaging_is_an_error() -> None:
    _, text = run_ranks(joined_under_way, 2)
    assert "a rank has called join() after the first part of a PowerSGD reduction" in text
    assert "overlap=0" in text


def went_on_after_a_join(overlap: int) -> bool:
    """All ranks join in the same step, with an averaging under way where there is overlap: it is left out."""
    with hvd.init() as world:
        matrix, optimizer = made_with_powersgd(overlap=overlap)
        for _ in range(5):
            optimizer.step()
        hvd.join()
        with torch.no_grad():
            matrix.fill_(2.0 * world.rank)
        optimizer.step()
        for _ in range(2 + overlap):
            assert bool((matrix == 2.0 * world.rank).all())  # periods of 4 go on from 5 steps: the next end is 8
            optimizer.step()
        return bool(torch.allclose(matrix, torch.ones(8, 8)))


@pytest.mark.parametrize("overlap", [0, 2])
def test_an_averaging_under_way_is_left_out_after_a_join(overlap: int) -> None:
    assert run_ranks(went_on_after_a_join, 2, args=(overlap,)) == [True] * 2


def powersgd_without_a_rank() -> float:
    """Rank 0 has joined before an averaging of the others begins: theirs is the mean of those that are there."""
    with hvd.init() as world:
        matrix, optimizer = made_with_powersgd()
        optimizer.step()
        if world.rank:
            with torch.no_grad():
                matrix.fill_(2.0 * world.rank)
            for _ in range(3):
                optimizer.step()
        hvd.join()
        return float(matrix.detach().mean())


def test_powersgd_goes_on_without_a_rank_that_has_joined_before() -> None:
    assert run_ranks(powersgd_without_a_rank, 3) == pytest.approx([0.0, 3.0, 3.0])


def killed() -> bool:
    """Rank 1 ends in the middle; the others' parameters after the error are those before the step's averaging."""
    hvd.init()
    parameters, optimizer = made({"every": 2, "outer": ("diloco", 0.7, 0.9), "fragments": 2, "overlap": 0})
    give_gradients(parameters, hvd.rank(), 1)
    optimizer.step()
    if hvd.rank() == 1:
        os._exit(3)
    give_gradients(parameters, hvd.rank(), 2)
    expected = [p.detach().clone() for p in parameters]
    plain = torch.optim.SGD(copies := [torch.nn.Parameter(x) for x in expected], lr=LR, momentum=0.5)
    state = copy.deepcopy(optimizer.state_dict())
    plain.load_state_dict({key: value for key, value in state.items() if key != "local_sgd"})
    for twin, p in zip(copies, parameters, strict=True):
        twin.grad = p.grad.clone()
    plain.step()
    with pytest.raises(hvd.HorovodInternalError):
        optimizer.step()
    with pytest.raises(hvd.HorovodInternalError, match="this rank is apart from the others"):
        optimizer.step()
    saved = optimizer.state_dict()["local_sgd"]
    assert saved["steps"] == 2
    for before, after in zip(state["local_sgd"]["fragments"], saved["fragments"], strict=True):
        assert all(torch.equal(m, n) for m, n in zip(before["common"], after["common"], strict=True))
        assert (after["due"], after["averages"]) == (None, [])
    with pytest.raises(hvd.HorovodInternalError, match="this rank is apart from the others"):
        optimizer.load_state_dict(state)
    return all(torch.equal(p, twin) for p, twin in zip(parameters, copies, strict=True))


def test_a_rank_that_dies_leaves_an_error_and_whole_parameters() -> None:
    with start_ranks(killed, 3) as ranks:
        first, second, third = ranks.wait()
    assert second.status == 3
    assert (first.value, third.value) == (True, True), f"{first}\n{third}"


def synchronized(method: str) -> tuple[bool, bool, bool]:
    """Whether ranks have the same parameters before it, after it, and what they had after it after a second one."""
    with hvd.init() as world:
        parameters, optimizer = made(METHODS[method] | {"every": 10, "warmup": 0})
        for step in range(1, 8):
            give_gradients(parameters, world.rank, step)
            optimizer.step()
        before = hvd.allgather(torch.cat([p.detach().reshape(-1) for p in parameters]).reshape(1, -1))
        optimizer.synchronize()
        after = hvd.allgather(torch.cat([p.detach().reshape(-1) for p in parameters]).reshape(1, -1))
        optimizer.synchronize()
        again = torch.cat([p.detach().reshape(-1) for p in parameters])
        return torch.equal(before[0], before[1]), torch.equal(after[0], after[1]), torch.equal(again, after[0])


@pytest.mark.parametrize("method", ["averaging", "EASGD", "streaming", "overlapped averaging", "DiLoCo"])
def test_synchronize_ends_the_period_on_all_ranks(method: str) -> None:
    assert run_ranks(synchronized, 2, args=(method,)) == [(False, True, True)] * 2


def begun_apart(arguments: dict[str, Any]) -> tuple[list[str], list[bool]]:
    """Where nobody has broadcast: what ranks are warned of, and whether they have the same after each synchronize()."""
    with hvd.init() as world, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parameters, optimizer = made(arguments)
        with torch.no_grad():
            for p in parameters:
                p.mul_(1 + world.rank)
        alike = []
        for step in range(1, 10):
            give_gradients(parameters, world.rank, step)
            optimizer.step()
            if step in (1, 9):
                optimizer.synchronize()
                whole = torch.cat([p.detach().reshape(-1) for p in parameters])
                alike.append(len(set(hvd.allgather_object(whole.numpy().tobytes()))) == 1)
        return [str(one.message) for one in caught], alike


@pytest.mark.parametrize("method", ["averaging", "DiLoCo", "EASGD", "streaming", "compressed"])
def test_ranks_that_begin_apart_are_the_same_after_synchronize(method: str) -> None:
    arguments = METHODS.get(method) or {"every": 3, "compression": hvd.Compression.fp16}
    (first, alike), *others = run_ranks(begun_apart, 3, args=(arguments | {"warmup": 0},))
    assert len(first) == 1
    assert first[0].startswith("LocalSGD, first step: parameter 0 is not the same on all ranks; 4 of 4 tensors differ")
    assert [alike, *others] == [[True, True], *[([], [True, True])] * 2]


def compared_after_a_join() -> tuple[list[str], list[str]]:
    """Rank 0 has joined when the others begin apart: warnings until then, and of the first step of all."""
    with hvd.init() as world, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        parameters, optimizer = made(METHODS["DiLoCo"])
        with torch.no_grad():
            for p in parameters:
                p.mul_(1 + world.rank)
        for step in range(1, 8 if world.rank else 1):
            give_gradients(parameters, world.rank, step)
            optimizer.step()
        hvd.join()
        before = [str(one.message) for one in caught]
        give_gradients(parameters, world.rank, 1)
        optimizer.step()
        return before, [str(one.message) for one in caught][len(before) :]


def test_parameters_are_compared_after_a_rank_had_joined_before_the_first_step() -> None:
    (before, after), *others = run_ranks(compared_after_a_join, 3)
    assert [before, *others] == [[], ([], []), ([], [])]
    assert len(after) == 1
    assert "parameter 0 is not the same on all ranks" in after[0]


def after_an_averaging_under_way() -> bool:
    """Whether synchronize() takes the mean of what ranks have now, and not what they had when an averaging began."""
    with hvd.init() as world:
        parameters, optimizer = made({"every": 4, "overlap": 3})
        for step in range(1, 7):
            give_gradients(parameters, world.rank, step)
            optimizer.step()
        means = [hvd.allreduce(p.detach(), op=hvd.Average) for p in parameters]
        optimizer.synchronize()
        return all(torch.equal(p, mean) for p, mean in zip(parameters, means, strict=True))


def test_synchronize_leaves_out_no_step() -> None:
    assert run_ranks(after_an_averaging_under_way, 2) == [True, True]


def loaded_under_way() -> float:
    """Of a plain optimizer's state, while an averaging is under way: the training begins anew."""
    with hvd.init() as world:
        fresh, begun = made({"every": 4, "overlap": 3}), made({"every": 4, "overlap": 3})
        plain = torch.optim.SGD([torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES], LR, momentum=0.5)
        for step in range(1, 6):
            give_gradients(begun[0], world.rank, step)
            begun[1].step()
        with torch.no_grad():
            for p, q in zip(begun[0], fresh[0], strict=True):
                p.copy_(q)
        for _, optimizer in (fresh, begun):
            optimizer.load_state_dict(plain.state_dict())
        for step in range(1, 9):
            for parameters, optimizer in (fresh, begun):
                give_gradients(parameters, world.rank, step)
                optimizer.step()
        return max(float((p - q).abs().max()) for p, q in zip(fresh[0], begun[0], strict=True))


def test_a_state_that_is_loaded_replaces_an_averaging_under_way() -> None:
    assert run_ranks(loaded_under_way, 2) == [0.0, 0.0]


def bytes_moved() -> tuple[int, int]:
    """Of 40 steps with one averaging, and of 40 with one in each."""
    found = []
    with hvd.init():
        for every in (40, 1):
            parameters = [torch.nn.Parameter(torch.zeros(1000))]
            optimizer = hvd.LocalSGD(torch.optim.SGD(parameters, 0.1), every=every)
            parameters[0].grad = torch.ones(1000)
            optimizer.step()
            before = hvd.stats()["bytes_moved"]
            for _ in range(39 if every == 40 else 40):
                optimizer.step()
            found.append(hvd.stats()["bytes_moved"] - before)
    return found[0], found[1]


def test_bytes_go_down_with_the_steps_between_averagings() -> None:
    for rarely, always in run_ranks(bytes_moved, 2):
        assert always == 40 * rarely
        assert rarely == 4000 + 8


def warm_like_distributed_optimizer() -> bool:
    """In warmup all ranks step alike, with sparse gradients, missing ones, and a closure."""
    with hvd.init() as world:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Embedding(8, 3, sparse=True), torch.nn.Linear(3, 2))
        unused = torch.nn.Parameter(torch.ones(2))
        parameters = [*model.parameters(), unused]
        optimizer = hvd.LocalSGD(torch.optim.SGD(parameters, 0.1), every=5, warmup=3)

        def closure() -> Any:
            optimizer.zero_grad()
            loss = model(torch.tensor([world.rank, 7])).square().sum()
            loss.backward()
            return loss

        assert optimizer.step(closure) is not None
        for _ in range(2):
            closure()
            optimizer.step()
        rows = hvd.allgather(torch.cat([p.detach().reshape(-1) for p in parameters]).reshape(1, -1))
        return torch.equal(rows[0], rows[1])


def test_warmup_steps_are_the_same_on_all_ranks() -> None:
    assert run_ranks(warm_like_distributed_optimizer, 2) == [True, True]


def different(what: str) -> None:
    hvd.init()
    if what == "outer":
        outer = hvd.diloco(0.7 if hvd.rank() == 0 else 0.1)
        hvd.LocalSGD(torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], 0.1), every=5, outer=outer)
    parameters = [torch.nn.Parameter(torch.zeros(2 + (what == "parameters" and hvd.rank() == 1)))]
    hvd.LocalSGD(torch.optim.SGD(parameters, 0.1), every=5 + (what == "arguments" and hvd.rank() == 1))


@pytest.mark.parametrize("what", ["arguments", "parameters", "outer"])
def test_ranks_that_differ_are_told_so(what: str) -> None:
    with start_ranks(different, 2, args=(what,)) as ranks:
        for outcome in ranks.wait():
            assert outcome.kind == "MismatchError", outcome
            text = "arguments" if what == "outer" else what
            assert f"rank 0 and rank 1 have different {text}" in str(outcome.error)


def loaded_by_one_rank() -> None:
    """And sent to the others as Horovod's users do, by broadcast_optimizer_state()."""
    hvd.init()
    parameters, optimizer = made({"every": 3})
    for step in range(1, 3):
        give_gradients(parameters, hvd.rank(), step)
        optimizer.step()
    state = optimizer.state_dict()
    parameters, optimizer = made({"every": 3})
    if hvd.rank() == 0:
        optimizer.load_state_dict(state)
    hvd.broadcast_optimizer_state(optimizer, 0)
    give_gradients(parameters, hvd.rank(), 3)
    optimizer.step()


def test_a_state_that_one_rank_has_loaded_is_an_error_on_all() -> None:
    with start_ranks(loaded_by_one_rank, 2) as ranks:
        for outcome in ranks.wait():
            assert outcome.kind == "MismatchError", outcome
            assert "load_state_dict() on all ranks" in str(outcome.error)


def stepped_by_muon() -> tuple[bool, bool]:
    """Ranks with other numbers of threads: the same after synchronize(), and whether the number is left as it was."""
    with hvd.init() as world:
        before = torch.get_num_threads()
        torch.set_num_threads(1 + 2 * world.rank)
        matrix = torch.nn.Parameter(torch.zeros(384, 300))
        optimizer = hvd.LocalSGD(
            torch.optim.SGD([matrix], 0.1), every=2, outer=lambda ps: torch.optim.Muon(ps, lr=0.02)
        )
        generator = torch.Generator().manual_seed(5 + world.rank)
        for _ in range(4):
            matrix.grad = torch.randn(384, 300, generator=generator)
            optimizer.step()
        optimizer.synchronize()
        is_left = torch.get_num_threads() == 1 + 2 * world.rank
        torch.set_num_threads(before)
        rows = hvd.allgather(matrix.detach()[None])
        return torch.equal(rows[0], rows[1]), is_left


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon from 2.9 on")
def test_outer_steps_have_the_same_bits_with_other_numbers_of_threads() -> None:
    assert run_ranks(stepped_by_muon, 2) == [(True, True)] * 2


def broadcast_under_way() -> tuple[list[str], float, float]:
    """While an averaging of two parts is under way: what of the state has come, and what the averaging gives then."""
    with hvd.init() as world:
        matrix = torch.nn.Parameter(torch.zeros(8, 8))
        inner = torch.optim.SGD([matrix], 0.0, momentum=0.5)
        compression = hvd.Compression.powersgd(rank=1)
        optimizer = hvd.LocalSGD(inner, every=4, overlap=2, outer=hvd.diloco(1.0, 0.0), compression=compression)
        matrix.grad = torch.full((8, 8), 1.0 + world.rank)
        for _ in range(3):
            optimizer.step()
        with torch.no_grad():
            matrix += 2 * world.rank
        optimizer.step()
        hvd.broadcast_optimizer_state(optimizer, 0)
        momentum = float(optimizer.state[matrix]["momentum_buffer"].mean())
        for _ in range(2):
            optimizer.step()
        return sorted(optimizer.state[matrix]), momentum, float(matrix.detach().mean())


def test_broadcast_optimizer_state_leaves_an_averaging_under_way_alone() -> None:
    (names, momentum, mean), other = run_ranks(broadcast_under_way, 2)
    assert other == (names, momentum, mean)
    assert (names, momentum) == (["momentum_buffer"], 1.875)
    assert mean == pytest.approx(1.0)


def made_more_often_on_one_rank() -> float:
    from ringreduce.torch import local_sgd

    with hvd.init() as world:
        local_sgd._made = 3 * world.rank
        parameters, optimizer = made({"every": 1})
        give_gradients(parameters, world.rank, 1)
        optimizer.step()
        return float(parameters[0].sum())


def test_ranks_may_have_made_other_numbers_of_optimizers() -> None:
    one, other = run_ranks(made_more_often_on_one_rank, 2)
    assert one == other


WRONG: dict[str, dict[str, Any]] = {
    "every is a whole number": {"every": 0},
    "every is a whole number, 1 or more, not True": {"every": True},
    "warmup is a whole number": {"every": 2, "warmup": -1},
    "overlap is a number of steps below every=2, not False": {"every": 2, "overlap": False},
    "compression='fp16' is no compressor": {"every": 2, "compression": "fp16"},
    "fragments is a whole number": {"every": 2, "fragments": 0},
    "3 fragments, but 2 steps": {"every": 2, "fragments": 3},
    "5 fragments, but 9 steps between averagings and 4": {"every": 9, "fragments": 5},
    "overlap is a number of steps below every=2": {"every": 2, "overlap": 2},
    "mix is 0 or more, and less than 1": {"every": 2, "mix": 1.0},
    "is or gives a float": {"every": 2, "outer": 0.7},
    "is or gives a function": {"every": 2, "outer": hvd.diloco},
    "outer raised ValueError (of vectors)": {"every": 2, "outer": ("refuses",)},
    "leave mix out": {"every": 2, "outer": ("elastic", 0.5), "mix": 0.5},
}


def refusals() -> list[str]:
    """Which wrong arguments were not refused as they should be."""
    left = []
    with hvd.init():
        for text, arguments in WRONG.items():
            try:
                if "is or gives" in text:
                    hvd.LocalSGD(torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], 0.1), **arguments)
                else:
                    made(arguments)
                left.append(text)
            except ValueError as error:
                if text not in str(error):
                    left.append(f"{text}: {error}")
        for beta in (0, 1.5):
            with pytest.raises(ValueError, match="beta is above 0 and at most 1"):
                hvd.ElasticAveraging(beta)
        _, optimizer = made({"every": 2})
        with pytest.raises(ValueError, match="takes a plain torch optimizer"):
            hvd.LocalSGD(optimizer, every=2)
        with pytest.raises(ValueError, match=r"LocalSGD: optimizer is a torch.optim.Optimizer, .* not a Linear"):
            hvd.LocalSGD(torch.nn.Linear(2, 2), every=5)
        with pytest.raises(ValueError, match="make a new LocalSGD"):
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))]})
        with pytest.raises(ValueError, match="LBFGS"):
            hvd.LocalSGD(torch.optim.LBFGS([torch.nn.Parameter(torch.ones(1))]), every=2, warmup=1)
        scaler = torch.amp.GradScaler("cpu")
        scaler.scale(torch.ones(1))
        with pytest.raises(ValueError, match="leaves out steps on the rank alone"):
            scaler.step(optimizer)
        frozen = torch.nn.Parameter(torch.ones(1), requires_grad=False)
        thawing = hvd.LocalSGD(torch.optim.SGD([frozen, torch.nn.Parameter(torch.ones(1))], 0.1), every=2)
        thawing.step()
        frozen.requires_grad_()
        with pytest.raises(ValueError, match="requires a gradient now"):
            thawing.step()
        state = made({"every": 2, "fragments": 2})[1]
        state.step()
        with pytest.raises(ValueError, match="the state is of other arguments"):
            optimizer.load_state_dict(state.state_dict())
    return left


OTHER: dict[str, dict[str, Any]] = {
    "slowmo": {"every": 2, "outer": ("slowmo", 0.5)},
    "other learning rate": {"every": 2, "outer": ("diloco", 0.4)},
    "elastic": {"every": 2, "outer": ("elastic", 0.5)},
    "no outer": {"every": 2},
    "Adam": {"every": 2, "outer": ("Adam",)},
    "int8": {"every": 2, "outer": ("diloco",), "compression": hvd.Compression.int8},
    "every": {"every": 3, "outer": ("diloco",)},
}
KINDS: dict[str, Any] = {
    "none": None,
    "fp16": hvd.Compression.fp16,
    "int8": hvd.Compression.int8,
    "int8 of 64": hvd.Compression.int8(block=64),
    "powersgd": hvd.Compression.powersgd,
}


def loaded_into_others() -> list[str]:
    """Which states of other arguments were loaded, or have left something behind."""
    left = []

    def try_to_load(state: Any, into: Any, what: str) -> None:
        before = into.state_dict()
        try:
            into.load_state_dict(state)
        except ValueError as error:
            if "the state is of other arguments" not in str(error) or repr(into.state_dict()) != repr(before):
                left.append(f"{what}: {error}")
        else:
            left.append(what)

    with hvd.init():
        parameters, optimizer = made({"every": 2, "outer": ("diloco",)})
        for step in range(1, 3):
            give_gradients(parameters, 0, step)
            optimizer.step()
        state = optimizer.state_dict()
        for what, arguments in OTHER.items():
            try_to_load(state, made(arguments)[1], what)
        made({"every": 2, "outer": ("diloco",)})[1].load_state_dict(state)

        warming = made({"every": 2, "warmup": 10})[1]
        warming.step()
        try_to_load(warming.state_dict(), made({"every": 7, "warmup": 2})[1], "warmup")
        nameless = copy.deepcopy(state)
        del nameless["local_sgd"]["arguments"]
        try_to_load(nameless, made({"every": 2, "outer": ("diloco",)})[1], "no arguments")

        for one, first in KINDS.items():
            saved = made({"every": 2, "outer": ("diloco",)}, torch.float32, compression=first)[1]
            saved.step()
            state = saved.state_dict()
            for other, second in KINDS.items():
                into = made({"every": 2, "outer": ("diloco",)}, torch.float32, compression=second)[1]
                if one == other:
                    into.load_state_dict(state)
                else:
                    try_to_load(state, into, f"{one} into {other}")
    return left


def test_a_state_of_other_arguments_is_refused_before_anything_is_loaded() -> None:
    assert run_ranks(loaded_into_others, 1) == [[]]


def test_wrong_arguments_are_refused() -> None:
    assert run_ranks(refusals, 1) == [[]]


def test_fragments_are_spread_over_the_period() -> None:
    schedule = Schedule(10, 0, 3, 0, 0.0, None)
    begins = {step: schedule.begins(step) for step in range(21) if schedule.begins(step)}
    assert begins == {3: [0], 6: [1], 10: [2], 13: [0], 16: [1], 20: [2]}
    parameters = [torch.nn.Parameter(torch.zeros(n)) for n in (100, 1, 1, 1, 100, 1)]
    for count in range(1, 7):
        parts = split(parameters, count)
        assert len(parts) == count
        assert all(parts)
        assert [p for part in parts for p in part] == parameters
