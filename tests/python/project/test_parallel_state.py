"""The examples of parallel training that split experts, state, activations and devices: each against one rank."""

import copy
import io
import json
import pydoc_data.topics
import runpy
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from example_runs import EXAMPLES, example, run
from ranks import run_ranks

pytest.importorskip("torch")

TOLERANCE = 1e-10
DOUBLE = 8  # bytes
KINDS = len(set("\n".join(pydoc_data.topics.topics.values())))  # characters of the text


def result_of(script: str, ranks: int, path: Path, *options: str) -> dict[str, Any]:
    """What an example writes, checked against one rank."""
    arguments = (f"parallel/{script}", "--check", "--json", str(path / "result.json"), *options)
    printed = run_ranks(example, ranks, args=arguments)
    assert "equal to one rank: largest difference" in printed[0]
    assert not any(printed[1:])
    result: dict[str, Any] = json.loads((path / "result.json").read_text())
    assert result["ranks"] == ranks
    assert 0 <= result["difference"] <= TOLERANCE
    assert result["losses"][-1] < result["losses"][0]
    return result


def refusal(script: str, *options: str) -> str:
    """In a rank: what an example says when it gives up."""
    with pytest.raises(SystemExit) as refused:
        example(f"parallel/{script}", *options)
    return str(refused.value)


# --- mixture of experts

MIXTURE = ("--experts", "8", "--width", "8", "--rows", "4", "--length", "16", "--steps", "30")


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("top", [1, 2])
def test_mixture_of_experts(top: int, ranks: int, tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    options = (*MIXTURE, "--top", str(top), "--picture", str(picture))
    result = result_of("mixture_of_experts.py", ranks, tmp_path, *options)
    kinds, width, length, tokens, experts = KINDS, 8, 16, 4 * 16, 8
    shared = kinds * width + length * width + 4 * width * width + width + width * experts + (width + 1) * kinds
    assert all(sum(load) == top * tokens for load in result["loads"])
    if ranks > 1:
        assert result["nbytes"] == 4 * top * tokens / ranks * width * DOUBLE + (shared + 2 * experts + 1) * DOUBLE
    else:
        assert result["nbytes"] == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_experts_without_tokens(tmp_path: Path) -> None:
    options = ("--experts", "16", "--width", "8", "--rows", "4", "--length", "2", "--steps", "40", "--top", "1")
    result = result_of("mixture_of_experts.py", 4, tmp_path, *options)
    assert min(map(min, result["loads"])) == 0


def test_mixture_of_experts_tells_what_cannot_be_split() -> None:
    for text in run_ranks(refusal, 3, args=("mixture_of_experts.py", *MIXTURE)):
        assert text == "8 experts and 4 rows cannot be split over 3 ranks"


def mixture_without(broken: str) -> str:
    import torch

    import ringreduce.torch as hvd

    allreduce, alltoall = hvd.allreduce, hvd.alltoall
    if broken == "sum of gradients":
        hvd.grouped_allreduce = lambda tensors, op: tensors
    elif broken == "tokens of all ranks":  # each rank balances the load of its own tokens
        hvd.allreduce = lambda tensor, op: tensor if tensor.dtype == torch.int64 else allreduce(tensor, op=op)
    else:  # rows come back, but their gradients do not
        hvd.alltoall = lambda tensor, **splits: alltoall(tensor.detach(), **splits)
    return refusal("mixture_of_experts.py", "--check", *MIXTURE)


@pytest.mark.parametrize("broken", ["sum of gradients", "tokens of all ranks", "gradient of the all-to-all"])
def test_mixture_of_experts_without(broken: str) -> None:
    for text in run_ranks(mixture_without, 2, args=(broken,)):
        assert text.startswith("step 0: the ranks' model differs by ")


# --- sharded optimizer state

SMALL = ("--width", "8", "--rows", "4", "--length", "16", "--steps", "6")


def padded(nbytes: int, multiple: int) -> int:
    return -(-nbytes // multiple) * multiple


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_zero1(ranks: int, tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    result = result_of("zero1.py", ranks, tmp_path, *SMALL, "--picture", str(picture))
    sizes = result["parameters"]
    assert sum(sizes) == 2 * KINDS * 8 + KINDS + 16 * 8 + 2 * (12 * 8 * 8 + 6 * 8)
    # Parameters and shares begin at multiples of 64 bytes.
    nbytes = padded(sum(padded(DOUBLE * size, 64) for size in sizes), 64 * ranks)
    assert result["nbytes"] == DOUBLE + (nbytes + nbytes // ranks if ranks > 1 else 0)
    assert result["whole"] == (2 * sum(sizes) + len(sizes)) * DOUBLE  # two momenta, and a count of steps each
    held = 2 * nbytes // ranks + DOUBLE
    assert result["held"] == (ranks * [held] if ranks > 1 else [result["whole"]])
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_zero1_tells_what_does_not_fit() -> None:
    for text in run_ranks(refusal, 3, args=("zero1.py", *SMALL)):
        assert text == "4 rows cannot be split over 3 ranks"
    for text in run_ranks(refusal, 2, args=("zero1.py", "--steps", "1")):
        assert text.startswith("--steps 1: bytes are counted from the second step")


def zero1_without(broken: str) -> str:
    import ringreduce.torch as hvd

    make = hvd.DistributedOptimizer
    if broken == "reduction":
        hvd.DistributedOptimizer = lambda optimizer, **_: optimizer
    else:
        hvd.DistributedOptimizer = lambda optimizer, **options: make(optimizer, **options, op=hvd.Sum)
    return refusal("zero1.py", "--check", *SMALL)


@pytest.mark.parametrize("broken", ["reduction", "average"])
def test_zero1_without(broken: str) -> None:
    for text in run_ranks(zero1_without, 2, args=(broken,)):
        assert text.startswith("step 0: the ranks' model differs by ")


# --- FSDP2 over the backend


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_fsdp2(ranks: int, tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    result = result_of("fsdp2.py", ranks, tmp_path, *SMALL, "--picture", str(picture))

    def rows_of(*shapes: tuple[int, int]) -> int:  # bytes, with as many rows on each rank
        return sum(padded(rows, ranks) * columns * DOUBLE for rows, columns in shapes)

    block = rows_of((24, 8), (8, 8), (8, 1), (32, 8), (32, 1), (8, 32), (8, 1))
    rest = rows_of((KINDS, 8), (16, 8), (KINDS, 8), (KINDS, 1))
    moved = (2 * 2 * block + rest) // ranks + 2 * block + rest
    assert result["nbytes"] == DOUBLE + (moved if ranks > 1 else 0)
    assert result["whole"] == sum(result["held"])
    assert max(result["held"]) == (2 * block + rest) // ranks
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_fsdp2_tells_what_does_not_fit() -> None:
    for text in run_ranks(refusal, 3, args=("fsdp2.py", *SMALL)):
        assert text == "4 rows cannot be split over 3 ranks"


def fsdp2_without(broken: str) -> str:
    import torch
    import torch.distributed as dist
    import torch.distributed.fsdp

    fully_shard = torch.distributed.fsdp.fully_shard

    def own(output: torch.Tensor, input: torch.Tensor, **_: Any) -> None:
        output.copy_(input.chunk(dist.get_world_size())[dist.get_rank()])

    def summing(module: Any, **options: Any) -> None:
        fully_shard(module, **options).set_gradient_divide_factor(1.0)

    if broken == "reduction":  # FSDP2 calls the second since torch 2.13, and the first before
        dist.reduce_scatter_tensor = dist.reduce_scatter_single = own
    else:
        torch.distributed.fsdp.fully_shard = summing
    return refusal("fsdp2.py", "--check", *SMALL)


@pytest.mark.parametrize("broken", ["reduction", "average"])
def test_fsdp2_without(broken: str) -> None:
    for text in run_ranks(fsdp2_without, 2, args=(broken,)):
        assert text.startswith("step 0: the ranks' model differs by ")


# --- checkpointing and offload


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("copies", [(), ("--second-copy",)])
def test_checkpoint_offload(copies: tuple[str, ...], ranks: int, tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    options = (*SMALL, "--layers", "2", *copies, "--picture", str(picture))
    result = result_of("checkpoint_offload.py", ranks, tmp_path, *options)
    blocks = 2 * [24 * 8, 8 * 8, 8, 32 * 8, 32, 8 * 32, 8]
    sizes = [KINDS * 8, 16 * 8, *blocks, KINDS * 8, KINDS]
    moved = sum(padded(DOUBLE * size, 64) for size in sizes)
    assert result["nbytes"] == DOUBLE + (moved if ranks > 1 else 0)
    assert result["state"] == (2 * sum(sizes) + len(sizes)) * DOUBLE
    assert result["copied"] == (3 * sum(sizes) * DOUBLE if copies else 0)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_checkpointed_block_keeps_its_input_alone(ranks: int, tmp_path: Path) -> None:
    saved = []
    for layers in (2, 3, 4):
        options = (*SMALL, "--layers", str(layers))
        saved.append(result_of("checkpoint_offload.py", ranks, tmp_path, *options)["saved"])
    plain, checkpointed = ([more[form] - less[form] for less, more in pairwise(saved)] for form in (0, 1))
    its_input = 4 // ranks * 16 * 8 * DOUBLE
    assert checkpointed == [its_input, its_input]
    assert plain[0] == plain[1] > 10 * its_input


def test_checkpoint_offload_tells_what_does_not_fit() -> None:
    for text in run_ranks(refusal, 3, args=("checkpoint_offload.py", *SMALL)):
        assert text == "4 rows cannot be split over 3 ranks"


def checkpoint_offload_without(broken: str) -> str:
    import torch.utils.checkpoint

    import ringreduce.torch as hvd

    make = hvd.DistributedOptimizer

    def forgetful(optimizer: Any) -> Any:
        optimizer.copies = False  # no parameter comes back from its second copy
        return make(optimizer)

    if broken == "reduction":
        hvd.DistributedOptimizer = lambda optimizer: optimizer
    elif broken == "copies":
        hvd.DistributedOptimizer = forgetful
    else:
        torch.utils.checkpoint.checkpoint = lambda block, x, **_: x + (block(x) - x).detach()
    return refusal("checkpoint_offload.py", "--check", "--second-copy", *SMALL)


@pytest.mark.parametrize("broken", ["reduction", "copies", "gradients of a block"])
def test_checkpoint_offload_without(broken: str) -> None:
    for text in run_ranks(checkpoint_offload_without, 2, args=(broken,)):
        assert text.startswith("step 0: the ranks' model differs by ")


def offloaded_from_checkpoint() -> None:
    """In a rank: the example's optimizer with a scheduler, a checkpoint that rank 0 alone loads, and a broadcast."""
    import torch

    import ringreduce.torch as hvd

    sys.path.insert(0, str(EXAMPLES / "parallel"))
    offloaded = runpy.run_path(str(EXAMPLES / "parallel/checkpoint_offload.py"))["OffloadedAdamW"]

    def train(model: torch.nn.Linear, optimizer: torch.optim.Optimizer, steps: int, decay: float = 0.5) -> None:
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, decay)
        for step in range(steps):
            optimizer.zero_grad()
            model(torch.linspace(-1, 1 + step, 4, dtype=torch.float64)).square().sum().backward()
            optimizer.step()
            scheduler.step()

    with hvd.init() as world:
        torch.manual_seed(world.rank)
        plain = torch.nn.Linear(4, 3, dtype=torch.float64)
        hvd.broadcast_parameters(plain.state_dict(), 0)
        for second_copy in (False, True):
            alone, model, again = (copy.deepcopy(plain) for _ in range(3))
            adamw = torch.optim.AdamW(alone.parameters(), lr=0.1)
            optimizer = hvd.DistributedOptimizer(offloaded(list(model.parameters()), 0.1, second_copy))
            train(alone, adamw, 4)
            train(model, optimizer, 4)
            torch.testing.assert_close(model.state_dict(), alone.state_dict())
            saved = io.BytesIO()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, saved)
            saved.seek(0)

            resumed = hvd.DistributedOptimizer(offloaded(list(again.parameters()), 1.0, second_copy))
            if world.rank == 0:
                checkpoint = torch.load(saved)
                again.load_state_dict(checkpoint["model"])
                resumed.load_state_dict(checkpoint["optimizer"])
            hvd.broadcast_parameters(again.state_dict(), 0)
            hvd.broadcast_optimizer_state(resumed, 0)
            assert resumed.param_groups[0]["lr"] == adamw.param_groups[0]["lr"] == 0.1 * 0.5**4
            train(alone, adamw, 3)
            train(again, resumed, 3)
            torch.testing.assert_close(again.state_dict(), alone.state_dict())


def test_offload_resumes_and_is_scheduled_as_plain_adamw() -> None:
    run_ranks(offloaded_from_checkpoint, 2)


# --- several devices of one process


@pytest.mark.parametrize(("ranks", "devices"), [(1, 1), (1, 2), (1, 4), (2, 1), (2, 2), (4, 1)])
def test_devices(ranks: int, devices: int, tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    options = (*SMALL, "--devices", str(devices), "--picture", str(picture))
    result = result_of("devices.py", ranks, tmp_path, *options)
    parameters = 2 * KINDS * 8 + KINDS + 16 * 8 + 2 * (12 * 8 * 8 + 6 * 8)
    assert result["nbytes"] == ((parameters + 1) * DOUBLE if ranks > 1 else 0)
    assert len(result["samples_per_s"]) == 1
    assert result["samples_per_s"][0] > 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_ranks_beside_devices(tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    text = run(sys.executable, EXAMPLES / "parallel/devices.py", "--beside", "--json", output, *SMALL)
    one, beside = json.loads(output.read_text())["samples_per_s"]
    assert f"ranks 1, devices of a rank 2: {one:.0f} samples/s of 16 characters\n" in text
    assert f"ranks 2, devices of a rank 1: {beside:.0f} samples/s of 16 characters\n" in text
    assert min(one, beside) > 0


def test_devices_tell_what_does_not_fit() -> None:
    for text in run_ranks(refusal, 3, args=("devices.py", "--devices", "2", *SMALL)):
        assert text == "4 rows cannot be split over 3 ranks of 2 devices"
    for text in run_ranks(refusal, 2, args=("devices.py", "--beside", *SMALL)):
        assert text == "--beside starts ranks of its own: run it in one process, not on 2 ranks"


def devices_without(broken: str) -> str:
    import concurrent.futures

    import torch

    import ringreduce.torch as hvd

    pool = concurrent.futures.ThreadPoolExecutor

    class SamePart(pool):
        def map(self, run: Any, replicas: Any, parts: Any) -> Any:
            return super().map(run, replicas, parts[:1] * len(parts))

    class OneDevice(pool):
        def map(self, run: Any, replicas: Any, parts: Any) -> Any:
            losses = list(super().map(run, replicas, parts))
            for parameter in (parameter for replica in replicas[1:] for parameter in replica.parameters()):
                parameter.grad.zero_()
            return losses

    if broken == "sum over ranks":
        hvd.grouped_allreduce = lambda tensors, op: tensors
    elif broken == "copies":
        torch.nn.Parameter.copy_ = lambda self, other: self  # parameters stay as they are
    else:
        concurrent.futures.ThreadPoolExecutor = {"second part": SamePart, "second gradient": OneDevice}[broken]
    return refusal("devices.py", "--check", "--devices", "2", *SMALL)


@pytest.mark.parametrize(
    ("broken", "ranks"), [("sum over ranks", 2), ("copies", 1), ("second part", 1), ("second gradient", 1)]
)
def test_devices_without(broken: str, ranks: int) -> None:
    for text in run_ranks(devices_without, ranks, args=(broken,)):
        assert text.startswith("step 0: the devices' model differs by ")
