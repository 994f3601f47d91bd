"""Calibrated thresholds on the distance: stored beside a model, and chosen for a gallery."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

from proxemic.errors import UserError
from proxemic.files import read_json, write_json
from proxemic.metrics import FEWEST_CLASSES
from proxemic.retrieval.stores.store import Distance
from proxemic.tables import Format, Table, percent, without_nan

RATES = (0.1, 0.01, 0.001)
"""The default false accept rates for which thresholds are learnt."""

RATE = 0.01
"""The default false accept rate whose threshold is used."""

FORMAT = 2
NAME = "calibration.json"


@dataclass(frozen=True)
class CalibratedThreshold:
    """A threshold for one false accept rate; the other values are NaN if there were too few pictures to measure it.

    Bounds of confidence intervals are NaN if there are few classes.

    Args:
        rate: The requested false accept rate.
        threshold: Pictures at this distance or nearer are accepted; a value below 0 accepts none.
        low: Lower bound of the threshold.
        high: Upper bound of the threshold.
        false_accepts: Share of pictures whose nearest picture of another class is within the threshold; at most `rate`.
        false_low: Lower bound of `false_accepts` at this threshold.
        false_high: Upper bound of `false_accepts` at this threshold.
        true_accepts: Share of pictures whose nearest other picture has their class and is within the threshold.
        true_low: Lower bound of `true_accepts`.
        true_high: Upper bound of `true_accepts`.
    """

    rate: float
    threshold: float
    low: float
    high: float
    false_accepts: float
    false_low: float
    false_high: float
    true_accepts: float
    true_low: float
    true_high: float


@dataclass(frozen=True)
class Calibration:
    """Thresholds that `calibrate` learnt.

    Args:
        model: The checksum of the model.
        distance: ``cosine`` or ``euclidean``.
        data: A description of the pictures from which the thresholds were learnt.
        classes: How many classes played the unknown class.
        images: How many pictures these classes have.
        searched: How many pictures were searched.
        level: Confidence level of the intervals.
        thresholds: A threshold for each rate.
        grouping: The mean distance up to which `cluster` joins groups: on these classes, it maximises the pairwise F1
            of the groups of average linkage.
        unfinished: When the model's run stopped if it was unfinished, such as "stopped in epoch 1 of 30".
    """

    model: str
    distance: Distance
    data: str
    classes: int
    images: int
    searched: int
    level: float
    thresholds: tuple[CalibratedThreshold, ...]
    grouping: float
    unfinished: str | None = None

    def choose(self, rate: float | None = None) -> tuple[CalibratedThreshold, str | None]:
        """Choose the threshold for a false accept rate.

        Args:
            rate: The rate; None takes 0.01, or the smallest that was learnt. A rate for which there were too few
                pictures is replaced by the smallest that was measured.

        Returns:
            The threshold, and a sentence if it is for another rate.

        Raises:
            UserError: If no threshold was learnt for the rate, although it could be.
            ValueError: If the rate is not between 0 and 1.
        """
        if rate is not None and (isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1):
            raise ValueError(f"rate is {rate!r}, but must be a false accept rate above 0 and below 1.")
        wanted = RATE if rate is None else rate
        measured = {item.rate: item for item in self.thresholds if not math.isnan(item.threshold)}
        if wanted in measured:
            return measured[wanted], None
        if wanted * self.images < 1:
            pictures = math.ceil(1 / wanted)
            why = f"A false accept rate of {wanted:g} takes {pictures:,} pictures to measure, not {self.images:,}"
        elif rate is None:
            why = f"No threshold was learnt for a false accept rate of {wanted:g}"
        else:
            known = ", ".join(f"{item:g}" for item in sorted(measured, reverse=True))
            raise UserError(
                f"No threshold was learnt for a false accept rate of {rate:g}, only for {known}: give one of these, or "
                f"learn it with proxemic calibrate --rates {rate:g}."
            )
        smallest = measured[min(measured)]
        return smallest, f"{why}: the threshold for {smallest.rate:g} is used, the smallest that was learnt."

    def learnt(self, threshold: CalibratedThreshold | None = None) -> str:
        """Say from how many classes the thresholds were learnt, with the interval of one's false accepts."""
        classes = "1 class" if self.classes == 1 else f"{self.classes:,} classes"
        if self.classes < FEWEST_CLASSES:
            return f"learnt from {classes}, and with fewer than {FEWEST_CLASSES} no interval can be given"
        if threshold is None or math.isnan(threshold.false_low):
            return f"learnt from {classes}"
        bounds = _bounds(threshold.false_low, threshold.false_high)
        return f"learnt from {classes} ({100 * self.level:g}% interval {bounds} %)"

    def caution(self, rows: int | None = None) -> str | None:
        """Warn if more unknown pictures may pass than the rate says; None if there is no reason for a warning.

        Args:
            rows: Number of pictures in the gallery that is searched; None if it is unknown.
        """
        few, many = self.classes < FEWEST_CLASSES, rows is not None and rows > 2 * self.searched
        if not few and not many:
            return None
        size = f", among {self.searched:,} pictures, while this gallery has {rows:,}" if many else ""
        return (
            f"The threshold was {self.learnt()}{size}: more unknown pictures may pass than the rate says, "
            "above all those that resemble known classes."
        )

    def write(self, model: str | os.PathLike[str]) -> Path:
        """Write ``calibration.json`` beside a model, and return its path."""
        path = calibration_file(model)
        write_json(path, self.to_json())
        return path

    def to_json(self) -> dict[str, Any]:
        """Convert to plain data."""
        return without_nan({"format": FORMAT} | asdict(self))

    @classmethod
    def read(cls, model: str | os.PathLike[str], checksum: str | None = None) -> "Calibration":
        """Read the thresholds of a model.

        Args:
            model: The directory of a run, or the file of a model.
            checksum: The checksum that the model must have; None does not check.

        Raises:
            UserError: If there are no thresholds, the file is damaged, or it belongs to another model.
        """
        path = calibration_file(model)
        if not path.is_file():
            raise UserError(
                f"{model} has no thresholds (there is no {path}): learn them with proxemic calibrate {model}, or give "
                "one (--threshold)."
            )
        found = cls.from_json(read_json(path), path)
        if checksum is not None and found.model != checksum:
            raise UserError(
                f"{path} belongs to another model ({found.model[:12]}) than {model} is now ({checksum[:12]}): learn "
                f"the thresholds again with proxemic calibrate {model}."
            )
        return found

    @classmethod
    def from_json(cls, content: Mapping[str, Any], path: Path) -> "Calibration":
        """Read the result of `to_json`; `UserError` naming the file for anything else."""
        kinds = {"model": str, "classes": int, "images": int, "searched": int, "grouping": float}
        try:
            facts = {**content}
            thresholds = tuple(
                CalibratedThreshold(
                    **{name: math.nan if value is None else float(value) for name, value in threshold.items()}
                )
                for threshold in facts.pop("thresholds")
            )
            is_valid = facts.pop("format") == FORMAT and facts["distance"] in get_args(Distance)
            is_valid &= all(isinstance(facts[name], kind) for name, kind in kinds.items())
            if not is_valid or all(math.isnan(item.threshold) for item in thresholds):
                raise ValueError
            return cls(**facts, thresholds=thresholds)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} is not a calibration that this version can read: learn it again.") from error

    def text(self, form: Format = "table") -> str:
        """Format as a table for people, as JSON, CSV or Markdown."""
        if form == "json":
            return json.dumps(without_nan(asdict(self)), indent=2)
        if form == "csv":
            return Table.of_records([asdict(threshold) for threshold in self.thresholds]).text("csv")
        return self.table().text(form)

    def table(self) -> Table:
        """Return a table for people, with rates in percent."""
        interval = f"{100 * self.level:g}% interval"
        header = ["rate", "threshold", "false accepts", interval, "true accepts", interval]
        rows = [
            [
                f"{100 * item.rate:.4g}",
                format_threshold(item.threshold),
                percent(item.false_accepts),
                _bounds(item.false_low, item.false_high),
                percent(item.true_accepts),
                _bounds(item.true_low, item.true_high),
            ]
            for item in self.thresholds
        ]
        title = (
            f"{self.data}: {self.images:,} pictures of {self.classes:,} classes, {self.distance} distance; in percent "
            "but for thresholds"
        )
        return Table(header, rows, title, self.notes(), "rrrrrr")

    def notes(self) -> list[str]:
        """Explain the figures and their limits."""
        notes = [
            "A false accept: the nearest picture among those of all other classes is within the threshold. Unknown "
            "pictures that resemble known classes pass more often than others; in a larger gallery more pass."
        ]
        notes += [f"The run of the model {self.unfinished}."] if self.unfinished else []
        empty = [f"{item.rate:g}" for item in self.thresholds if item.threshold < 0]
        if empty:
            notes.append(
                f"At a rate of {' and '.join(empty)} nothing is accepted: too many pictures of different classes are "
                "the same to the model. Look for wrong labels and duplicates with proxemic clean."
            )
        missing = [f"{item.rate:g}" for item in self.thresholds if math.isnan(item.threshold)]
        if missing:
            notes.append(f"Too few pictures to measure a rate of {' and '.join(missing)}.")
        notes.append(f"Pictures are grouped (proxemic cluster) up to a mean distance of {self.grouping:.4f}.")
        if (caution := self.caution()) is not None:
            notes.append(f"{caution} {how_to_measure()}")
        return notes


def how_to_measure(model: str = "MODEL", gallery: str = "GALLERY") -> str:
    """Say how to measure how many unknown pictures pass."""
    return (
        f"Measure it with proxemic calibrate {model} --gallery {gallery}, which leaves out each class of the gallery "
        "in turn, or with unknown pictures of your own as well (--data.root)."
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


def format_threshold(value: float) -> str:
    """Format a threshold; a value below 0 accepts nothing."""
    return percent(value) if math.isnan(value) else "none" if value < 0 else f"{value:.4f}"


def _bounds(low: float, high: float) -> str:
    return percent(low) if math.isnan(low) else f"{percent(low)} … {percent(high)}"
