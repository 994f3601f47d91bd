# %% [markdown]
# # Known or unknown, and wrong labels
#
# A search always finds a nearest image, however different it is. A system that names images must be able
# to say that it does not know. This tutorial learns a threshold from classes that were held out, recognises images
# of known and of unknown classes, and finds wrong labels and duplicates in a folder. `pip install
# '.[train,retrieval]'` in a checkout installs what it needs.

# %%
import shutil
import tempfile
from pathlib import Path

from PIL import Image

import proxemic
from proxemic.data import Glyphs
from proxemic.retrieval import Gallery, calibrate, clean, recognize

proxemic.keep_freed_memory()
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## A model
#
# The classes are characters, with images in twelve typefaces. The recipe holds out 24 of the 64 training classes for
# validation; the threshold will be learnt from these.

# %%
recipe = proxemic.recipes.load(
    "glyphs-small",
    loss="NormalizedSoftmaxLoss",
    data={"train_classes": 64, "test_classes": 60, "validation_fraction": 0.375},
    batches={"size": 32},
    optim={"lr": 0.004, "loss_lr": 0.04},
    training={"epochs": 4, "accelerator": "cpu"},
)
result = proxemic.train(recipe, folder / "run", progress=False)
run = result.path
print(f"kept epoch {result.metrics['epoch']}, best on validation (0: the network before training)")

# %% [markdown]
# ## Calibration
#
# Every image of the held-out classes is used as a query among the images of the *other* classes, as if its own class
# were unknown. If the nearest image is within the threshold, that is a false accept. The threshold for a rate of 0.1
# lets at most one in ten of such queries pass. `calibrate` keeps the threshold next to the model, and prints the range
# of false accepts in random halves of the classes.

# %%
calibration = calibrate(run, rate=0.1)
print(calibration.text())

# %% [markdown]
# *True accepts* are images whose nearest other image has the same class and lies within the threshold. To measure a
# rate that is a hundred times smaller, you need a hundred times as many held-out images.
#
# ## Recognition
#
# The test classes are new to the model. Images of 30 of them, in nine typefaces, form a gallery. The other three
# typefaces are known queries. The other 30 classes are unknown queries.

# %%
test = Glyphs(train_classes=64, test_classes=60).load().test_images
for place, label in enumerate(test.labels.tolist()):
    name, typeface = test.class_names[label].split()[0], place % 12
    kind = "unknown" if label >= 30 else "known" if typeface >= 9 else "shop"
    (folder / kind / name).mkdir(parents=True, exist_ok=True)
    test.pictures[place].save(folder / kind / name / f"{typeface}.png")

gallery = Gallery.create(folder / "gallery", run, folder / "shop")
known = recognize(gallery, folder / "known", rate=0.1).queries
unknown = recognize(gallery, folder / "unknown", rate=0.1).queries
named = [Path(path).parent.name == found.label for path, found in known if found.label is not None]
print(f"known classes: {len(named) / len(known):.0%} named, {sum(named) / len(known):.0%} rightly")
print(
    f"unknown classes: {sum(found.label is not None for _, found in unknown) / len(unknown):.0%} taken for known ones"
)

# %% [markdown]
# Compare the fraction of unknown images that pass with the rate that was asked for. The gallery is about as large as
# the held-out set, as it should be: in a larger gallery, an image has more chances to come near another one. But the
# threshold comes from 24 classes only, and the range above is wide: if these classes are more alike than others, the
# threshold is stricter, and fewer known images are named. The known queries have typefaces that the gallery lacks, so
# they lie farther from their class than images did in the calibration. Hold out as many classes as you can.
#
# The open-set evaluation measures this for a model: half of the test classes are kept out of the gallery. The detection
# and identification rate (`dir`) is the fraction of the known queries that are named correctly, at a given false alarm
# rate.

# %%
evaluation = proxemic.evaluate(run, open_set=True, resamples=200)
print(evaluation.text("table"))

# %% [markdown]
# ## Wrong labels and duplicates
#
# The same embeddings also find errors in a folder. Three images are moved into folders of other classes, and one is
# copied, smaller, under another name.

# %%
folders = sorted(path for path in (folder / "shop").iterdir())
for source, target in zip(folders[:3], folders[10:13], strict=True):
    shutil.move(source / "3.png", target / "moved.png")
copied = Image.open(folders[20] / "5.png")
copied.resize((28, 28)).save(folders[20] / "copy.png")

notes: list[str] = []
cleaning = clean(folder / "shop", run, report=notes.append)
for suspect in cleaning.labels[:5]:
    print(f"{suspect.score:.2f}  {suspect.path} is labelled {suspect.label}, but rather {suspect.suggested}")
print(len(cleaning.duplicates), "duplicates, among them:")
for duplicate in cleaning.duplicates:
    if duplicate.path.endswith("copy.png"):
        print(f"{duplicate.path} repeats {duplicate.of} ({duplicate.kind})")

# %% [markdown]
# A suspected image is nearer to another class than to its own. Read the list from the top, because the model is not
# always right. `cleaning.write(FOLDER)` writes tables, and a page that shows the images. One of the moved images:

# %%
Image.open(folders[10] / "moved.png").resize((160, 160))  # A character that is in the folder of another.

# %% [markdown]
# The same from the command line:
#
# ```
# proxemic calibrate runs/photos --rate 0.1
# proxemic recognize shop queries
# proxemic evaluate runs/photos --open-set
# proxemic clean photos --model runs/photos --out cleaning
# ```
#
# [The page on recognition](../recognition.md) and [the page on metrics](../metrics.md) say what the rates mean, and
# for which galleries they hold.
