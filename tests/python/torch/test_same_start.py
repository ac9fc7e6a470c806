"""RINGREDUCE_CHECK_PARAMETERS: an optimizer's first step says whether the ranks start from the same values."""

import os
import warnings
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ringreduce.torch as hvd  # noqa: E402


def errors_of_two_steps(model: Any, optimizer: Any) -> list[str]:
    """With another gradient on each rank: after the first step ranks' own momenta differ, where they have any."""
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.full((2, 3), hvd.rank() + 1.0)).sum().backward()
        try:
            optimizer.step()
        except hvd.MismatchError as error:
            return [str(error)]
    return []


def first_steps(mode: str, differs: str, shards: bool) -> tuple[list[str], bool]:
    """What two steps warned of or raised, and whether the ranks end with the same parameters."""
    os.environ["RINGREDUCE_CHECK_PARAMETERS"] = mode
    with hvd.init() as world, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2), torch.nn.Linear(2, 1))
        options = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.5 if differs == "options" else 0}
        if differs == "options" and world.rank != 0:
            options = {"lr": 1}  # torch's defaults of the others are the int 0
        plain = torch.optim.SGD(model.parameters(), **options)
        if differs == "state":
            model(torch.ones(2, 3)).sum().backward()
            plain.step()
            plain.zero_grad()
        with torch.no_grad():
            if differs == "parameter" and world.rank == 2:
                model[2].weight[0, 1] += 1e-6
            if differs == "state" and world.rank == 1:
                plain.state[model[1].bias]["momentum_buffer"] += 1
            if differs == "state of one" and world.rank == 0:
                plain.state[model[1].bias]["momentum_buffer"] = torch.ones(2)
        optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), shard_step=shards)
        raised = errors_of_two_steps(model, optimizer)
        warned = [one for one in caught if "first step" in str(one.message)]
        assert all(one.filename == __file__ for one in warned)
        texts = [str(one.message) for one in warned] + raised
        ends = hvd.allgather_object([parameter.tolist() for parameter in model.parameters()])
        return texts, all(end == ends[0] for end in ends)


NAMED = {
    "parameter": "2.weight is not the same on all ranks; 1 of 7 tensors differ",
    "state": "the optimizer's momentum_buffer of 1.bias is not the same on all ranks; 1 of 13",
    "state of one": "the ranks have state of other parameters",
    "options": "an option (dampening, lr, momentum, weight_decay) of parameter group 0 is not the same on all ranks",
}
SAME = [("error", "nothing", False), ("error", "nothing", True)]
OTHER = [(mode, differs, False) for differs in NAMED for mode in ("warn", "error", "off")]
MENDED = [("broadcast", differs, False) for differs in ("parameter", "state", "options")]


def every_case() -> dict[tuple[str, str, bool], tuple[list[str], bool]]:
    return {case: first_steps(*case) for case in [*SAME, *OTHER, *MENDED]}


def test_what_the_ranks_start_from(run_ranks: Callable[..., Any]) -> None:
    ranks = run_ranks(every_case, 3)
    for case in [*SAME, *MENDED]:
        assert [rank[case] for rank in ranks] == [([], True)] * 3, case
    for differs, named in NAMED.items():
        warned = [rank["warn", differs, False] for rank in ranks]
        assert [len(texts) for texts, _ in warned] == [1, 0, 0]  # once in the job
        assert named in warned[0][0][0]
        assert "hvd.broadcast_parameters" in warned[0][0][0]
        assert not any(same for _, same in warned)
        assert [rank["error", differs, False][0] for rank in ranks] == [warned[0][0]] * 3
        assert [rank["off", differs, False] for rank in ranks] == [([], False)] * 3


def start_adasum() -> dict[str, tuple[list[str], bool]]:
    """By mode: what two steps warned of or raised, and whether the ranks end with the same parameters."""
    found = {}
    for mode in ("warn", "error", "broadcast", "off"):
        os.environ["RINGREDUCE_CHECK_PARAMETERS"] = mode
        with hvd.init() as world, warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.manual_seed(world.rank)
            model = torch.nn.Linear(3, 2)
            plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            optimizer = hvd.DistributedOptimizer(plain, model.named_parameters(), op=hvd.Adasum)
            raised = errors_of_two_steps(model, optimizer)
            texts = [str(one.message) for one in caught if "first step" in str(one.message)] + raised
            ends = hvd.allgather_object([parameter.tolist() for parameter in model.parameters()])
            found[mode] = texts, ends[0] == ends[1]
    return found


def test_adasum_compares_the_parameters(run_ranks: Callable[..., Any]) -> None:
    first, second = run_ranks(start_adasum, 2)
    texts, _ = first["warn"]
    assert len(texts) == 1
    assert "weight is not the same on all ranks; 2 of 3 tensors differ" in texts[0]
    assert second["warn"] == ([], False)
    assert first["error"] == second["error"] == (texts, False)
    assert first["broadcast"] == second["broadcast"] == ([], True)
    assert first["off"] == second["off"] == ([], False)


def other_modes() -> str:
    os.environ["RINGREDUCE_CHECK_PARAMETERS"] = "warn" if os.environ["RINGREDUCE_RANK"] == "0" else "off"
    with hvd.init():
        model = torch.nn.Linear(2, 1)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))
        model(torch.ones(1, 2)).sum().backward()
        with pytest.raises(hvd.MismatchError) as caught:
            optimizer.step()
        return str(caught.value)


def test_the_knob_is_the_same_everywhere(run_ranks: Callable[..., Any]) -> None:
    assert [text.split(",")[0] for text in run_ranks(other_modes, 2)] == [
        "RINGREDUCE_CHECK_PARAMETERS is warn on rank 0",
        "RINGREDUCE_CHECK_PARAMETERS is off on rank 1",
    ]


def join_before_the_first_step() -> list[list[float]]:
    """Rank 0 has no batch in the first epoch, and all have some in the second. The bias after each step."""
    biases = []
    with hvd.init() as world:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model.named_parameters())
        for epoch, steps in enumerate([0 if world.rank == 0 else world.rank, 2]):
            for _ in range(steps):
                optimizer.zero_grad()
                (model(torch.ones(1, 3)) * 3.0 * (world.rank + 1)).sum().backward()
                optimizer.step()
                biases.append(model[1].bias.item())
            hvd.join()
            if epoch == 0:
                hvd.broadcast_parameters(model.state_dict(), root_rank=2)
    return biases


def test_a_rank_without_batches_joins_before_the_first_step(run_ranks: Callable[..., Any]) -> None:
    none, one, two = run_ranks(join_before_the_first_step, 3)
    # The gradient of the bias is 3 (rank + 1); an average divides by all three ranks, joined or not.
    assert two[0] - two[1] == pytest.approx(3.0)  # rank 2 alone
    assert one[0] == two[0]  # ranks 1 and 2: less by (6 + 9) / 3
    assert [value - two[1] for value in two[2:]] == pytest.approx([-6.0, -12.0])
    assert none == one[1:] == two[2:]


def warned_of(step: Callable[[], object]) -> list[str]:
    """What a call warned of that is about values that ranks start from."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step()
    return [str(one.message) for one in caught if "first step" in str(one.message)]


def later_differences(with_new_values: bool, adasum: bool) -> tuple[list[str], list[str], list[str]]:
    """What is said in a step after another one; after join(); and after parameters were added."""
    with hvd.init() as world:
        body, head = torch.nn.Linear(3, 2, bias=False), torch.nn.Linear(2, 1, bias=False)
        torch.nn.init.ones_(body.weight)
        torch.nn.init.constant_(head.weight, 1.0 + (world.rank if with_new_values else 0))
        plain = torch.optim.SGD(body.parameters(), lr=0.1)
        op = hvd.Adasum if adasum else hvd.Average
        optimizer = hvd.DistributedOptimizer(plain, body.named_parameters(), op=op)

        def step() -> None:
            optimizer.zero_grad()
            head(body(torch.full((2, 3), world.rank + 1.0))).sum().backward()
            optimizer.step()

        step()
        without = warned_of(step)
        if world.rank == 1 and with_new_values and not adasum:
            step()  # the other rank has no batch left; Adasum takes all ranks
        last = hvd.join()
        joined = warned_of(step)
        hvd.broadcast_parameters(body.state_dict(), root_rank=last)
        optimizer.add_param_group({"params": list(head.parameters())})
        return without, joined, warned_of(step)


def test_what_differs_later_is_said_too(run_ranks: Callable[..., Any]) -> None:
    first, (joined,), (added,) = run_ranks(later_differences, 2, args=[True, False])[0]  # the first rank warns
    assert first == []
    assert "broadcast_parameters(model.state_dict(), root_rank=1)" in joined  # it has taken all steps
    assert joined.startswith("DistributedOptimizer after join(), first step: weight is not the same on all ranks; 1 of")
    assert "DistributedOptimizer with new parameters, first step: allreduce.noname.1.0 is not the same" in added
    first, joined, (added,) = run_ranks(later_differences, 2, args=[True, True])[0]
    assert (first, joined) == ([], [])
    assert "DistributedOptimizer with new parameters, first step: " in added
    assert run_ranks(later_differences, 2, args=[False, False]) == [([], [], [])] * 2
