# %% [markdown]
# # Compare two runs, and look into an embedding
#
# Is one loss better than another, or was it lucky? This tutorial trains the same network with two losses, and compares
# the runs on the same queries, with an interval and a p-value. Then it analyses the embeddings: worst classes,
# distances, hubs and a map. `pip install '.[train]'` in a checkout installs what it needs.

# %%
import tempfile
from pathlib import Path

from PIL import Image

import proxemic
from proxemic.analysis import alignment, class_distances, hubness, uniformity
from proxemic.data import Glyphs
from proxemic.runs.embed import embed_images, load_embedder

proxemic.keep_freed_memory()
folder = Path(tempfile.mkdtemp())

# %% [markdown]
# ## Two runs
#
# Both runs have the same data, network, seed and number of epochs, so that only the loss differs. With only one seed
# each, the comparison below is between two *models*. To compare the losses, use several seeds, and tune both losses
# with the same budget (`proxemic compare`, `proxemic tune`).

# %%
common = {
    "data": {"train_classes": 48, "test_classes": 40},
    "batches": {"size": 32},
    "optim": {"lr": 0.004, "loss_lr": 0.04},
    "training": {"epochs": 4, "accelerator": "cpu"},
}
runs = {}
for name, loss in {"softmax": "NormalizedSoftmaxLoss", "anchor": "ProxyAnchorLoss"}.items():
    recipe = proxemic.recipes.load("glyphs-small", loss=loss, **common)
    result = proxemic.train(recipe, folder / name, progress=False)
    runs[name] = result.path
    print(f"{name}: kept epoch {result.metrics['epoch']}, best on validation (0: the network before training)")

# %% [markdown]
# ## Paired on the same queries
#
# Queries of one class are not independent. Therefore the bootstrap draws whole classes, and the permutation test
# exchanges whole classes. The interval of the *difference* is narrower than the intervals of the two values suggest: a
# class that is hard for one model is hard for the other, too.

# %%
compared = proxemic.evaluate([runs["softmax"], runs["anchor"]], resamples=1000)
print(compared.text("table"))

# %% [markdown]
# If the interval of the difference contains 0, or the p-value is large, the test classes are too few to separate the
# models. The p-values are not corrected for several metrics: choose one metric before you look.
#
# ## Where it goes wrong
#
# An average hides classes that are never found. `class_rows` begins with the worst.

# %%
evaluation = proxemic.evaluate(runs["anchor"], resamples=0)
for row in evaluation.class_rows()[:3]:
    print(f"{row['label']}: Recall@1 {row['recall@1']:.0%}, MAP@R {row['map@r']:.0%}")

# %% [markdown]
# ## Distances
#
# In a good embedding, images of one class are nearer to each other than to those of other classes. `auc` is the
# probability that a random pair of one class is nearer than a random pair of two classes. *Alignment* is the mean
# squared distance within classes on the unit sphere, *uniformity* says how evenly all images cover it (lower is better
# for both). *Hubs* are images that are among the neighbours of very many others, and anti-hubs are never found at all.

# %%
images = Glyphs(**common["data"]).load().test_images
for name, run in runs.items():
    network, preprocessing = load_embedder(run)
    embeddings = embed_images(network, images, preprocessing, batch_size=256)
    distances = class_distances(embeddings, images.labels)
    hubs = hubness(embeddings, k=10)
    print(
        f"{name}: mean distance {distances.within_mean:.3f} within classes, "
        f"{distances.between_mean:.3f} between, AUC {distances.auc:.4f}"
    )
    print(f"  alignment {alignment(embeddings, images.labels):.3f}, uniformity {uniformity(embeddings):.3f}")
    print(f"  the largest hub is a neighbour of {hubs.largest} pictures; {hubs.antihubs:.1%} are neighbours of none")

# %% [markdown]
# ## A map
#
# Two principal components show little of the distances in 128 dimensions, only whether classes form groups at all.
# `method="tsne"` keeps neighbours together instead, and takes longer.

# %%
found = proxemic.analyze.embedding_map(runs["anchor"], method="pca", classes=12, out=folder / "map")
picture = next(path for path in found.written if path.suffix == ".png")
Image.open(picture)  # A map of the pictures of twelve test classes by their two principal components.

# %% [markdown]
# [The page on analyses](../analysis.md) has more of them, with the papers' figures; [the page on
# metrics](../metrics.md) says what each value means and how good the intervals are.
