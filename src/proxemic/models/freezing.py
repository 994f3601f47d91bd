"""What of a backbone is trained, and what stands still."""

from collections.abc import Iterable, Iterator

from torch import nn

from proxemic.models.blocks import backbone_blocks


def trained_names(backbone: nn.Module, train: str, name: str) -> frozenset[str]:
    """Return the names of the backbone's parameters that ``train`` (`ModelConfig`) asks for: ``head`` or ``last:N``."""
    if train == "head":
        return frozenset()
    blocks = backbone_blocks(backbone)
    count = int(train.removeprefix("last:"))
    if count > len(blocks):
        fewer = f"last:{len(blocks)} or fewer, or all" if blocks else "all or head"
        raise ValueError(f"train is {train!r} but {name} has {len(blocks)} blocks; give {fewer}")
    return frozenset(each for block in blocks[len(blocks) - count :] for each in block)


def frozen_modules(backbone: nn.Module, trained: Iterable[str]) -> frozenset[str]:
    """Return the names of the modules, from the backbone on, that have no trained parameter.

    Modules without parameters, as dropout, go with those that they are in.
    """
    having = {prefix for name, _ in backbone.named_parameters() for prefix in _prefixes(name)}
    trained = {prefix for name in trained for prefix in _prefixes(name)}

    def owner(name: str) -> str:
        return name if name in having or not name else owner(name.rpartition(".")[0])

    return frozenset(name for name, _ in backbone.named_modules() if owner(name) not in trained)


def describe_training(backbone: nn.Module, train: str, name: str) -> str:
    """Say in a sentence what of a network is trained, if that is not all."""
    counts = {each: parameter.numel() for each, parameter in backbone.named_parameters()}
    if train == "head":
        return f"model.train is head: the {sum(counts.values()):,} parameters of {name} are not trained."
    blocks, trained = backbone_blocks(backbone), trained_names(backbone, train, name)
    count = int(train.removeprefix("last:"))
    which = "the last" if count == 1 else f"the last {count}"
    return (
        f"model.train is {train}: of the {len(blocks)} blocks of {name}, {which} {'is' if count == 1 else 'are'} "
        f"trained, from {blocks[-count][0].removeprefix('network.')} on: {sum(counts[each] for each in trained):,} of "
        f"{sum(counts.values()):,} parameters."
    )


def _prefixes(name: str) -> Iterator[str]:
    """Yield the names of the modules that a parameter is in."""
    while name:
        name = name.rpartition(".")[0]
        yield name
