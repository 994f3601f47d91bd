"""Thresholds on the distance, learnt from classes that a model was not trained on, and kept beside it."""

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from logging import getLogger
from pathlib import Path
from typing import Any, get_args

from proxemic.data.embeddings import LabelledEmbeddings
from proxemic.errors import UserError
from proxemic.files import read_json, write_json
from proxemic.metrics import FEWEST_CLASSES, Interval
from proxemic.metrics.open_set import dir_name, leave_classes_out, threshold_name
from proxemic.retrieval.embedder import Embedder
from proxemic.retrieval.held_out import HeldOutSplit, embed_held_out
from proxemic.retrieval.stores.store import Distance
from proxemic.tables import Format, Table, percent, without_nan

RATES = (0.1, 0.01, 0.001)
"""The false accept rates that thresholds are learnt for, unless others are asked for."""

FORMAT = 1
NAME = "calibration.json"


@dataclass(frozen=True)
class CalibratedThreshold:
    """A threshold for one false accept rate; NaN where there are too few pictures to measure that.

    Args:
        rate: The false accept rate asked for.
        threshold: Accepts what is at this distance or nearer; below 0 nothing.
        low: Lower bound of the threshold's confidence interval; NaN with few classes, likewise the others.
        high: Upper bound.
        false_accepts: Part of the pictures whose nearest one of another class is within the threshold: at most `rate`.
        true_accepts: Part of the pictures whose nearest other one is of their class, and within the threshold.
        true_low: Lower bound of `true_accepts`.
        true_high: Upper bound.
    """

    rate: float
    threshold: float
    low: float
    high: float
    false_accepts: float
    true_accepts: float
    true_low: float
    true_high: float


@dataclass(frozen=True)
class Calibration:
    """What `calibrate` learnt.

    Args:
        model: The checksum of the model.
        distance: The distance that thresholds are on.
        data: What it was learnt from.
        classes: How many classes that had.
        images: How many pictures.
        level: Confidence level of the intervals.
        thresholds: One for each rate.
        unfinished: Where the run of the model had stopped, if it was not finished: "stopped in epoch 1 of 30".
    """

    model: str
    distance: Distance
    data: str
    classes: int
    images: int
    level: float
    thresholds: tuple[CalibratedThreshold, ...]
    unfinished: str | None = None

    def threshold(self, rate: float) -> float:
        """The threshold for a false accept rate; `UserError` where there is none."""
        rates = {each.rate: each.threshold for each in self.thresholds}
        if rate not in rates:
            known = ", ".join(f"{each:g}" for each in rates)
            raise UserError(
                f"There is no threshold for a false accept rate of {rate:g}, but for {known}: give one of these, or "
                f"learn it with proxemic calibrate --rates {rate:g}."
            )
        if math.isnan(rates[rate]):
            raise UserError(
                f"A false accept rate of {rate:g} takes {math.ceil(1 / rate):,} pictures to be measured, but the "
                f"thresholds were learnt from {self.images:,}: give a larger rate, or learn them from more pictures "
                "with proxemic calibrate --data.root."
            )
        return rates[rate]

    def write(self, model: str | os.PathLike[str]) -> Path:
        """Keep it beside a model, as ``calibration.json``; gives the file."""
        path = calibration_file(model)
        write_json(path, without_nan({"format": FORMAT} | asdict(self)))
        return path

    @classmethod
    def read(cls, model: str | os.PathLike[str], checksum: str | None = None) -> "Calibration":
        """Read what is kept beside a model.

        Args:
            model: The directory of a run, or the file of a model.
            checksum: The checksum of that model, which it must have been learnt for; None does not check.

        Raises:
            UserError: If there is none, it is damaged, or that of another model.
        """
        path = calibration_file(model)
        if not path.is_file():
            raise UserError(
                f"{model} has no thresholds (there is no {path}): learn them with proxemic calibrate {model}, or give "
                "one (--threshold)."
            )
        found = cls._of(read_json(path), path)
        if checksum is not None and found.model != checksum:
            raise UserError(
                f"{path} is of another model ({found.model[:12]}) than {model} is now ({checksum[:12]}): learn the "
                f"thresholds anew with proxemic calibrate {model}."
            )
        return found

    @classmethod
    def _of(cls, content: Mapping[str, Any], path: Path) -> "Calibration":
        try:
            if content["format"] != FORMAT or content["distance"] not in get_args(Distance):
                raise ValueError
            thresholds = tuple(
                CalibratedThreshold(
                    **{name: math.nan if value is None else float(value) for name, value in each.items()}
                )
                for each in content["thresholds"]
            )
            facts = {name: value for name, value in content.items() if name not in ("format", "thresholds")}
            kinds = {"model": str, "data": str, "distance": str, "classes": int, "images": int, "level": float}
            if any(not isinstance(facts[name], kind) for name, kind in kinds.items()) or not thresholds:
                raise ValueError
            if not isinstance(facts.get("unfinished"), str | None):
                raise ValueError
            return cls(**facts, thresholds=thresholds)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} is no calibration that can be read here: learn it anew.") from error

    def text(self, form: Format = "table") -> str:
        """As text."""
        if form == "json":
            return json.dumps(without_nan(asdict(self)), indent=2)
        if form == "csv":
            return Table.of_records([asdict(each) for each in self.thresholds]).text("csv")
        return self.table().text(form)

    def table(self) -> Table:
        """For people."""
        interval = f"{100 * self.level:g}% interval"
        header = ["false accepts", "threshold", interval, "measured", "true accepts", interval]
        rows = [
            [
                f"{each.rate:g}",
                _number(each.threshold),
                _bounds(each.low, each.high, _number),
                percent(each.false_accepts),
                percent(each.true_accepts),
                _bounds(each.true_low, each.true_high, percent),
            ]
            for each in self.thresholds
        ]
        title = (
            f"{self.data}: {self.images:,} pictures of {self.classes:,} classes, {self.distance} distance; in percent "
            "but for thresholds"
        )
        return Table(header, rows, title, self.notes(), "lrrrrr")

    def notes(self) -> list[str]:
        """What the figures do not say."""
        notes = [
            "A false accept: the nearest picture among those of all other classes is within the threshold. In a larger "
            "gallery there are more."
        ]
        notes += [f"The run of the model {self.unfinished}."] if self.unfinished else []
        empty = [f"{each.rate:g}" for each in self.thresholds if each.threshold < 0]
        if empty:
            notes.append(
                f"At a rate of {' and '.join(empty)} nothing is accepted: too many pictures of different classes are "
                "the same to the model. Look for wrong labels and duplicates with proxemic clean."
            )
        missing = [f"{each.rate:g}" for each in self.thresholds if math.isnan(each.threshold)]
        if missing:
            notes.append(f"Too few pictures to measure a rate of {' and '.join(missing)}.")
        if self.classes < FEWEST_CLASSES:
            notes.append(f"With fewer than {FEWEST_CLASSES} classes no honest interval can be given.")
        return notes


def calibrate(
    model: Embedder | str | os.PathLike[str],
    source: str | os.PathLike[str] | LabelledEmbeddings | None = None,
    *,
    split: HeldOutSplit | None = None,
    rates: Sequence[float] = RATES,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
    batch_size: int = 64,
    workers: int = 0,
    keep: bool = True,
    report: Callable[[str], object] | None = None,
) -> Calibration:
    r"""Learn thresholds on the distance from classes that a model was not trained on.

    Each picture searches those of all *other* classes, as one does that is of no class of a gallery: its distance to
    the nearest of these is $d^-$. It is a false accept at a threshold $\tau$ if $d^- \le \tau$, and
    the threshold for a rate is the largest with at most that part of false accepts:

    $$\tau_r = \max \{\tau : |\{i : d^-_i \le \tau\}| \le r N\}$$

    So rates are those of queries that search a gallery as large as these pictures, not of pairs of pictures: of the
    nearest of n pictures, n pairs could have been accepted. In a larger gallery there are more false accepts, at most
    in proportion to its size.

    Args:
        model: The model, or the path of one.
        source: Labelled pictures (a folder or a table), or a file of labelled vectors, or its content; None takes the
            validation classes of the run. Classes that the run was trained on are left out, by their names, and those
            of its test.
        split: ``validation`` or ``test`` takes these classes of the run alone. What is measured on the test classes
            afterwards is too good.
        rates: False accept rates, each in (0, 1).
        level: Confidence level of the intervals.
        resamples: Of the bootstrap over classes; 0 leaves intervals out.
        seed: Of the bootstrap.
        batch_size: Pictures that the network sees at once.
        workers: Processes that read pictures.
        keep: Write ``calibration.json`` beside the model, where that has a path.
        report: Is told what the user should know. None logs it.

    Raises:
        UserError: If there are no held-out classes, or a file cannot be read or written.
        ValueError: If an argument is out of its range, or there are fewer than two classes.

    >>> from torch import nn
    >>> rows = torch.tensor([[0.0, 1.0], [0.1, 1.0], [1.0, 0.0], [1.0, 0.2], [-1.0, 0.0], [-1.0, 0.3]])
    >>> from proxemic.data.embeddings import number_labels
    >>> vectors = LabelledEmbeddings(rows, number_labels(["a", "a", "b", "b", "c", "c"]))
    >>> embedder = Embedder(nn.Flatten(), lambda image: torch.zeros(2, 1, 1))
    >>> (found,) = calibrate(embedder, vectors, rates=[0.34]).thresholds
    >>> round(found.threshold, 2), round(found.false_accepts, 2), found.true_accepts
    (0.71, 0.33, 1.0)
    """
    report = report or getLogger("proxemic").info
    embedder = model if isinstance(model, Embedder) else Embedder.load(model)
    if split not in (None, *get_args(HeldOutSplit)):
        raise ValueError(f"split is {split!r} but must be validation or test")
    held_out = embed_held_out(embedder, source, split, batch_size=batch_size, workers=workers, report=report)
    content, labels = held_out.content, held_out.labels
    if len(labels.unique()) < 2:
        raise UserError(f"{held_out.description} has only one class, but thresholds tell one from others: give more.")
    sequences = content.rows.sequences
    found = leave_classes_out(
        content.embeddings,
        labels,
        distance=embedder.distance,
        false_alarm_rates=rates,
        sequences=None if sequences is None else sequences.numbers,
    )
    intervals = found.intervals(level=level, resamples=resamples, seed=seed) if resamples else {}
    none = Interval(math.nan, math.nan, math.nan)
    thresholds = []
    for rate, point in found.points.items():
        near, true = (intervals.get(name(rate), none) for name in (threshold_name, dir_name))
        bounds = {"low": near.low, "high": near.high, "true_low": true.low, "true_high": true.high}
        accepts = {"false_accepts": point.false_alarm_rate, "true_accepts": point.rate}
        thresholds.append(CalibratedThreshold(rate, point.threshold, **accepts, **bounds))
    calibration = Calibration(
        embedder.checksum,
        embedder.distance,
        held_out.description,
        len(labels.unique()),
        len(labels),
        level,
        tuple(thresholds),
        embedder.stopped,
    )
    if keep and embedder.path is not None:
        calibration.write(embedder.path)
    return calibration


def calibration_file(model: str | os.PathLike[str]) -> Path:
    """Where the thresholds of a model are kept."""
    path = Path(model)
    return (path if path.is_dir() else path.parent) / NAME


def _number(value: float) -> str:
    return percent(value) if math.isnan(value) else "none" if value < 0 else f"{value:.4f}"


def _bounds(low: float, high: float, shown: Callable[[float], str]) -> str:
    return shown(low) if math.isnan(low) else f"{shown(low)} … {shown(high)}"
