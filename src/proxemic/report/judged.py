"""The data that all sections of a report share: the images a model is judged by, and their embeddings."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from logging import getLogger
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jaxtyping import Float
from markupsafe import Markup
from PIL import Image
from torch import Tensor, nn

from proxemic.data import ImageSet
from proxemic.data.reading import UnreadableImageError
from proxemic.data.roots import picture_named
from proxemic.data.sources.own_source import NewImages
from proxemic.data.vectors import Vectors
from proxemic.errors import UserError
from proxemic.metrics import Interval, RetrievalMetrics, RetrievalResults
from proxemic.models import load_model, read_checksum
from proxemic.pages import environment, picture
from proxemic.retrieval import Calibration, Embedder
from proxemic.runs.directory import RunDirectory
from proxemic.runs.embed import embed_images, pick_device
from proxemic.runs.evaluate import EvaluationConfig, evaluate_embeddings, results_of
from proxemic.runs.starts import BothStarts, SideBySide
from proxemic.studies.evaluation import choose_images
from proxemic.studies.finished import FinishedRun

NEAREST = 10
"""The most neighbours of a query that a section may show."""


@dataclass(frozen=True, eq=False)
class Judged:
    """A model's embeddings of the images that it is judged by.

    Args:
        name: The run, or the gallery.
        split: Which images: ``test`` or ``validation`` classes of a run, or ``all``.
        embeddings: One per image.
        images: How the images are read, with labels, names and roles.
        config: How embeddings are evaluated.
        picture: Reads the image of a row, at least as large as the given side in pixels if the original is; returns
            None if there is no image or it cannot be read.
        before: Embeddings of the same images by the network before training, without a head (``start``) and with its
            new head (``untrained``), if they are known.
        run: The run, if the model comes from a run.
        others: Other models on the same images.
        embedder: The model, if it is available and takes images.
        calibration: The threshold that `calibrate` learnt for the run or the gallery, if there is one.
    """

    name: str
    split: str
    embeddings: Float[Tensor, "rows dim"]
    images: ImageSet
    config: EvaluationConfig
    picture: Callable[[int, int], Image.Image | None]
    before: Mapping[str, Float[Tensor, "rows width"]] = field(default_factory=dict)
    run: FinishedRun | None = None
    others: tuple["Judged", ...] = ()
    embedder: Embedder | None = None
    calibration: Calibration | None = None

    @cached_property
    def metrics(self) -> RetrievalMetrics:
        """The metrics of the embeddings; a `ValueError` if images have no label."""
        return evaluate_embeddings(self.embeddings, self.images, self.config)

    @cached_property
    def intervals(self) -> dict[str, Interval]:
        """The 95% intervals of the metrics."""
        return self.metrics.intervals(level=0.95)

    @cached_property
    def metrics_before(self) -> dict[str, RetrievalMetrics]:
        """The metrics of the embeddings in ``before``."""
        return {name: evaluate_embeddings(item, self.images, self.config) for name, item in self.before.items()}

    @cached_property
    def found(self) -> RetrievalResults:
        """The nearest gallery images of each query, without the query itself and its sequence."""
        return results_of(self.embeddings, self.images, self.config.distance, NEAREST)

    def label(self, row: int) -> str | None:
        """Return the class name of the image in a row."""
        number = int(self.images.labels[row])
        return None if number < 0 else self.images.class_names[number]


def judge_run(
    run: FinishedRun | str | Path,
    others: Sequence[str | Path] = (),
    *,
    root: str | Path | None = None,
    embedded: Mapping[str, Float[Tensor, "images width"]] = MappingProxyType({}),
    new_images: NewImages = "leave",
    report: Callable[[str], object] | None = None,
) -> Judged:
    """Embed the test classes of a run, or its validation classes if it has no test.

    Args:
        run: A finished run, or its directory.
        others: Further runs, which embed the same images.
        root: Embed other labelled images, a folder or a table, as `proxemic.evaluate` takes them by ``data.root``.
        embedded: The embeddings of a test by `proxemic.train` (`TrainingResult`); empty embeds the images again.
        new_images: ``join`` adds images that came after the run began to the split of their class, ``leave`` leaves
            them out.
        report: Called with notes for the user; None logs them.

    Raises:
        UserError: If a run is not finished, holds out no classes, or its images are missing.
    """
    report = report or getLogger("proxemic").info
    run = run if isinstance(run, FinishedRun) else FinishedRun(Path(run), new_images)
    split, images = _held_out(run) if root is None else _elsewhere(run, root, report)
    is_known = split == "test" and root is None and len(embedded.get("test", ())) == len(images)
    for note in () if is_known or root is not None else run.splits.notes:
        report(note)
    parts = dict(embedded if is_known else _embed_all(run, images))
    own = parts.pop("test")
    beside = []
    for other in map(FinishedRun, map(Path, others)):
        _say_trained(other, images, report)
        beside.append(_judged(other, split, images, _embed(other, other.model, images, run), run))
    return _judged(run, split, images, own, run, parts, tuple(beside))


def _held_out(run: FinishedRun) -> tuple[str, ImageSet]:
    """Return the test images, or the validation images if there are none or a search's trial must not see them."""
    splits = run.splits
    if splits.test is not None and RunDirectory(run.path).read_environment().get("test", True):
        return "test", splits.test
    if splits.validation is None:
        raise UserError(
            f"{run.path} holds no classes out that a report could show: give labelled images of other classes "
            "(--data.root)."
        )
    return "validation", splits.validation


def _elsewhere(run: FinishedRun, root: str | Path, report: Callable[[str], object]) -> tuple[str, ImageSet]:
    overrides = {"data.root": str(root)}
    images, split, notes, _ = choose_images([run.path], None, None, None, strict=False, overrides=overrides)
    for note in notes:
        report(note)
    _say_trained(run, images, report)
    return split, images


def _say_trained(run: FinishedRun, images: ImageSet, report: Callable[[str], object]) -> None:
    trained = RunDirectory(run.path).read_classes()
    if common := {*images.class_names} & (trained.trained if trained else set()):
        report(f"{run.path} was trained on {len(common):,} of the {images.num_classes:,} classes that are shown.")


def _embed_all(run: FinishedRun, images: ImageSet) -> dict[str, Float[Tensor, "images width"]]:
    """Embed images by the network that a run keeps, and by the networks before training that its test evaluates."""
    networks, widths = nn.ModuleList([run.model]), {"test": run.model.config.embedding_size}
    start = RunDirectory(run.path).start
    if start.exists():
        both = BothStarts(load_model(start, run.recipe.model.custom_backbone)[0])
        networks, widths = networks.append(both), widths | both.widths
    # In one pass: reading the images takes longer than embedding them.
    parts = _embed(run, SideBySide(networks), images, run).split([*widths.values()], dim=1)
    evaluation = run.recipe.evaluation
    asked = {"test": True, "start": evaluation.start, "untrained": evaluation.untrained}
    return {name: part.contiguous() for name, part in zip(widths, parts, strict=True) if asked[name]}


def _embed(run: FinishedRun, model: nn.Module, images: ImageSet, asked: FinishedRun) -> Float[Tensor, "images width"]:
    """Embed images by a network of a run with its preprocessing, in the batches of the run that is reported on."""
    return embed_images(
        model.to(pick_device("auto")),
        images,
        run.recipe.images,
        batch_size=asked.recipe.evaluation.batch_size,
        workers=asked.recipe.batches.workers,
        description="report",
        precision=asked.recipe.evaluation.precision,
    )


def _judged(
    run: FinishedRun,
    split: str,
    images: ImageSet,
    embeddings: Float[Tensor, "images width"],
    asked: FinishedRun,
    before: Mapping[str, Float[Tensor, "images width"]] = MappingProxyType({}),
    others: tuple[Judged, ...] = (),
) -> Judged:
    config = asked.recipe.evaluation
    embedder = None
    if images.kind == "images":
        embedder = Embedder(run.model, run.recipe.images, distance=config.distance, path=run.path)
    picture = partial(picture_of, images)
    calibration = None
    with suppress(UserError):  # it has no calibration
        calibration = Calibration.read(run.path, read_checksum(run.path))
    return Judged(run.name, split, embeddings, images, config, picture, before, run, others, embedder, calibration)


def picture_of(images: ImageSet, row: int, side: int) -> Image.Image | None:
    """Read an image of an image set; return None if there is none or it cannot be read."""
    try:
        return None if isinstance(images.pixels, Vectors) else images.pixels.load(row, side, "auto")
    except UnreadableImageError:  # it was there a moment ago
        return None


SIDE = 112
"""The side of an image next to others, in CSS pixels."""

_MOST = 6000  # characters of an image, to which noise is compressed
_HERE = Path(__file__).parent


def shown(judged: Judged, row: int, alt: str, side: int = SIDE) -> Markup:
    """Render a row's image, or a note that there is none."""
    return picture(judged.picture(row, side), side, alt, _MOST)


def picture_at(names: Sequence[str] | None, roots: Sequence[str], row: int, side: int) -> Image.Image | None:
    """Read an image by the path of its row, but only below the roots; return None if there is none."""
    return None if names is None else picture_named(names[row], side, roots)


def name_of(judged: Judged, row: int) -> str:
    """Return the path of a row, or its number if it has none."""
    return judged.images.names[row] if judged.images.names is not None else f"row {row + 1}"


def render(template: str, **content: Any) -> Markup:
    """Render a template of this package; all content is escaped."""
    return Markup(environment(_HERE).get_template(template).render(content))
