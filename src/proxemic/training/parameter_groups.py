"""The optimiser of a run, with parameter groups that have their own learning rates."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.distributed import ProcessGroup
from torch.optim import SGD, Adam, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from proxemic.losses import ProxyLoss
from proxemic.models import EmbeddingModel
from proxemic.models.freezing import backbone_blocks
from proxemic.optim.clipping import clip_norm, clip_value
from proxemic.optim.sparse_rows import check_steps_rows, step_rows
from proxemic.ranges import check_fields
from proxemic.training.config import require


def parameter_groups(
    model: nn.Module,
    loss: nn.Module,
    *,
    lr: float,
    loss_lr: float,
    head_lr: float | None = None,
    graph_lr: float | None = None,
    loss_weight_decay: float | None = None,
    layer_decay: float = 1.0,
) -> list[dict[str, Any]]:
    """Return parameter groups for a torch optimiser: backbone, head, proxies, and networks inside the loss.

    With `layer_decay` below 1, the backbone has a group for each of its L layers. Layer l, counted from 1, has the
    learning rate ``lr · layer_decay^(L − l)``, so the last one has ``lr``.

    Args:
        model: An `EmbeddingModel`; all parameters of any other module belong to the backbone.
        loss: Its own parameters are taken for proxies, and those of its submodules for a graph network, as in HIST.
        lr: Learning rate of the backbone.
        loss_lr: Learning rate of the proxies.
        head_lr: Learning rate of pooling and head; None takes ``lr``.
        graph_lr: Learning rate of networks inside the loss; None takes ``loss_lr``.
        loss_weight_decay: Weight decay of all parameters of the loss; None leaves it to the optimiser.
        layer_decay: In (0, 1]. Layers are those of timm's `param_groups_layer_decay`, or for other networks the blocks
            that `ModelConfig`'s ``train`` counts.

    >>> from proxemic.losses import ProxyAnchorLoss
    >>> groups = parameter_groups(nn.Linear(4, 2), ProxyAnchorLoss(10, 2), lr=1e-3, loss_lr=1e-1)
    >>> [(group["name"], group["lr"], len(group["params"])) for group in groups]
    [('backbone', 0.001, 2), ('proxies', 0.1, 1)]
    """
    decay = {} if loss_weight_decay is None else {"weight_decay": loss_weight_decay}
    backbone = _backbone(model)
    layers = [backbone]
    if layer_decay < 1:
        network = model.backbone if isinstance(model, EmbeddingModel) else model
        layers = [[network.get_parameter(name) for name in names] for names in backbone_blocks(network, fine=True)]
    proxies = list(loss.parameters(recurse=False))
    groups = [
        *(
            {
                "name": "backbone" if layer_decay == 1 else f"backbone.{number}",
                "lr": lr * layer_decay ** (len(layers) - number),
                "params": layer,
            }
            for number, layer in enumerate(layers, 1)
        ),
        {"name": "head", "lr": lr if head_lr is None else head_lr, "params": _others(model, backbone)},
        {"name": "proxies", "lr": loss_lr, "params": proxies, **decay},
        {"name": "graph", "lr": loss_lr if graph_lr is None else graph_lr, "params": _others(loss, proxies), **decay},
    ]
    for group in groups:
        group["params"] = [parameter for parameter in group["params"] if parameter.requires_grad]
    return [group for group in groups if group["params"]]


def fuse(optimizer: Optimizer, *, but: Sequence[str] = ()) -> None:
    """Let SGD, Adam and AdamW take their steps in few GPU kernels (``fused``), unless their arguments say otherwise.

    The groups named ``but`` are not changed.
    """
    for group in optimizer.param_groups if isinstance(optimizer, SGD | Adam) else ():
        if group["fused"] is None and not group["foreach"] and not group["differentiable"]:
            group["fused"] = (group.get("name") not in but and all(item.is_cuda for item in group["params"])) or None


def _backbone(model: nn.Module) -> list[nn.Parameter]:
    return list((model.backbone if isinstance(model, EmbeddingModel) else model).parameters())


def _others(module: nn.Module, known: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    ids = {id(parameter) for parameter in known}
    return [parameter for parameter in module.parameters() if id(parameter) not in ids]


def _check_step(factory: Callable[..., Optimizer]) -> None:
    """Raise `ValueError` if the optimiser cannot step without a closure that computes the loss again."""
    kind: Any = getattr(factory, "func", factory)  # of a functools.partial
    step = getattr(kind, "step", None)
    closure = None if step is None else inspect.signature(step).parameters.get("closure")
    if closure is not None and closure.default is closure.empty:
        raise ValueError(
            f"optim.optimizer is {kind.__name__}, which computes the loss several times per step, but training "
            "computes it once: take another optimiser, such as torch.optim.AdamW."
        )


@dataclass(frozen=True)
class Optimization:
    """Optimiser, learning rates, schedule and gradient clipping of a run.

    Args:
        optimizer: Any torch optimiser, with its arguments (eps, momentum, nesterov, weight_decay) except for learning
            rates, which are set below.
        lr: Learning rate of the backbone, above 0.
        loss_lr: Learning rate of the proxies, above 0; 10 to 1,000 times ``lr`` is usual.
        head_lr: Learning rate of pooling and head; null takes ``lr``.
        graph_lr: Learning rate of networks inside a loss, such as HIST's; null takes ``loss_lr``.
        loss_weight_decay: Weight decay of all parameters of the loss, 0 or more; null takes the optimiser's.
        layer_decay: In (0, 1]: the learning rate of each layer of the backbone is that of the next layer times this,
            and the last one has ``lr``; 0.65 to 0.9 is usual for pretrained transformers. Layers are timm's groups.
        schedule: Any torch scheduler, stepped once per epoch (ReduceLROnPlateau with evaluation.metric on the held-out
            classes, where larger is better), or `PolynomialDecay`, stepped after every batch; null keeps the
            rates constant.
        clip_value: Largest absolute value of each entry of the gradient; null does not clip.
        clip_norm: Largest norm of the whole gradient; null does not clip.
        clip_backbone_norm: Largest norm of the backbone's gradient alone, as in insightface; null does not clip.

    Raises:
        ValueError: If a rate is not above 0, or two clips are given.
    """

    optimizer: Callable[[Iterable[Any], float], Optimizer]
    lr: float
    loss_lr: float
    head_lr: float | None = None
    graph_lr: float | None = None
    loss_weight_decay: float | None = None
    layer_decay: float = 1.0
    schedule: Callable[[Optimizer], LRScheduler] | None = None
    clip_value: float | None = None
    clip_norm: float | None = None
    clip_backbone_norm: float | None = None

    def __post_init__(self) -> None:
        clips = ("clip_value", "clip_norm", "clip_backbone_norm")
        positive = dict.fromkeys(("lr", "loss_lr", "head_lr", "graph_lr", *clips), "(0, inf)")
        check_fields(self, "optim", loss_weight_decay="[0, inf)", layer_decay="(0, 1]", **positive)
        given = [f"optim.{name}" for name in clips if getattr(self, name) is not None]
        require(len(given) < 2, f"{' and '.join(given[:2])} are both given: leave one of them out (null).")

    @property
    def clips(self) -> bool:
        return any(limit is not None for limit in (self.clip_value, self.clip_norm, self.clip_backbone_norm))

    def clip(
        self, optimizer: Optimizer, model: nn.Module, local: Sequence[nn.Parameter], group: ProcessGroup | None
    ) -> None:
        """Clip the gradients as the recipe says; of ``local`` parameters, each process of the group holds a shard."""
        everything = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if self.clip_value is not None:
            clip_value(everything, self.clip_value)
        if self.clip_norm is not None:
            clip_norm(everything, self.clip_norm, local=local, group=group)
        if self.clip_backbone_norm is not None:
            clip_norm(_backbone(model), self.clip_backbone_norm)

    def build(
        self, model: nn.Module, loss: nn.Module, *, sharded: bool = False
    ) -> tuple[Optimizer, LRScheduler | None]:
        """Return the optimiser of all trained parameters, including ``sharded`` proxies, and its schedule."""
        _check_step(self.optimizer)
        groups = parameter_groups(
            model,
            loss,
            lr=self.lr,
            loss_lr=self.loss_lr,
            head_lr=self.head_lr,
            graph_lr=self.graph_lr,
            loss_weight_decay=self.loss_weight_decay,
            layer_decay=self.layer_decay,
        )
        optimizer = self.optimizer(groups, self.lr)
        sampled = isinstance(loss, ProxyLoss) and loss.sample_rate < 1
        fuse(optimizer, but=("proxies", "graph") if sampled else ())
        if sampled:
            step_rows(optimizer)
        if sharded:
            check_steps_rows(optimizer, "of sharded proxies each process steps its own classes", "proxies: replicated")
        schedule = self.schedule(optimizer) if self.schedule else None
        if isinstance(schedule, ReduceLROnPlateau) and schedule.mode != "max":
            raise ValueError(
                "optim.schedule is ReduceLROnPlateau with mode min, but evaluation.metric is better when larger: set "
                "its mode to max."
            )
        return optimizer, schedule
