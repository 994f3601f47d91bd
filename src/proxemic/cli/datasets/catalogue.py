"""Every data set that has a name on the command line, beside Glyphs, which is nowhere to be fetched."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from proxemic.data import Omniglot
from proxemic.data.benchmarks import BENCHMARKS, Benchmark, Facts, Official
from proxemic.data.sources.omniglot import ARCHIVES

__all__ = ["CATALOGUE", "GLYPHS", "find_benchmark"]

GLYPHS = "glyphs"
_PAGE = "https://github.com/brendenlake/omniglot"


@dataclass(frozen=True)
class SmallOmniglot(Benchmark):
    """Omniglot as a data set to fetch and count."""

    subset: ClassVar[Literal["small", "full"]] = "small"
    facts: ClassVar[Facts] = Facts(
        key="omniglot",
        title="Omniglot, small sets",
        counts={"train classes": 136, "train images": 2720, "test classes": 106, "test images": 2120},
        files=ARCHIVES["small"],
        page=_PAGE,
    )

    def read(self) -> Official:
        for file in self.facts.files:
            names = (file.name, file.name.removesuffix(".zip"))
            self.find(*names, *(f"omniglot-py/{name}" for name in names))
        splits = Omniglot(self.folder, self.subset, validation_fraction=0.0).load()
        return Official(splits.train, splits.test_images)


@dataclass(frozen=True)
class FullOmniglot(SmallOmniglot):
    """All of it."""

    subset: ClassVar[Literal["small", "full"]] = "full"
    facts: ClassVar[Facts] = Facts(
        key="omniglot-full",
        title="Omniglot",
        counts={"train classes": 964, "train images": 19280, "test classes": 659, "test images": 13180},
        files=ARCHIVES["full"],
        page=_PAGE,
    )


CATALOGUE = {source.facts.key: source for source in (*BENCHMARKS, SmallOmniglot, FullOmniglot)}
"""The data sets by name."""


def find_benchmark(name: str, root: Path | None, command: str) -> Benchmark:
    """Give the data set of a name in a folder.

    Args:
        name: its name.
        root: its folder.
        command: what the user typed, for the message.

    Raises:
        ValueError: there is none of that name, or no folder is given.
    """
    if name not in CATALOGUE:
        raise ValueError(f"{name} is no data set that is known here: give one of {', '.join(CATALOGUE)}, {GLYPHS}.")
    if root is None:
        raise ValueError(f"--root is missing: give the folder of {name}, as {command} {name} --root data/{name}.")
    return CATALOGUE[name](root)
