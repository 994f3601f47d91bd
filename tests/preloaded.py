"""Prepare what each process that `warm` forks would otherwise prepare itself."""

import atexit
import gc
import io

import pytest
from matplotlib.figure import Figure
from PIL import Image

import proxemic.cli  # noqa: F401 - so that no process imports it anew
from disk import wait_for_no_disk
from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_recipe
from quick import draw_no_pictures, save_without_layout

draw_no_pictures(pytest.MonkeyPatch())
setattr(Figure, "savefig", save_without_layout)  # noqa: B010 - of another signature
wait_for_no_disk()
read_recipe(find_recipe("glyphs"))  # the parser of recipes
Image.init()
figure = Figure()
figure.subplots().set(title="fonts")
figure.savefig(io.BytesIO(), format="png")
gc.collect()
atexit.register(gc.unfreeze)  # libraries in C++ report leaks at the end
gc.freeze()  # else each process copies the pages that its own collections look at
