"""Measure how the forces on embeddings align with the forces on their proxies during training."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from proxemic.analysis.forces import TrainingForces, descend, plot_force_alignment, training_forces
from proxemic.analysis.loss_diagrams import plot_loss_diagrams
from proxemic.analysis.toy import Scene
from proxemic.analyze.results import HOW_TO_KEEP, Analysis, PathLike, Stem, file_stem, read_snapshots, suffixed
from proxemic.errors import UserError
from proxemic.losses import EuclideanSoftmaxLoss, ProxyLoss, WarpedSoftmaxLoss
from proxemic.losses.user_defined import loss_name
from proxemic.plots import write_figure
from proxemic.tables import Table


def forces(
    runs: Sequence[PathLike] = (), *, out: Stem | None = None
) -> Analysis[Mapping[str, Mapping[int, TrainingForces]]]:
    """Measure and draw how well the forces on embeddings and on their proxies align during training.

    Without runs, free embeddings follow the plain and the warped softmax, and the pulls and pushes of six losses are
    drawn too. Runs need snapshots, which the toy recipes keep (toy/warped-softmax --model.embedding_size 3). For other
    recipes, add --training.callbacks '[{class_path: proxemic.training.Snapshots}]'.

    Args:
        runs: Finished runs with snapshots.
        out: Prefix of the file names; ``RUN/forces``, or ``forces`` by default.

    Returns:
        The forces by training and then by epoch (without runs, by step).

    Source: Figures 2 and 4 of the warping paper.
    """
    stem = file_stem(out, runs, "forces")
    unit = "epoch" if runs else "step"
    scenes, notes = _of_runs(runs) if runs else (_free(), [])
    films = {
        name: {epoch: (scene, training_forces(loss, scene)) for epoch, scene in film.items()}
        for name, (loss, film) in scenes.items()
    }
    rows = [
        [name, epoch, forces.mean_alignment, float((forces.alignment > 0).double().mean())]
        for name, film in films.items()
        for epoch, (_, forces) in film.items()
    ]
    # The first and the last epoch of each training, and about seven between.
    shown = {name: {*list(film)[:: max(1, len(film) // 8)], max(film)} for name, film in films.items()}
    table = Table(
        ["training", unit, "mean cosine", "above 0"],
        [
            [name, str(epoch), f"{mean:+.3f}", f"{100 * share:.1f} %"]
            for name, epoch, mean, share in rows
            if epoch in shown[name]
        ],
        "Cosine between the forces on an embedding and its proxy, and the fraction of embeddings where it is above 0",
    )
    header = ["training", unit, "mean_cosine", "share_above_0"]
    written = write_figure(plot_force_alignment(films, unit=unit), suffixed(stem, "training"), header, rows)
    if not runs:
        figure, lines = plot_loss_diagrams()
        header = ["loss", "end", "embedding", "other", "derivative_by_distance"]
        written += write_figure(figure, suffixed(stem, "losses"), header, lines)
    trainings = {name: {epoch: forces for epoch, (_, forces) in film.items()} for name, film in films.items()}
    return Analysis(summary=[*notes, table], written=written, figures=trainings)


def _free() -> dict[str, tuple[ProxyLoss, dict[int, Scene]]]:
    """Move two classes from random places in three dimensions by the forces of two losses."""
    generator = torch.Generator().manual_seed(0)
    proxies, labels = 2 * torch.randn(2, 1, 3, generator=generator), torch.arange(2).repeat(20)
    start = Scene(2 * torch.randn(40, 3, generator=generator), labels, proxies)
    losses = {
        "f1 = t": EuclideanSoftmaxLoss(2, 3),
        "f1 = warp: α = 3, k1 = 0.65, k2 = 1.5": WarpedSoftmaxLoss(2, 3, alpha=3.0, k1=0.65, k2=1.5),
    }
    return {name: (loss, descend(loss, start, steps=120, rate=0.1)) for name, loss in losses.items()}


def _of_runs(paths: Sequence[PathLike]) -> tuple[dict[str, tuple[ProxyLoss, dict[int, Scene]]], list[str]]:
    """Return the loss and the snapshots of each run by name, and notes for the user."""
    from proxemic.studies.finished import find_runs
    from proxemic.studies.groups import distinct_names

    runs = find_runs([Path(path) for path in paths])
    scenes, notes = {}, []
    for name, run in zip(distinct_names(runs), runs, strict=True):
        loss, snapshots = run.loss, read_snapshots(run.path)
        if not isinstance(loss, ProxyLoss) or loss.proxies_per_class > 1:
            raise UserError(
                f"{run.path} was trained with {loss_name(loss)}, but the alignment needs one proxy per class: give a "
                "run of such a loss."
            )
        if not snapshots:
            raise UserError(f"{run.path} kept no snapshots: train it with {HOW_TO_KEEP}.")
        if run.recipe.second_phase is not None:
            notes.append(f"{run.path}: all forces are computed with the loss of the selected epoch's phase.")
        scenes[name] = (loss, snapshots)
    return scenes, notes
