"""DistributedOptimizer beside the plain optimizer that is given all ranks' gradients. Run within a job of two ranks."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
from keras.optimizers import SGD, Adam, LossScaleOptimizer, MultiOptimizer, OptimizerMap, RMSprop
from keras_checks import (
    apply_steps,
    assert_close,
    compared,
    gradients,
    mean_gradients,
    new_variables,
    operations,
    tensor,
    values,
)


def steps_are_those_of_the_plain_optimizer(hvd: Any) -> None:
    mine = [gradients(step, hvd.rank()) for step in range(4)]
    mean = [mean_gradients(step, hvd.size()) for step in range(4)]
    total = [[hvd.size() * gradient for gradient in step] for step in mean]
    ways: list[tuple[Callable[[], Any], dict[str, Any], Any, list[int]]] = [
        (lambda: SGD(0.1, momentum=0.9, nesterov=True), {}, mean, [1, 1, 1, 1]),
        (lambda: SGD(0.1), {"op": hvd.Sum, "name": "steps"}, total, [1, 1, 1, 1]),
        (lambda: Adam(0.1, clipnorm=0.3), {"groups": 2}, mean, [2, 2, 2, 2]),
        (lambda: RMSprop(0.1, global_clipnorm=0.3), {"gradient_predivide_factor": 4.0}, mean, [1, 1, 1, 1]),
        (lambda: SGD(0.1, clipvalue=0.2, loss_scale_factor=8.0), {"groups": 99}, mean, [3, 3, 3, 3]),
        (lambda: SGD(0.1, global_clipnorm=0.5, gradient_accumulation_steps=2), {}, mean, [0, 1, 0, 1]),
        (lambda: Adam(0.1, weight_decay=0.1, use_ema=True, ema_overwrite_frequency=3), {}, mean, [1, 1, 1, 1]),
    ]
    for compiled in (False, True):
        for number, (make, options, equivalent, counts) in enumerate(ways):
            optimizer = hvd.DistributedOptimizer(make(), **options)
            ours, counted = operations(hvd, partial(apply_steps, optimizer, mine, compiled=compiled))
            assert_close(ours, apply_steps(make(), equivalent))
            assert counted == compared(counts, compiled), (number, compiled, counted)
            assert int(keras.ops.convert_to_numpy(optimizer._iterations)) == 4
        for average in (False, True):
            optimizer = hvd.DistributedOptimizer(
                SGD(0.1, clipnorm=0.7), backward_passes_per_step=2, average_aggregated_gradients=average
            )
            both = [[(a + b) / (1 + average) for a, b in zip(*mean[i : i + 2], strict=True)] for i in (0, 2)]
            ours, counted = operations(hvd, partial(apply_steps, optimizer, mine, compiled=compiled))
            assert_close(ours, apply_steps(SGD(0.1, clipnorm=0.7), both))
            assert counted == compared([0, 1, 0, 1], compiled)
            assert optimizer.get_config()["gradient_accumulation_steps"] == 2


def variables_may_be_given_once_only(hvd: Any) -> None:
    """By an iterator, as the plain optimizer takes them."""
    variables = new_variables()
    for options in ({}, {"backward_passes_per_step": 2}):
        for start, variable in zip(values(7), variables, strict=True):
            variable.assign(start)
        optimizer = hvd.DistributedOptimizer(SGD(1.0), **options)
        optimizer.build(variables)
        for _ in range(2):
            optimizer.apply((tensor(g) for g in gradients(0, hvd.rank())), iter(variables))
        ours = [np.array(keras.ops.convert_to_numpy(v)) for v in variables]
        assert_close(ours, [a - 2 * b for a, b in zip(values(7), mean_gradients(0, hvd.size()), strict=True)])


def variables_may_be_local_or_without_gradient(hvd: Any) -> None:
    rank, size = hvd.rank(), hvd.size()
    mine, mean = gradients(0, rank), mean_gradients(0, size)
    start = values(7)
    for compiled in (False, True):
        for options, divisor in (({}, size), ({"scale_local_gradients": False}, 1)):
            variables = new_variables()
            optimizer = hvd.DistributedOptimizer(SGD(1.0), **options)
            optimizer.register_local_var(variables[1])
            ours = apply_steps(optimizer, [mine], variables, compiled)
            assert_close(ours, [start[0] - mean[0], start[1] - mine[1] / divisor, start[2] - mean[2]])

        variables = new_variables()
        optimizer = hvd.DistributedOptimizer(SGD(1.0))
        optimizer.register_local_var(variables[1])
        again = type(optimizer).from_config(optimizer.get_config())
        optimizer.register_local_var(variables[2])  # from here on each has its own
        ours = apply_steps(again, [mine], variables, compiled)
        assert_close(ours, [start[0] - mean[0], start[1] - mine[1] / size, start[2] - mean[2]])

        with pytest.warns(UserWarning, match="Gradients do not exist for variables"):
            ours = apply_steps(hvd.DistributedOptimizer(SGD(1.0)), [[None, *mine[1:]]], None, compiled)
        assert_close(ours, [start[0], start[1] - mean[1], start[2] - mean[2]])

        variables = new_variables()
        optimizer = hvd.DistributedOptimizer(SGD(1.0))
        optimizer.register_local_var(variables[1])
        own = [mine[0], None if rank == 0 else mine[1], mine[2]]  # a local variable's gradient is each rank's own
        with pytest.warns(UserWarning, match="Gradients do not exist") if rank == 0 else nullcontext():
            ours = apply_steps(optimizer, [own], variables, compiled)
        assert_close(ours[::2], [start[0] - mean[0], start[2] - mean[2]])

        variables = new_variables()
        variables[0].overwrite_with_gradient = True  # as float8's scales are
        ours = apply_steps(hvd.DistributedOptimizer(SGD(1.0)), [mine], variables, compiled)
        largest = np.maximum(*(gradients(0, other)[0] for other in range(size)))
        assert_close(ours, [largest, start[1] - mean[1], start[2] - mean[2]])

    layers = [keras.layers.Dense(2, dtype="float64"), keras.layers.Dense(2, dtype="float64")]
    optimizer = hvd.PartialDistributedOptimizer(SGD(1.0), local_layers=layers[:1], backward_passes_per_step=2)
    for layer in layers:
        layer.build((None, 3))
    variables = [v for layer in layers for v in layer.trainable_variables]
    before = [np.array(keras.ops.convert_to_numpy(v)) for v in variables]
    own = [np.full(v.shape, rank + 1.0) for v in variables]
    after = apply_steps(optimizer, [own, own], variables)
    changes = [float((old - new).flat[0]) for old, new in zip(before, after, strict=True)]
    assert changes == pytest.approx([2 * (rank + 1) / size] * 2 + [3.0, 3.0])


def local_variables_are_not_clipped_with_shared_ones(hvd: Any) -> None:
    """By a norm with each rank's own gradients in it: shared weights would go apart."""
    mine = gradients(0, hvd.rank())
    together = MultiOptimizer(OptimizerMap(SGD(1.0), {"v[12]": SGD(1.0, global_clipnorm=0.5)}))
    apart = MultiOptimizer(OptimizerMap(SGD(1.0, global_clipnorm=0.5), {"v1": SGD(1.0)}))
    for plain, refused in ((SGD(1.0, global_clipnorm=0.5), True), (together, True), (apart, False)):
        variables = new_variables()
        optimizer = hvd.DistributedOptimizer(plain)
        optimizer.register_local_var(variables[1])
        with pytest.raises(hvd.InvalidArgumentError, match=r"global_clipnorm=0\.5") if refused else nullcontext():
            apply_steps(optimizer, [mine], variables)
    layer = keras.layers.Dense(2, dtype="float64")
    layer.build((None, 3))
    own_layer = hvd.PartialDistributedOptimizer(
        SGD(1.0, global_clipnorm=0.5, gradient_accumulation_steps=2), local_layers=layer
    )
    with pytest.raises(hvd.InvalidArgumentError, match=r"global_clipnorm=0\.5"):
        apply_steps(own_layer, [[np.ones(v.shape) for v in layer.trainable_variables]], layer.trainable_variables)


def only_variables_are_local(hvd: Any) -> None:
    layer = keras.layers.Dense(1)
    layer.build((None, 2))
    wrong = [layer, np.ones(2), "kernel", layer.trainable_variables]
    if keras.backend.backend() == "torch":
        wrong.append(layer.kernel.value)  # which is another object, and no key of the optimizer
    for optimizer in (hvd.DistributedOptimizer(SGD(1.0)), hvd.DistributedOptimizer(LossScaleOptimizer(SGD(1.0)))):
        for one in wrong:
            with pytest.raises(hvd.InvalidArgumentError, match=r"local variables must be of keras\.Variable type"):
                optimizer.register_local_var(one)
        optimizer.register_local_var(layer.kernel)


def groups_may_be_lists_of_variables(hvd: Any) -> None:
    mean = mean_gradients(0, hvd.size())
    for order, count in (([[1], [2, 0]], 2), ([[2]], 2), ([], 1)):
        variables = new_variables()
        groups = [[variables[i] for i in group] for group in order]
        optimizer = hvd.DistributedOptimizer(SGD(1.0), groups=groups)
        ours, counted = operations(hvd, partial(apply_steps, optimizer, [gradients(0, hvd.rank())], variables))
        assert_close(ours, [a - b for a, b in zip(values(7), mean, strict=True)])
        assert counted == compared([count], False)
    with pytest.warns(DeprecationWarning, match="replaced by `groups`"):
        assert hvd.DistributedOptimizer(SGD(1.0), num_groups=3)._reduction.settings.groups == 3


def process_sets_and_compression(hvd: Any) -> None:
    alone = hvd.add_process_set([0])
    mine = gradients(0, hvd.rank())
    ours, counted = operations(hvd, partial(apply_steps, hvd.DistributedOptimizer(SGD(1.0), process_set=alone), [mine]))
    assert_close(ours, [a - b for a, b in zip(values(7), mine, strict=True)])
    assert counted == [0]
    hvd.remove_process_set(alone)
    with pytest.raises(ValueError, match="does not exist, or has not been registered"):
        apply_steps(hvd.DistributedOptimizer(SGD(1.0), process_set=alone), [mine])

    exact = [a - b for a, b in zip(values(7), mean_gradients(0, hvd.size()), strict=True)]
    for compression, bits in ((hvd.Compression.fp16, 11), (hvd.Compression.bf16, 8)):
        ours = apply_steps(hvd.DistributedOptimizer(SGD(1.0), compression=compression), [mine])
        assert all(v.dtype == np.float64 for v in ours)
        error = max(float(np.max(np.abs(a - b))) for a, b in zip(ours, exact, strict=True))
        assert 0 < error < 4 * 2.0**-bits

    class Halved(hvd.Compression.none):  # type: ignore[misc, name-defined]
        @staticmethod
        def compress(value: Any) -> Any:
            return value / 2, 4.0

        @staticmethod
        def decompress(value: Any, ctx: Any) -> Any:
            return value * ctx

    ours = apply_steps(hvd.DistributedOptimizer(SGD(1.0), compression=Halved), [mine])
    assert_close(ours, [a - 2 * b for a, b in zip(values(7), mean_gradients(0, hvd.size()), strict=True)])


def loss_scaling_leaves_out_the_same_steps(hvd: Any) -> None:
    rank, size = hvd.rank(), hvd.size()
    scale = 16.0
    mine = [[scale * g for g in gradients(step, rank)] for step in range(4)]
    mine[1][0] = mine[1][0] * (np.nan if rank == 1 else 1)  # one rank's gradients are not finite
    kept = [mean_gradients(step, size) for step in (0, 2, 3)]

    def plain() -> Any:
        return LossScaleOptimizer(SGD(0.1, global_clipnorm=0.5), initial_scale=scale, dynamic_growth_steps=100)

    # After the step that is left out the scale is half as large, so gradients are unscaled by half as much.
    kept = [kept[0], *[[2 * g for g in step] for step in kept[1:]]]
    expected = apply_steps(SGD(0.1, global_clipnorm=0.5), kept)
    # On JAX Keras's own works in compiled code only.
    ways = (True,) if keras.backend.backend() == "jax" else (False, True)
    for compiled in ways:
        outside = hvd.DistributedOptimizer(plain())
        inside = LossScaleOptimizer(
            hvd.DistributedOptimizer(SGD(0.1, global_clipnorm=0.5)), initial_scale=scale, dynamic_growth_steps=100
        )
        for optimizer in (outside, inside):
            assert_close(apply_steps(optimizer, mine, None, compiled), expected)
            assert float(keras.ops.convert_to_numpy(optimizer.dynamic_scale)) == scale / 2
            assert type(optimizer).__name__ == "LossScaleOptimizer"
            assert type(optimizer.inner_optimizer).__name__ == "SGD"
    with pytest.raises(hvd.InvalidArgumentError, match="DistributedOptimizer already"):
        hvd.DistributedOptimizer(inside)

    # One that has nothing to do with us is left as it is.
    own = plain()
    apply_steps(own, [mine[1]], None, True)
    assert float(keras.ops.convert_to_numpy(own.dynamic_scale)) == (scale / 2 if rank == 1 else scale)


def loss_scaling_sees_what_a_compression_makes(hvd: Any) -> None:
    """fp16 has less range than gradients: what it makes infinite is left out, and what the scale lifts is kept."""
    rank, fp16 = hvd.rank(), hvd.Compression.fp16
    ways = (True,) if keras.backend.backend() == "jax" else (False, True)
    each = [(compiled, outside) for compiled in ways for outside in (False, True)]

    def made(outside: bool, scale: float, **options: Any) -> Any:
        own = {name: options.pop(name) for name in ("gradient_accumulation_steps",) if name in options}
        plain = SGD(1.0, **own)
        if outside:
            return hvd.DistributedOptimizer(LossScaleOptimizer(plain, initial_scale=scale), **options)
        return LossScaleOptimizer(hvd.DistributedOptimizer(plain, **options), initial_scale=scale)

    def stepped(optimizer: Any, steps: list[list[Any]], compiled: bool) -> tuple[list[float], float]:
        variables = [keras.Variable(np.zeros(1), dtype="float64", name=f"v{i}") for i in range(len(steps[0]))]
        after = apply_steps(optimizer, [[np.array([g]) for g in step] for step in steps], variables, compiled)
        return [float(one[0]) for one in after], float(keras.ops.convert_to_numpy(optimizer.dynamic_scale))

    for compiled, outside in each:
        small = [[1e-8 * 2.0**15 * (rank + 1), -3e-8 * 2.0**15]]
        for compression in (fp16, hvd.Compression.bf16, hvd.Compression.none):
            options = {"compression": compression}
            moved, left = stepped(made(outside, 2.0**15, **options), small, compiled)
            assert moved == pytest.approx([-1.5e-8, 3e-8], rel=0.01), (compression, compiled, outside)
            assert left == 2.0**15

        # In the first step fp16 makes one rank's gradient infinite, in the second one none.
        steps = [[70000.0 if rank == 1 else 1.0, 1.0], [100.0, 1.0]]
        moved, left = stepped(made(outside, 4.0, compression=fp16), steps, compiled)
        assert (moved, left) == ([-50.0, -0.5], 2.0)
        # And here their sum, where fp16 is what is summed.
        moved, left = stepped(made(outside, 4.0, compression=fp16, op=hvd.Sum), [[40000.0], [100.0]], compiled)
        assert (moved, left) in (([-100.0], 2.0), ([-20050.0], 4.0))
        assert len({str(hvd.broadcast_object((moved, left), root)) for root in (0, 1)}) == 1
        for compression in (hvd.Compression.bf16, hvd.Compression.none):  # these have the range
            moved, left = stepped(made(outside, 4.0, compression=compression), [[70000.0], [100.0]], compiled)
            assert moved == pytest.approx([-17525.0], rel=0.01)
            assert left == 4.0

    class Own(SGD):  # type: ignore[misc, unused-ignore]
        def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
            return super().apply(grads, trainable_variables)

    class Logged(hvd.Compression.none):  # type: ignore[misc, unused-ignore]
        pass

    class Wide:
        dtype = "float32"

        @staticmethod
        def compress(tensor: Any) -> tuple[Any, None]:
            return tensor, None

        @staticmethod
        def decompress(tensor: Any, ctx: Any) -> Any:
            return tensor

    def passes(optimizer: Any, outside: bool, compression: Any) -> Any:
        if outside:
            return hvd.DistributedOptimizer(LossScaleOptimizer(optimizer), compression=compression)
        return LossScaleOptimizer(hvd.DistributedOptimizer(optimizer, compression=compression))

    for compiled, outside in each:
        of_two = passes(SGD(1.0, gradient_accumulation_steps=2), outside, fp16)
        with pytest.raises(Exception, match=r"(?s)LossScaleOptimizer with several passes.*hvd\.Compression\.bf16"):
            stepped(of_two, [[1.0], [1.0]], compiled)
        for wide in (hvd.Compression.bf16, Logged, Wide):
            of_two = passes(SGD(1.0, gradient_accumulation_steps=2), outside, wide)
            assert stepped(of_two, [[2.0**15], [2.0**15]], compiled) == ([-1.0], 2.0**15)
        # Its own apply() reduces in every call, also where Keras's adds up.
        of_own = passes(Own(1.0, gradient_accumulation_steps=2), outside, fp16)
        assert stepped(of_own, [[256.0 * (rank + 1)], [256.0]], compiled) == ([-1.25 * 2.0**-7], 2.0**15)


def other_classes_of_optimizers(hvd: Any) -> None:
    mine = [gradients(step, hvd.rank()) for step in range(2)]
    mean = [mean_gradients(step, hvd.size()) for step in range(2)]

    def multi() -> Any:
        return MultiOptimizer(OptimizerMap(SGD(0.1), {"v1": Adam(0.1)}))

    for compiled in (False, True):
        ours, counted = operations(
            hvd, partial(apply_steps, hvd.DistributedOptimizer(multi()), mine, compiled=compiled)
        )
        assert_close(ours, apply_steps(multi(), mean))
        assert counted == compared([1, 1], compiled)
    with pytest.raises(hvd.UnavailableError, match="apply"):
        hvd.DistributedOptimizer(multi(), backward_passes_per_step=2)

    class Own(SGD):  # type: ignore[misc, unused-ignore]
        def apply(self, grads: Any, trainable_variables: Any = None) -> Any:
            return super().apply([2 * g for g in grads], trainable_variables)

    assert_close(apply_steps(hvd.DistributedOptimizer(Own(0.1)), mine), apply_steps(SGD(0.2), mean))
    # Nothing is known of how it accumulates, but that Keras takes a mean, and no sum.
    passes = {"backward_passes_per_step": 2}
    for scaled in (lambda one: one, LossScaleOptimizer):
        with pytest.raises(hvd.UnavailableError, match="apply"):
            hvd.DistributedOptimizer(scaled(Own(0.1, gradient_accumulation_steps=2)), **passes)
    optimizer = hvd.DistributedOptimizer(
        Own(0.1, gradient_accumulation_steps=2), average_aggregated_gradients=True, **passes
    )
    both = [[a + b for a, b in zip(*mean, strict=True)]]
    assert_close(apply_steps(optimizer, mine), apply_steps(SGD(0.1), both))


def it_stays_the_same_optimizer(hvd: Any) -> None:
    mine = [gradients(step, hvd.rank()) for step in range(2)]
    mean = [mean_gradients(step, hvd.size()) for step in range(3)]
    plain = Adam(0.25, beta_1=0.5, name="mine", clipnorm=1.0)
    variables = new_variables()
    plain.exclude_from_weight_decay(var_list=variables[:1])
    apply_steps(plain, [mean[2]], variables)
    expected = Adam(0.25, beta_1=0.5, clipnorm=1.0)
    expected_values = apply_steps(expected, [mean[2], *mean[:2]])

    ours = hvd.DistributedOptimizer(plain)
    assert isinstance(ours, Adam)
    assert (type(ours).__name__, type(ours).__module__, ours.name) == ("Adam", "keras.optimizers", "mine")
    assert ours.get_config() == plain.get_config()
    assert keras.optimizers.serialize(ours)["class_name"] == "Adam"
    assert ours.built
    assert ours._exclude_from_weight_decay == plain._exclude_from_weight_decay
    assert int(keras.ops.convert_to_numpy(ours.iterations)) == 1
    for step in mine:
        ours.apply([tensor(g) for g in step], variables)
    assert_close([np.array(keras.ops.convert_to_numpy(v)) for v in variables], expected_values)
    ours.learning_rate = 0.5
    assert float(keras.ops.convert_to_numpy(ours.learning_rate)) == 0.5

    again = type(ours).from_config(ours.get_config())
    assert again.get_config() == ours.get_config()
    assert_close(apply_steps(again, mine), apply_steps(Adam(0.5, beta_1=0.5, clipnorm=1.0), mean[:2]))
    plain_again = keras.optimizers.deserialize(keras.optimizers.serialize(ours))
    assert not hasattr(plain_again, "_reduction")
    assert plain_again.get_config() == ours.get_config()

    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (SGD(1.0), {"op": hvd.Adasum}, "op currently only supports Average and Sum"),
        (SGD(1.0), {"op": hvd.Sum, "gradient_predivide_factor": 2.0}, "not supported with op != Average"),
        (SGD(1.0), {"backward_passes_per_step": 0}, "must be > 0"),
        (SGD(1.0), {"backward_passes_per_step": 2.5}, "must be > 0, and a whole number, not 2.5"),
        (SGD(1.0), {"compression": "fp16"}, "compression='fp16' is no compressor"),
        (SGD(1.0), {"groups": -1}, "non-negative integer"),
        (SGD(1.0), {"groups": [variables[0]]}, "list of list"),
        (SGD(1.0), {"groups": [variables[:1], variables[:2]]}, "only appear once"),
        (SGD(1.0, gradient_accumulation_steps=3), {"backward_passes_per_step": 2}, "give one"),
        (plain, {"backward_passes_per_step": 2}, "not built yet"),
        (ours, {}, "DistributedOptimizer already"),
        ("sgd", {}, "takes an optimizer of Keras 3"),
    ]
    for optimizer, options, text in wrong:
        with pytest.raises(hvd.InvalidArgumentError, match=text):
            hvd.DistributedOptimizer(optimizer, **options)
    with pytest.raises(ValueError, match="layers must be"):
        hvd.PartialDistributedOptimizer(SGD(1.0), local_layers=[variables[0]])


def ranks_without_the_same_gradients_are_told(hvd: Any) -> None:
    mine: list[Any] = list(gradients(0, hvd.rank()))
    if hvd.rank() == 1:
        mine[0] = None
    with pytest.raises(Exception, match=r"(?s)Mismatch.*a gradient on all ranks or on none"):
        apply_steps(hvd.DistributedOptimizer(SGD(1.0)), [mine])
    heads = [keras.Variable(np.zeros(2)) for _ in range(2)]  # of one shape, and each rank uses another one
    gradient = np.ones(2)
    with pytest.raises(Exception, match="Mismatch"):
        apply_steps(
            hvd.DistributedOptimizer(SGD(1.0)),
            [[gradient, gradient], [gradient, None] if hvd.rank() == 0 else [None, gradient]],
            heads,
        )


CHECKS = [
    steps_are_those_of_the_plain_optimizer,
    variables_may_be_given_once_only,
    variables_may_be_local_or_without_gradient,
    local_variables_are_not_clipped_with_shared_ones,
    only_variables_are_local,
    groups_may_be_lists_of_variables,
    process_sets_and_compression,
    loss_scaling_leaves_out_the_same_steps,
    loss_scaling_sees_what_a_compression_makes,
    other_classes_of_optimizers,
    it_stays_the_same_optimizer,
    ranks_without_the_same_gradients_are_told,
]
