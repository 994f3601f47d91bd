"""``proxemic analyze``: declares the flags of every subcommand, which calls the function of `proxemic.analyze`."""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from itertools import groupby
from pathlib import Path

from proxemic.cli.compare import read_seeds

_Add = Callable[..., argparse.ArgumentParser]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command and its subcommands."""
    parser = commands.add_parser(
        "analyze",
        help="understand losses and embeddings",
        description="Understand losses and embeddings: every subcommand answers one question.",
        allow_abbrev=False,
    )
    parser.set_defaults(run=partial(_run, parser), takes_flags=False)
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    add = partial(actions.add_parser, allow_abbrev=False)
    for subcommand in SUBCOMMANDS:
        subcommand(add)


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace, flags: list[str]) -> None:
    """Call the function of `proxemic.analyze`; its arguments have the names under which the flags are stored."""
    if arguments.action is None:
        parser.print_help()
        return
    print(f"Analysing: {arguments.action}", file=sys.stderr, flush=True)  # before what takes seconds to import
    from proxemic import analyze

    frame = {"traceback", "command", "action", "run", "takes_flags"}
    options = {key: value for key, value in vars(arguments).items() if key not in frame}
    if "run_directory" in options:
        options["run"] = options.pop("run_directory")
    if arguments.takes_flags:
        from proxemic.recipes.flags import read_flags

        options["seeds"] = None if arguments.seeds is None else read_seeds(arguments.seeds)
        # Hours may pass between two lines.
        options |= {"overrides": read_flags(flags), "report": partial(print, flush=True)}
    name = "embedding_map" if arguments.action == "map" else arguments.action.replace("-", "_")
    result = getattr(analyze, name)(**options)
    print(result)
    for _, files in groupby(result.written, key=lambda path: path.with_suffix("")):
        print(f"Wrote {', '.join(str(path) for path in files)}")


def _characteristics(add: _Add) -> None:
    parser = add(
        "characteristics",
        help="what the gradient of each proxy loss takes into account",
        description="Measure for each proxy loss the six characteristics of Table 1 of the multi-proxy anchor paper.",
        epilog="stability: other samples do not change a sample's gradient. manifold: several proxies per class. "
        "similarity: how large scores are counts, not their differences alone. P-P, N-N, P-N: the gradient of a "
        "positive (negative) score depends on other positives (negatives), on scores of the other kind. "
        "(yes): only where the batch holds two samples of a class.",
    )
    parser.add_argument("--proxies-per-class", type=int, metavar="K", help="of all losses (each loss's default)")
    parser.add_argument("--seed", type=int, default=0, help="of the random scores (%(default)s)")
    parser.add_argument("--numbers", action="store_true", help="also print how much gradients changed")
    parser.add_argument("--csv", type=Path, metavar="FILE", help="write answers and numbers to a table")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write answers and numbers as JSON")


def _forces(add: _Add) -> None:
    parser = add(
        "forces",
        help="whether the forces on embeddings align with those on their proxies as a training goes on",
        description="Draw, in three dimensions and over a training, where a loss drives embeddings and proxies, and "
        "measure how far both agree: figure 4 of the warping paper. Without a RUN: of embeddings that follow the plain "
        "and the warped softmax freely, and figure 2, which pairs six losses pull together and push apart.",
        epilog="Runs need snapshots: --training.callbacks '[{class_path: proxemic.training.Snapshots}]', as the toy "
        "recipes have them (toy/warped-softmax --model.embedding_size 3).",
    )
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help="a finished run with snapshots")
    parser.add_argument("--out", type=Path, metavar="STEM", help="begin file names with this (forces, or RUN/forces)")


def _gap(add: _Add) -> None:
    parser = add(
        "gap",
        help="how far the softmax loss wants embeddings from their proxies, with the bounds of the mean-proxy paper",
        description="Where the softmax loss of each class is least, how far that is from the class's proxy, and the "
        "bounds L(W) and U(W) of the mean-proxy paper, as printed and as they are proved; for trained runs and for the "
        "same losses untrained. Without a run: the paper's example of three proxies.",
        epilog="Runs of one recipe with several seeds are a group, with a mean and its 95%% interval. The gaps are "
        "squared distances between unit vectors, 0 to 4.",
    )
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help="a finished run of a softmax loss")
    parser.add_argument("--no-images", dest="images", action="store_false", help="leave out where training images lie")
    parser.add_argument("--epsilon", type=float, default=0.1, help="radians between two of the proxies (%(default)s)")
    parser.add_argument("--out", type=Path, metavar="STEM", help="begin file names with this (three-proxies, RUN/gap)")


def _gradients(add: _Add) -> None:
    parser = add(
        "gradients",
        help="which scores the gradient of one score depends on, as plots",
        description="Measure which class scores enter the gradient of a positive and of a negative class score, in a "
        "batch of three classes and six embeddings, and draw them: figure 1 of the multi-proxy anchor paper.",
    )
    parser.add_argument("--losses", type=_names, metavar="A,B", default=argparse.SUPPRESS, help="(those of the figure)")
    parser.add_argument("--seed", type=int, default=0, help="of the random scores (%(default)s)")
    parser.add_argument("--out", type=Path, default="gradients", metavar="STEM", help="name of the files (%(default)s)")


def _landscape(add: _Add) -> None:
    parser = add(
        "landscape",
        help="where a softmax of distances is least, plain and warped",
        description="Draw the loss of one embedding as a function of its place, and find where it is least. Without "
        "flags: figures 1, 3 and 5 of the warping paper; with flags one landscape; with a RUN that of one class of a "
        "EuclideanSoftmaxLoss or a WarpedSoftmaxLoss.",
    )
    parser.add_argument("run_directory", type=Path, nargs="?", metavar="RUN", help="a finished run")
    parser.add_argument("--class", dest="label", type=int, metavar="INDEX", help="of a RUN: number of the class (0)")
    parser.add_argument(
        "--functions", metavar="NAME", help="identity, square, square-root, power-P (t^P), times-K (f1 = K·f2) or warp"
    )
    parser.add_argument("--alpha", type=float, metavar="A", help="distance of the warp's minimum (3)")
    parser.add_argument("--k1", type=float, help="slope of the warp below alpha (0.65)")
    parser.add_argument("--k2", type=float, help="slope of the warp from alpha on (1.5)")
    parser.add_argument("--temperature", type=float, metavar="T", help="factor of the distances (1)")
    parser.add_argument("--classes", type=int, metavar="N", help="proxies, corners of a polygon (2)")
    parser.add_argument("--distance", type=float, metavar="D", help="between neighbouring proxies (4)")
    parser.add_argument(
        "--out", type=Path, metavar="STEM", help="begin file names with this (landscape, RUN/landscape)"
    )


def _local_centers(add: _Add) -> None:
    parser = add(
        "local-centers",
        help="whether the proxies of a class found what differs within it, such as typefaces",
        description="What the nearest proxy of its own class tells about an attribute of a training image (the "
        "typeface of a glyph, the column subclass of a table), in bits, beside chance; for runs with several proxies "
        "per class.",
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a finished run; of several, also the mean")
    parser.add_argument("--draws", type=int, default=8, help="augmented versions of each image (%(default)s)")
    parser.add_argument("--shuffles", type=int, default=200, help="for the range of chance (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of augmentation and shuffles (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers as JSON")


def _map(add: _Add) -> None:
    parser = add(
        "map",
        help="a map of a run's embeddings; their hubs, distances, alignment and uniformity",
        description="Draw the embeddings of some classes in two dimensions, by principal components and by t-SNE, and "
        "measure those of all classes: hubness, distances within and between classes, alignment, uniformity.",
        epilog="Writes STEM-pca, STEM-tsne, STEM-distances and STEM-hubs, each as .png, .svg and .csv. Distances are "
        "of all pairs of images; of more than 11,585 images a random sample is compared with all. A t-SNE of 5,000 "
        "images takes a minute.",
    )
    parser.add_argument("run_directory", type=Path, metavar="RUN", help="a finished run")
    parser.add_argument("--split", choices=("test", "train", "validation"), default="test", help="(%(default)s)")
    parser.add_argument("--method", choices=("pca", "tsne", "both"), default="both", help="of the map (%(default)s)")
    parser.add_argument("--classes", type=int, default=20, metavar="N", help="to draw, chosen at random (%(default)s)")
    parser.add_argument(
        "--thumbnails", action=argparse.BooleanOptionalAction, default=True, help="images where there is room"
    )
    parser.add_argument("--no-proxies", dest="proxies", action="store_false", help="draw the embeddings alone")
    parser.add_argument("--seed", type=int, default=0, help="of the chosen classes (%(default)s)")
    parser.add_argument("--out", type=Path, metavar="STEM", help="begin file names with this (RUN/map)")


def _robustness(add: _Add) -> None:
    parser = add(
        "robustness",
        help="what is left of a metric when the test images are corrupted",
        description="Evaluate finished runs on their test images under noise, dropped pixels, distortions and blur, as "
        "Table IV of the warping paper, but in five severities. Runs of one image size see the very same corrupted "
        "images; runs that differ in their seed alone are one group, with a 95%% interval of its mean.",
        epilog="Severity 3 is about what the paper used, 1 mild, 5 strong. Grey images have no hue: that corruption "
        "is left out.",
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a finished run")
    parser.add_argument("--corruptions", type=_names, metavar="A,B", help="which, as shear,dropout (all nine)")
    parser.add_argument(
        "--severities", type=_levels, default="1,2,3,4,5", metavar="1,3", help="which, of 1 to 5 (%(default)s)"
    )
    parser.add_argument("--metric", default="recall@1", help="that the runs' evaluation computes (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the corruptions (%(default)s)")
    parser.add_argument(
        "--against", choices=["paper"], help="also show what the paper prints (Table IV), and what differs in protocol"
    )
    parser.add_argument("--out", type=Path, metavar="STEM", help="begin file names with this (RUN/robustness)")


def _sweep(add: _Add) -> None:
    parser = add(
        "sweep",
        help="a metric against one or two values of a recipe, such as a warp's k1 and k2, over seeds",
        description="Train a recipe with one or two values varied and all others as they are, over seeds, and draw a "
        "metric of the test against them: a curve for each --vary, or with --grid a heat map of two. Keys with commas "
        "between them are set to the same value, as alpha in both phases. The same command with the same --out goes on "
        "where it was stopped.",
        epilog="--vary loss.alpha,second_phase.loss.alpha=0,25,50,95, or --vary loss.k1=0.5,0.8,1 --vary loss.k2=1,1.5 "
        "--grid. Every other value of the recipe is a flag: --training.epochs 5. Do not choose a value by this figure: "
        "it shows test classes; proxemic tune chooses on validation classes.",
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a name (proxemic recipes list) or a YAML file")
    parser.add_argument(
        "--vary", action="append", required=True, metavar="KEY[,KEY…]=LIST", help="what to vary, and its values"
    )
    parser.add_argument("--grid", action="store_true", help="every value of one --vary with every value of the other")
    parser.add_argument("--seeds", metavar="N|LIST", help="how many (5, which is 0 to 4), or which: 0,1,2")
    parser.add_argument("--metric", default="recall@1", help="of the test (%(default)s)")
    parser.add_argument("--workers", type=int, default=1, metavar="N", help="runs at a time (%(default)s)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where runs, figures and tables go")
    parser.set_defaults(takes_flags=True)


def _theorems(add: _Add) -> None:
    parser = add(
        "theorems",
        help="the papers' propositions, lemmas and theorems as numbers: the bound and what is observed",
        description="Check every proposition, lemma and theorem of the mean-proxy and the warping paper on random "
        "cases, print the case nearest to its bound, and draw figures 11 and 12 of the warping paper. With RUNs: "
        "Propositions 1 and 2 of the mean-proxy paper for their training images.",
        epilog="A statement that does not hold as printed is followed by the one that does, Theorem 2 by what its "
        "proof gives.",
    )
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help="a finished run of a loss of cosines")
    parser.add_argument("--draws", type=int, default=100, metavar="N", help="random cases (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the cases (%(default)s)")
    parser.add_argument("--out", type=Path, metavar="STEM", help="begin file names with this (theorems, RUN/theorems)")


def _toy(add: _Add) -> None:
    parser = add(
        "toy",
        help="embeddings of the training images in two or three dimensions, side by side, with an animation",
        description="Draw the training images' embeddings and the proxies of runs side by side, as figure and, where "
        "the runs kept snapshots, as an animation over the epochs.",
        epilog="Runs to draw: proxemic train --recipe toy/euclidean-softmax, toy/warped-softmax, toy/class-wise, "
        "toy/data-wise. Runs of more than three dimensions are projected to two by PCA.",
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a finished run")
    parser.add_argument(
        "--diagram", action="store_true", help="also figure 2.1 of the mean-proxy paper, of the first run"
    )
    parser.add_argument("--no-animation", dest="animation", action="store_false", help="write the figure alone")
    parser.add_argument("--out", type=Path, metavar="STEM", help="of STEM.png, .svg, .csv and .gif (RUN/toy)")


def _trajectories(add: _Add) -> None:
    parser = add(
        "trajectories",
        help="what was measured over trainings, such as the distance of embeddings to their proxy (AvgDTP)",
        description="Draw a column of history.csv over the epochs: AvgDTP of the warping paper's figure 9, the gap of "
        "the mean-proxy paper, a metric on held-out classes, the loss. Runs that broke off are drawn and marked.",
        epilog="A recipe has avg_dtp measured by training: {callbacks: [{class_path: "
        "proxemic.training.DistanceToProxy}]}, and the gap by proxemic.training.ProxyGap. Runs of one recipe with "
        "several seeds are a group, with a mean and its 95%% interval.",
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run, finished or not")
    parser.add_argument("--measure", default="avg_dtp", metavar="COLUMN", help="a column of history.csv (%(default)s)")
    parser.add_argument("--log", dest="logarithmic", action="store_true", help="a logarithmic axis")
    parser.add_argument("--out", type=Path, metavar="STEM", help="of STEM.png, .svg and .csv (the first run's folder)")


def _names(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",")))


def _levels(text: str) -> list[int | str]:
    return [int(word) if word.isdecimal() else word for word in text.split(",")]


SUBCOMMANDS = (
    _characteristics,
    _forces,
    _gap,
    _gradients,
    _landscape,
    _sweep,
    _theorems,
    _toy,
    _trajectories,
    _local_centers,
    _robustness,
    _map,
)
