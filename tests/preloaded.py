"""What each process that `warm` forks would otherwise make for itself."""

import atexit
import gc
import io
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

import proxemic.cli  # noqa: F401 - so that no process imports it anew
from disk import wait_for_no_disk
from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_recipe
from proxemic.training import results


def no_picture(_: object, drawn: object, path: Path, **__: object) -> None:
    """Curves and galleries cost as much as the epochs of so few images."""
    if getattr(drawn, "kind", None) != "vectors":
        path.touch()


savefig = Figure.savefig


def save_without_layout(figure: Figure, file: Any, **options: Any) -> None:
    """Layouts take most of a command that draws."""
    figure.set_layout_engine("none")
    savefig(figure, file, **options)


results.draw_curves = results.draw_gallery = no_picture
setattr(Figure, "savefig", save_without_layout)  # noqa: B010 - of another signature
wait_for_no_disk()
read_recipe(find_recipe("glyphs"))  # the parser of recipes
Image.init()
figure = Figure()
figure.subplots().set(title="fonts")
figure.savefig(io.BytesIO(), format="png")
gc.collect()
atexit.register(gc.unfreeze)  # libraries in C++ report what is not freed at the end
gc.freeze()  # else each process copies the pages that its own collections look at
