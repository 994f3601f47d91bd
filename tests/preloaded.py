"""What each process that `warm` forks would otherwise make for itself."""

import gc
import io

from matplotlib.figure import Figure
from PIL import Image

from disk import wait_for_no_disk
from proxemic.recipes import find_recipe
from proxemic.recipes.reader import read_recipe

wait_for_no_disk()
read_recipe(find_recipe("glyphs"))  # the parser of recipes
Image.init()
figure = Figure()
figure.subplots().set(title="fonts")
figure.savefig(io.BytesIO(), format="png")
gc.collect()
gc.freeze()  # else each process copies the pages that its own collections look at
