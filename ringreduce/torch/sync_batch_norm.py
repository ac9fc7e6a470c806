"""Batch normalization over the joined batch of all ranks.

Forward, each rank states mean, sum of squared deviations and count of its part, in one all-gather; everyone combines
them in rank order, so all ranks have the same bits and nothing cancels (Chan, Golub, LeVeque: Algorithms for computing
the sample variance, 1983). Backward, two sums per channel travel in one all-reduce.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.lazy import LazyModuleMixin

from ringreduce.collectives.ops import Sum
from ringreduce.errors import InvalidArgumentError, MismatchError
from ringreduce.job.process_sets import ProcessSet, global_process_set
from ringreduce.torch.alike import computed_alike
from ringreduce.torch.profiling import profiled
from ringreduce.torch.submission import gather, received
from ringreduce.torch.tensors import operand
from ringreduce.torch.tracing import ALIKE, untraced

_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_always_called",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_is_full_backward_hook",
)
"""Where torch.nn.Module has its hooks around forward() and backward()."""


class SyncBatchNorm(_BatchNorm):
    """Batch normalization whose statistics are those of all ranks' inputs together, as if one rank had them all.

    For inputs (N, C) or (N, C, ...) in any floating-point type, on the CPU or on a GPU, for which the CPU waits once in
    forward. N and what comes after C may differ between ranks, and N may be 0. In eval mode with running statistics it
    communicates nothing; otherwise every rank of the set calls it, forward and backward, as any collective. The
    gradients of weight and bias are this rank's own, for
    DistributedOptimizer to reduce. backward() works once, not twice (no create_graph).

    Args:
        num_features: C.
        eps: added to the variance.
        momentum: of the running statistics; None for the average over all batches so far.
        affine: whether there are weight and bias.
        track_running_stats: False uses the batch's statistics in eval mode as well.
        process_set: the ranks that take part.

    Raises:
        ValueError: the input has fewer than two dimensions; or all ranks together have one value per channel.
        InvalidArgumentError: the input has not num_features channels.
        MismatchError: the ranks' num_features differ; or a rank has joined (hvd.join()).
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_set: ProcessSet = global_process_set,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats)
        self.process_set = process_set

    @classmethod
    def convert_sync_batchnorm(
        cls, module: torch.nn.Module, process_set: ProcessSet = global_process_set
    ) -> torch.nn.Module:
        """The module with every BatchNorm layer in it replaced; parameters and running statistics are kept, not copied.

        So are the layers' forward and backward hooks.

        Raises InvalidArgumentError, and replaces nothing, where a layer has a forward() of its own, not torch's: what
        it does besides would be lost.

        >>> model = hvd.SyncBatchNorm.convert_sync_batchnorm(model)
        """
        for name, layer in module.named_modules():
            if isinstance(layer, _BatchNorm) and not isinstance(layer, cls) and not _has_forward_of_torch(layer):
                raise InvalidArgumentError(
                    f"convert_sync_batchnorm: {name or 'the module itself'} is a {type(layer).__name__} with a "
                    "forward() of its own, and what that does besides batch normalization would be lost. Let the class "
                    "derive from hvd.SyncBatchNorm, or let it hold a torch.nn.BatchNorm layer"
                )
        return cls._converted(module, process_set, {})

    @classmethod
    def _converted(
        cls, module: torch.nn.Module, process_set: ProcessSet, made: dict[torch.nn.Module, torch.nn.Module]
    ) -> torch.nn.Module:
        """The module to have in this one's place; made has those that are decided, so that a shared layer stays one."""
        if module in made:
            return made[module]
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            made[module] = cls._from(module, process_set)
            return made[module]
        made[module] = module
        for name, child in list(module._modules.items()):  # named_children() leaves out the second place of a layer
            if child is not None:
                setattr(module, name, cls._converted(child, process_set, made))
        return module

    @classmethod
    def _from(cls, layer: _BatchNorm, process_set: ProcessSet) -> SyncBatchNorm:
        settings = (layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
        made = cls(*settings, process_set=process_set)
        made.weight, made.bias = layer.weight, layer.bias
        made.running_mean, made.running_var = layer.running_mean, layer.running_var
        made.num_batches_tracked = layer.num_batches_tracked
        made.training = layer.training
        if not isinstance(layer, LazyModuleMixin):  # whose hook makes its own parameters, not those of another layer
            for name in _HOOKS:  # the dicts themselves, so that the handles of the hooks still remove them
                setattr(made, name, getattr(layer, name))
        return made

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")
        if input.shape[1] != self.num_features:
            raise InvalidArgumentError(
                f"SyncBatchNorm of {self.num_features} features got an input of shape {tuple(input.shape)}"
            )

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """The normalized input, in its shape and dtype."""
        self._check_input_dim(input)
        if not self.training and self.running_mean is not None:
            return functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
            )
        if self.process_set.size() == 1:
            return super().forward(input)
        output, mean, m2, count = _Normalize.apply(  # type: ignore[no-untyped-call]
            input, self.weight, self.bias, self.eps, self.process_set
        )
        if count <= 1:
            raise ValueError(
                "Expected more than 1 value per channel when training, got input size "
                f"{tuple(input.shape)}, and no more on the other ranks"
            )
        if self.training:
            self._track(mean, m2, count)
        return output  # type: ignore[no-any-return]

    @untraced(ALIKE)
    def _track(self, mean: torch.Tensor, m2: torch.Tensor, count: torch.Tensor) -> None:
        """Moves the running statistics towards those of a batch.

        By products and sums of their own: lerp_() rounds once or twice, as the processor has it.
        """
        if self.running_mean is None or self.running_var is None:
            return
        assert self.num_batches_tracked is not None
        with torch.no_grad(), computed_alike(self.running_mean.device):
            self.num_batches_tracked += 1
            momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            variance = m2 / (float(count) - 1)
            for running, new in ((self.running_mean, mean), (self.running_var, variance)):
                running.add_((new.to(running.dtype) - running).mul_(momentum))


def _has_forward_of_torch(layer: _BatchNorm) -> bool:
    """Whether it computes what a layer of torch does: neither its class nor the layer itself has another forward()."""
    return getattr(layer.forward, "__func__", None) in (_BatchNorm.forward, torch.nn.SyncBatchNorm.forward)


class _Normalize(torch.autograd.Function):
    """Normalizes with the statistics of all ranks. Outputs: the result, then mean, squared deviations, count."""

    @staticmethod
    def forward(
        ctx: Any,
        input: torch.Tensor,
        weight: torch.Tensor | None,
        bias: torch.Tensor | None,
        eps: float,
        process_set: ProcessSet,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        wide = _wide(input)
        mean, m2, count = _combined(_statistics(wide), process_set)
        inverse = torch.rsqrt(m2 / max(1.0, count) + eps)
        scale = inverse if weight is None else inverse * weight
        shift = -mean * scale if bias is None else bias - mean * scale
        # One pass over the input, with factors in fp64 until they are rounded to the type it is computed in.
        output = torch.addcmul(_along(shift, wide), wide, _along(scale, wide)).to(input.dtype)
        ctx.save_for_backward(input, weight, mean, inverse)
        ctx.count, ctx.process_set = count, process_set
        total = torch.tensor(count, dtype=torch.float64, device="cpu")
        ctx.mark_non_differentiable(mean, m2, total)
        return output, mean, m2, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        input, weight, mean, inverse = ctx.saved_tensors
        wide, grad = _wide(input), _wide(grads[0])
        centred = wide - _along(mean, wide)
        others = [dim for dim in range(input.dim()) if dim != 1]
        sums = torch.stack([grad.sum(others), (grad * centred).sum(others)]).double()
        own = sums.clone()
        memory = operand(sums)
        try:
            profiled(ctx.process_set.group).allreduce(memory, memory, Sum, 1.0, 1.0, None)
        except MismatchError as error:
            raise _of_layer(error) from None
        mean_grad, mean_product = sums / max(1.0, ctx.count)
        scale = inverse if weight is None else inverse * weight
        slope = _along(mean_product * inverse * inverse, wide)
        input_grad = (grad - _along(mean_grad, wide) - centred * slope) * _along(scale, wide)
        weight_grad = None if weight is None else (own[1] * inverse).to(weight.dtype)
        bias_grad = own[0].to(weight.dtype) if ctx.needs_input_grad[2] else None
        return input_grad.to(input.dtype), weight_grad, bias_grad, None, None


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """What it is computed in: float32 for the 16-bit types, else the tensor's own."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _along(channels: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A value per channel, to be broadcast over a tensor of any number of dimensions."""
    return channels.to(like.dtype).view(1, -1, *[1] * (like.dim() - 2))


def _statistics(input: torch.Tensor) -> torch.Tensor:
    """This rank's row: count, then the mean of each channel, then the sum of its squared deviations. float64."""
    channels = input.shape[1]
    count = input.numel() // max(1, channels)
    row = torch.zeros(1, 1 + 2 * channels, dtype=torch.float64, device=input.device)
    if count:
        variance, mean = torch.var_mean(input, [dim for dim in range(input.dim()) if dim != 1], correction=0)
        row[0, 0] = count
        row[0, 1 : channels + 1] = mean
        row[0, channels + 1 :] = variance.double() * count
    return row


def _of_layer(error: MismatchError) -> MismatchError:
    """The error, in words that say whose operation it was: the operations have no names, which would cost time."""
    return MismatchError(f"SyncBatchNorm: {error}")


def _combined(row: torch.Tensor, process_set: ProcessSet) -> tuple[torch.Tensor, torch.Tensor, float]:
    """(mean, squared deviations, count) of all ranks together. Collective."""
    try:
        work = gather(process_set.group, operand(row), row, None)
        work.wait()
    except MismatchError as error:
        raise _of_layer(error) from None
    rows = received(work, row).cpu()  # counts decide what is computed, so the CPU has to have them
    count, mean, m2 = 0.0, *torch.zeros(2, row.shape[1] // 2, dtype=torch.float64, device="cpu")
    with computed_alike(rows.device):
        for other in rows:
            added = float(other[0])
            if added == 0.0:
                continue
            other_mean, other_m2 = other[1:].chunk(2)
            together = count + added
            distance = other_mean - mean
            mean = mean + distance * (added / together)
            m2 = m2 + other_m2 + distance * distance * (count * added / together)
            count = together
    return mean.to(row.device), m2.to(row.device), count
