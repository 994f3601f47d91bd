"""Writes RecordIO files and packs of faces like insightface's, following only the definition of the formats."""

import io
import pickle
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

MAGIC = bytes.fromhex("0a23d7ce")  # as it lies in the file


def header(labels: float | Sequence[float], number: int = 0) -> bytes:
    if isinstance(labels, int | float):
        return struct.pack("<If2Q", 0, labels, number, 0)
    return struct.pack(f"<If2Q{len(labels)}f", len(labels), 0.0, number, 0, *labels)


def frame(content: bytes) -> bytes:
    """Return one record, split where the magic word would be at a multiple of 4 bytes."""
    parts, begin = [], 0
    for place in range(0, len(content) - len(content) % 4, 4):
        if content[place : place + 4] == MAGIC:
            parts.append(content[begin:place])
            begin = place + 4
    parts.append(content[begin:])
    kinds = [0] if len(parts) == 1 else [1, *[2] * (len(parts) - 2), 3]
    written = b""
    for kind, part in zip(kinds, parts, strict=True):
        written += MAGIC + struct.pack("<I", kind * 2**29 + len(part)) + part + bytes(-len(part) % 4)
    return written


def write_records(path: Path, contents: Iterable[bytes], keys: Sequence[int] | None = None) -> Path:
    """Write records with their headers, and the index file."""
    lines, file = [], b""
    for place, content in enumerate(contents):
        lines.append(f"{place if keys is None else keys[place]}\t{len(file)}\n")
        file += frame(content)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file)
    path.with_suffix(".idx").write_text("".join(lines))
    return path


def write_faces(root: Path, people: Sequence[Sequence[bytes]]) -> Path:
    """Write a training set of insightface: a header, the images, and the range of images of each identity."""
    images = [(label, image) for label, person in enumerate(people) for image in person]
    first = len(images) + 1
    contents = [header([first, first + len(people)])]
    contents += [header([float(label), 0.0], number) + image for number, (label, image) in enumerate(images, start=1)]
    begin = 1
    for person in people:
        contents.append(header([begin, begin + len(person)]))
        begin += len(person)
    write_records(root / "train.rec", contents)
    (root / "property").write_text(f"{len(people)},112,112\n")
    return root


def write_pack(path: Path, people: Sequence[Sequence[bytes]], pairs: int, seed: int = 0) -> Path:
    """Write a pack in which pairs of one person and of two people alternate."""
    rng = np.random.default_rng(seed)
    images: list[bytes] = []
    same = [bool(number % 2) for number in range(pairs)]
    for one_person in same:
        first, second = rng.choice(len(people), 2, replace=False)
        if one_person:
            images += [people[first][place] for place in rng.choice(len(people[first]), 2, replace=False)]
        else:
            images += [people[value][rng.integers(len(people[value]))] for value in (first, second)]
    path.write_bytes(pickle.dumps((images, same), 2))
    return path


def encode(image: Image.Image, form: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form)
    return buffer.getvalue()


def draw_people(count: int, images: int, seed: int = 0, size: int = 32) -> list[list[bytes]]:
    """Draw several pictures of each person, a pattern: in different light, shifted, some mirrored."""
    rng = np.random.default_rng(seed)
    people = []
    for _ in range(count):
        pattern = np.kron(rng.integers(40, 216, (4, 4, 3)), np.ones((size // 4, size // 4, 1)))
        views = []
        for number in range(images):
            view = np.roll(pattern[:, ::-1] if number % 3 == 2 else pattern, rng.integers(-2, 3, 2), (0, 1))
            view = view + rng.normal(0, 10, view.shape) + rng.integers(-8, 9, (1, 1, 3))
            views.append(encode(Image.fromarray(view.clip(0, 255).astype(np.uint8))))
        people.append(views)
    return people
