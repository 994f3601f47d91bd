"""Batch norm by the statistics of the joined batch of all processes."""

import timm.layers
import torch
import torch.distributed as dist
from jaxtyping import Float
from lightning.pytorch.plugins import LayerSync
from timm.layers import BatchNormAct2d
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from proxemic.distributed.gather import pool_across
from proxemic.errors import UserError

_KNOWN = (nn.BatchNorm1d, nn.BatchNorm2d, BatchNormAct2d)


class JoinedBatchNorm(LayerSync):
    """Synchronises the batch norms of a network: by torch's layer on GPUs, and by plain arithmetic on CPUs.

    The type of the device that trains is given, as the network is moved there later.
    """

    def __init__(self, device: str) -> None:
        self.device = device

    def apply(self, model: nn.Module) -> nn.Module:
        if self.device != "cpu":
            return timm.layers.convert_sync_batchnorm(model)
        for part in list(model.modules()):
            for name, child in part.named_children():
                if not isinstance(child, _BatchNorm) or not child.track_running_stats:
                    continue
                if type(child) not in _KNOWN:
                    raise UserError(
                        f"The network has a {type(child).__name__}, which is not synchronised over processes on CPUs: "
                        "set training.sync_batch_norm to false, and each process takes the statistics of its own part."
                    )
                setattr(part, name, _joined(child))
        return model

    def revert(self, model: nn.Module) -> nn.Module:
        return model  # the names and shapes of its tensors are those of plain batch norm


class _JoinedBatchNorm(_BatchNorm):
    """Batch norm whose means and variances are those of the samples of all processes."""

    drop: nn.Module
    act: nn.Module

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002
        return

    def forward(self, input: Float[Tensor, "batch channels *shape"]) -> Tensor:  # noqa: A002
        if not self.training:
            return self.act(self.drop(super().forward(input)))
        assert dist.group.WORLD is not None
        dims, group = [0, *range(2, input.ndim)], dist.group.WORLD
        given, input = input.dtype, input.to(torch.promote_types(input.dtype, torch.float32))  # noqa: A001
        count = torch.tensor([float(input.numel() // input.shape[1])])
        dist.all_reduce(count)
        # The mean first: a difference of large squares would lose the digits of a small variance.
        mean = pool_across(input.sum(dims), group) / count
        centered = input - _along(mean, input)
        variance = pool_across(centered.square().sum(dims), group) / count
        self._remember(mean.detach(), variance.detach() * count / (count - 1).clamp(min=1))
        scale = (variance + self.eps).rsqrt()
        normalized = centered * _along(scale if self.weight is None else scale * self.weight, input)
        if self.bias is not None:
            normalized = normalized + _along(self.bias, input)
        return self.act(self.drop(normalized.to(given)))

    @torch.no_grad()
    def _remember(self, mean: Float[Tensor, " channels"], variance: Float[Tensor, " channels"]) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean, share)
        self.running_var.lerp_(variance, share)


def _joined(norm: _BatchNorm) -> _JoinedBatchNorm:
    """The same layer, with the same parameters and buffers."""
    joined = _JoinedBatchNorm(norm.num_features)
    # timm has layers of batch norm that end in an activation.
    joined.drop, joined.act = nn.Identity(), nn.Identity()
    modules = joined._modules | norm._modules
    joined.__dict__ |= norm.__dict__ | {"_modules": modules}
    return joined


def _along(channels: Float[Tensor, " channels"], like: Float[Tensor, "batch channels *shape"]) -> Tensor:
    return channels.view(-1, *[1] * (like.ndim - 2))
