"""``proxemic analyze toy``."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

    from proxemic.analysis.toy.plots import Scene
    from proxemic.protocols.runs.finished import FinishedRun

__all__ = ["add_parser", "read_film", "run"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the subcommand."""
    parser = commands.add_parser(
        "toy",
        help="embeddings of the training images in two or three dimensions, side by side, with an animation",
        description="Draw the training images' embeddings and the proxies of runs side by side, as figure and, where "
        "the runs kept snapshots, as an animation over the epochs.",
        epilog="Runs to draw: proxemic train --recipe toy/euclidean-softmax, toy/warped-softmax, toy/class-wise, "
        "toy/data-wise. Runs of more than three dimensions are projected to two by PCA.",
        allow_abbrev=False,
    )
    parser.add_argument("run_directories", type=Path, nargs="+", metavar="RUN", help="a finished run")
    parser.add_argument(
        "--diagram",
        action="store_true",
        help="also STEM-diagram: images of the first run, its network, embeddings before and after the training "
        "(mean-proxy paper, figure 2.1)",
    )
    parser.add_argument("--no-animation", action="store_true", help="write the figure alone")
    parser.add_argument("--out", type=Path, metavar="STEM", help="of STEM.png, .svg, .csv and .gif (RUN/toy)")
    parser.set_defaults(run=run, takes_flags=False)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Project, print, draw."""
    from proxemic.analysis.toy.plots import animate_scenes, plot_scenes, separation
    from proxemic.cli.show import format_table, print_written
    from proxemic.errors import UserError
    from proxemic.files import check_stem
    from proxemic.plots import write_figure
    from proxemic.protocols.runs.finished import find_runs
    from proxemic.protocols.runs.groups import distinct_names, repetitions

    out = check_stem(arguments.out or arguments.run_directories[0] / "toy")
    animate = not arguments.no_animation
    members = find_runs(arguments.run_directories)
    groups = repetitions(members)
    runs = dict(zip(distinct_names(members), members, strict=True))
    names = members[0].splits.train.class_names
    if any(each.splits.train.class_names != names for each in members):
        raise UserError("The runs were trained on other classes than the first of them: draw them one by one.")
    ends = _ends(members[0]) if arguments.diagram else None
    chosen, films, found = {}, {}, {}
    for name, each in runs.items():
        scene = _chosen(each)
        found[each.path] = separation(scene)
        flatten, note = _projection(scene)
        chosen[name] = flatten(scene)
        films[name] = {epoch: flatten(shot) for epoch, shot in read_film(each).items()} if animate else {}
        if note:
            print(f"{each.path}: {note}")
    print("Distances of training images: within classes (to the class's mean), between the means of classes, to the")
    print("nearest other mean, and how many times as far that is as the first")
    lines = [[name, *(f"{value:.3f}" for value in found[each.path].values())] for name, each in runs.items()]
    print(format_table(["run", "within", "between", "nearest", "ratio"], lines))
    _print_means(groups, found)
    rows = [[name, *row] for name, scene in chosen.items() for row in _rows(scene, names)]
    written = write_figure(plot_scenes(chosen, names), out, ["run", "kind", "class", "x", "y", "z"], rows)
    if animate:
        if all(len(film) > 1 for film in films.values()):
            written.append(animate_scenes(films, names, out.with_name(f"{out.name}.gif")))
        else:
            print("No animation: not all of the runs kept snapshots (training.callbacks: proxemic.training.Snapshots).")
    if ends is not None:
        written += _write_diagram(members[0], *ends, out)
    print_written(written)


def _ends(run: "FinishedRun") -> "tuple[Scene, Scene]":
    """The first snapshot and the last."""
    from proxemic.errors import UserError

    film = read_film(run)
    if len(film) < 2:
        raise UserError(
            f"--diagram shows embeddings before and after the training, but {run.path} kept no snapshots: train it "
            "with --training.callbacks '[{class_path: proxemic.training.Snapshots}]'."
        )
    flatten, _ = _projection(film[max(film)])
    return flatten(film[min(film)]), flatten(film[max(film)])


def _write_diagram(run: "FinishedRun", before: "Scene", after: "Scene", out: Path) -> list[Path]:
    from proxemic.analysis.toy.training_diagram import draw_training_diagram
    from proxemic.plots import write_figure

    train = run.splits.train
    figure = draw_training_diagram(train, before, after, str(run.content["model"]["backbone"]))
    rows = [
        [when, *row]
        for when, scene in (("before", before), ("after", after))
        for row in _rows(scene, train.class_names)
    ]
    return write_figure(figure, out.with_name(f"{out.name}-diagram"), ["when", "kind", "class", "x", "y", "z"], rows)


def _print_means(groups: "dict[str, list[FinishedRun]]", found: dict[Path, dict[str, float]]) -> None:
    """Over seeds, where there are several, and paired by them."""
    from proxemic.cli.show import format_table
    from proxemic.protocols.comparison.statistics import t_interval
    from proxemic.protocols.runs.groups import differences_from_first

    values = {name: [found[each.path] for each in group] for name, group in groups.items()}
    means = {
        name: {key: t_interval([each[key] for each in repeated]) for key in repeated[0]}
        for name, repeated in values.items()
        if len(repeated) > 1
    }
    for title, table in {**means, **differences_from_first(groups, values)}.items():
        print(title if title not in means else f"{title}: mean and 95% interval over {len(groups[title])} seeds")
        cells = [f"{each.mean:.3f} ± {each.half_width or 0.0:.3f}" for each in table.values()]
        print(format_table(list(table), [cells]))


def read_film(run: "FinishedRun") -> "dict[int, Scene]":
    """The scene of every snapshot, by its epoch."""
    from safetensors.torch import load_file

    from proxemic.analysis.toy.plots import Scene

    paths = sorted((run.path / "snapshots").glob("epoch-*.safetensors"))
    contents = {int(path.stem.removeprefix("epoch-")): load_file(path) for path in paths}
    return {
        epoch: Scene(content["embeddings"], content["labels"], content.get("proxies"))
        for epoch, content in contents.items()
    }


def _chosen(run: "FinishedRun") -> "Scene":
    """By the weights that the run ended with, which need not be those of its last epoch."""
    from proxemic.analysis.toy.plots import Scene
    from proxemic.training.epoch_metrics import as_compared

    train = run.splits.train
    embeddings, proxies = as_compared(run.loss, run.embed(train))
    return Scene(embeddings, train.labels, proxies)


def _projection(scene: "Scene") -> "tuple[Callable[[Scene], Scene], str | None]":
    """Into two or three dimensions, for a scene and all others of its run; and what to say of it."""
    from proxemic.analysis.map.projections import principal_components
    from proxemic.analysis.toy.plots import Scene

    dim = scene.embeddings.shape[1]
    if dim in (2, 3):
        return lambda scene: scene, None
    if dim == 1:
        import torch

        def widen(places: "Tensor") -> "Tensor":
            return torch.cat([places, torch.zeros_like(places)], dim=-1)

        note = "1 dimension, drawn as a line."
    else:
        found = principal_components(scene.embeddings)

        def widen(places: "Tensor") -> "Tensor":
            return found.project(places.flatten(0, -2)).float().view(*places.shape[:-1], 2)

        share = 100 * float(found.shares.sum())
        note = f"{dim} dimensions projected to 2 by PCA, which keep {share:.1f} % of the variance."

    def flatten(scene: Scene) -> Scene:
        return Scene(widen(scene.embeddings), scene.labels, None if scene.proxies is None else widen(scene.proxies))

    return flatten, note


def _rows(scene: "Scene", names: tuple[str, ...]) -> list[list[object]]:
    rows: list[list[object]] = [
        ["image", names[label], *place]
        for label, place in zip(scene.labels.tolist(), scene.embeddings.tolist(), strict=True)
    ]
    if scene.proxies is not None:
        rows += [
            ["proxy", name, *place]
            for name, places in zip(names, scene.proxies.tolist(), strict=True)
            for place in places
        ]
    return [[*row, *[None] * (5 - len(row))] for row in rows]
