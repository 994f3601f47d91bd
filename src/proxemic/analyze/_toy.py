"""Draw the embeddings of the training images of several runs in two or three dimensions."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor
from torch.nn.functional import pad

from proxemic.analysis.map import principal_components
from proxemic.analysis.toy import Scene, animate_scenes, draw_training_diagram, plot_scenes, separation
from proxemic.analyze.results import (
    HOW_TO_KEEP,
    Analysis,
    PathLike,
    Stem,
    file_stem,
    read_snapshots,
    seed_table,
    suffixed,
)
from proxemic.errors import UserError
from proxemic.plots import write_figure
from proxemic.studies.finished import FinishedRun, find_runs
from proxemic.studies.groups import differences_from_first, distinct_names, repetitions
from proxemic.studies.statistics import Estimate, t_interval
from proxemic.tables import Table
from proxemic.training.callbacks.measures import as_compared


@dataclass(frozen=True, kw_only=True, eq=False)
class ToyFigures:
    """The `separation` of each run, its means over the seeds of groups, and differences paired by seed."""

    separations: Mapping[Path, Mapping[str, float]]
    means: Mapping[str, Mapping[str, Estimate]]


def toy(
    runs: Sequence[PathLike], *, diagram: bool = False, animation: bool = True, out: Stem | None = None
) -> Analysis[ToyFigures]:
    """Draw the embeddings of training images and the proxies of several runs side by side.

    The recipes toy/euclidean-softmax, toy/warped-softmax, toy/class-wise and toy/data-wise train such runs.

    Args:
        runs: Finished runs of the same classes; more than three dimensions are projected to two by PCA.
        diagram: Also draw images of the first run, its network, and embeddings before and after training.
        animation: Also write an animation over the epochs, if all runs kept snapshots.
        out: Prefix of the file names; ``RUN/toy`` by default.

    Source: Figure 10 of the warping paper; the diagram, figure 2.1 of the mean-proxy paper.
    """
    stem = file_stem(out, runs, "toy")
    members = find_runs([Path(run) for run in runs])
    groups = repetitions(members)
    names = members[0].train.class_names
    if any(run.train.class_names != names for run in members):
        raise UserError("The runs were trained on different classes: draw them one by one.")
    ends = _ends(members[0]) if diagram else None
    scenes, films, separations, notes = {}, {}, {}, []
    for name, run in zip(distinct_names(members), members, strict=True):
        # With the final weights of the run, which need not be the weights of its last epoch.
        train = run.train
        embeddings, proxies = as_compared(run.loss, run.embed(train))
        scene = Scene(embeddings, train.labels, proxies)
        separations[run.path] = separation(scene)
        flatten, note = _projection(scene)
        scenes[name] = flatten(scene)
        films[name] = {epoch: flatten(shot) for epoch, shot in read_snapshots(run.path).items()} if animation else {}
        notes += [f"{run.path}: {note}"] if note else []
    title = (
        "Distances of training images: within classes (to the class's mean), between the means of classes, to the\n"
        "nearest other mean, and the ratio of the last to the first"
    )
    lines = [
        [name, *(f"{value:.3f}" for value in row.values())]
        for name, row in zip(scenes, separations.values(), strict=True)
    ]
    means = _means(groups, separations)
    summary = [*notes, Table(["run", "within", "between", "nearest", "ratio"], lines, title)]
    summary += [seed_table(name, {"mean": row}, form=".3f") for name, row in means.items()]
    rows = [[name, *row] for name, scene in scenes.items() for row in _rows(scene, names)]
    header = ["kind", "class", "x", "y", "z"]
    written = write_figure(plot_scenes(scenes, names), stem, ["run", *header], rows)
    if animation and all(len(film) > 1 for film in films.values()):
        written.append(animate_scenes(films, names, stem.with_name(f"{stem.name}.gif")))
    elif animation:
        summary.append(
            "No animation: not all of the runs kept snapshots (training.callbacks: proxemic.training.Snapshots)."
        )
    if ends is not None:
        figure = draw_training_diagram(members[0].train, *ends, str(members[0].content["model"]["backbone"]))
        before, after = (_rows(scene, names) for scene in ends)
        rows = [*(["before", *row] for row in before), *(["after", *row] for row in after)]
        written += write_figure(figure, suffixed(stem, "diagram"), ["when", *header], rows)
    return Analysis(figures=ToyFigures(separations=separations, means=means), summary=summary, written=written)


def _ends(run: FinishedRun) -> tuple[Scene, Scene]:
    """Return the first and the last snapshot, projected to two or three dimensions."""
    film = read_snapshots(run.path)
    if len(film) < 2:
        raise UserError(
            f"The diagram shows embeddings before and after training, but {run.path} kept no snapshots: train it "
            f"with {HOW_TO_KEEP}."
        )
    flatten, _ = _projection(film[max(film)])
    return flatten(film[min(film)]), flatten(film[max(film)])


def _means(
    groups: Mapping[str, Sequence[FinishedRun]], separations: Mapping[Path, Mapping[str, float]]
) -> dict[str, dict[str, Estimate]]:
    """Compute the means over the seeds of each group, and the differences paired by seed."""
    values = {name: [separations[run.path] for run in runs] for name, runs in groups.items()}
    means = {
        f"{name}: mean and 95% interval over {len(seeds)} seeds": {
            key: t_interval([seed[key] for seed in seeds]) for key in seeds[0]
        }
        for name, seeds in values.items()
        if len(seeds) > 1
    }
    return means | differences_from_first(groups, values)


def _projection(scene: Scene) -> tuple[Callable[[Scene], Scene], str | None]:
    """Fit a projection to two or three dimensions to a scene; return it for all scenes of the run, and a note."""
    dim = scene.embeddings.shape[1]
    if dim in (2, 3):
        return lambda scene: scene, None
    if dim == 1:
        return partial(_flatten, lambda places: pad(places, (0, 1))), "1 dimension, drawn as a line."
    components = principal_components(scene.embeddings)

    def project(places: Tensor) -> Tensor:
        return components.project(places.flatten(0, -2)).float().view(*places.shape[:-1], 2)

    share = 100 * float(components.shares.sum())
    note = f"{dim} dimensions projected to 2 by PCA, which keep {share:.1f} % of the variance."
    return partial(_flatten, project), note


def _flatten(project: Callable[[Tensor], Tensor], scene: Scene) -> Scene:
    return Scene(project(scene.embeddings), scene.labels, None if scene.proxies is None else project(scene.proxies))


def _rows(scene: Scene, names: Sequence[str]) -> list[list[object]]:
    """List images and proxies: kind, class name and three coordinates, the last empty in the plane."""
    labels, places = scene.labels.tolist(), scene.embeddings.tolist()
    rows = [["image", names[label], *place] for label, place in zip(labels, places, strict=True)]
    proxies = [] if scene.proxies is None else zip(names, scene.proxies.tolist(), strict=True)
    rows += [["proxy", name, *place] for name, of_class in proxies for place in of_class]
    return [[*row, *[None] * (5 - len(row))] for row in rows]
