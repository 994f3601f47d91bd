"""Find flaws of a data set: wrong labels, duplicates and outliers."""

import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from tqdm import tqdm

from proxemic.data import FilePixels
from proxemic.data.formats.tables import SPLITS
from proxemic.data.reading import UnreadableImageError
from proxemic.data.rows import Rows
from proxemic.extras import optional_dependency
from proxemic.files import check_folder, write_csv, write_text
from proxemic.metrics import Distance
from proxemic.metrics.clustering import unit_rows
from proxemic.outputs import check_output, has_columns, is_page
from proxemic.pages import Section, environment, picture, render_page
from proxemic.retrieval.curation.duplicates import (
    LENGTH,
    Kind,
    Match,
    content_hash,
    copies_of,
    difference,
    exact_matches,
    groups_of,
    near_matches,
    near_vectors,
    reduced,
    signature,
)
from proxemic.retrieval.curation.scores import LIMIT, leave_one_out_recall, outlier_scores, wrong_label_scores
from proxemic.retrieval.vectors.embedder import Embedder
from proxemic.retrieval.vectors.embedding import Source, as_embedder, gather, model_or_default, open_sources
from proxemic.tables import counted

with optional_dependency("train"):
    from markupsafe import Markup

SHOWN, _SIDE = 100, 96  # findings of a kind on the page, and pixels of a picture
_KEPT = 65_536  # small pictures in memory, of at most 4 kB
_WEAK_RECALL, _MANY_SUSPECTS = 0.8, 0.2  # beyond these, the model is probably wrong rather than the labels

HOW_TO_CORRECT = "Make a gallery of the pictures, decide about each by a key in the browser, and apply it:"
CORRECTING = """\
proxemic gallery create shop PHOTOS --model MODEL
proxemic serve shop --review
proxemic gallery apply shop"""

NOT_FOUND = "Copies that are cropped, rotated or turned upside down are not found."
"""The limits of `clean`."""


@dataclass(frozen=True)
class Suspect:
    """A picture whose label is probably wrong.

    Args:
        path: Name of the picture.
        label: Label of the picture.
        suggested: The label of the pictures to which it is nearer.
        score: The value of `wrong_label_scores`, above 0.5 and at most 1.
        example: Name of the most typical other picture with its label; empty if there is no other.
        suggested_example: Name of the most typical picture with the suggested label.
    """

    path: str
    label: str
    suggested: str
    score: float
    example: str = ""
    suggested_example: str = ""

    @property
    def examples(self) -> tuple[tuple[str, str], tuple[str, str]]:
        """The names of both examples, each with its label."""
        return (self.example, self.label), (self.suggested_example, self.suggested)


@dataclass(frozen=True)
class Duplicate:
    """A picture that repeats another.

    Args:
        group: Number of the group of pictures that repeat each other, from 1.
        path: Name of the picture.
        of: Name of the picture that it repeats, preferably of the training split.
        kind: ``exact`` for the same pixels; ``near`` for recompressed, resized or brightened pictures; or ``mirrored``
            left to right.
        look: 1 minus the correlation of the grey levels of both, at 48 pixels or fewer; None for vectors.
        distance: Distance of the embeddings.
        label: Label of the picture, or None.
        label_of: Label of the repeated picture, or None.
        split: Split of the picture, or None.
        split_of: Split of the repeated picture, or None.
    """

    group: int
    path: str
    of: str
    kind: Kind
    look: float | None
    distance: float
    label: str | None
    label_of: str | None
    split: str | None
    split_of: str | None

    @property
    def across_splits(self) -> bool:
        """Whether the two are in different splits."""
        return self.split != self.split_of

    @property
    def labels_differ(self) -> bool:
        """Whether the two have different labels."""
        return None not in (self.label, self.label_of) and self.label != self.label_of


@dataclass(frozen=True)
class Outlier:
    """A picture that resembles no other; its score is the value of `outlier_scores`, above 3.5."""

    path: str
    label: str | None
    score: float


@dataclass(frozen=True, eq=False)
class Cleaning:
    """Findings about a data set, each table with the worst first.

    Args:
        pictures: Number of examined pictures.
        labels: Suspected labels, sorted by score.
        duplicates: Duplicates, first those across splits, then those of different labels; the most alike first.
        outliers: Outliers, sorted by score.
        unreadable: Why further pictures could not be read, by their names.
        pixels: The pictures by their names; empty for vectors.
        judged: Number of labels that could be judged.
        recall: Share of the judged pictures whose nearest other picture, ignoring duplicates, has the same label; NaN
            without any.
    """

    pictures: int
    labels: tuple[Suspect, ...]
    duplicates: tuple[Duplicate, ...]
    outliers: tuple[Outlier, ...]
    unreadable: Mapping[str, str]
    pixels: Mapping[str, tuple[FilePixels, int]]
    judged: int = 0
    recall: float = math.nan

    @property
    def is_weak(self) -> bool:
        """Whether the model is too weak to judge labels, or very many are wrong."""
        return self.recall < _WEAK_RECALL or len(self.labels) > _MANY_SUSPECTS * self.judged

    @property
    def warning(self) -> str:
        """A sentence if the model is too weak to judge labels, otherwise empty."""
        if not self.is_weak:
            return ""
        return (
            "The model is too weak to judge labels, unless very many are wrong: the nearest other picture has the same "
            f"label for {self.recall:.0%} of {self.judged:,}, and {len(self.labels):,} labels are suspected."
        )

    def summary(self) -> str:
        """Count the findings in a sentence, after a warning if the model is too weak to judge labels."""
        return f"{self.warning} {self.counts}".lstrip()

    @property
    def counts(self) -> str:
        """A sentence that counts the findings of each kind."""
        kinds = [duplicate.kind for duplicate in self.duplicates]
        across = sum(duplicate.across_splits for duplicate in self.duplicates)
        differ = sum(duplicate.labels_differ for duplicate in self.duplicates)
        return (
            f"{counted(self.pictures, 'picture')}: {counted(len(self.labels), 'suspected label')}, "
            f"{kinds.count('exact'):,} exact, "
            f"{kinds.count('near'):,} near and {kinds.count('mirrored'):,} mirrored duplicates ({across:,} across "
            f"splits, {differ:,} of different labels), "
            f"{counted(len(self.outliers), 'outlier')}, {len(self.unreadable):,} unreadable."
        )

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Write ``labels.csv``, ``duplicates.csv``, ``outliers.csv``, ``unreadable.csv`` and the page ``index.html``.

        Each file is written atomically. The page contains small copies of the pictures and works offline.

        Args:
            folder: The folder, which is created if need be.

        Returns:
            The path of the page.

        Raises:
            UserError: If a file cannot be written.
        """
        folder = Path(folder)
        _check_out(folder)
        for name, columns in _TABLES.items():
            cells = ((getattr(item, column) for column in columns) for item in getattr(self, name))
            rows = [[f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in cells]
            write_csv(folder / f"{name}.csv", columns, rows)
        write_csv(folder / "unreadable.csv", _UNREADABLE, self.unreadable.items())
        sections = finding_sections(self, self._picture, SHOWN, "the table beside this page has all")
        if self.unreadable:
            lines = [f"{name}: {why}" for name, why in self.unreadable.items()][:SHOWN]
            items = Markup().join(Markup("<li>{}</li>").format(line) for line in lines)
            sections.append(Section("Unreadable", Markup("<ul>{}</ul>").format(items)))
        sections.append(Section("Correct them", Markup("<p>{}</p><pre>{}</pre>").format(HOW_TO_CORRECT, CORRECTING)))
        write_text(folder / "index.html", render_page("What proxemic clean found", sections, summary=self.counts))
        return folder / "index.html"

    def _picture(self, name: str, alt: str) -> Markup:
        image = None
        with suppress(KeyError, UnreadableImageError):  # a vector, or a picture that was removed meanwhile
            pixels, row = self.pixels[name]
            image = pixels.load(row, _SIDE, "auto")
        return picture(image, _SIDE, alt)


_TABLES = {
    name: tuple(column.name for column in fields(kind))
    for name, kind in {"labels": Suspect, "duplicates": Duplicate, "outliers": Outlier}.items()
}
_UNREADABLE = ("path", "reason")


def _check_out(folder: Path) -> None:
    """Raise `UserError` if the folder has an impossible name, or holds files that are not findings."""
    check_folder(folder)
    for name, columns in {**_TABLES, "unreadable": _UNREADABLE}.items():
        check_output(folder / f"{name}.csv", has_columns(columns))
    check_output(folder / "index.html", is_page)


def finding_sections(found: Cleaning, show: Callable[[str, str], Markup], most: int, rest: str) -> list[Section]:
    """Show the first findings of each kind with their pictures, and say where the others are.

    Args:
        found: The findings.
        show: Renders a picture by its name, with an alternative text.
        most: Findings of a kind that are shown.
        rest: A sentence about where to find the others.
    """
    template = environment(Path(__file__).parent).get_template("findings.html")

    def section(title: str, cards: Iterable[dict[str, object]], note: str, warning: str = "") -> Section:
        content = {"cards": [*cards], "note": note, "warning": warning, "most": most, "rest": rest, "show": show}
        return Section(title, Markup(template.render(content, kind=title.lower())))

    return [
        section(
            "Suspected labels",
            (
                {
                    "title": f"labelled {item.label}, looks like {item.suggested}",
                    "text": f"score {item.score:.2f}",
                    "figures": [
                        (item.path, "this picture", item.label),
                        *[(name, f"a picture of {label}", label) for name, label in item.examples if name],
                    ],
                }
                for item in found.labels
            ),
            "The score is the distance to the pictures of its own label, as a share of the sum of that distance and "
            "the distance to those of the other label: above 0.50 the other label is nearer. It is not a probability. "
            "Where two labels look alike, right labels are listed too, so look at each before you change it.",
            found.warning,
        ),
        section(
            "Duplicates",
            (
                {
                    "title": f"{duplicate.kind} copy",
                    "text": f"group {duplicate.group}, distance {duplicate.distance:.3f}",
                    "warnings": [f"{duplicate.split} repeats {duplicate.split_of}"] * duplicate.across_splits
                    + [f"labels differ: {duplicate.label} and {duplicate.label_of}"] * duplicate.labels_differ,
                    "figures": [(duplicate.path, "the copy", None), (duplicate.of, "what it repeats", None)],
                }
                for duplicate in found.duplicates
            ),
            f"The distance is that of the embeddings. {NOT_FOUND}",
        ),
        section(
            "Outliers",
            (
                {
                    "title": outlier.label or "",
                    "text": f"score {outlier.score:.1f}",
                    "figures": [(outlier.path, "this picture", outlier.label)],
                }
                for outlier in found.outliers
            ),
            "The score says how much farther than usual the nearest pictures are, in standard deviations that outliers "
            f"do not widen; above {LIMIT:g} a picture is listed.",
        ),
    ]


def clean(
    sources: Source,
    model: Embedder | str | os.PathLike[str] | None = None,
    *,
    out: str | os.PathLike[str] | None = None,
    batch_size: int = 64,
    workers: int = 0,
    report: Callable[[str], object] = print,
) -> Cleaning:
    """Find labels that are probably wrong, duplicates, also across splits, and outliers.

    Duplicates may be recompressed, resized, brightened or mirrored; cropped and rotated ones are not found. Pictures
    without labels are only examined for duplicates and outliers. Splits come from the column ``split`` of a table, or
    from folders train, validation and test. In a file of vectors, near duplicates are vectors that nearly coincide.

    Args:
        sources: One or several sources of `list_pictures`, or one file of vectors.
        model: An `Embedder`, or its path or name. None takes EfficientNet-Lite0 with ImageNet's weights for pictures,
            and no model for vectors. The model may have been trained on the same labels, wrong ones included.
        out: A folder for the tables and the page, see `Cleaning.write`; None writes nothing.
        batch_size: Pictures per batch of the network.
        workers: Processes that read and prepare pictures.
        report: Called with notes for the user.

    Returns:
        The findings.

    Raises:
        UserError: If nothing can be read, or a file cannot be written.
        ValueError: If vectors or a table are not valid.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "points.npy"
    >>> np.save(path, np.random.default_rng(0).normal(size=(50, 8)).astype(np.float32)[[*range(50), 7]])
    >>> [(found.path[-6:], found.of[-6:]) for found in clean(path).duplicates]
    [('row 50', ' row 7')]
    """
    if out is not None:
        _check_out(Path(out))
    embedder = as_embedder(model)  # refuse a wrong model before listing takes minutes
    opened = open_sources(sources)
    embedder = as_embedder(model_or_default(opened, embedder, report))
    distance = "cosine" if embedder is None else embedder.distance
    rows = gather(opened, embedder, distance, batch_size=batch_size, workers=workers)
    for note in rows.notes:
        report(note)
    found = examine(rows, distance)
    if found.unreadable:
        are = "is" if len(found.unreadable) == 1 else "are"
        report(f"{counted(len(found.unreadable), 'picture')} cannot be read and {are} left out.")
    if out is not None:
        report(f"Written: {found.write(out)}")
    return found


def examine(rows: Rows, distance: Distance) -> Cleaning:
    """Find the flaws of embedded rows."""
    assert rows.embeddings is not None
    embeddings = torch.as_tensor(rows.embeddings)
    embeddings = unit_rows(embeddings) if distance == "cosine" else embeddings
    names, texts, unreadable = rows.names, rows.labels, {**rows.unreadable}
    splits = [None if text is None else SPLITS.get(text.lower()) for text in rows.texts("split")]
    pixels = rows.pixels if isinstance(rows.pixels, FilePixels) else None
    # Training first: a copy of a training picture should leave the other split.
    order = sorted(range(len(names)), key=lambda row: [None, *SPLITS.values()].index(splits[row]))
    copies, signatures = None, None
    if pixels is not None:
        hashes, signatures, failed = _look(pixels)
        unreadable |= {names[row]: why for row, why in failed.items()}
        first = copies_of(hashes, order)
        matches = exact_matches(first)
        originals = [row for row in order if first[row] == row]
        for mirror in (False, True):
            found = near_matches(
                signatures[originals],
                embeddings[originals],
                _closely(pixels.select(originals), mirror),
                range(len(originals)),
                [splits[row] for row in originals],
                distance=distance,
                mirror=mirror,
            )
            known = {match.row for match in matches}
            new = [replace(item, row=originals[item.row], of=originals[item.of]) for item in found]
            matches += [item for item in new if item.row not in known]
        exact = groups_of(exact_matches(first), len(first))
        copies = exact if (exact >= 0).any() else None
    else:
        matches = near_vectors(embeddings, distance=distance)
    labels, class_names = rows.numbers("label")
    wrong = wrong_label_scores(embeddings, labels, distance=distance)
    recall, judged = leave_one_out_recall(embeddings, labels, groups_of(matches, len(names)), distance)
    strange = outlier_scores(embeddings, distance=distance, copies=copies)
    return Cleaning(
        len(names),
        tuple(
            Suspect(
                names[row],
                class_names[labels[row]],
                class_names[wrong.suggested[row]],
                float(wrong.scores[row]),
                *(_example(names, embeddings, labels, value, row) for value in (labels[row], wrong.suggested[row])),
            )
            for row in _worst(wrong.scores, 0.5)
        ),
        _duplicates(names, texts, splits, matches),
        tuple(Outlier(names[row], texts[row], float(strange[row])) for row in _worst(strange, LIMIT)),
        unreadable,
        {} if pixels is None else {name: (pixels, row) for row, name in enumerate(names)},
        judged,
        recall,
    )


def _example(names: Sequence[str], embeddings: Tensor, labels: Tensor, label: Tensor, row: int) -> str:
    """Return the name of the picture nearest to the mean of a label, other than the given row."""
    members = (labels == label).nonzero()[:, 0]
    others = members[members != row]
    if not len(others):
        return ""
    vectors = embeddings[others].float()
    return names[int(others[(vectors - vectors.mean(0)).norm(dim=1).argmin()])]


def _duplicates(
    names: Sequence[str], texts: Sequence[str | None], splits: Sequence[str | None], matches: Sequence[Match]
) -> tuple[Duplicate, ...]:
    groups = groups_of(matches, len(names))
    found = [
        Duplicate(
            int(groups[match.row]) + 1,
            names[match.row],
            names[match.of],
            match.kind,
            match.look,
            match.distance,
            texts[match.row],
            texts[match.of],
            splits[match.row],
            splits[match.of],
        )
        for match in matches
    ]
    return tuple(
        sorted(found, key=lambda item: (not item.across_splits, not item.labels_differ, item.look or 0, item.distance))
    )


def _look(pixels: FilePixels) -> tuple[list[bytes], np.ndarray, dict[int, str]]:
    """Read all pictures in full, in threads: hashes, signatures, and why a picture has none."""

    def one(row: int) -> tuple[bytes, np.ndarray, str | None]:
        try:
            image = pixels.load(row, None, "auto")
        except UnreadableImageError as error:  # it may have been removed meanwhile
            return b"%d" % row, np.zeros(LENGTH, np.float32), error.reason or str(error)
        return content_hash(image), signature(image), None

    hashes: list[bytes] = []
    signatures = np.zeros((len(pixels), LENGTH), np.float32)
    failed: dict[int, str] = {}
    with ThreadPoolExecutor() as pool:
        looked = tqdm(pool.map(one, range(len(pixels))), "comparing", len(pixels), leave=False, disable=None)
        for row, (hashed, numbers, why) in enumerate(looked):
            hashes.append(hashed)
            signatures[row] = numbers
            if why is not None:
                failed[row] = why
    return hashes, signatures, failed


def _closely(pixels: FilePixels, mirror: bool) -> Callable[[int, int], float]:
    @lru_cache(_KEPT)
    def small(row: int) -> Image.Image | None:
        try:
            return reduced(pixels.load(row, None, "auto"))
        except UnreadableImageError:
            return None

    def differ(first: int, second: int) -> float:
        one, other = small(first), small(second)
        if one is None or other is None:
            return 1.0
        return difference(ImageOps.mirror(one) if mirror else one, other)

    return differ


def _worst(scores: torch.Tensor, above: float) -> list[int]:
    rows = (scores > above).nonzero()[:, 0]
    return rows[scores[rows].argsort(descending=True, stable=True)].tolist()
