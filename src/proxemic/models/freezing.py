"""Choice of the blocks of a backbone that are trained, and gradient checkpointing."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from proxemic.models.backbones.bn_inception import BNInception
from proxemic.models.backbones.timm_models import TimmBackbone


def trained_names(backbone: nn.Module, train: str, name: str) -> frozenset[str]:
    """Return the names of the backbone's parameters to train; ``train`` is ``head`` or ``last:N`` (`ModelConfig`)."""
    if train == "head":
        return frozenset()
    blocks = backbone_blocks(backbone)
    count = int(train.removeprefix("last:"))
    if count > len(blocks):
        fewer = f"last:{len(blocks)} or fewer, or all" if blocks else "all or head"
        raise ValueError(f"train is {train!r} but {name} has {len(blocks)} blocks; give {fewer}")
    return frozenset(item for block in blocks[len(blocks) - count :] for item in block)


def frozen_modules(backbone: nn.Module, trained: Iterable[str]) -> frozenset[str]:
    """Return the names of the modules, including the backbone itself, that have no trained parameter.

    A module without parameters, such as dropout, follows the module that contains it.
    """
    having = {prefix for name, _ in backbone.named_parameters() for prefix in _prefixes(name)}
    moving = {prefix for name in trained for prefix in _prefixes(name)}

    def owner(name: str) -> str:
        return name if name in having or not name else owner(name.rpartition(".")[0])

    return frozenset(name for name, _ in backbone.named_modules() if owner(name) not in moving)


def describe_training(backbone: nn.Module, train: str, name: str) -> str:
    """Describe in a sentence which part of a network is trained, if part of it is not."""
    counts = {name: parameter.numel() for name, parameter in backbone.named_parameters()}
    if train == "head":
        return f"model.train is head: the {sum(counts.values()):,} parameters of {name} are not trained."
    blocks, trained = backbone_blocks(backbone), trained_names(backbone, train, name)
    count = int(train.removeprefix("last:"))
    which = "the last" if count == 1 else f"the last {count}"
    return (
        f"model.train is {train}: of the {len(blocks)} blocks of {name}, {which} {'is' if count == 1 else 'are'} "
        f"trained, from {blocks[-count][0].removeprefix('network.')} on: {sum(counts[item] for item in trained):,} of "
        f"{sum(counts.values()):,} parameters."
    )


def _prefixes(name: str) -> Iterator[str]:
    """Yield the names of the modules that contain a parameter."""
    while name:
        name = name.rpartition(".")[0]
        yield name


_LAYERS_OF_INCEPTION = re.compile(r"conv\d|inception_\d\w")


def backbone_blocks(backbone: nn.Module, *, fine: bool = False) -> list[list[str]]:
    """List the names of a backbone's parameters by block, from the images to the features.

    For timm's networks, blocks follow `group_matcher`: the stages of a convolutional network or the layers of a
    transformer; with ``fine``, the groups of layer-wise learning rates. Other networks have one block per child, or per
    member of a list of layers, in the order of definition. Normalisation and activations, which only have vectors as
    parameters, belong to the block of the layer before them.
    """
    network: Any = backbone.network if isinstance(backbone, TimmBackbone) else None
    if hasattr(network, "group_matcher"):
        from timm.models import group_parameters

        groups = group_parameters(network, network.group_matcher(coarse=not fine))
        blocks = [[f"network.{name}" for name in names] for _, names in sorted(groups.items())]
        return blocks if fine else _joined(backbone, blocks)
    return _joined(backbone, _by_child(backbone))


def _by_child(backbone: nn.Module) -> list[list[str]]:
    if isinstance(backbone, BNInception):  # its layers are not grouped in modules
        matches = (_LAYERS_OF_INCEPTION.match(name) for name, _ in backbone.named_parameters())
        starts = [f"{item[0]}_" for item in matches if item is not None]
    else:
        starts = [f"{child}." for child in _children(*_unwrapped(backbone, ""))]
    blocks: dict[str, list[str]] = {start: [] for start in starts or [""]}
    for name, _ in backbone.named_parameters():
        # Parameters of the whole network, such as a class token, belong to the first layers.
        own = next((start for start in blocks if name.startswith(start)), next(iter(blocks)))
        blocks[own].append(name)
    return [names for names in blocks.values() if names]


def _children(module: nn.Module, name: str) -> Iterator[str]:
    """Yield the names of a module's children that have parameters; instead of a list of layers, its members."""
    for child, layer in module.named_children():
        inner, at = _unwrapped(layer, f"{name}.{child}".removeprefix("."))
        if isinstance(inner, nn.ModuleList):
            yield from (f"{at}.{member}" for member, _ in inner.named_children())
        else:
            yield at


def _unwrapped(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    """Find the outermost module with more than one part that has parameters, and its name."""
    parts = {child: item for child, item in module.named_children() if next(item.parameters(), None) is not None}
    if len(parts) != 1 or isinstance(module, nn.ModuleList) or next(module.parameters(recurse=False), None) is not None:
        return module, name
    ((child, inner),) = parts.items()
    return _unwrapped(inner, f"{name}.{child}".removeprefix("."))


def _joined(backbone: nn.Module, blocks: Iterable[list[str]]) -> list[list[str]]:
    joined: list[list[str]] = []
    for block in blocks:
        if joined and all(backbone.get_parameter(name).ndim == 1 for name in block):
            joined[-1] = [*joined[-1], *block]
        else:
            joined.append(block)
    return joined


def recompute_activations(backbone: nn.Module, name: str) -> None:
    """Enable timm's gradient checkpointing; raise `ValueError` if the network has none or trains batch norm.

    The backbone must be in training mode, in which only frozen batch norm is in evaluation mode.
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
    except (AssertionError, AttributeError) as error:  # timm's networks assert that they support it
        raise ValueError(f"gradient_checkpointing is set but {name} has none; {instead}") from error
