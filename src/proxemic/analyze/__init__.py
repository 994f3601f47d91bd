"""What ``proxemic analyze`` does, as functions that read runs, compute, write tables and plots, and return figures.

There is one function per subcommand. It takes run directories and settings and returns an `Analysis` with typed
figures; nothing is printed. The modules are private, as a module and a function of one name would hide each other. They
are imported when their function is first asked for: half of the functions need no run, and neither Lightning nor
torchvision without one.

>>> from pathlib import Path
>>> from tempfile import mkdtemp
>>> from proxemic.analyze import gap
>>> found = gap(out=Path(mkdtemp()) / "three-proxies")
>>> round(found.minimum, 4), [path.suffix for path in found.written]
(0.5244, ['.png', '.svg', '.csv'])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from proxemic.analyze._characteristics import CharacteristicsResult, characteristics
    from proxemic.analyze._embedding_map import EmbeddingMapResult, embedding_map
    from proxemic.analyze._forces import ForcesResult, forces
    from proxemic.analyze._gap import GapResult, gap
    from proxemic.analyze._gradients import GradientsResult, gradients
    from proxemic.analyze._landscape import LandscapeResult, landscape
    from proxemic.analyze._local_centers import LocalCentersResult, local_centers
    from proxemic.analyze._robustness import RobustnessResult, robustness
    from proxemic.analyze._sweep import SweepResult, sweep
    from proxemic.analyze._theorems import TheoremsResult, theorems
    from proxemic.analyze._toy import ToyResult, toy
    from proxemic.analyze._trajectories import TrajectoriesResult, trajectories
    from proxemic.analyze.results import Analysis

__all__ = [
    "Analysis",
    "CharacteristicsResult",
    "EmbeddingMapResult",
    "ForcesResult",
    "GapResult",
    "GradientsResult",
    "LandscapeResult",
    "LocalCentersResult",
    "RobustnessResult",
    "SweepResult",
    "TheoremsResult",
    "ToyResult",
    "TrajectoriesResult",
    "characteristics",
    "embedding_map",
    "forces",
    "gap",
    "gradients",
    "landscape",
    "local_centers",
    "robustness",
    "sweep",
    "theorems",
    "toy",
    "trajectories",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name.removesuffix("Result"))
    return getattr(import_module(f"{__name__}.{'results' if name == 'Analysis' else '_' + words.strip('_')}"), name)
