"""A calibrated threshold on the distance: stored with the gallery or next to the model on which it was learnt."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

from proxemic.errors import UserError
from proxemic.files import read_json, write_json
from proxemic.retrieval.galleries.stores.store import Distance, Store
from proxemic.tables import Format, Table, percent, without_nan

FORMAT = 3
NAME = "calibration.json"
ENOUGH = 10
"""Fewest false accepts that a rate should come from."""


@dataclass(frozen=True)
class Calibration:
    """The threshold that `calibrate` learnt.

    Args:
        model: The checksum of the model; None for a gallery of vectors whose model is unknown.
        distance: ``cosine`` or ``euclidean``.
        data: A description of the images from which the threshold was learnt.
        classes: How many classes were searched as unknown.
        images: How many images these classes have.
        searched: How many images were searched.
        rate: The false accept rate for which the threshold was learnt.
        threshold: Images at this distance or nearer are accepted; a value below 0 accepts none.
        false_accepts: Fraction of images whose nearest image of another class is within the threshold; at most `rate`.
        low: The false accepts that are exceeded in 95 % of 200 random halves of the classes; NaN if there are few
            classes.
        high: The false accepts that are exceeded in 5 % of these halves.
        true_accepts: Fraction of images whose nearest other image has their class and is within the threshold; NaN if
            no class has two images.
        grouping: The mean distance up to which `cluster` joins groups: on these classes, it maximises the pairwise F1
            of the groups of average linkage.
        unfinished: When the model's run stopped if it was unfinished, such as "stopped in epoch 1 of 30".
    """

    model: str | None
    distance: Distance
    data: str
    classes: int
    images: int
    searched: int
    rate: float
    threshold: float
    false_accepts: float
    low: float
    high: float
    true_accepts: float
    grouping: float
    unfinished: str | None = None

    def check_rate(self, rate: float | None) -> str | None:
        """Check that the threshold is the one for a false accept rate.

        Args:
            rate: The rate; None takes the threshold that was learnt.

        Returns:
            A sentence if the rate is smaller than the images can measure, so that the threshold is for another one.

        Raises:
            UserError: If the threshold was learnt for another rate.
            ValueError: If the rate is not between 0 and 1.
        """
        if rate is not None:
            check_rate(rate)
        if rate is None or rate == self.rate:
            return None
        if rate < 1 / self.images <= self.rate:
            return (
                f"A false accept rate of {rate:g} takes {math.ceil(1 / rate):,} photos to measure, not "
                f"{self.images:,}: the threshold for {self.rate:g} is used."
            )
        raise UserError(
            f"The threshold was learnt for a false accept rate of {self.rate:g}, not {rate:g}: give that one, or learn "
            f"another with proxemic calibrate --rate {rate:g}."
        )

    def learnt(self) -> str:
        """Say from how many classes the threshold was learnt, with the range of its false accepts."""
        classes = "1 class" if self.classes == 1 else f"{self.classes:,} classes"
        if math.isnan(self.low):
            return f"learnt from {classes}, and with fewer than {_fewest_classes()} no range can be given"
        return f"learnt from {classes} (in nine of ten halves of them, {self._range()} % pass)"

    def caution(self, rows: int | None = None) -> str | None:
        """Warn if more unknown images may pass than the rate says; None if there is no reason for a warning.

        Args:
            rows: Number of images in the gallery that is searched; None if it is unknown.
        """
        few, many = self._is_small(), rows is not None and rows > 2 * self.searched
        if not few and not many:
            return None
        size = f", among {self.searched:,} photos, while this gallery has {rows:,}" if many else ""
        enough = f" It takes at least {self._enough()} to mean much." if few else ""
        return (
            f"The threshold was {self.learnt()}{size}: more unknown photos may pass than the rate says, "
            f"above all those that resemble known classes.{enough}"
        )

    def _is_small(self) -> bool:
        return self.classes < _fewest_classes() or self.images * self.rate < ENOUGH

    def _enough(self) -> str:
        return f"{_fewest_classes()} classes and {math.ceil(ENOUGH / self.rate):,} photos"

    def write(self, model: str | os.PathLike[str]) -> Path:
        """Write ``calibration.json`` next to a model, and return its path."""
        path = calibration_file(model)
        write_json(path, self.to_json())
        return path

    def to_json(self) -> dict[str, Any]:
        """Convert to plain data."""
        return without_nan({"format": FORMAT} | asdict(self))

    @classmethod
    def read(cls, model: str | os.PathLike[str], checksum: str | None = None) -> "Calibration":
        """Read the threshold next to a model.

        Args:
            model: The directory of a run, or the file of a model.
            checksum: The checksum that the model must have; None does not check.

        Raises:
            UserError: If there is no threshold, the file is damaged, or it belongs to another model.
        """
        path = calibration_file(model)
        if not path.is_file():
            raise UserError(
                f"{model} has no threshold (there is no {path}): learn it with proxemic calibrate {model}, or give "
                "one (--threshold)."
            )
        found = cls.from_json(read_json(path), path)
        if checksum is not None and found.model != checksum:
            raise UserError(
                f"{path} belongs to another model ({str(found.model)[:12]}) than {model} is now ({checksum[:12]}): "
                f"learn the threshold again with proxemic calibrate {model}."
            )
        return found

    @classmethod
    def from_json(cls, content: Mapping[str, Any], owner: object) -> "Calibration":
        """Read the result of `to_json`; `UserError` naming the owner for anything else."""
        texts, counts = ("data",), ("classes", "images", "searched")
        numbers, measured = ("rate", "threshold", "grouping"), ("false_accepts", "low", "high", "true_accepts")
        try:
            facts = {**content}
            is_valid = facts.pop("format") == FORMAT and facts["distance"] in get_args(Distance)
            is_valid &= all(isinstance(facts[name], str) for name in texts)
            is_valid &= all(isinstance(facts[name], int) for name in counts)
            is_valid &= all(isinstance(facts[name], str | None) for name in ("model", "unfinished"))
            for name in (*numbers, *measured):
                facts[name] = math.nan if facts[name] is None and name in measured else float(facts[name])
            if not is_valid:
                raise ValueError
            return cls(**facts)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{owner} is not a calibration that this version can read: learn it again.") from error

    def text(self, form: Format = "table") -> str:
        """Format as a table for people, as JSON, CSV or Markdown."""
        if form == "json":
            return json.dumps(without_nan(asdict(self)), indent=2)
        if form == "csv":
            return Table.of_records([asdict(self)]).text("csv")
        return self.table().text(form)

    def table(self) -> Table:
        """Return a table for people, with rates in percent."""
        header = ["rate", "threshold", "false accepts", "5 to 95% of halves", "true accepts"]
        shares = [percent(self.false_accepts), self._range(), percent(self.true_accepts)]
        row = [f"{100 * self.rate:.4g}", format_threshold(self.threshold), *shares]
        title = (
            f"{self.data}: {self.images:,} photos of {self.classes:,} classes, {self.distance} distance; in percent "
            "but for the threshold"
        )
        return Table(header, [row], title, self.notes(), "rrrrr")

    def _range(self) -> str:
        return percent(self.low) if math.isnan(self.low) else f"{percent(self.low)} … {percent(self.high)}"

    def notes(self) -> list[str]:
        """Explain the figures and their limits."""
        notes = [
            "A false accept: the nearest photo among those of all other classes is within the threshold. Unknown "
            "photos that resemble known classes pass more often than others; in a larger gallery more pass."
        ]
        if not math.isnan(self.low):
            notes.append(
                "5 to 95% of halves: in 200 random halves of the classes, the false accepts of the other half at the "
                "threshold of this half. Expect as many of your unknown photos to pass."
            )
        notes += [f"The run of the model {self.unfinished}."] if self.unfinished else []
        if self.threshold < 0:
            notes.append(
                "Nothing is accepted: too many photos of different classes are the same to the model. Look for wrong "
                "labels and duplicates with proxemic clean."
            )
        notes.append(f"Photos are grouped (proxemic cluster) up to a mean distance of {self.grouping:.4f}.")
        if self._is_small():
            notes.append(
                f"This means little: {self.images:,} photos of {self.classes:,} classes, but for this rate it takes "
                f"at least {self._enough()}."
            )
        return notes


def check_rate(rate: float) -> None:
    """Raise `ValueError` unless a false accept rate is above 0 and below 1."""
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1:
        raise ValueError(f"rate is {rate!r}, but must be a false accept rate above 0 and below 1.")


def how_to_measure(gallery: str = "GALLERY") -> str:
    """Say how to measure how many unknown images pass."""
    return (
        f"Measure it with proxemic calibrate --gallery {gallery}, which leaves out each class of the gallery in turn, "
        "or with unknown photos of your own as well (--data.root)."
    )


class ChosenThreshold(NamedTuple):
    """A threshold for a gallery.

    Args:
        threshold: The distance.
        rate: The false accept rate of the threshold; None if the distance was given.
        learnt: The data from which it was learnt, as words.
        notes: Notes for all users.
        advice: Advice for the operator, with paths of this machine.
    """

    threshold: float
    rate: float | None = None
    learnt: str = ""
    notes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()


def calibration_file(model: str | os.PathLike[str]) -> Path:
    """Return the path of a model's thresholds."""
    path = Path(model)
    return (path if path.is_dir() else path.parent) / NAME


def calibration_of(store: Store, model: Path | None, checksum: str | None = None) -> Calibration:
    """Return a gallery's own calibration, or else the calibration next to its model; raise `UserError` without any.

    `checksum` is that of the model in use, by default the one that made the gallery.
    """
    address, distance = store.address, store.info.distance
    if (content := store.calibration) is not None:
        return Calibration.from_json(content, address)
    how = f"learn it with proxemic calibrate --gallery {address}, or give one (--threshold)."
    if model is None or not calibration_file(model).is_file():
        raise UserError(f"{address} has no threshold: {how}")
    calibration = Calibration.read(model, checksum or store.info.embedder)
    if calibration.distance != distance:
        raise UserError(
            f"The threshold of {model} is on the {calibration.distance} distance, but {address} is searched by the "
            f"{distance} distance: {how}"
        )
    return calibration


def format_threshold(value: float) -> str:
    """Format a threshold; a value below 0 accepts nothing."""
    return percent(value) if math.isnan(value) else "none" if value < 0 else f"{value:.4f}"


def _fewest_classes() -> int:
    from proxemic.metrics import FEWEST_CLASSES  # which needs torch

    return FEWEST_CLASSES
