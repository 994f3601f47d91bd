"""``proxemic analyze gradients``."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["add_parser", "run"]

# The losses of the paper's figure 1, and what it calls them.
PAPER = {
    "ProxyAnchorLoss": "ProxyAnchor",
    "SoftTripleLoss": "SoftTriple",
    "MultiProxyAnchorLoss": "MPA",
    "DataWiseMultiProxyAnchorLoss": "MPA-DW",
    "AllPairMultiProxyAnchorLoss": "MPA-AP",
}
# Three classes, two embeddings of each.
LABELS = (0, 0, 1, 1, 2, 2)


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "gradients",
        help="which scores the gradient of one score depends on, as pictures",
        description="Measure which class scores enter the gradient of a positive and of a negative class score, in a "
        "batch of three classes and six embeddings, and draw them: figure 1 of the multi-proxy anchor paper.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--losses", metavar="A,B", default=",".join(PAPER), help="proxy losses, by class name (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the random scores (%(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("gradients"), metavar="STEM", help="name of the files (%(default)s)"
    )
    parser.set_defaults(run=run, takes_flags=False)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Measure, print, draw."""
    import torch

    from proxemic.analysis import every_proxy_loss, score_dependence
    from proxemic.analysis.gradients.plots import draw_gradients
    from proxemic.cli.show import format_table, print_written
    from proxemic.errors import UserError
    from proxemic.files import check_stem
    from proxemic.plots import write_figure

    check_stem(arguments.out)
    losses, labels = every_proxy_loss(seed=arguments.seed), torch.tensor(LABELS)
    names: list[str] = list(dict.fromkeys(name.strip() for name in arguments.losses.split(",")))
    for name in names:
        if name not in losses:
            raise UserError(f"--losses has {name!r}, but the proxy losses are {', '.join(losses)}.")
    found = {name: score_dependence(losses[name], labels, seed=arguments.seed) for name in names}
    rows = [
        [PAPER.get(name, name), kind, *_counts(dependence[0, label])]
        for name, dependence in found.items()
        for label, kind in enumerate(("positive", "negative"))
    ]
    print("How many other scores the gradient of one depends on, in a batch of 3 classes and 6 embeddings")
    print(format_table(["loss", "score", "same sample, +", "same sample, -", "others, +", "others, -"], rows))
    titles = {PAPER.get(name, name): (losses[name].proxies_per_class, each) for name, each in found.items()}
    numbers = [
        (name, kind, k, d, "positive" if labels[k] == d else "negative", f"{dependence[0, label, k, d]:.6g}")
        for name, dependence in found.items()
        for label, kind in enumerate(("positive", "negative"))
        for k in range(len(LABELS))
        for d in range(dependence.shape[1])
    ]
    header = ["loss", "kind", "embedding", "proxy_class", "score", "dependence"]
    print_written(write_figure(draw_gradients(titles, labels), arguments.out, header, numbers))


def _counts(dependence: "Tensor") -> list[str]:
    """Of the scores of embedding 0 and of the others: the positives and the negatives that enter, of how many."""
    import torch
    from torch.nn.functional import one_hot

    from proxemic.analysis.gradients.dependence import THRESHOLD

    positive, first = one_hot(torch.tensor(LABELS)).bool(), torch.arange(len(LABELS)).unsqueeze(1) == 0
    enters = dependence > THRESHOLD
    return [
        f"{int((enters & mask).sum())} of {int(mask.sum())}"
        for mask in (first & positive, first & ~positive, ~first & positive, ~first & ~positive)
    ]
