"""A backbone as a sequence of blocks, from the images to the features."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

from torch import nn

from proxemic.models.bn_inception import BNInception
from proxemic.models.timm_models import TimmBackbone

_LAYERS_OF_INCEPTION = re.compile(r"conv\d|inception_\d\w")


def backbone_blocks(backbone: nn.Module, *, fine: bool = False) -> list[list[str]]:
    """List the names of a backbone's parameters by block, from the images to the features.

    Blocks are those of timm's `group_matcher`: the stages of a convolutional network, the layers of a transformer; with
    ``fine``, the groups of its layer-wise learning rates. Other networks have a block per child, or per member of a
    list of layers, in the order in which they were defined. Normalisation and activations, whose parameters are all
    vectors, are in the block of the layer before them.
    """
    network: Any = backbone.network if isinstance(backbone, TimmBackbone) else None
    if hasattr(network, "group_matcher"):
        from timm.models import group_parameters

        groups = group_parameters(network, network.group_matcher(coarse=not fine))
        blocks = [[f"network.{name}" for name in names] for _, names in sorted(groups.items())]
        return blocks if fine else _joined(backbone, blocks)
    return _joined(backbone, _by_child(backbone))


def _by_child(backbone: nn.Module) -> list[list[str]]:
    if isinstance(backbone, BNInception):  # whose layers are not gathered in modules
        found = (_LAYERS_OF_INCEPTION.match(name) for name, _ in backbone.named_parameters())
        starts = [f"{each[0]}_" for each in found if each is not None]
    else:
        starts = [f"{each}." for each in _children(*_unwrapped(backbone, ""))]
    blocks: dict[str, list[str]] = {start: [] for start in starts or [""]}
    for name, _ in backbone.named_parameters():
        # What belongs to the whole, as the token of a class, comes with the first layers.
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
    """Find the first module inside of which more than one part has parameters."""
    parts = {child: each for child, each in module.named_children() if next(each.parameters(), None) is not None}
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
