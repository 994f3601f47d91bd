"""Small folders of images with something to learn: a class is a pattern, an image a noisy, tinted copy of it."""

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


def write_folder(root: Path, classes: int = 12, images: int = 6, size: int = 32, noise: int = 30) -> Path:
    rng = np.random.default_rng(0)
    for number in range(classes):
        folder = root / f"class {number:02d}"
        folder.mkdir(parents=True)
        pattern = np.kron(rng.integers(60, 196, (4, 4, 3)), np.ones((size // 4, size // 4, 1)))
        for image in range(images):
            pixels = pattern + rng.integers(-noise, noise + 1, pattern.shape) + rng.integers(-20, 21, (1, 1, 3))
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{image}.png")
    return root


ACCELERATOR = "cpu"
"""The accelerator of recipes, from pytest's --device."""

TINY_RECIPE = """\
data:
  class_path: proxemic.data.OwnImages
  init_args: {{root: {root}, test_fraction: 0.34, validation_fraction: 0.34}}
images: {{size: 28, resize: null}}
augment: {{random_resized_crop: [0.5, 1.0], horizontal_flip: 0.5, noise: 0.1}}
batches: {{size: 8}}
model: {{backbone: convnet, embedding_size: 16, width: 8}}
loss:
  class_path: proxemic.losses.AllPairMultiProxyAnchorLoss
  init_args: {{proxies_per_class: 2}}
optim:
  optimizer: torch.optim.AdamW
  lr: 0.002
  loss_lr: 0.02
  schedule: {{class_path: torch.optim.lr_scheduler.StepLR, init_args: {{step_size: 2}}}}
training: {{epochs: 5, accelerator: {accelerator}}}
evaluation: {{recall_at: [1, 2], ndcg_at: [2], start: false}}
"""


def write_recipe(path: Path, root: Path) -> Path:
    path.write_text(TINY_RECIPE.format(root=root, accelerator=ACCELERATOR))
    return path


def forbid(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """Make folders unreadable, as chmod 000 does for everyone except root, who may run the tests."""
    scandir: Callable[..., object] = os.scandir

    def refuse(path: str | os.PathLike[str] = ".") -> object:
        if Path(path) in folders:
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)


def tiled(side: int, tile: int) -> bytes:
    """A grey TIFF with one tile, whose data are complete for small tiles."""
    data = zlib.compress(bytes(tile * tile if tile < 1000 else 0))
    facts = {256: side, 257: side, 258: 8, 259: 8, 262: 1, 277: 1, 322: tile, 323: tile, 324: 0, 325: len(data)}
    tags = [*facts.items()]
    at = 8 + 2 + 12 * len(tags) + 4
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, at if tag == 324 else value) for tag, value in tags)
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + struct.pack("<I", 0) + data
