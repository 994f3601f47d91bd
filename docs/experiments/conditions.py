"""Train losses with wrong labels, few images, small batches, other K, or single values of another loss.

Some conditions change nothing, and measure more: the verification of pairs, clusters, and corrupted images.

    python docs/experiments/conditions.py cars-features wrong-labels --root runs/cars/features.parquet
    python docs/experiments/conditions.py cars-features wrong-labels --table

Every loss has the values that its search found; compare.py makes the runs without a condition. Losses whose search is
unfinished are left out; the same command adds them later. Finished runs are kept beside this script.
"""

import math
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import _experiments as shared
import _measures

from proxemic.errors import UserError
from proxemic.files import write_atomically
from proxemic.recipes.reader import read_recipe
from proxemic.recipes.yaml_files import read_yaml
from proxemic.tables import Table

LOSSES = (
    *("softmax", "arcface", "proxy-anchor", "mpa-ap", "euclidean-softmax", "euclidean-softmax-two-phases"),
    *("warp-off-first-attracting", "multi-similarity", "soft-triple", "arcface-sub-centers"),
)
WITH_NORM = tuple(f"{loss}-with-norm" for loss in LOSSES if f"{loss}-with-norm" in shared.OTHER_NORM)
WHOSE = {
    "wrong-labels": (*LOSSES, *WITH_NORM),
    "verification": (*LOSSES, "cosface", "magface", "adaface", "curricularface", "elasticface"),
    "proxies": ("soft-triple", "mpa", "mpa-dw", "mpa-ap"),
    "few-images": (*LOSSES, "mpa", "mpa-dw"),
    "small-batches": (*LOSSES, "mpa", "mpa-dw"),
    "one-proxy": ("mpa",),
    "rates": ("proxy-anchor",),
    "no-regularizer": ("softmax-mean-proxy",),
    "clusters": ("softmax", "softmax-mean-proxy", "euclidean-softmax-two-phases", "warp", "warp-off-first"),
    "corruptions": (
        *("proxy-nca-plus-plus", "proxy-nca-plus-plus-with-norm", "hist", "hist-with-norm"),
        *("euclidean-softmax-two-phases", "warp", "warp-off-first"),
    ),
}
"""The losses of conditions that do not use `LOSSES`; only characters have searches with a layer norm."""


@dataclass(frozen=True)
class Condition:
    """A change of a recipe; with few ``images`` per class, epochs grow so that the number of steps stays the same."""

    name: str
    overrides: dict[str, object] = field(default_factory=dict)
    images: int | None = None
    measure: Callable[[Path], Mapping[str, float]] | None = None
    """Measures finished runs, besides the metrics of their evaluation."""


CONDITIONS = {
    "wrong-labels": [Condition(f"{share}% wrong", {"training.label_noise": share / 100}) for share in (10, 20, 40)],
    "few-images": [Condition(f"{count} images", images=count) for count in (10, 5, 3)],
    "small-batches": [Condition(f"batches of {size}", {"batches.size": size}) for size in (64, 32, 16)],
    "proxies": [Condition(f"K={count}", {"loss.proxies_per_class": count}) for count in (1, 2, 4, 8, 12, 16)],
    "verification": [Condition("verification")],
    "one-proxy": [Condition("one proxy", {"loss.proxies_per_class": 1})],
    "rates": [Condition("rates of mpa")],
    "no-regularizer": [Condition("no regularizer", {"loss.regularizers": []}, measure=_measures.distance_to_proxy)],
    "clusters": [Condition("clusters", {"evaluation.nmi": True}, measure=_measures.clusters)],
    "corruptions": [Condition("corruptions", measure=_measures.recall_of_corrupted)],
}
FEW_GLYPHS = [Condition(f"{count} images", images=count) for count in (6, 3, 2)]
"""``few-images`` of Glyphs, whose classes have 12."""
CHARACTERS = {"glyphs-small": ("FewGlyphs", 12), "omniglot": ("FewOmniglot", 20)}
"""The source with few images per class, and the number of images of a whole class."""
MEASURED = {
    "verification": ("tar",),
    "clusters": ("nmi", "avg_dtp", "alignment"),
    "corruptions": ("recall@1", "corrupted"),
}
"""What is shown of the conditions that change nothing."""
COMPARED = {"proxies": ("K=8", "K=1")}
"""Two conditions whose difference is shown; by default, the last condition and no condition."""


def train(arguments: Namespace, known: shared.Kept) -> None:
    """Train the best recipe of each loss under each condition."""
    condition, losses, seeds = arguments.condition, losses_of(arguments), seeds_of(known)
    if condition == "corruptions" and arguments.dataset == shared.FEATURES:
        raise UserError("corruptions change images, and cars-features holds features: take another data set.")
    shared.check_searched(losses, known)
    for change in changes_of(known, condition):
        for loss in known.lacking(losses, seeds, change.name):
            run(known, loss, change, seeds, arguments.out / arguments.dataset, arguments.root)


def tables(arguments: Namespace, known: shared.Kept) -> dict[str, Table]:
    """Tabulate each loss under each condition."""
    made = table(known, arguments.condition, losses_of(arguments), seeds_of(known))
    return {f"{arguments.condition}-{arguments.dataset}": made}


def changes_of(known: shared.Kept, condition: str) -> list[Condition]:
    """Return the changes that a condition makes on a data set."""
    if condition == "few-images" and known.dataset == "glyphs-small":
        return FEW_GLYPHS
    return CONDITIONS[condition]


def seeds_of(known: shared.Kept) -> range:
    """Return the seeds of each condition: as many as MPA and Proxy-Anchor have without one, and at least five."""
    return range(max(5, shared.MORE_SEEDS.get((known.dataset, "mpa"), 0)))


def losses_of(arguments: Namespace) -> list[str]:
    """Return the losses that the command line names, or all of the condition."""
    return shared.check_losses(arguments.losses, WHOSE.get(arguments.condition, LOSSES))


def run(
    known: shared.Kept, loss: str, condition: Condition, seeds: Sequence[int], out: Path, root: Path | None
) -> None:
    """Train the best recipe of a loss under a condition with each seed, and keep the test metrics."""
    root, overrides = overrides_of(known, loss, condition, out, root)
    shared.make_runs(known, loss, seeds, out, root, condition.name, overrides, measure=condition.measure)


def overrides_of(
    known: shared.Kept, loss: str, condition: Condition, out: Path, root: Path | None
) -> tuple[Path | None, dict[str, object]]:
    """Return the location of the data and the overrides of a loss's best recipe under a condition."""
    overrides = dict(condition.overrides)
    if condition.name == "rates of mpa":
        best = read_yaml(known.recipe("mpa"))["optim"]
        overrides |= {f"optim.{name}": best[name] for name in ("lr", "loss_lr")}
    if condition.name == "verification":
        distance = read_yaml(known.recipe(loss))["evaluation"]["distance"]
        overrides["evaluation.own_metrics"] = [f"_verification.accepted_by_{distance}"]
    dataset = known.dataset
    if condition.images is not None and dataset in CHARACTERS:
        overrides |= few_characters(known.recipe(loss), condition.images, dataset)
    elif condition.images is not None:
        if root is None:
            raise UserError("few-images takes some of the photographs: give their features, --root FILE.")
        root, times = few_images(root, condition.images, out)
        overrides |= more_epochs(known.recipe(loss), times)
    if condition.name == "clusters":  # snapshots before the first and after the last epoch
        epochs = sum(read_recipe(known.recipe(loss)).recipe.lengths)
        callback = {"class_path": "proxemic.training.Snapshots", "init_args": {"every_n_epochs": epochs}}
        overrides["training.callbacks"] = [callback]
    return root, overrides


def few_images(features: Path, count: int, out: Path) -> tuple[Path, float]:
    """Write features with the first ``count`` training images per class; return how many times fewer these are."""
    import pyarrow.parquet as pq

    rows = shared.read_features(features)
    seen: Counter[str] = Counter()
    left = []
    for row, (label, split) in enumerate(zip(*(rows[name].to_pylist() for name in ("label", "split")), strict=True)):
        seen[label] += split == "train"
        if split != "train" or seen[label] <= count:
            left.append(row)
    file = out / f"{count}-images.parquet"
    with write_atomically(file) as temporary:
        pq.write_table(rows.take(left), temporary)
    return file, seen.total() / sum(min(number, count) for number in seen.values())


def few_characters(recipe: Path, count: int, dataset: str) -> dict[str, object]:
    """Return the changes of a recipe that train on ``count`` images per class, in as many steps at the same rates."""
    source, whole = CHARACTERS[dataset]
    content, times = read_yaml(recipe), whole / count
    data = {"class_path": f"_few_images.{source}", "init_args": {**content["data"]["init_args"], "images": count}}
    # ExponentialLR lowers the rates after each epoch, and an epoch is shorter with few images.
    gamma = content["optim"]["schedule"]["init_args"]["gamma"] ** (1 / times)
    return {"data": data, "optim.schedule.gamma": gamma, **more_epochs(recipe, times)}


def more_epochs(recipe: Path, times: float) -> dict[str, object]:
    """Return the epochs of each phase of a recipe, multiplied by a factor."""
    content = read_yaml(recipe)
    phases = {"training": content["training"], "second_phase": content["second_phase"] or {}}
    epochs = {f"{name}.epochs": phase["epochs"] for name, phase in phases.items() if "epochs" in phase}
    return {key: math.ceil(times * number) for key, number in epochs.items()}


def table(known: shared.Kept, condition: str, losses: Sequence[str], seeds: range) -> Table:
    """Tabulate the test MAP@R of each loss without and under each condition, and a difference, paired by seed.

    Of conditions that change nothing, the table shows what they measure.
    """
    names = ["", *(change.name for change in changes_of(known, condition))]
    finished = [
        loss
        for loss in losses
        if known.is_searched(loss) and not any(known.lacking([loss], seeds, name) for name in names)
    ]
    shared.check_kept(finished, "finished loss", known)
    if condition in MEASURED:
        columns = MEASURED[condition]
        runs = {loss: known.runs(loss, condition) for loss in finished}
        rows = [[loss, *(shared.estimate(name, runs[loss][name].values()) for name in columns)] for loss in finished]
        return Table(["loss", *((shared.METRICS | shared.MEASURES)[name] for name in columns)], rows)
    changed, base = COMPARED.get(condition, (names[-1], ""))
    rows = []
    for loss in finished:
        runs = {name: {seed: known.runs(loss, name)["map@r"][seed] for seed in seeds} for name in names}
        means = (shared.interval(values.values()) for values in runs.values())
        rows.append([loss, *means, shared.interval(shared.paired(runs[changed], runs[base]))])
    difference = f"{changed} − {base}" if base else f"difference of {changed}"
    return Table(["loss", "as searched", *names[1:], difference], rows)


def main() -> None:
    """Train, or write the table."""
    shared.run_script(__doc__, train, tables, shared.DATA_SETS, "runs/conditions", condition=CONDITIONS)


if __name__ == "__main__":
    main()
