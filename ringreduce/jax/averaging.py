"""local_sgd(): ranks step alone, and average their parameters every so many steps.

With H steps between two averagings a rank sends 1/H of the bytes of distributed(). docs/user/methods.md has the
equations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ringreduce.errors import InvalidArgumentError
from ringreduce.jax import alike
from ringreduce.jax.optimizer import GradientTransformation
from ringreduce.jax.primitives import branch, decision
from ringreduce.jax.reductions import grouped_allreduce
from ringreduce.job.process_sets import ProcessSet, global_process_set


class LocalSGDState(NamedTuple):
    """State of local_sgd(), of this rank: a pytree of arrays, which any checkpoint library saves and loads."""

    inner: Any
    """Of the inner optimizer."""
    step: jax.Array
    """int32: steps so far, warmup's included."""
    common: Any
    """m, the parameters that all ranks had after the last averaging, or, before the first one, the mean of those with
    which they began to step alone; until then without a meaning. Without an outer optimizer ()."""
    outer: Any
    """Of the outer optimizer; without one ()."""


class LocalSGD:
    """What local_sgd() returns: Optax's pair (init, update), and beside it step() and synchronize()."""

    def __init__(self, inner: Any, every: int, warmup: int, outer: Any, mix: float, process_set: ProcessSet) -> None:
        self._inner = inner
        self._every = every
        self._warmup = warmup
        self._outer = outer
        self._mix = mix
        self._process_set = process_set
        # Ranks with other arguments call operations of another name: that is a MismatchError with both names.
        outer_text = "None" if outer is None else "given"
        self._name = f"local_sgd(every={every}, warmup={warmup}, outer={outer_text}, mix={mix})"

    def __iter__(self) -> Iterator[Callable[..., Any]]:
        """init and update, for what takes a transformation apart as a pair."""
        return iter((self.init, self.update))

    def init(self, params: Any) -> LocalSGDState:
        """The state before the first step. No communication."""
        is_plain = self._outer is None
        return LocalSGDState(
            inner=self._inner.init(params),
            step=jnp.zeros((), jnp.int32),
            # A copy: params and the state may both be donated to the first step.
            common=() if is_plain else jax.tree_util.tree_map(lambda leaf: jnp.array(leaf, copy=True), params),
            outer=() if is_plain else self._outer.init(params),
        )

    def update(
        self, gradients: Any, state: LocalSGDState, params: Any = None, **extra: Any
    ) -> tuple[Any, LocalSGDState]:
        """Updates to be added to params, as Optax's; params is needed.

        In steps that average they are new - params, and the caller's sum params + updates rounds once more: an element
        that changes by more than its new value may differ between ranks by one rounding of the change, until the next
        averaging. step() has no such sum.
        """
        if params is None:
            raise InvalidArgumentError("local_sgd: update() averages parameters: tx.update(gradients, state, params)")
        return self._advanced(gradients, state, params, extra, as_updates=True)

    def step(self, gradients: Any, state: LocalSGDState, params: Any, **extra: Any) -> tuple[Any, LocalSGDState]:
        """The new parameters, and the state: update() and the sum. After an averaging ranks have the same bits.

        (With mix=0; a rank keeps a part of its own otherwise.)
        """
        return self._advanced(gradients, state, params, extra, as_updates=False)

    def synchronize(self, params: Any, state: LocalSGDState) -> tuple[Any, LocalSGDState]:
        """Ends the period now: the new parameters, the same on all ranks whatever mix is, and the state. Collective.

        For the end of a training, or before a checkpoint that all ranks are to start from. Later periods begin and end
        as they would have without it. The outer optimizer takes no step where no rank has since the last averaging.
        During warmup, and before the first step, ranks count as alike: nothing is sent, and params stay as they are.
        """

        def averaged() -> tuple[Any, LocalSGDState]:
            is_done = (state.step - self._warmup) % self._every == 0
            new, common, outer = self._averaged(params, state, state.step, "synchronize", 0.0, is_done)
            return new, state._replace(common=common, outer=outer)

        def alike() -> tuple[Any, LocalSGDState]:
            return jax.tree_util.tree_map(jnp.asarray, params), state

        has_begun = decision(state.step > self._warmup, self._name)
        return branch(has_begun, averaged, alike)  # type: ignore[no-any-return]

    def _advanced(
        self, gradients: Any, state: LocalSGDState, params: Any, extra: dict[str, Any], as_updates: bool
    ) -> tuple[Any, LocalSGDState]:
        params = jax.tree_util.tree_map(jnp.asarray, params)
        if self._outer is not None:
            # Here, and not in init(), which may have been given others: with this step ranks begin to step alone.
            begins = decision(state.step == self._warmup, self._name)
            begun = branch(begins, self._begun, _second, params, state.common, state.step)
            state = state._replace(common=begun)
        if self._warmup:
            is_warming = decision(state.step < self._warmup, self._name)
            gradients = branch(is_warming, self._averaged_gradients, _unchanged, gradients, state.step)
        updates, inner = self._inner.update(gradients, state.inner, params, **extra)
        updates = jax.tree_util.tree_map(jnp.asarray, updates)
        step = state.step + 1
        alone = LocalSGDState(inner, step, state.common, state.outer)

        def average() -> tuple[Any, LocalSGDState]:
            new, common, outer = self._averaged(_moved(params, updates), state, step, "", self._mix)
            result = jax.tree_util.tree_map(_difference, new, params, updates) if as_updates else new
            return result, alone._replace(common=common, outer=outer)

        def go_on() -> tuple[Any, LocalSGDState]:
            return updates if as_updates else _moved(params, updates), alone

        since = step - self._warmup
        ends = decision((since > 0) & (since % self._every == 0), self._name)
        return branch(ends, average, go_on)  # type: ignore[no-any-return]

    def _begun(self, params: Any, like: Any, step: Any) -> Any:
        """m where the periods begin, the same on all ranks also where their parameters differ: the mean of these.

        A rank's own would keep what ranks differ by for ever: of m - x nothing is left of it.
        """
        own = jax.tree_util.tree_map(lambda x, m: x.astype(m.dtype), params, like)
        # The mean of equal parameters may be off by a rounding, which much momentum makes many times larger. The mean
        # of what it is off by takes that away. Both have the name of an averaging: a rank that is in one is told that
        # the steps differ.
        mean = self._mean(own, step, "", of_present=True)
        off = self._mean(jax.tree_util.tree_map(jnp.subtract, own, mean), step, "", of_present=True)
        return jax.tree_util.tree_map(jnp.add, mean, off)

    def _averaged_gradients(self, gradients: Any, step: Any) -> Any:
        return self._mean(gradients, step, "gradients")

    def _averaged(
        self, own: Any, state: LocalSGDState, step: Any, what: str, mix: float, is_done: Any = None
    ) -> tuple[Any, Any, Any]:
        """What this rank's parameters become, m, and the outer optimizer's state.

        is_done: the period has ended already. Given by synchronize(), where m stays too if no parameter has changed.
        """
        if self._outer is None:
            target, common, outer = self._mean(own, step, what, of_present=True), (), ()
        else:
            change = self._mean(jax.tree_util.tree_map(jnp.subtract, state.common, own), step, what, of_present=True)

            def moved() -> tuple[Any, Any]:
                updates, outer = self._outer.update(change, state.outer, state.common)
                return _moved(state.common, updates), outer

            if is_done is None:
                common, outer = moved()
            else:
                has_changed = [(leaf != 0).any() for leaf in jax.tree_util.tree_leaves(change)]
                is_done = is_done | ~jnp.stack([jnp.zeros((), bool), *has_changed]).any()
                common, outer = branch(is_done, lambda: (state.common, state.outer), moved)
            target = common
        if mix == 0:
            return target, common, outer
        return jax.tree_util.tree_map(lambda x, m: mix * x + (1 - mix) * m, own, target), common, outer

    def _mean(self, tree: Any, step: Any, what: str, of_present: bool = False) -> Any:
        """Of all ranks; fails where they are in different steps.

        Args:
            what: has an operation of its own, by this name.
            of_present: divides by the number of ranks that have not joined, and not by that of all ranks.
        """
        name = f"{self._name} {what}".rstrip()
        both = tree, alike.presence_and_step(step)
        mean, sent = grouped_allreduce(both, name=name, process_set=self._process_set)
        alike.check(sent, name, self._process_set)
        return jax.tree_util.tree_map(lambda leaf: alike.of_present(leaf, sent), mean) if of_present else mean


def local_sgd(
    inner: Any,
    every: int,
    warmup: int = 0,
    outer: Any = None,
    mix: float = 0.0,
    *,
    process_set: ProcessSet = global_process_set,
) -> LocalSGD:
    """The inner optimizer on each rank's own gradients, with parameters that are averaged every `every` steps.

    With x the parameters of a rank and m what all ranks had after the last averaging, every `every` steps
    d = mean over the ranks of (m - x); then m becomes m - d, or what the outer optimizer makes of m with the gradient
    d; then x becomes mix x + (1 - mix) m. The inner optimizer's state, such as momenta, stays each rank's own.

    Ranks average in the steps that a counter in the state says, so all ranks give the same arguments, begin with the
    same parameters, and load states of the same step. In a chain it comes last. With an outer optimizer m begins, after
    warmup, as the mean of x.

    Args:
        inner: an Optax transformation, or any object with its init() and update(); not distributed().
        every: steps between two averagings, H; 1 or more.
        warmup: so many steps come first in which gradients are averaged before each step, as distributed() does
            (post-local SGD).
        outer: the same kind of object, such as diloco() or optax.sgd(0.7, momentum=0.9, nesterov=True); None: m
            becomes the mean of x.
        mix: how much of a rank's own parameters it keeps, 0 to 1, without 1.
        process_set: the ranks that take part.

    Returns:
        A transformation to be used as inner is, inside jit or outside, with the functions step() and synchronize().

    Raises:
        InvalidArgumentError: an argument is wrong; it says which.

    Sources: Lin, Stich, Patel and Jaggi, Don't Use Large Mini-Batches, Use Local SGD, ICLR 2020, arXiv:1808.07217
    (averaging, post-local SGD); Douillard et al., DiLoCo, 2023, arXiv:2311.08105.

    >>> tx = hvd.local_sgd(optax.adamw(4e-4), every=500, outer=hvd.diloco())
    """
    for name, value, least in (("every", every, 1), ("warmup", warmup, 0)):
        if not isinstance(value, int) or value < least:
            raise InvalidArgumentError(f"local_sgd: {name} is a whole number, {least} or more, not {value!r}")
    if not isinstance(mix, int | float) or not 0 <= mix < 1:
        raise InvalidArgumentError(f"local_sgd: mix is 0 or more, and less than 1, not {mix!r}")
    for name, given in (("inner", inner), ("outer", outer)):
        if not _is_transformation(given) and not (name == "outer" and given is None):
            raise InvalidArgumentError(
                f"local_sgd: {name} is a transformation with init() and update(), such as optax.sgd(0.7) or "
                f"hvd.diloco(); this one is a {type(given).__name__}"
            )
    return LocalSGD(inner, every, warmup, outer, mix, process_set)


def diloco(lr: float = 0.7, momentum: float = 0.9) -> GradientTransformation:
    """SGD with Nesterov's momentum, as in DiLoCo (arXiv:2311.08105, section 2 and table 5): outer of local_sgd().

    As optax.sgd(lr, momentum, nesterov=True), which is not needed for it.

    Raises:
        InvalidArgumentError: lr is not above 0, or momentum not 0 to 1, without 1.
    """
    if not lr > 0 or not 0 <= momentum < 1:
        raise InvalidArgumentError(
            f"diloco: lr is above 0, and momentum 0 or more and less than 1, not {lr!r} and {momentum!r}"
        )

    def init(params: Any) -> Any:
        return jax.tree_util.tree_map(jnp.zeros_like, params)

    def update(gradients: Any, state: Any, params: Any = None) -> tuple[Any, Any]:
        velocity = jax.tree_util.tree_map(lambda g, v: momentum * v + g, gradients, state)
        return jax.tree_util.tree_map(lambda g, v: -lr * (g + momentum * v), gradients, velocity), velocity

    return GradientTransformation(init, update)


def _is_transformation(given: Any) -> bool:
    return callable(getattr(given, "init", None)) and callable(getattr(given, "update", None))


def _unchanged(tree: Any, step: Any) -> Any:
    return tree


def _second(tree: Any, other: Any, step: Any) -> Any:
    return other


def _moved(params: Any, updates: Any) -> Any:
    """params + updates in the dtypes of params, as optax.apply_updates()."""
    return jax.tree_util.tree_map(lambda p, u: (p + u).astype(p.dtype), params, updates)


def _difference(new: Any, old: Any, like: Any) -> Any:
    """new - old, in the dtype of the inner optimizer's updates, which may be wider than that of params."""
    return new.astype(like.dtype) - old.astype(like.dtype)
