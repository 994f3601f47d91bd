"""Gradient checkpointing: what a network's blocks compute inside is forgotten, and computed again for the gradients."""

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def recompute_activations(backbone: nn.Module, name: str) -> None:
    """Switch on the checkpointing that networks of timm have; `ValueError` where there is none.

    The layers are in the modes of training, by which frozen batch norm is known.
    """
    network: Any = getattr(backbone, "network", backbone)
    instead = "leave it out, or save memory by batches.micro_batches"
    if any(isinstance(layer, _BatchNorm) and layer.training for layer in backbone.modules()):
        raise ValueError(
            f"gradient_checkpointing is set but {name} has batch norm, whose statistics would count each batch twice; "
            f"set freeze_batch_norm, or {instead}"
        )
    try:
        network.set_grad_checkpointing()
    except (AssertionError, AttributeError) as error:  # timm's networks without it assert so
        raise ValueError(f"gradient_checkpointing is set but {name} has none; {instead}") from error
