r"""Measure how much a head over stored features gains with more labels, and by correcting wrong ones.

    proxemic embed photos --model MODEL --out features.parquet      # labelled pictures, embedded once
    python benchmarks/improve.py features.parquet                   # five seeds, minutes
    python benchmarks/improve.py features.parquet --wrong 0.3 --labels 10
    python benchmarks/improve.py features.parquet --labels 10 --seeds 10 --table split.csv   # to fine-tune beside
    python benchmarks/improve.py --smoke                        # random features, seconds: does it run?

For each seed, some pictures of a random half of the classes are labelled; the other classes have no labels. A cell
holds Recall@1 of the unlabelled classes, each picture searched among all others of these classes, and then Recall@1 of
further pictures of the labelled classes (those after the first 20, ``--kept``), searched among the labelled ones. Cells
are means over the seeds, in percent. With ``--wrong``, a share of the labels is replaced by other classes, and a
quarter, a half and all of the labels are corrected: in the order of suspicion by the features (`wrong_label_scores`),
by the vectors of the head, or at random. The searched pictures then have the corrected labels.

``--table`` writes the pictures of one split, labelled pictures as ``train`` and pictures of other classes as ``test``.
The following commands fine-tune the whole network on them; the result is the row *stock features* of the last command:

    proxemic train --recipe own-pretrained --data.root split.csv --data.validation_fraction 0 \
        --evaluation.select_on last --out RUN
    proxemic embed photos --model RUN --out tuned.parquet
    python benchmarks/improve.py tuned.parquet --labels 10 --seeds 10
"""

import csv
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import normalize

from measure import command, print_header, print_row
from proxemic.data.embeddings import read_embeddings
from proxemic.data.rows import Rows
from proxemic.metrics import nearest_neighbours
from proxemic.models import EmbeddingModel
from proxemic.retrieval import improve, trained_head, whitened_head
from proxemic.retrieval.curation.scores import wrong_label_scores
from proxemic.retrieval.improving.improvement import between


def drawn(classes: int, per_class: int, dim: int = 64) -> tuple[Tensor, Tensor]:
    """Draw random features of classes."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(classes).repeat_interleave(per_class)
    return torch.randn(classes, dim, generator=generator)[labels] + torch.randn(
        len(labels), dim, generator=generator
    ), labels


class Split:
    """The labelled rows of a seed, further rows of their classes, and rows of the other classes."""

    def __init__(self, labels: Tensor, per_class: int, kept: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        classes = labels.unique()
        classes = classes[torch.randperm(len(classes), generator=generator)]
        known, new = classes.tensor_split(2)
        order = torch.randperm(len(labels), generator=generator)
        of_class = [order[labels[order] == label] for label in known]
        self.labelled = torch.cat([rows[:per_class] for rows in of_class])
        self.further = torch.cat([rows[kept:] for rows in of_class])
        self.new = torch.isin(labels, new).nonzero().squeeze(1)
        self.labels = labels
        self.generator = generator

    def recall(self, embed: Callable[[Tensor], Tensor], features: Tensor, given: Tensor | None = None) -> list[float]:
        """Return Recall@1 of new classes, and of further pictures of the labelled classes."""
        with torch.no_grad():
            vectors = embed(features)
        found = []
        given = self.labels[self.labelled] if given is None else given
        for queries, gallery, classes in (
            (self.new, self.new, self.labels[self.new]),
            (self.further, self.labelled, given),
        ):
            exclude = torch.arange(len(queries)) if queries is gallery else None
            _, nearest = nearest_neighbours(vectors[queries], vectors[gallery], k=1, exclude=exclude)
            found.append(100 * (classes[nearest[:, 0]] == self.labels[queries]).double().mean().item())
        return found


def head_of(
    features: Tensor, rows: Tensor, given: Tensor, start: EmbeddingModel, share: float, seed: int
) -> EmbeddingModel:
    """Train a head on labelled rows, and interpolate between the start and the head."""
    return between(start, trained_head(start, features[rows], given.unique(return_inverse=True)[1], seed=seed), share)


def curves(features: Tensor, labels: Tensor, counts: Sequence[int], kept: int, seeds: Sequence[int]) -> None:
    """Print the recalls of each head by number of labels per class."""
    rows: dict[str, list[str]] = {}
    for count in counts:
        found: dict[str, list[list[float]]] = {}
        for seed in seeds:
            split = Split(labels, count, kept, seed)
            start = whitened_head(features)
            given = labels[split.labelled]
            heads: dict[str, Callable[[Tensor], Tensor]] = {"stock features": normalize, "whitened": start}
            for share in (0.5, 0.75, 1.0):
                heads[f"trained, {share:g} of the way"] = head_of(features, split.labelled, given, start, share, seed)
            seen = torch.full_like(labels, -1)
            seen[split.labelled] = given
            chosen = improve(features, seen, seed=seed).head if count > 1 else start
            heads["what improve keeps"] = normalize if chosen is None else chosen
            for name, head in heads.items():
                found.setdefault(name, []).append(split.recall(head, features))
        for name, item in found.items():
            new, further = torch.tensor(item).mean(0).tolist()
            rows.setdefault(name, []).append(f"{new:.1f} · {further:.1f}")
    print_header("labels for each class", *map(str, counts))
    for name, cells in rows.items():
        print_row(name, *cells)


def write_table(path: Path, read: Rows, count: int, kept: int, seed: int) -> None:
    """Write the table of a split's labelled pictures and pictures of other classes."""
    assert read.has("path"), "the features have no paths of pictures"
    names, (labels, _) = read.names, read.numbers("label")
    split = Split(labels, count, kept, seed)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("path", "label", "split"))
        for name, chosen in (("train", split.labelled), ("test", split.new)):
            writer.writerows((names[row], int(labels[row]), name) for row in chosen.tolist())


def corrections(features: Tensor, labels: Tensor, count: int, wrong: float, kept: int, seeds: Sequence[int]) -> None:
    """Print the gain of corrections, by the order in which labels are checked."""
    checked = (0.0, 0.25, 0.5, 1.0)
    found: dict[str, list[list[float]]] = {}
    for seed in seeds:
        split = Split(labels, count, kept, seed)
        true = labels[split.labelled]
        classes = true.unique()
        start = whitened_head(features)
        changed = torch.rand(len(true), generator=split.generator) < wrong
        others = torch.randint(1, len(classes), (len(true),), generator=split.generator)
        place = torch.searchsorted(classes, true)
        given = torch.where(changed, classes[(place + others) % len(classes)], true)
        head = head_of(features, split.labelled, given, start, 0.75, seed)
        with torch.no_grad():
            improved = head(features[split.labelled])
        orders = {
            "by suspicion on features": wrong_label_scores(features[split.labelled], given).scores,
            "by suspicion on improved vectors": wrong_label_scores(improved, given).scores,
            "at random": torch.rand(len(true), generator=split.generator),
        }
        for name, scores in orders.items():
            order = scores.nan_to_num(-1).argsort(descending=True)
            right, recalls = [], []
            for share in checked:
                seen = order[: round(share * len(order))]
                corrected = given.clone()
                corrected[seen] = true[seen]
                trained = head_of(features, split.labelled, corrected, start, 0.75, seed)
                recalls.append(split.recall(trained, features, corrected)[1])
                right.append(100 * changed[seen].double().mean().item())
            found.setdefault(name, []).append([right[1], *recalls])
    print_header("labels are looked at", "wrong in the first quarter", *(f"{share:.0%} checked" for share in checked))
    for name, entry in found.items():
        print_row(name, *(f"{value:.1f}" for value in torch.tensor(entry).mean(0).tolist()))


def main(
    features: Path | None = None,
    *,
    labels: Sequence[int] = (1, 2, 5, 10, 20),
    seeds: Sequence[int] = (10, 11, 12, 13, 14),
    kept: int = 20,
    wrong: float | None = None,
    table: Path | None = None,
    smoke: bool = False,
) -> None:
    """Print a table, or write the table of a split."""
    if smoke or features is None:
        rows, classes = drawn(12, 24)
        labels, seeds = [2, 5], seeds[:1]
    else:
        read = read_embeddings(features)
        assert read.embeddings is not None
        assert read.has("label"), f"{features} has no labels"
        rows, classes = read.embeddings, read.numbers("label")[0]
        if table is not None:
            write_table(table, read, labels[0], kept, seeds[0])
            return
    if wrong is not None:
        for count in labels:
            print(f"{count} labels for each class, {wrong:.0%} of them wrong: Recall@1 of further pictures")
            corrections(rows, classes, count, wrong, kept, seeds)
    else:
        curves(rows, classes, labels, kept, seeds)


if __name__ == "__main__":
    command(main)
