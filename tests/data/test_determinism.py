"""Everything that depends on a seed is the same in another process with another hash seed of Python.

The test also shows that the data need no package of another extra.
"""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import torch

from proxemic.data import ClassBalancedBatches, Glyphs, RandomBatches
from proxemic.data.samplers import SeededBatches
from proxemic.data.splits import split_classes


def draw(cache: Path) -> str:
    splits = Glyphs(32, 32, cache_dir=cache).load()
    assert splits.validation is not None
    pixels = b"".join(splits.train.pictures[index].tobytes() for index in range(len(splits.train)))
    parts = (
        [part.class_names for part in (splits.train, splits.validation, splits.test_images)],
        hashlib.sha256(pixels).hexdigest(),
        list(SeededBatches(RandomBatches(9, 4, seed=3), seed=1)),
        list(ClassBalancedBatches(torch.arange(5).repeat(4), 3, 2, seed=3)),
        [part.tolist() for part in split_classes(40, 0.5, seed=3)],
    )
    return ascii(parts)


def test_another_process_draws_the_same(tmp_path: Path, glyphs: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from test_determinism import draw;"
        f"print(draw(Path({str(tmp_path)!r})));"
        "assert not {'kornia', 'timm', 'lightning'} & {*sys.modules}"
    )
    environment = os.environ | {"PYTHONHASHSEED": "4711", "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True, text=True)
    assert done.stdout.strip() == draw(glyphs)
