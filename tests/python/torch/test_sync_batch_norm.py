"""SyncBatchNorm on N ranks against torch's BatchNorm in one process on the joined batch."""

import copy
import pickle
import warnings
from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ringreduce.torch as hvd  # noqa: E402

CHANNELS = 5
ROWS = [[4, 1, 2], [0, 3, 5], [1, 1, 0]]
"""Rows of each of three ranks, in successive batches: uneven, and none on some."""


def share(batch: Any, rows: list[int], rank: int) -> Any:
    return batch[sum(rows[:rank]) : sum(rows[: rank + 1])]


def compare(layer: Any, plain: Any, shape: tuple[int, ...], dtype: Any, close: Callable[..., None]) -> None:
    """Feeds both the same batches, forward and backward, in training and then in eval mode."""
    r = hvd.rank()
    mode = (layer.training, plain.training)
    for number, rows in enumerate(ROWS):
        torch.manual_seed(number)
        batch = (torch.randn(sum(rows), CHANNELS, *shape, dtype=torch.float64) * 3 + 10).to(dtype)
        weight = torch.randn(sum(rows), CHANNELS, *shape, dtype=torch.float64).to(dtype)
        if number == 2:
            plain.eval()
            layer.eval()
        whole = batch.clone().requires_grad_()
        expected = plain(whole)
        (expected * weight).sum().backward()
        mine = share(batch, rows, r).clone().requires_grad_()
        output = layer(mine)
        (output * share(weight, rows, r)).sum().backward()
        assert output.dtype == dtype
        close(output, share(expected, rows, r))
        close(mine.grad, share(whole.grad, rows, r))
        for own, other in zip(layer.parameters(), plain.parameters(), strict=True):
            close(hvd.allreduce(own.grad, op=hvd.Sum), other.grad)
            own.grad = other.grad = None
        for name, buffer in plain.named_buffers():
            close(dict(layer.named_buffers())[name], buffer)
    layer.train(mode[0])
    plain.train(mode[1])


def against_plain_layers() -> None:
    with hvd.init():
        kinds = {(): torch.nn.BatchNorm1d, (4,): torch.nn.BatchNorm1d, (3, 2): torch.nn.BatchNorm2d}
        for dtype, tolerance in ((torch.float64, 1e-12), (torch.float32, 2e-5)):

            def close(ours: Any, theirs: Any, tolerance: float = tolerance) -> None:
                torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)

            for shape, kind in kinds.items():
                without_bias = [{"bias": False}] if "bias" in signature(kind).parameters else []  # since torch 2.13
                for options in (
                    {},
                    *without_bias,
                    {"affine": False},
                    {"track_running_stats": False},
                    {"momentum": None},
                    {"momentum": 0.9, "eps": 0.1},
                ):
                    plain = kind(CHANNELS, **options).to(dtype)
                    if plain.affine:
                        torch.nn.init.normal_(plain.weight, generator=torch.Generator().manual_seed(1))
                    if plain.bias is not None:
                        torch.nn.init.normal_(plain.bias, generator=torch.Generator().manual_seed(2))
                    layer = hvd.SyncBatchNorm.convert_sync_batchnorm(copy.deepcopy(plain))
                    assert isinstance(layer, hvd.SyncBatchNorm)
                    compare(layer, plain, shape, dtype, close)
                    if not options:
                        compare(copy.deepcopy(layer), copy.deepcopy(plain), shape, dtype, close)
                        compare(pickle.loads(pickle.dumps(layer)), plain, shape, dtype, close)

        # bfloat16 is computed in float32 and rounded once.
        torch.manual_seed(0)
        batch = torch.randn(6, CHANNELS, 4) * 2 + 3
        layer, plain = hvd.SyncBatchNorm(CHANNELS), torch.nn.BatchNorm1d(CHANNELS)
        ours = layer(batch.bfloat16()[2 * hvd.rank() :][:2])
        theirs = plain(batch.bfloat16().float())[2 * hvd.rank() :][:2]
        assert ours.dtype is torch.bfloat16
        torch.testing.assert_close(ours.float(), theirs, rtol=2**-8, atol=2**-8)

        # A mean a million times the deviation: sums of squares would have lost it.
        batch = torch.randn(6, CHANNELS, dtype=torch.float64) + 1e6
        layer, plain = hvd.SyncBatchNorm(CHANNELS).double(), torch.nn.BatchNorm1d(CHANNELS).double()
        torch.testing.assert_close(
            layer(batch[2 * hvd.rank() :][:2]), plain(batch)[2 * hvd.rank() :][:2], rtol=1e-8, atol=1e-8
        )

        for wrong, text in (
            (torch.ones(3), "at least 2D input"),
            (torch.ones(2, CHANNELS + 1), "got an input of shape"),
            (torch.ones(int(hvd.rank() == 1), CHANNELS), "Expected more than 1 value per channel"),
        ):
            with pytest.raises(ValueError, match=text):
                hvd.SyncBatchNorm(CHANNELS)(wrong)
        with pytest.raises(hvd.MismatchError, match=r"^SyncBatchNorm: Mismatched ALLGATHER tensor shapes"):
            hvd.SyncBatchNorm(CHANNELS + hvd.rank())(torch.ones(2, CHANNELS + hvd.rank()))

        part = hvd.add_process_set([0, 2])
        if hvd.rank() != 1:
            layer = hvd.SyncBatchNorm.convert_sync_batchnorm(torch.nn.BatchNorm1d(1).double(), part)
            assert copy.deepcopy(layer).process_set is part
            column = torch.tensor([[1.0 + hvd.rank()]], dtype=torch.float64)  # 1 and 3
            torch.testing.assert_close(layer(column)[0, 0].item(), (hvd.rank() - 1) / (1 + 1e-5) ** 0.5)


def compiled_tracks_alike() -> list[list[float]]:
    """The running statistics after two batches, of a layer that torch.compile has taken and of one that it has not."""
    with hvd.init() as world:
        layers = [hvd.SyncBatchNorm(3) for _ in range(2)]
        calls = [torch.compile(layers[0], backend="eager"), layers[1]]
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            for number in range(2):
                torch.manual_seed(10 * number + world.rank)
                batch = torch.randn(4, 3, requires_grad=True)
                for call in calls:
                    call(batch).sum().backward()
        assert not [one for one in said if "Converting a tensor" in str(one.message)]
        return [[*layer.running_mean.tolist(), *layer.running_var.tolist()] for layer in layers]


def test_it_tracks_statistics_within_torch_compile_too(run_ranks: Callable[..., Any]) -> None:
    found = run_ranks(compiled_tracks_alike, 2)
    assert found[0] == found[1]
    compiled, plain = found[0]
    assert compiled == plain != [0.0] * 3 + [1.0] * 3


def test_it_equals_batch_norm_of_the_joined_batch(run_ranks: Callable[..., Any]) -> None:
    run_ranks(against_plain_layers, 3)


def test_a_layer_in_several_places_stays_one() -> None:
    shared, inner = torch.nn.BatchNorm1d(4), torch.nn.Sequential(torch.nn.BatchNorm1d(4))
    model = torch.nn.Sequential(shared, torch.nn.Linear(4, 4), shared, inner, inner, torch.nn.ModuleDict({"a": shared}))
    model.register_module("none", None)
    converted = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
    assert converted is model
    assert isinstance(model[0], hvd.SyncBatchNorm)
    assert model[0].weight is shared.weight
    assert model[2] is model[0]
    assert model[5]["a"] is model[0]
    assert model[3] is model[4] is inner
    assert isinstance(inner[0], hvd.SyncBatchNorm)
    assert model.none is None


@pytest.mark.parametrize("kind", ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm", "LazyBatchNorm2d"])
def test_torchs_own_layers_are_converted(kind: str) -> None:
    layer = getattr(torch.nn, kind)(*[] if kind.startswith("Lazy") else [4])
    converted = hvd.SyncBatchNorm.convert_sync_batchnorm(torch.nn.Sequential(layer))
    assert type(converted[0]) is hvd.SyncBatchNorm
    assert converted[0].weight is layer.weight


class NormAndActivation(torch.nn.BatchNorm2d):
    def forward(self, x: Any) -> Any:
        return torch.relu(super().forward(x))


def test_a_layer_with_a_forward_of_its_own_is_refused() -> None:
    """And no other layer has been converted by then."""
    patched = torch.nn.BatchNorm2d(4)
    patched.forward = lambda x: x
    for layer, kind in ((NormAndActivation(4), "NormAndActivation"), (patched, "BatchNorm2d")):
        model = torch.nn.Sequential(torch.nn.BatchNorm2d(4), torch.nn.Sequential(torch.nn.ReLU(), layer))
        with pytest.raises(hvd.InvalidArgumentError, match=rf"1\.1 is a {kind} with a forward\(\) of its own"):
            hvd.SyncBatchNorm.convert_sync_batchnorm(model)
        assert type(model[0]) is torch.nn.BatchNorm2d
        with pytest.raises(hvd.InvalidArgumentError, match=rf"the module itself is a {kind} with a forward"):
            hvd.SyncBatchNorm.convert_sync_batchnorm(layer)
    layers = torch.nn.Sequential(torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    assert type(hvd.SyncBatchNorm.convert_sync_batchnorm(layers)[0]) is hvd.SyncBatchNorm


def hook_a_converted_layer() -> None:
    with hvd.init():
        called: list[Any] = []
        plain = torch.nn.BatchNorm1d(2)
        handles = [
            plain.register_forward_pre_hook(lambda module, args: called.append(("before", type(module)))),
            plain.register_forward_hook(lambda module, args, output: output * 0),
            plain.register_forward_hook(
                lambda module, args, kwargs, output: called.append(("after", output.abs().sum().item())),
                with_kwargs=True,
            ),
            plain.register_full_backward_hook(lambda module, inputs, outputs: called.append(("backward", outputs))),
        ]
        layer = hvd.SyncBatchNorm.convert_sync_batchnorm(plain)
        layer(torch.randn(3, 2, requires_grad=True)).sum().backward()
        assert [what for what, _ in called] == ["before", "after", "backward"]
        assert called[0][1] is hvd.SyncBatchNorm
        assert called[1][1] == 0
        for handle in handles:
            handle.remove()
        assert layer(torch.randn(3, 2)).abs().sum() > 0
        assert len(called) == 3


def test_hooks_of_a_layer_are_kept(run_ranks: Callable[..., Any]) -> None:
    run_ranks(hook_a_converted_layer, 2)


def beside_a_joined_rank() -> str:
    """The error of the rank that goes on: rank 1."""
    text = ""
    with hvd.init() as world:
        layer = hvd.SyncBatchNorm(CHANNELS)
        layer(torch.randn(2, CHANNELS)).sum().backward()
        if world.rank == 1:
            try:
                layer(torch.randn(2, CHANNELS))
            except hvd.MismatchError as error:
                text = str(error)
        hvd.join()
        layer(torch.randn(2, CHANNELS)).sum().backward()  # all are there again
    return text


def test_beside_a_joined_rank_the_error_names_it(run_ranks: Callable[..., Any]) -> None:
    first, second = run_ranks(beside_a_joined_rank, 2)
    assert first == ""
    assert second.startswith("SyncBatchNorm: Allgather is not supported with Join at this time.")


class Block(torch.nn.Module):
    """Two convolutions with batch norms beside a shortcut, as in ResNet-18."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(
            torch.nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False),
            torch.nn.BatchNorm2d(outputs),
            torch.nn.ReLU(inplace=True),
            torch.nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            torch.nn.BatchNorm2d(outputs),
        )
        self.shortcut = torch.nn.Conv2d(inputs, outputs, 1, stride=2)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.body(x) + self.shortcut(x))


def train(shares: list[int]) -> list[list[float]]:
    """Parameters and running statistics after five steps on batches of which this rank has its share."""
    with hvd.init() as world:
        torch.manual_seed(0)
        stem = torch.nn.Sequential(torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
        head = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 3))
        model: Any = torch.nn.Sequential(stem, Block(4, 6), Block(6, 8), head).double()
        model = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
        assert sum(isinstance(module, hvd.SyncBatchNorm) for module in model.modules()) == 5
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters(), op=hvd.Sum)
        losses = []
        for step in range(5):
            torch.manual_seed(step)
            images = torch.randn(sum(shares), 1, 8, 8, dtype=torch.float64)
            labels = torch.randint(3, (sum(shares),))
            optimizer.zero_grad()
            scores = model(share(images, shares, world.rank))
            loss = torch.nn.functional.cross_entropy(scores, share(labels, shares, world.rank), reduction="sum")
            loss /= sum(shares)
            loss.backward()
            optimizer.step()
            losses.append(hvd.allreduce(loss, op=hvd.Sum).item())
        return [value.double().flatten().tolist() for value in (*model.parameters(), *model.buffers())] + [losses]


def test_a_small_resnet_trains_on_ranks_as_on_one(run_ranks: Callable[..., Any]) -> None:
    (alone,) = run_ranks(train, 1, args=([9],))
    ranks = run_ranks(train, 3, args=([4, 2, 3],))
    assert ranks[0] == ranks[1] == ranks[2]
    for ours, theirs in zip(ranks[0], alone, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-12)
