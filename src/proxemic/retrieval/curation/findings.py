"""The findings of `clean`: suspected labels, duplicates and outliers, as sentences, tables and a page."""

import math
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path

from proxemic.data import FilePixels
from proxemic.data.reading import UnreadableImageError
from proxemic.extras import optional_dependency
from proxemic.files import check_folder, write_csv, write_text
from proxemic.outputs import check_output, has_columns, is_page
from proxemic.pages import Section, environment, picture, render_page
from proxemic.retrieval.curation.duplicates import (
    Kind,
)
from proxemic.retrieval.curation.scores import LIMIT
from proxemic.tables import counted

with optional_dependency("train"):
    from markupsafe import Markup

SHOWN, _SIDE = 100, 96  # findings of a kind on the page, and pixels of an image
_WEAK_RECALL, _MANY_SUSPECTS = 0.8, 0.2  # beyond these, the model is probably wrong rather than the labels

HOW_TO_CORRECT = "Make a gallery of the photos, decide about each by a key in the browser, and apply it:"
CORRECTING = """\
proxemic gallery create shop PHOTOS --model MODEL
proxemic serve shop --review
proxemic gallery apply shop"""

NOT_FOUND = "Copies that are cropped, rotated or turned upside down are not found."
"""The limits of `clean`."""


@dataclass(frozen=True)
class Suspect:
    """An image whose label is probably wrong.

    Args:
        path: Name of the image.
        label: Label of the image.
        suggested: The label of the images to which it is nearer.
        score: The value of `wrong_label_scores`, above 0.5 and at most 1.
        example: Name of the most typical other image with its label; empty if there is no other.
        suggested_example: Name of the most typical image with the suggested label.
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
    """An image that repeats another.

    Args:
        group: Number of the group of images that repeat each other, from 1.
        path: Name of the image.
        of: Name of the image that it repeats, preferably of the training split.
        kind: ``exact`` for the same pixels; ``near`` for recompressed, resized or brightened images; or ``mirrored``
            left to right.
        look: 1 minus the correlation of the grey levels of both, at 48 pixels or fewer; None for vectors.
        distance: Distance of the embeddings.
        label: Label of the image, or None.
        label_of: Label of the repeated image, or None.
        split: Split of the image, or None.
        split_of: Split of the repeated image, or None.
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
    """An image that resembles no other; its score is the value of `outlier_scores`, above 3.5."""

    path: str
    label: str | None
    score: float


@dataclass(frozen=True, eq=False)
class Cleaning:
    """Findings about a data set, each table with the worst first.

    Args:
        pictures: Number of examined images.
        labels: Suspected labels, sorted by score.
        duplicates: Duplicates, first those across splits, then those of different labels; the most alike first.
        outliers: Outliers, sorted by score.
        unreadable: Why further images could not be read, by their names.
        pixels: The images by their names; empty for vectors.
        judged: Number of labels that could be judged.
        recall: Fraction of the judged images whose nearest other image, ignoring duplicates, has the same label; NaN
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
            "The model is too weak to judge labels, unless very many are wrong: the nearest other photo has the same "
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
            f"{counted(self.pictures, 'photo')}: {counted(len(self.labels), 'suspected label')}, "
            f"{kinds.count('exact'):,} exact, "
            f"{kinds.count('near'):,} near and {kinds.count('mirrored'):,} mirrored duplicates ({across:,} across "
            f"splits, {differ:,} of different labels), "
            f"{counted(len(self.outliers), 'outlier')}, {len(self.unreadable):,} unreadable."
        )

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Write ``labels.csv``, ``duplicates.csv``, ``outliers.csv``, ``unreadable.csv`` and the page ``index.html``.

        Each file is written atomically. The page contains small copies of the images and works offline.

        Args:
            folder: The folder, which is created if need be.

        Returns:
            The path of the page.

        Raises:
            UserError: If a file cannot be written.
        """
        folder = Path(folder)
        check_out(folder)
        for name, columns in _TABLES.items():
            cells = ((getattr(item, column) for column in columns) for item in getattr(self, name))
            rows = [[f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in cells]
            write_csv(folder / f"{name}.csv", columns, rows)
        write_csv(folder / "unreadable.csv", _UNREADABLE, self.unreadable.items())
        sections = finding_sections(self, self._picture, SHOWN, "the table next to this page has all")
        if self.unreadable:
            lines = [f"{name}: {why}" for name, why in self.unreadable.items()][:SHOWN]
            items = Markup().join(Markup("<li>{}</li>").format(line) for line in lines)
            sections.append(Section("Unreadable", Markup("<ul>{}</ul>").format(items)))
        sections.append(Section("Correct them", Markup("<p>{}</p><pre>{}</pre>").format(HOW_TO_CORRECT, CORRECTING)))
        write_text(folder / "index.html", render_page("What proxemic clean found", sections, summary=self.counts))
        return folder / "index.html"

    def _picture(self, name: str, alt: str) -> Markup:
        image = None
        with suppress(KeyError, UnreadableImageError):  # a vector, or an image that was removed meanwhile
            pixels, row = self.pixels[name]
            image = pixels.load(row, _SIDE, "auto")
        return picture(image, _SIDE, alt)


_TABLES = {
    name: tuple(column.name for column in fields(kind))
    for name, kind in {"labels": Suspect, "duplicates": Duplicate, "outliers": Outlier}.items()
}
_UNREADABLE = ("path", "reason")


def check_out(folder: Path) -> None:
    """Raise `UserError` if the folder has an impossible name, or holds files that are not findings."""
    check_folder(folder)
    for name, columns in {**_TABLES, "unreadable": _UNREADABLE}.items():
        check_output(folder / f"{name}.csv", has_columns(columns))
    check_output(folder / "index.html", is_page)


def finding_sections(found: Cleaning, show: Callable[[str, str], Markup], most: int, rest: str) -> list[Section]:
    """Show the first findings of each kind with their images, and say where the others are.

    Args:
        found: The findings.
        show: Renders an image by its name, with an alternative text.
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
                        (item.path, "this photo", item.label),
                        *[(name, f"a photo of {label}", label) for name, label in item.examples if name],
                    ],
                }
                for item in found.labels
            ),
            "The score is the distance to the photos of its own label, as a fraction of the sum of that distance and "
            "the distance to those of the other label: above 0.50 the other label is nearer. It is not a probability. "
            "If two labels look alike, right labels are listed too, so look at each before you change it.",
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
                    "figures": [(outlier.path, "this photo", outlier.label)],
                }
                for outlier in found.outliers
            ),
            "The score says how much farther than usual the nearest photos are, in standard deviations that outliers "
            f"do not widen; above {LIMIT:g} a photo is listed.",
        ),
    ]
