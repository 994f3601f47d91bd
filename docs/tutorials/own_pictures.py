# %% [markdown]
# # Train on a folder of your own images, and search it
#
# This tutorial trains an embedding on a folder with one sub-folder per class, evaluates it on classes that it was not
# trained on, and searches the images with a query. It runs in a few seconds on a laptop and needs no data: it draws
# a folder of images first. `pip install '.[train,retrieval]'` in a checkout installs what it needs.

# %%
import csv
import random
import tempfile
from pathlib import Path

from PIL import Image

import proxemic
from proxemic.data import Glyphs
from proxemic.retrieval import Embedder, Gallery, search_gallery, write_contact_sheet

proxemic.keep_freed_memory()  # as the commands do: twice as fast on a CPU
folder = Path(tempfile.mkdtemp())  # everything below is written here; take a folder of yours to keep it

# %% [markdown]
# ## The images
#
# A class is a sub-folder, and its name is the name of the class. Here, a class is a character, and its images are that
# character in twelve typefaces, in colours that say nothing about the class. With photos of your own, skip this cell
# and let `photos` be their folder. A few images are kept apart as queries.

# %%
photos, queries = folder / "photos", folder / "queries"
colours = random.Random(0)
characters = Glyphs(train_classes=60, validation_fraction=0).load().train
for place, label in enumerate(characters.labels.tolist()):
    name = characters.class_names[label].split()[0]
    typeface = place % 12
    file = (queries if typeface == 11 and label % 12 == 0 else photos) / name / f"{typeface}.png"
    file.parent.mkdir(parents=True, exist_ok=True)
    drawn = characters.pictures[place]
    paper = Image.new("RGB", drawn.size, tuple(colours.choices(range(60), k=3)))
    ink = Image.new("RGB", drawn.size, tuple(colours.choices(range(160, 256), k=3)))
    Image.composite(ink, paper, drawn).save(file)

print(len(list(photos.iterdir())), "classes,", len(list(photos.glob("*/*.png"))), "pictures")

# %% [markdown]
# ## Training
#
# A *recipe* holds every value that a run depends on: data, network, loss, optimiser, and how the model is evaluated.
# The recipe `own` trains a small network from scratch; for photos, `own-pretrained` starts from ImageNet weights. Here,
# smaller images and fewer epochs keep the training short.
#
# Whole classes are held out: a third for the test (from 20 test classes on, there are confidence intervals), and a
# quarter of the rest for validation. An embedding must separate classes that it has never seen, such as next year's
# products. Accuracy on the training classes would say little about this.

# %%
recipe = proxemic.recipes.load(
    "own",
    data={"root": photos, "test_fraction": 1 / 3},
    images={"size": 32},
    augment={"horizontal_flip": 0.0, "random_resized_crop": [0.7, 1.0]},
    model={"width": 16, "embedding_size": 64},
    optim={"lr": 0.003},
    training={"epochs": 5, "accelerator": "cpu"},
)
result = proxemic.train(recipe, folder / "run", progress=False)
with (result.path / "history.csv").open() as history:
    for row in csv.DictReader(history):
        print(f"epoch {row['epoch']}: Recall@1 on validation classes {float(row['recall@1']):.1%}")

# %% [markdown]
# The run directory has everything that is needed later: the recipe with all values, the weights, the history of the
# metrics, plots, and the classes. `proxemic.evaluate` measures the model on the test classes again.
#
# - **Recall@1** is the fraction of the images whose nearest other image has the same class.
# - **MAP@R** also looks at the order of all images of the class, and is 1 only if they all come first.
# - `chance` is the expected value of a random ranking of the same images. Compare values with chance, and never
#   across different numbers of classes. `low` and `high` are a 95% interval of a bootstrap that draws whole classes.

# %%
evaluation = proxemic.evaluate(folder / "run")
print(evaluation.text("table"))

# %% [markdown]
# ## Searching
#
# A *gallery* keeps the vectors of images, with their paths and labels, and finds those that are nearest to a query. The
# gallery remembers the model of these vectors, and rejects vectors of another one. New classes need no training:
# `gallery.add("more-photos")` embeds the images, and searches find them at once.

# %%
embedder = Embedder.load(folder / "run")
gallery = Gallery.create(folder / "shop", embedder, photos)
for hit in gallery.search(next(queries.glob("*/*.png")), k=5)[0]:
    print(f"{hit.distance:.3f}  {hit.label}  {hit.path}")

# %% [markdown]
# Distances are 1 − cos, from 0 to 2. A contact sheet shows each query next to its hits. The label of a hit is green if
# it equals that of the query, and red otherwise. If the name of the sheet ends in `.html`, it is a web page that needs
# no network connection.

# %%
found = search_gallery(gallery, queries, k=6)
write_contact_sheet(found, folder / "found.png")
Image.open(folder / "found.png")  # Each query with the six nearest pictures, their labels and distances.

# %% [markdown]
# ## The same from the command line
#
# ```
# proxemic train --recipe own --data.root photos --out runs/photos
# proxemic evaluate runs/photos
# proxemic gallery create shop photos --model runs/photos
# proxemic search shop query.jpg -k 5 --html found.html
# ```
#
# The [guide on searching](../retrieval.md) goes on with filters and with indexes for millions of images, and [another
# page](../stores.md) with PostgreSQL and Milvus.
