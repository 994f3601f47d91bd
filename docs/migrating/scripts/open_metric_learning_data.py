"""Writes what both scripts read: handwritten digits as ``digits/*.png``, and their table ``df.csv``, as OML has it."""

import csv
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

pixels, digits = load_digits(return_X_y=True)
Path("digits").mkdir(exist_ok=True)
with Path("df.csv").open("w", newline="") as file:
    table = csv.writer(file)
    table.writerow(["path", "label", "split", "is_query", "is_gallery"])
    for place, (image, digit) in enumerate(zip(pixels[:1000], digits[:1000], strict=True)):
        path = f"digits/{place:04}.png"
        Image.fromarray((image.reshape(8, 8) * 255 / 16).astype(np.uint8)).convert("RGB").save(path)
        # The first five digits are for training, and the others are queries and gallery at once.
        table.writerow([path, digit, *(["train", "", ""] if digit < 5 else ["validation", True, True])])
