"""Draw docs/strip.png, one query before and after training, from a run of the page *Start in five minutes*.

    proxemic train --recipe glyphs-small/euclidean-softmax --out runs/first
    python docs/make_strip.py runs/first

The query is a typical one: before and after training, it has as many hits as the mean query, rounded.
"""

import copy
import sys
from pathlib import Path
from typing import Any

import torch
from PIL import Image, ImageDraw, ImageFont, ImageOps
from torch import Tensor

from proxemic.data import Glyphs
from proxemic.runs.embed import embed_images, load_embedder

QUERY = 652
SHOWN, SIDE, GAP = 6, 112, 14
GREY, GOOD, BAD, BACKGROUND = "#333333", "#1b7f3b", "#c62828", "#f6f7f9"


def main(run: Path) -> None:
    """Draw the picture."""
    images = Glyphs(test_classes=256).load().test_images
    model, preprocessing = load_embedder(run)
    torch.manual_seed(0)
    before = copy.deepcopy(model)
    for module in before.modules():
        if reset := getattr(module, "reset_parameters", None):
            reset()
    hits = [neighbours(embed_images(value, images, preprocessing)) for value in (before, model)]
    right = [images.labels[found] == images.labels[:, None] for found in hits]
    counts = torch.stack([item.sum(1).double() for item in right])
    typical = (counts.round() == counts.mean(1, keepdim=True).round()).all(0)
    print(f"means {counts.mean(1).tolist()}, {int(typical.sum())} typical queries")
    if not typical[QUERY]:
        raise SystemExit(
            f"Query {QUERY} is not typical of this run: take one of {typical.nonzero().flatten().tolist()}."
        )
    titles = ["Before training", "After training"]
    rows = [
        (f"{title}: {int(flags[QUERY].sum())} of {SHOWN} right", found[QUERY].tolist(), flags[QUERY].tolist())
        for title, found, flags in zip(titles, hits, right, strict=True)
    ]
    drawn(images.pixels, rows).quantize(64).save(Path(__file__).parent / "strip.png", optimize=True)


def neighbours(embeddings: Tensor) -> Tensor:
    """Return the nearest pictures of each picture, without itself."""
    distances = torch.cdist(embeddings, embeddings).fill_diagonal_(torch.inf)
    return distances.topk(SHOWN, largest=False).indices


def drawn(pixels: Any, rows: list[tuple[str, list[int], list[bool]]]) -> Image.Image:
    """Draw the query beside its neighbours, a row for each network."""
    font = ImageFont.load_default(25)
    left, height = 2 * GAP + SIDE + 30, 2 * GAP + 34 + SIDE + 40
    strip = Image.new("RGB", (left + SHOWN * (SIDE + GAP), len(rows) * height), BACKGROUND)
    draw = ImageDraw.Draw(strip)

    def place(number: int, x: int, y: int, caption: str, colour: str) -> None:
        picture = ImageOps.invert(pixels[number].convert("L")).resize((SIDE, SIDE), Image.Resampling.LANCZOS)
        strip.paste(ImageOps.expand(picture.convert("RGB"), 5, colour).resize((SIDE, SIDE)), (x, y))
        draw.text((x + SIDE / 2, y + SIDE + 6), caption, colour, font, anchor="ma")

    place(QUERY, GAP, (len(rows) * height - SIDE) // 2 - 10, "query", GREY)
    for row, (title, found, flags) in enumerate(rows):
        top = row * height + GAP
        draw.text((left, top), title, GREY, font)
        for column, (number, flag) in enumerate(zip(found, flags, strict=True)):
            captions = ("right", GOOD) if flag else ("wrong", BAD)
            place(number, left + column * (SIDE + GAP), top + 40, *captions)
    return strip


if __name__ == "__main__":
    main(Path(sys.argv[1]))
