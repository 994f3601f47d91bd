"""``proxemic analyze local-centers``."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from proxemic.analysis.local_centers import LocalCenters
    from proxemic.protocols.runs.finished import FinishedRun

__all__ = ["add_parser", "run"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "local-centers",
        help="whether the proxies of a class found what differs within it, such as typefaces",
        description="What the nearest proxy of its own class tells about a training picture's group (a glyph's "
        "typeface), in bits, beside chance; for runs with several proxies a class.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "run_directories", type=Path, nargs="+", metavar="RUN", help="a finished run; of several, also the mean"
    )
    parser.add_argument("--draws", type=int, default=8, help="augmented versions of each picture (%(default)s)")
    parser.add_argument("--shuffles", type=int, default=200, help="for the range of chance (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of augmentation and shuffles (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers as JSON")
    parser.set_defaults(run=run, takes_flags=False)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Embed the training pictures, print the information, write it."""
    from dataclasses import asdict

    from proxemic.cli.show import format_table
    from proxemic.files import write_json
    from proxemic.protocols.runs.finished import find_runs

    runs = {run.path: run for run in find_runs(arguments.run_directories)}
    found = {path: _measure(run, arguments.draws, arguments.shuffles, arguments.seed) for path, run in runs.items()}
    names = {run: run.name if len({each.name for each in runs}) == len(runs) else str(run) for run in runs}
    print("Bits that the nearest proxy of its class tells about a training picture")
    rows = [
        [names[run], name, _bits(each.information), _chance(each), _bits(each.most)]
        for run, (centers, _) in found.items()
        for name, each in centers.items()
    ]
    print(format_table(["run", "property", "bits", "by chance (95%)", "at most"], rows))
    if len(runs) > 1:
        print("Bits beyond chance, mean and 95% interval over the runs (t distribution)")
        print(format_table(["property", "bits beyond chance"], _means([centers for centers, _ in found.values()])))
    for run, (_, proxies) in found.items():
        print(
            f"{run}: {proxies['used']:.2f} of the {proxies['per_class']:.0f} proxies of a class are the nearest of "
            f"some picture; mean cosine between two of them {proxies['cosine']:.4f}"
        )
    if arguments.json is not None:
        content = {
            str(run): {name: asdict(each) for name, each in centers.items()} | {"proxies": proxies}
            for run, (centers, proxies) in found.items()
        }
        write_json(arguments.json, content)


def _means(runs: "list[dict[str, LocalCenters]]") -> list[list[str]]:
    from proxemic.protocols.comparison.statistics import t_interval

    names = [name for name in runs[0] if all(name in each for each in runs)]
    beyond = {name: t_interval([each[name].information - each[name].chance for each in runs]) for name in names}
    return [[name, f"{_bits(each.mean)} ± {each.half_width:.3f}"] for name, each in beyond.items()]


def _chance(found: "LocalCenters") -> str:
    least, most = found.chance_range
    return f"{_bits(found.chance)} ({_bits(least)} … {_bits(most)})"


def _bits(value: float) -> str:
    return f"{round(value, 3) + 0.0:.3f}"  # no -0.000


def _measure(
    run: "FinishedRun", draws: int, shuffles: int, seed: int
) -> "tuple[dict[str, LocalCenters], dict[str, float]]":
    import torch

    from proxemic.analysis.local_centers import (
        nearest_own_proxy,
        proxies_used,
        proxy_cosine,
        shuffled_information,
    )
    from proxemic.data import EmbeddingDataset
    from proxemic.errors import UserError
    from proxemic.losses import ProxyLoss

    if draws < 1:
        raise UserError(f"--draws is {draws}, but must be at least 1.")
    recipe, train, loss = run.recipe, run.splits.train, run.loss
    if train.groups is None:
        raise UserError(
            f"The images of {run.path} have no groups within their classes: those of Glyphs have, typefaces."
        )
    if not isinstance(loss, ProxyLoss) or loss.proxies_per_class == 1:
        raise UserError(
            f"{run.path} has one proxy a class, or none, but this asks which of several is the nearest: train with "
            "--loss.proxies_per_class 2 or more."
        )
    torch.manual_seed(seed)
    pictures = EmbeddingDataset(train, recipe.augment.training(recipe.images))
    with torch.no_grad():
        embeddings = torch.cat(
            [
                run.model(torch.stack([pictures[index][0] for index in part.tolist()]))
                for _ in range(draws)
                for part in torch.arange(len(train)).split(recipe.evaluation.batch_size)
            ]
        )
    labels, groups = train.labels.repeat(draws), train.groups.repeat(draws)
    nearest = nearest_own_proxy(loss, embeddings, labels)
    # Whole pictures are shuffled, as the draws of one are alike in any case.
    pictures = torch.arange(len(train)).repeat(draws)
    centers = {
        name: shuffled_information(labels, values, nearest, units=pictures, shuffles=shuffles, seed=seed)
        for name, values in _properties(type(recipe.data).__name__, groups).items()
    }
    used = {"used": proxies_used(labels, nearest), "per_class": loss.proxies_per_class, "cosine": proxy_cosine(loss)}
    return centers, used


def _properties(source: str, groups: "Tensor") -> "dict[str, Tensor]":
    """The groups; of Glyphs, which has one picture of each in a class, what its typefaces have in common."""
    if source != "Glyphs":
        return {"group": groups}
    style = groups % 4
    return {"family": groups // 4, "weight": style % 2, "slant": style // 2}
