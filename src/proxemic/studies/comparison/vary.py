"""Read the values of a recipe to vary, and write a recipe for each of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import torch

from proxemic.errors import UserError
from proxemic.files import write_text
from proxemic.losses.user_defined import make_loss
from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_recipe


@dataclass(frozen=True)
class Axis:
    """Keys of a recipe that take the same value, as flags without dashes, and the values to try."""

    keys: tuple[str, ...]
    values: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> "Axis":
        """Read ``KEY[,KEY…]=VALUE,VALUE``.

        >>> Axis.parse("loss.alpha,second_phase.loss.alpha=8,16,32")
        Axis(keys=('loss.alpha', 'second_phase.loss.alpha'), values=('8', '16', '32'))
        """
        before, _, after = text.partition("=")
        keys = tuple(key.strip().removeprefix("--") for key in before.split(","))
        values = tuple(value.strip() for value in after.split(","))
        if not (all(keys) and all(values)) or len(set(keys)) < len(keys) or len(set(values)) < len(values):
            raise UserError(
                f"--vary is {text!r}, but must be a key, or several with commas, and different values, such as "
                "loss.alpha=8,16,32."
            )
        return cls(keys, values)

    @property
    def name(self) -> str:
        """The keys, joined as in ``loss.alpha+second_phase.loss.alpha``."""
        return "+".join(self.keys)


@dataclass(frozen=True)
class Sweep:
    """The points of a sweep: the values of one axis (a curve), or all pairs of values of two axes (a heat map)."""

    axes: tuple[Axis, ...]

    @property
    def name(self) -> str:
        """The names of the axes, joined as in ``loss.k1,loss.k2``."""
        return ",".join(axis.name for axis in self.axes)

    def points(self) -> list[dict[str, str]]:
        """Return the values of all keys at each point; the last axis varies fastest.

        >>> Sweep((Axis(("k1",), ("0.5", "1")), Axis(("k2",), ("1", "2")))).points()[1]
        {'k1': '0.5', 'k2': '2'}
        """
        return [
            {key: value for axis, value in zip(self.axes, values, strict=True) for key in axis.keys}
            for values in product(*(axis.values for axis in self.axes))
        ]


def read_sweeps(texts: Sequence[str], *, grid: bool = False) -> list[Sweep]:
    """Make a sweep of each text that `Axis.parse` reads; with ``grid``, one sweep of all pairs of two axes' values."""
    axes = [Axis.parse(text) for text in texts]
    if grid and len(axes) != 2:
        raise UserError(f"--grid takes two --vary, not {len(axes)}: set other values by flags.")
    keys = [key for axis in axes for key in axis.keys] if grid else [axis.name for axis in axes]
    if len(set(keys)) < len(keys):
        raise UserError(f"--vary names {', '.join(keys)}: name each key once, with all of its values.")
    return [Sweep(tuple(axes))] if grid else [Sweep((axis,)) for axis in axes]


def write_points(recipe: str, sweeps: Sequence[Sweep], out: Path, flags: Sequence[str]) -> dict[Sweep, list[str]]:
    """Check a recipe for each point, write them all to ``out/values``, and return their names by sweep.

    Raises:
        UserError: If a value is refused, or ``out`` has different recipes with these names.
    """
    texts: dict[Path, str] = {}
    names: dict[Sweep, list[str]] = {}
    for sweep in sweeps:
        for point in sweep.points():
            setting = ", ".join(f"{key}={value}" for key, value in point.items())
            try:
                read = read_recipe(
                    find_recipe(recipe), [*flags, *(f"--{key}={value}" for key, value in point.items())], own_code=True
                )
                with torch.random.fork_rng(devices=[]):  # losses refuse bad values when they are created
                    for phase in filter(None, (read.recipe, read.recipe.second_phase)):
                        # The number of classes is unknown without the images; a list of margins has one per class.
                        margin = getattr(phase.loss, "keywords", {}).get("margin")
                        classes, model = len(margin) if isinstance(margin, list) else 4, read.recipe.model
                        make_loss(phase.loss, classes, model.embedding_size, normalized=model.normalize)
            except (UserError, ValueError) as error:
                raise UserError(f"--vary {setting}: {error}") from error
            stem = ",".join(f"{axis.name}={point[axis.keys[0]]}" for axis in sweep.axes)
            file = out / "values" / f"{stem.replace('/', '_')}.yaml"
            texts[file] = f"# {recipe} with {setting}.\n{read.yaml}"
            names.setdefault(sweep, []).append(str(file.resolve()))
    if any(file.exists() and file.read_text(encoding="utf-8") != text for file, text in texts.items()):
        raise UserError(f"{out} was begun with another recipe or other flags: give the same, or another --out.")
    for file, text in texts.items():
        write_text(file, text)
    return names
