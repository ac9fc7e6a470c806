"""What LocalSGD puts in front of the user's optimizer class: averaging after the step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from ringreduce.collectives.ops import Average, Max
from ringreduce.errors import InvalidArgumentError, MismatchError
from ringreduce.job.collective_json import allgather_json, allreduce_integers, has_nobody_joined
from ringreduce.job.process_sets import ProcessSet
from ringreduce.torch.collectives.allreduce import grouped_allreduce
from ringreduce.torch.gradient_reduction import described
from ringreduce.torch.local_sgd.fragment import Fragment
from ringreduce.torch.local_sgd.outer import Outer
from ringreduce.torch.optimizer import same_start
from ringreduce.torch.optimizer.mixins import same_groups
from ringreduce.torch.tracing import STEP, untraced

KEY = "local_sgd"
"""Of our part of state_dict()."""


class Schedule(NamedTuple):
    """Arguments of LocalSGD."""

    every: int
    warmup: int
    fragments: int
    overlap: int
    mix: float
    compression: Any

    def arguments(self, outer: str) -> dict[str, Any]:
        """These and a description of the outer optimizer, as numbers and text: ranks and saved states are compared."""
        return self._asdict() | {"outer": outer, "compression": described(self.compression)}

    def begins(self, step: int) -> list[int]:
        """Which fragments begin an averaging after this step; steps count from 1, after warmup.

        They are spread over the period, and the last one begins at its end.

        >>> [Schedule(6, 0, 2, 0, 0.0, None).begins(step) for step in range(1, 7)]
        [[], [], [0], [], [], [1]]
        """
        ends = [(number + 1) * self.every // self.fragments for number in range(self.fragments)]
        return [number for number, end in enumerate(ends) if (step - end) % self.every == 0 and step > 0]


class LocalSGDMixin(torch.optim.Optimizer):
    """Comes before the user's class in the class of the result; super() is that class."""

    _plain: type[torch.optim.Optimizer]

    def _start(
        self,
        name: str,
        parameters: list[torch.nn.Parameter],
        schedule: Schedule,
        outer: Outer | None,
        arguments: dict[str, Any],
        process_set: ProcessSet,
    ) -> None:
        self._name = name
        self._schedule = schedule
        self._arguments = arguments
        self._process_set = process_set
        self._steps = 0
        self._joins = process_set.joins  # that had ended when the periods began
        self._averaged = parameters
        averaged = set(parameters)
        self._frozen = [p for group in self.param_groups for p in group["params"] if p not in averaged]
        self._is_compared = False  # the ranks have compared what they start from
        self._has_started = False  # the fragments know what all ranks have
        self._is_lost = False  # an averaging has failed: this rank is apart from the others
        self._fragments: list[Fragment] = []
        if process_set.included():
            self._fragments = [
                Fragment(f"{name}.{number}", part, outer, schedule.mix, schedule.compression, process_set)
                for number, part in enumerate(split(parameters, schedule.fragments))
            ]

    @property
    def local_steps(self) -> int:
        """Steps of this rank so far, warmup's included."""
        return self._steps

    @untraced(STEP)
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """The optimizer's step with this rank's gradients; every so many steps the ranks' parameters are averaged."""
        if not self._fragments:
            return super().step(closure)
        self._check_lost()
        if any(p.requires_grad for p in self._frozen):
            raise InvalidArgumentError(
                "LocalSGD: a parameter requires a gradient now that did not when the optimizer was made, and is not "
                "averaged: make a new LocalSGD, on all ranks"
            )
        self._begin_anew_after_join()
        self._begin_alike()
        is_warming = self._steps < self._schedule.warmup
        if not is_warming and not self._has_started:
            self._start_fragments()
        result = self._warm_step(closure) if is_warming else super().step(closure)
        self._steps += 1
        with self._averaging():
            self._average()
        return result

    step.hooked = True  # type: ignore[attr-defined]  # torch runs step hooks around the plain step(), not here again

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What torch.amp.GradScaler.step() asks for. Raises InvalidArgumentError."""
        raise InvalidArgumentError(
            "LocalSGD: a GradScaler leaves out steps on the rank alone whose gradients overflow, so that ranks would "
            "average different steps: use torch.autocast with bfloat16, which needs no scaler"
        )

    def synchronize(self) -> None:
        """Ends the period now: all fragments are averaged, and all ranks have the same parameters, whatever mix is.

        Collective, between steps; for the end of a training, or before a checkpoint that all ranks are to start from.
        Steps since the start of an averaging that is under way are averaged too. The periods of later steps begin and
        end as they would have without it. Where ranks and outer parameters are the same already, as after an averaging
        that no step has followed, no outer step is taken. After join() this averages nothing:
        hvd.broadcast_parameters() gives all ranks the same.
        """
        if not self._fragments:
            return
        self._check_lost()
        self._begin_anew_after_join()
        if not self._has_started:
            return
        with self._averaging():
            for fragment in self._arrived():
                fragment.apply(share=0)
            for fragment in self._fragments:
                fragment.begin(self._steps)
            for fragment in self._arrived():
                fragment.apply(share=1)

    def _start_fragments(self) -> None:
        """What all ranks have is the same on all from here on, also where their parameters differ, with a warning.

        Not where a rank has joined, which could not take part: there all begin anew when it is back.
        """
        for fragment in self._fragments:
            fragment.start()
        if len(self._process_set.ranks) > 1 and not self._fragments[0].is_plain:
            with self._averaging():
                if has_nobody_joined(self._process_set.group, f"{self._name}.common"):
                    for fragment in self._fragments:
                        fragment.share()
        self._has_started = True

    def _arrived(self) -> list[Fragment]:
        """The fragments whose averaging has begun, once all values are there; in the same order on all ranks."""
        begun = sorted((one for one in self._fragments if one.due is not None), key=lambda one: one.due or 0)
        for fragment in begun:
            fragment.arrive()
        return begun

    def _begin_anew_after_join(self) -> None:
        """After join(), which leaves ranks with different numbers of steps: periods and outer steps begin afresh."""
        if self._joins == self._process_set.joins:
            return
        with self._averaging():
            for fragment in self._fragments:
                fragment.reset()
            group, name = self._process_set.group, f"{self._name}.anew"
            (self._steps,) = allreduce_integers(group, name, [self._steps], Max)
        self._has_started = self._is_compared = False
        self._joins = self._process_set.joins

    def _begin_alike(self) -> None:
        """Before the first step, of a training or after a state was loaded: whether all ranks begin with the same."""
        if self._is_compared or len(self._process_set.ranks) == 1:
            return
        each = [[fragment.due, fragment.applied] for fragment in self._fragments]
        mine = [self._steps, self._has_started, each]
        if has_nobody_joined(self._process_set.group, f"{self._name}.start"):
            states = allgather_json(self._process_set.group, f"{self._name}.state", mine)
            for rank, theirs in zip(self._process_set.ranks, states, strict=True):
                if theirs != states[0]:
                    raise MismatchError(
                        f"LocalSGD: rank {self._process_set.ranks[0]} goes on from [steps, averages, [due, averaged]] "
                        f"{states[0]}, and rank {rank} from {theirs}: load_state_dict() on all ranks, of states that "
                        "were saved in the same step, or, after a failure, of the state of one rank; "
                        "hvd.broadcast_optimizer_state() does not send LocalSGD's part"
                    )
        named = [(f"parameter {number}", p) for number, p in enumerate(self._averaged)]
        # Between averagings ranks have parameters of their own.
        self._is_compared = self._has_started or same_start.check(
            named, f"{self._name}.start", self._process_set, "LocalSGD"
        )

    def _warm_step(self, closure: Callable[[], Any] | None) -> Any:
        if closure is None:
            self._average_gradients()
            return super().step()

        def averaged() -> Any:
            loss = closure()
            self._average_gradients()
            return loss

        return super().step(averaged)

    def _average_gradients(self) -> None:
        with self._averaging(), torch.no_grad():
            trained = [p for p in self._averaged if p.requires_grad]
            for parameter in trained:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                elif parameter.grad.layout is not torch.strided:
                    parameter.grad = parameter.grad.to_dense()
            gradients = [p.grad for p in trained if p.grad is not None]
            averages = grouped_allreduce(
                gradients, op=Average, name=f"{self._name}.gradients", process_set=self._process_set
            )
            for gradient, average in zip(gradients, averages, strict=True):
                gradient.copy_(average)

    def _average(self) -> None:
        step = self._steps - self._schedule.warmup
        self._apply_due(step)
        for number in self._schedule.begins(step):
            self._fragments[number].begin(step + self._schedule.overlap)
        if self._schedule.overlap == 0:
            self._apply_due(step)

    def _apply_due(self, step: int) -> None:
        due = [fragment for fragment in self._fragments if fragment.due is not None and fragment.due <= step]
        for fragment in due:
            fragment.arrive()
        for fragment in due:  # once all values are there: nothing is half averaged
            fragment.apply()

    @contextmanager
    def _averaging(self) -> Iterator[None]:
        """What fails or is interrupted within has left the ranks' operations out of step."""
        try:
            yield
        except BaseException:
            self._is_lost = True
            raise

    def _check_lost(self) -> None:
        if self._is_lost:
            raise MismatchError(
                "an averaging of LocalSGD has failed or was interrupted, so this rank is apart from the others: end "
                "the job, or make a new LocalSGD after shutdown() and init() on all ranks"
            )

    def state_dict(self) -> dict[str, Any]:
        """The optimizer's own, and under "local_sgd" what the averaging needs to go on, of this rank.

        Between averagings each rank has parameters and state of its own: either each rank saves its own, or all call
        synchronize() before one of them saves. Waits for an averaging that has begun; with Compression.powersgd, whose
        averaging has two parts, that is collective. After an averaging has failed, as where a rank has died, it waits
        for nothing: the state is the one without the averagings that were under way.
        """
        state: dict[str, Any] = super().state_dict()
        if not self._is_lost:
            with self._averaging():
                self._arrived()
        state[KEY] = {
            "arguments": dict(self._arguments),
            "steps": self._steps,
            "has_started": self._has_started,
            "fragments": [fragment.state_dict(self._is_lost) for fragment in self._fragments],
        }
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes on from there, with the same arguments; without our part, as of a plain optimizer, from the beginning.

        The outer optimizer's options, such as the learning rate of diloco(), are arguments too. The plain optimizer's
        are the state's, as in torch.

        An averaging that is under way is left unused. Raises InvalidArgumentError, before anything is loaded, where the
        state is of other arguments or parameters, and MismatchError after an averaging has failed.
        """
        self._check_lost()
        own = {key: value for key, value in state_dict.items() if key != KEY}
        ours: dict[str, Any] = {"steps": 0, "has_started": False, "fragments": []}
        if KEY in state_dict:
            ours = state_dict[KEY]
            self._check_state(ours)
        with same_groups(self):
            super().load_state_dict(own)
        self._steps, self._has_started, self._is_compared = ours["steps"], ours["has_started"], False
        self._joins = self._process_set.joins
        for fragment in self._fragments:
            fragment.reset()
        if self._has_started:
            for fragment, state in zip(self._fragments, ours["fragments"], strict=True):
                fragment.load_state_dict(state)

    def _check_state(self, state: dict[str, Any]) -> None:
        """Raises InvalidArgumentError where our part of a state is of other arguments or parameters."""
        theirs = state.get("arguments")
        theirs = theirs if isinstance(theirs, dict) else {}
        other = [name for name, value in self._arguments.items() if name not in theirs or theirs[name] != value]
        if other:
            was = ", ".join(f"{name}={theirs.get(name, 'unknown')!r}" for name in other)
            now = ", ".join(f"{name}={self._arguments[name]!r}" for name in other)
            raise InvalidArgumentError(
                f"LocalSGD: the state is of other arguments, {was}, and this optimizer has {now}: make it with those "
                f'of the state, or take "{KEY}" out of the state, and periods and outer momentum begin anew'
            )
        if not state["has_started"]:
            return
        if len(state["fragments"]) != len(self._fragments):
            raise InvalidArgumentError(
                f"LocalSGD: the state has {len(state['fragments'])} fragments, and this rank {len(self._fragments)}: "
                "one is of a rank in the process set, and one of a rank outside"
            )
        for fragment, saved in zip(self._fragments, state["fragments"], strict=True):
            fragment.check(saved)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises InvalidArgumentError: the new parameters would not be averaged."""
        raise InvalidArgumentError(
            "LocalSGD averages the parameters that its optimizer had when it was made: add the group to the plain "
            "optimizer, and make a new LocalSGD of that, on all ranks"
        )

    def __reduce__(self) -> Any:
        """Raises InvalidArgumentError: a copy would average nothing, or wait for ranks that have no copy."""
        raise InvalidArgumentError("a LocalSGD cannot be copied or pickled: save and load optimizer.state_dict()")


def split(parameters: list[torch.nn.Parameter], count: int) -> list[list[torch.nn.Parameter]]:
    """So many parts, in order, none of them empty, of about as many elements each."""
    parts: list[list[torch.nn.Parameter]] = []
    left = list(parameters)
    for number in range(count, 0, -1):
        share = sum(p.numel() for p in left) / number
        part = [left.pop(0)]
        while len(left) >= number and sum(p.numel() for p in part) + left[0].numel() / 2 <= share:
            part.append(left.pop(0))
        if number == 1:
            part += left
        parts.append(part)
    return parts
