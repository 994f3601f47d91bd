"""A gallery of glyph pictures, some with wrong labels, which people are to find."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageFilter

from proxemic.data.pixels import ArrayPixels
from proxemic.data.sources.glyphs import Glyphs
from proxemic.retrieval import Gallery


def write_glyphs(folder: Path, wrong: int = 30) -> dict[str, str]:
    """Write `photos` and their gallery `shop`: letters in 12 typefaces. Return the true label of each path."""
    glyphs = Glyphs(test_classes=2, validation_fraction=0.0).load().train
    assert isinstance(glyphs.pixels, ArrayPixels)
    names = [name[len("U+0041 ") :] for name in glyphs.class_names]
    rows = [row for row, label in enumerate(glyphs.labels) if names[label].isascii() and names[label].isalpha()]
    (folder / "photos").mkdir(parents=True)
    truth, vectors = dict[str, str](), []
    for row in rows:
        picture, label = glyphs.pixels[row].convert("L"), names[glyphs.labels[row]]
        case = "upper" if label.isupper() else "lower"  # which not all file systems tell apart
        path = folder / "photos" / f"{label} {case} {row % 12:02d}.png"
        picture.point(lambda grey: 255 - grey).resize((96, 96), Image.Resampling.BICUBIC).save(path)
        truth[str(path)] = label
        vectors.append(np.asarray(picture.filter(ImageFilter.GaussianBlur(1)), np.float32)[::2, ::2].ravel())
    rng = np.random.default_rng(0)
    labels, known = [*truth.values()], sorted({*truth.values()})
    for place in rng.choice(len(labels), wrong, replace=False):
        labels[place] = str(rng.choice([label for label in known if label != labels[place]]))
    gallery = Gallery.create(folder / "shop", dim=len(vectors[0]), roots=[folder / "photos"])
    gallery.add_vectors(np.stack(vectors) - np.mean(vectors, 0), [*truth], labels)
    return truth


def labels_of(shop: Path) -> dict[str, str | None]:
    """The label of each path of a gallery."""
    rows = [row for _, items in Gallery.open(shop).store.iterate() for row in items.to_pylist()]
    return {row["path"]: row["label"] for row in rows}
