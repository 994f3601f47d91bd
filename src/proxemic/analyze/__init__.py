"""The functions of ``proxemic analyze``, one per subcommand: they write tables and plots, and return the numbers.

Each function takes run directories and settings, and returns an `Analysis` with typed figures; it prints nothing. It
raises `UserError` if a run is missing, unfinished or unsuitable, or if a file cannot be written, and `ValueError` if a
number is out of range. The modules are private, because a module and a function of the same name would hide each other.
They are imported on first use, because half of the functions need neither a run nor torchvision.

>>> from pathlib import Path
>>> from tempfile import mkdtemp
>>> from proxemic.analyze import gap
>>> analysis = gap(out=Path(mkdtemp()) / "three-proxies")
>>> round(analysis.figures.minimum, 4), [path.suffix for path in analysis.written]
(0.5244, ['.png', '.svg', '.csv'])
"""

from typing import TYPE_CHECKING

from proxemic.lazy import lazy_names

if TYPE_CHECKING:
    from proxemic.analyze._characteristics import characteristics
    from proxemic.analyze._embedding_map import embedding_map
    from proxemic.analyze._forces import forces
    from proxemic.analyze._gap import gap
    from proxemic.analyze._gradients import gradients
    from proxemic.analyze._landscape import landscape
    from proxemic.analyze._local_centers import local_centers
    from proxemic.analyze._robustness import robustness
    from proxemic.analyze._sweep import sweep
    from proxemic.analyze._theorems import theorems
    from proxemic.analyze._toy import toy
    from proxemic.analyze._trajectories import trajectories
    from proxemic.analyze.results import Analysis

__all__ = [
    "Analysis",
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

__getattr__, __dir__ = lazy_names(__name__)
