"""``proxemic analyze forces``."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxemic.analysis.toy.plots import Scene
    from proxemic.losses import ProxyLoss
    from proxemic.protocols.runs.finished import FinishedRun

__all__ = ["add_parser", "run"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "forces",
        help="whether the forces on embeddings align with those on their proxies as a training goes on",
        description="Draw, in three dimensions and over a training, where a loss drives embeddings and proxies, and "
        "measure how far both agree: figure 4 of the warping paper. Without a RUN: of embeddings that follow the plain "
        "and the warped softmax freely, and figure 2, which pairs six losses pull together and push apart.",
        epilog="Runs need snapshots: --training.callbacks '[{class_path: proxemic.training.Snapshots}]', as the toy "
        "recipes have them (toy/warped-softmax --model.embedding_size 3).",
        allow_abbrev=False,
    )
    parser.add_argument("run_directories", type=Path, nargs="*", metavar="RUN", help="a finished run with snapshots")
    parser.add_argument("--out", type=Path, metavar="STEM", help="begin file names with this (forces, or RUN/forces)")
    parser.set_defaults(run=run, takes_flags=False)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Measure, print, draw."""
    from proxemic.analysis.forces.alignment import training_forces
    from proxemic.analysis.forces.alignment_plots import plot_force_alignment
    from proxemic.analysis.toy.loss_diagrams import plot_loss_diagrams
    from proxemic.cli.show import format_table, print_written
    from proxemic.files import check_stem
    from proxemic.plots import write_figure

    paths = arguments.run_directories
    out = check_stem(arguments.out or (paths or [Path()])[0] / "forces")
    sources, unit = (_of_runs(paths), "epoch") if paths else (_free(), "step")
    films = {
        name: {epoch: (scene, training_forces(loss, scene)) for epoch, scene in film.items()}
        for name, (loss, film) in sources.items()
    }
    rows = [
        [name, epoch, forces.mean_alignment, float((forces.alignment > 0).double().mean())]
        for name, film in films.items()
        for epoch, (_, forces) in film.items()
    ]
    print("Cosine between the force on an embedding and that on its own proxy, and how many embeddings have it above 0")
    shown = [
        [name, str(epoch), f"{mean:+.3f}", f"{100 * share:.1f} %"]
        for name, epoch, mean, share in rows
        if epoch in _few(list(films[name]))
    ]
    print(format_table(["training", unit, "mean cosine", "above 0"], shown))
    figure = plot_force_alignment(films, unit=unit)
    header = ["training", unit, "mean_cosine", "share_above_0"]
    written = write_figure(figure, out.with_name(f"{out.name}-training"), header, rows)
    if not paths:
        figure, lines = plot_loss_diagrams()
        header = ["loss", "end", "embedding", "other", "derivative_by_distance"]
        written += write_figure(figure, out.with_name(f"{out.name}-losses"), header, lines)
    print_written(written)


def _few(epochs: list[int]) -> set[int]:
    """The first and the last, and about seven between."""
    return {*epochs[:: max(1, len(epochs) // 8)], epochs[-1]}


def _free() -> "dict[str, tuple[ProxyLoss, dict[int, Scene]]]":
    """Two classes in three dimensions, which begin anywhere."""
    import torch

    from proxemic.analysis.forces.alignment import descend
    from proxemic.analysis.toy.plots import Scene
    from proxemic.losses import EuclideanSoftmaxLoss, WarpedSoftmaxLoss

    generator = torch.Generator().manual_seed(0)
    proxies, labels = 2 * torch.randn(2, 1, 3, generator=generator), torch.arange(2).repeat(20)
    start = Scene(2 * torch.randn(40, 3, generator=generator), labels, proxies)
    losses = {
        "f1 = t": EuclideanSoftmaxLoss(2, 3),
        "f1 = warp: α = 3, k1 = 0.65, k2 = 1.5": WarpedSoftmaxLoss(2, 3, alpha=3.0, k1=0.65, k2=1.5),
    }
    return {name: (loss, descend(loss, start, steps=120, rate=0.1)) for name, loss in losses.items()}


def _of_runs(paths: list[Path]) -> "dict[str, tuple[ProxyLoss, dict[int, Scene]]]":
    from proxemic.cli.analyze.toy import read_film
    from proxemic.errors import UserError
    from proxemic.losses import ProxyLoss
    from proxemic.losses.own import loss_name
    from proxemic.protocols.runs.finished import find_runs
    from proxemic.protocols.runs.groups import distinct_names

    members: list[FinishedRun] = find_runs(paths)
    found = {}
    for name, member in zip(distinct_names(members), members, strict=True):
        loss, film = member.loss, read_film(member)
        if not isinstance(loss, ProxyLoss) or loss.proxies_per_class > 1:
            raise UserError(
                f"{member.path} was trained with {loss_name(loss)}, but forces align with those on one proxy a class: "
                "give a run of such a loss."
            )
        if not film:
            raise UserError(
                f"{member.path} kept no snapshots: train it with --training.callbacks "
                "'[{class_path: proxemic.training.Snapshots}]'."
            )
        if member.recipe.second_phase is not None:
            print(f"{member.path}: all forces are those of the chosen epoch's phase.")
        found[name] = (loss, film)
    return found
