"""DistributedGradientTape: a gradient tape whose gradients are those of all ranks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from ringreduce.collectives.ops import Average
from ringreduce.common import reduced
from ringreduce.common.arguments import check_compression, check_predivide
from ringreduce.common.groups import renamed
from ringreduce.errors import InvalidArgumentError
from ringreduce.job.process_sets import ProcessSet, global_process_set
from ringreduce.tensorflow.compression import Compression, Compressor
from ringreduce.tensorflow.gradients import GradientReducer, local_positions
from ringreduce.tensorflow.variables import VariableRef, check_local


class DistributedTape(tf.GradientTape):  # type: ignore[misc]
    """What DistributedGradientTape() returns: records with the tape it was given, and reduces what gradient() gives.

    The two share one recording: either may be entered, watch, stop or be reset. jacobian() and batch_jacobian() are
    this rank's own, as in Horovod.
    """

    def __init__(self, tape: tf.GradientTape, reducer: GradientReducer, scale_local_gradients: bool) -> None:
        self._wrapped = tape
        self._reducer = reducer
        self._scale_local_gradients = scale_local_gradients
        self._local_sources: set[VariableRef] = set()
        self._local_layers: list[Any] = []
        """Asked for their variables when these are needed: then a layer is built that the recorded pass has built."""

    def gradient(
        self,
        target: Any,
        sources: Any,
        output_gradients: Any = None,
        use_generic_names: bool = False,
        unconnected_gradients: tf.UnconnectedGradients = tf.UnconnectedGradients.NONE,
    ) -> Any:
        """The gradients of target with respect to sources, reduced over the ranks in one operation. Collective.

        Args:
            target, sources, output_gradients, unconnected_gradients: as in tf.GradientTape.gradient().
            use_generic_names: operations are called grad_0, grad_1, ... and not after their place in the function.

        Returns:
            What tf.GradientTape.gradient() returns, in the structure of sources. None stays None.
        """
        gradients = self._wrapped.gradient(target, sources, output_gradients, unconnected_gradients)
        flat_sources = tf.nest.flatten(sources)
        flat = [gradients] if len(flat_sources) == 1 and not tf.nest.is_nested(sources) else tf.nest.flatten(gradients)
        own = flat
        flat = self._reducer.with_local(
            own, flat_sources, self._local(), self._scale_local_gradients, use_generic_names
        )
        for before, after in zip(own, flat, strict=True):
            if after is not before:  # reduced, or divided: an optimizer of Keras shall not do it again
                reduced.mark(after, self._reducer.process_set.ranks)
        return tf.nest.pack_sequence_as(sources, flat) if tf.nest.is_nested(sources) else flat[0]

    def register_local_source(self, source: Any) -> None:
        """Leaves a variable's gradient to this rank: it is not reduced, but divided by the number of ranks.

        To be called before gradient(), on all ranks, for the same variables. A tensor that is watched may be one too.
        Raises InvalidArgumentError for what is neither.
        """
        check_local("register_local_source()", source, tf.Tensor)
        self._local_sources.add(VariableRef(source))

    def get_local_and_global_gradients(
        self, target: Any, sources: Sequence[Any], output_gradients: Any = None, use_generic_names: bool = False
    ) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
        """gradient() of a list of sources, in two lists of pairs (source, gradient): local sources', then the others'.

        The other sources' gradients are reduced. Collective.
        """
        pairs = list(zip(sources, self.gradient(target, sources, output_gradients, use_generic_names), strict=True))
        local = local_positions(sources, self._local())
        return [pairs[at] for at in sorted(local)], [pair for at, pair in enumerate(pairs) if at not in local]

    def _local(self) -> set[VariableRef]:
        return self._local_sources | {
            VariableRef(one) for layer in self._local_layers for one in layer.trainable_weights
        }

    # What the other tape has: state, and methods of a class of the user's own.
    def __getattr__(self, name: str) -> Any:
        if name == "_wrapped":  # not there yet: a copy or an unpickled tape
            raise AttributeError(name)
        return getattr(self._wrapped, name)

    def __enter__(self) -> DistributedTape:
        self._wrapped.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._wrapped.__exit__(*error)

    def watch(self, tensor: Any) -> None:
        """See tf.GradientTape.watch()."""
        self._wrapped.watch(tensor)

    def stop_recording(self) -> Any:
        """See tf.GradientTape.stop_recording()."""
        return self._wrapped.stop_recording()

    def reset(self) -> None:
        """See tf.GradientTape.reset()."""
        self._wrapped.reset()

    def watched_variables(self) -> Any:
        """See tf.GradientTape.watched_variables()."""
        return self._wrapped.watched_variables()

    def jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """See tf.GradientTape.jacobian(); not reduced."""
        return self._wrapped.jacobian(*args, **kwargs)

    def batch_jacobian(self, *args: Any, **kwargs: Any) -> Any:
        """See tf.GradientTape.batch_jacobian(); not reduced."""
        return self._wrapped.batch_jacobian(*args, **kwargs)


def DistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    scale_local_gradients: bool = True,
) -> DistributedTape:
    """Wraps a gradient tape: its gradient() gives the gradients of all ranks, reduced in one operation.

    Args:
        gradtape: before, in or after its `with` block; persistent or not. It stays usable for this rank's gradients.
        device_dense, device_sparse: where TensorFlow places the operations; "" leaves that to it.
        compression: applied before, and undone after.
        sparse_as_dense: whether IndexedSlices become dense tensors first; else they are gathered.
        op: Average (default), Sum, ...
        gradient_predivide_factor: with op=Average, part of the division that comes before the sum.
        num_groups: deprecated; groups.
        groups: None for one operation a step; a number of operations; or a list of lists of variables, each an
            operation, and one more for the rest.
        process_set: the ranks that take part; the others get their own gradients.
        scale_local_gradients: whether gradients of local sources are divided by the number of ranks.

    Raises:
        InvalidArgumentError: gradtape is no tape or wrapped already; or options that do not go together.

    >>> with tf.GradientTape() as tape:
    ...     loss = loss_of(model(images), labels)
    >>> tape = hvd.DistributedGradientTape(tape)
    >>> optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables))
    """
    check_predivide(op, gradient_predivide_factor)
    check_compression(compression)
    groups = renamed(num_groups, groups)
    if not isinstance(gradtape, tf.GradientTape):
        raise InvalidArgumentError(f"DistributedGradientTape takes a tf.GradientTape, not {gradtape!r}")
    if isinstance(gradtape, DistributedTape):
        raise InvalidArgumentError("DistributedGradientTape: this tape is wrapped already; it would reduce twice")
    reducer = GradientReducer(
        "DistributedGradientTape",
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        groups,
        process_set,
    )
    return _class_for(type(gradtape))(gradtape, reducer, scale_local_gradients)


def PartialDistributedGradientTape(
    gradtape: tf.GradientTape,
    device_dense: str = "",
    device_sparse: str = "",
    compression: type[Compressor] = Compression.none,
    sparse_as_dense: bool = False,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Any]] | None = None,
    process_set: ProcessSet = global_process_set,
    local_layers: Any = None,
    scale_local_gradients: bool = True,
) -> DistributedTape:
    """DistributedGradientTape() for a model of which some layers are each rank's own (model parallelism).

    Args:
        local_layers: a Keras layer or a collection of them, built or not: their trainable weights are local sources.
        The others: as in DistributedGradientTape().

    Raises:
        InvalidArgumentError: one of them is no layer.
    """
    layer = tf.keras.layers.Layer
    layers = [local_layers] if isinstance(local_layers, layer) else list(local_layers or ())
    if not all(isinstance(one, layer) for one in layers):
        raise InvalidArgumentError("All local layers must be of tf.keras.layers.Layer type.")
    tape = DistributedGradientTape(
        gradtape,
        device_dense,
        device_sparse,
        compression,
        sparse_as_dense,
        op,
        gradient_predivide_factor,
        num_groups,
        groups,
        process_set,
        scale_local_gradients,
    )
    tape._local_layers = layers
    return tape


_classes: dict[type, type[DistributedTape]] = {tf.GradientTape: DistributedTape}


def _class_for(kind: type) -> type[DistributedTape]:
    """Ours, and a subclass of the tape's own: isinstance() holds for both."""
    if kind not in _classes:
        _classes[kind] = type(f"Distributed{kind.__name__}", (DistributedTape, kind), {})
    return _classes[kind]
