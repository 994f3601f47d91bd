"""What a map of a run shows: the images and proxies that are drawn, and where they are."""

from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from proxemic.data import ImageSet
from proxemic.errors import UserError
from proxemic.losses import ProxyLoss
from proxemic.losses.own import loss_name
from proxemic.losses.scores.similarity import unit
from proxemic.metrics.exact import Distance
from proxemic.protocols.runs.finished import FinishedRun

__all__ = ["MapContent", "load_map"]


@dataclass(frozen=True, eq=False)
class MapContent:
    """Embeddings and proxies; where the run is judged by cosines, unit vectors.

    Args:
        title: The run and the split.
        distance: That the run is judged by.
        images: Of the split.
        embeddings: Of these.
        drawn: The images of the classes that are drawn.
        points: Their embeddings.
        proxies: Those that are drawn: of the same classes, or of as many training classes.
        proxy_labels: Of each its class among those drawn, or -1 where it is of another split.
        rows: What each point and then each proxy is: image or proxy, its number, the name of its class.
        notes: What the user should know.
    """

    title: str
    distance: Distance
    images: ImageSet
    embeddings: Float[Tensor, "images dim"]
    drawn: ImageSet
    points: Float[Tensor, "drawn dim"]
    proxies: Float[Tensor, "proxies dim"]
    proxy_labels: Int64[Tensor, " proxies"]
    rows: list[tuple[str, int, str]]
    notes: list[str]


def load_map(path: Path, split: str, num_classes: int, *, proxies: bool, seed: int) -> MapContent:
    """Embed a split of a run, and choose classes to draw.

    Args:
        path: The run directory.
        split: Of its images: train, validation or test.
        num_classes: To draw, at most.
        proxies: Draw them, where the loss has any.
        seed: Of the choice.

    Raises:
        UserError: If there is no such run or split, or the classes have too few images for a map.
    """
    run = FinishedRun(path)
    images = {"train": lambda: run.splits.train, "validation": lambda: run.splits.validation, "test": lambda: run.test}
    images = images[split]()
    if images is None:
        raise UserError(f"{path} holds out no validation classes: choose --split train or test.")
    distance = run.recipe.evaluation.distance
    classes = _choose(images.num_classes, num_classes, seed)
    drawn, indices = images.select_classes(classes), torch.isin(images.labels, classes).nonzero().flatten()
    rows = [("image", index, images.class_names[images.labels[index]]) for index in indices.tolist()]
    if len(indices) < 4:
        raise UserError(f"--classes {num_classes} draws {len(indices)} images, but a map needs at least 4: give more.")
    embeddings = run.embed(images)
    embeddings = unit(embeddings) if distance == "cosine" else embeddings
    notes = [f"Drawn: {len(classes)} of {images.num_classes} classes, {len(indices):,} images."]
    stars, labels = embeddings[:0], torch.empty(0, dtype=torch.int64)
    loss = run.loss
    if proxies and not isinstance(loss, ProxyLoss):
        notes.append(f"{loss_name(loss)} has no proxies: the map is drawn without.")
    elif proxies and isinstance(loss, ProxyLoss):
        total, per_class, names = loss.num_classes, loss.proxies_per_class, run.splits.train.class_names
        classes = classes if split == "train" else _choose(total, num_classes, seed)
        stars = loss.proxies.detach()[classes].flatten(0, 1)
        stars = unit(stars) if distance == "cosine" else stars
        labels = torch.arange(len(classes)).repeat_interleave(per_class)
        numbers = torch.arange(total * per_class).view(total, per_class)[classes].flatten().tolist()
        rows += [("proxy", number, names[number // per_class]) for number in numbers]
        if split != "train":
            labels = torch.full_like(labels, -1)
            notes.append(f"Grey stars: proxies of {len(classes)} of {total} training classes, which are other classes.")
    title = f"{run.name}, {path.name}, {split}" if path.name.startswith("seed-") else f"{run.name}, {split}"
    return MapContent(title, distance, images, embeddings, drawn, embeddings[indices], stars, labels, rows, notes)


def _choose(total: int, count: int, seed: int) -> Int64[Tensor, " chosen"]:
    return torch.randperm(total, generator=torch.Generator().manual_seed(seed))[:count].sort().values
