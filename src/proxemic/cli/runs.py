"""The commands that train a network, evaluate it and write a page about it."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from proxemic.addresses import GALLERY_FILE, is_pretrained_name, without_password
from proxemic.cli.derive import options_of
from proxemic.cli.notes import say
from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.ranges import check_range

if TYPE_CHECKING:
    from proxemic.recipes.flags import Flags
    from proxemic.training import TrainingResult

_DEMO_NEXT = """
The report shows characters that were never trained on, each next to its nearest neighbours. To go on:
  another loss on the same images: proxemic train --recipe glyphs --loss ProxyAnchorLoss
  your own photos, a folder of class folders: proxemic train --recipe own-pretrained --data.root FOLDER
  everything else that is ready to run: proxemic recipes list
"""


def train(
    *,
    recipe: str | None = None,
    out: Path | None = None,
    resume: Path | None = None,
    strict: bool = False,
    no_validation: bool = False,
    overrides: "Flags",
) -> None:
    """Train an embedding and evaluate it on unseen classes.

    A recipe describes the training. The epoch is selected on validation classes, held out from training; the test
    classes are evaluated once, at the end.
    Every value of a recipe is a flag: --data.root DIR, --training.epochs 20, --loss.alpha 16, --loss ProxyAnchorLoss,
    ... See them all with: proxemic recipes show NAME.

    Args:
        out (DIR): The run directory (default: runs/RECIPE-DATE-TIME).
        resume (RUN): Continue this unfinished run from its last checkpoint; --data.root DIR if its data were moved to
            DIR. To train a finished run further, begin a new one with its weights, by --training.start_from RUN.
        strict: Fail if an image is unreadable, instead of skipping it.
        no_validation: Train on all training classes and select the epoch on the test classes, as many papers do; the
            results say so.
    """
    began = time.monotonic()
    tasks = "WORLD_SIZE" if "TORCHELASTIC_RUN_ID" in os.environ else "SLURM_STEP_NUM_TASKS"
    with ExitStack() as held:
        options: dict[str, Any] = {"began": began}
        if os.environ.get(tasks, "1") != "1":
            from proxemic.runs.processes import join_processes

            # First of all, so that only one process reports errors.
            options["processes"] = held.enter_context(join_processes())
        if resume is not None:
            if recipe or out or strict or no_validation:
                raise UserError(
                    "--resume takes everything from the run that it continues: give it alone, or with --data.root if "
                    "its data were moved."
                )
            result = _train(None, resume, overrides, resume=True, **options)
        else:
            from proxemic.recipes import find_recipe

            if recipe is None:
                own = "--recipe own-pretrained trains on your own photos; or " * ("data.root" in overrides)
                raise UserError(
                    f"--recipe is missing: {own}name one that proxemic recipes list prints, or give a YAML file."
                )
            find_recipe(recipe)  # before seconds of imports
            if strict:
                overrides["data.strict"] = "true"
            if no_validation:
                overrides |= {"data.validation_fraction": "0", "evaluation.select_on": "test"}
            try:
                result = _train(recipe, out, overrides, **options)
            except UserError as error:
                if strict and "data.strict" in str(error):
                    raise UserError("--strict is for recipes of your own images: leave it out here.") from error
                raise
    if result.metrics:  # only in the first process, after the others have ended
        _report_at_the_end(result)


def demo(*, out: Path | None = None, overrides: "Flags") -> None:
    """Train on images of drawn characters, in a few minutes and without a download.

    Train the recipe glyphs, print the results on unseen characters, and suggest what to try next.

    Args:
        out (DIR): The run directory (default: runs/demo-DATE-TIME).
    """
    began = time.monotonic()
    from proxemic.files import new_directory

    result = _train("glyphs", out or new_directory("demo"), overrides, began=began)
    _report_at_the_end(result)
    print(_DEMO_NEXT)


def _train(recipe: str | None, out: Path | None, overrides: "Flags", **options: Any) -> "TrainingResult":
    """Call `proxemic.train`, and print its notes and metrics."""
    from proxemic.files import new_directory

    path = out or new_directory(str(recipe))
    if os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")) == "0":  # before seconds of imports
        print(f"Resuming {path}" if recipe is None else f"Training {recipe}", flush=True)
    with optional_dependency("train"):
        from tqdm import tqdm

    from proxemic.cli.show import emphasized, print_metrics
    from proxemic.training import train

    is_named = recipe is None

    def report(line: str) -> None:
        nonlocal is_named
        if not is_named and path.exists():  # once all arguments are accepted
            is_named = True
            tqdm.write(f"Run directory: {path}")
        tqdm.write(emphasized(line))  # above the progress bar

    result = train(recipe, path, overrides=overrides, report=report, **options)
    if result.metrics:
        print_metrics(result.metrics)
    return result


@options_of("proxemic:evaluate")
def evaluate(
    targets: Sequence[str],
    /,
    *,
    worst: int = 0,
    pictures: Path | None = None,
    chosen: Sequence[str] = (),
    format: Literal["table", "json", "csv", "markdown"] = "table",
    json: bool = False,
    overrides: "Flags",
    **options: Any,
) -> None:
    """Evaluate a trained model on images, or embeddings made elsewhere; or compare two of them.

    A run is evaluated on its own test classes, or on another folder or table: on its test split if it has one, or on
    all its images. Two models are compared on the same queries. A table has the columns path and label and perhaps
    those of Open Metric Learning: split, is_query, is_gallery, sequence (images of one burst or video are not hits of
    each other), category, and a box x_1, y_1, x_2, y_2. The run's data and evaluation settings are flags: --data.root
    DIR, --evaluation.recall_at [1,10,100], --evaluation.precision_at [10], --evaluation.map_at [10],
    --evaluation.map_divisors [min,hits], --evaluation.ndcg_at [10], --evaluation.map true, --evaluation.mrr true,
    --evaluation.nmi true, --evaluation.average classes, --evaluation.distance euclidean, --evaluation.precision
    bf16-mixed (default: float32), --batches.workers 4. Intervals come from a bootstrap over classes, and need at least
    20.

    Args:
        targets (RUN|FILE)
        query (DIR|TABLE|FILE): Query images, to search among those of --gallery; for a model of vectors, a file of
            vectors.
        gallery (DIR|TABLE|FILE): Images or vectors to search; if the target is a file of embeddings, the embeddings to
            search.
        worst: Show the N worst classes and queries.
        pictures: Write an .html page with the images of the queries of --worst, or of --chosen, and their neighbours.
        chosen (PATH): A query for --pictures, by its path or the end of its path; may be repeated.
        json: Short for --format json.
    """
    form = "json" if json else format
    check_range("worst", worst, "[0, inf)")
    if len(targets) > 1 and (worst or pictures):
        name = "--worst" if worst else "--pictures"
        raise UserError(f"{name} is for one model: leave it out, or evaluate the two one by one.")
    if chosen and pictures is None:
        raise UserError("--chosen names the queries that --pictures draws: give --pictures FILE, too.")
    if worst and pictures is None and form != "table":
        raise UserError("--worst is for the table: for programs, write --per-class FILE.csv or --per-query FILE.csv.")
    say(f"Evaluating {' and '.join(targets)}")
    if pictures is not None:
        from proxemic.report.queries import check_drawing

        check_drawing(pictures, worst, chosen)
    from proxemic import evaluate

    evaluation = evaluate(targets, overrides=overrides or None, report=say, **options)
    print(evaluation.text(form))
    if worst and form == "table":
        from proxemic.tables import terminal_text

        print(terminal_text(evaluation.worst(worst)))
    if pictures is not None:
        from proxemic.report import draw_queries

        say(f"Wrote {draw_queries(evaluation, pictures, worst=worst, chosen=chosen)}")


@options_of("proxemic:verify")
def verify(
    target: str,
    /,
    *,
    format: Literal["table", "json", "csv", "markdown"] = "table",
    against: Literal["paper"] | None = None,
    **options: Any,
) -> None:
    """Evaluate a model on pairs: LFW, CFP-FP, AgeDB-30, CALFW, CPLFW, or your own.

    There are ten folds. In each, the threshold that is best on the other nine decides whether a pair shows the same
    person or thing. A run's table is written to its verification.json, unless --out names another file.

    Args:
        target (MODEL): A run directory, a model.safetensors, timm:NAME, or hf:NAME.
        sets (NAMES)
        pairs (TABLE)
        data (DIR|FILE)
        against: Also print the paper's figures (Table V), and how its protocol differs.
    """
    from proxemic.studies.targets import is_run

    if against and not is_run(Path(target)) and (Path(target).exists() or is_pretrained_name(target)):
        raise UserError(f"--against needs the recipe of a run, but {target} is none: give its run directory.")
    if against and "pairs" in options:
        raise UserError("--against is about published sets, but --pairs is a table of your own: leave out one of them.")
    if against and format in ("json", "csv"):
        raise UserError(f"--against prints for people, but --format is {format}: leave out one of them.")
    say(f"Verifying {target}")
    from proxemic import verify

    verification = verify(target, report=say, **options)
    print(verification.text(format))
    if against:
        print(f"\n{verification.against_paper()}")


def report(
    targets: Sequence[str],
    /,
    *,
    out: Path | None = None,
    model: Path | None = None,
    data_root: str | None = None,
    new_images: Literal["leave", "join"] = "leave",
    map: Literal["pca", "tsne", "umap"] = "pca",
) -> None:
    """Write a page about a run or a gallery: metrics with intervals, images, a map, curves, recipe.

    The page is one HTML file, which works offline. It shows metrics with intervals, compared with the network before
    training, queries with their neighbours, confused classes, distances, a map, why images are near, curves, data,
    recipe and environment. Further runs are compared with the first on its images. The page of a gallery has a summary,
    duplicates, and the other parts for which there are labels and a model. For a pretrained network or an ONNX file,
    the page is about the images of --data.root.

    Args:
        targets (RUN|GALLERY|MODEL): A finished run, and others to compare; or a gallery: a directory, postgresql://...,
            milvus://...; or timm:NAME, hf:NAME or an .onnx file.
        out: The page (default: report.html in the run, or here for a gallery).
        model (RUN|FILE): The gallery's model, if it has moved.
        data_root (SOURCE): Show these labelled images, a folder or a table, instead of the run's test images.
        new_images: Leave out images that were added after the run began, or let them join the split of their class.
        map: The projection of the map of images: principal components, or tsne or umap, which keep neighbours
            together but take seconds; umap needs the extra umap.
    """
    first, *others = targets
    shown = without_password(first)
    say(f"Reporting on {shown}")
    from proxemic.report import write_gallery_report, write_report

    if is_pretrained_name(first) or first.lower().endswith(".onnx"):
        kind = "model"
    elif ":" in first or (Path(first) / GALLERY_FILE).is_file():
        kind = "gallery"
    elif (Path(first) / "recipe.yaml").is_file():
        kind = "run"
    else:
        what = "is neither a run nor a gallery" if Path(first).exists() else "does not exist"
        raise UserError(
            f"{shown} {what}: give the directory that proxemic train or proxemic gallery create made, or the address "
            "of a gallery."
        )
    for name, given, meant in (
        ("another target", others, ["run"]),
        ("--new-images join", new_images == "join", ["run"]),
        ("--model", model, ["gallery"]),
        ("--data.root", data_root, ["run", "model"]),
    ):
        if given and kind not in meant:
            raise UserError(f"{name} is for a {' or a '.join(meant)}, but {shown} is a {kind}: leave it out.")
    if kind == "model" and data_root is None:
        raise UserError(f"A report on {shown} is about a folder of images: give --data.root DIR.")
    if kind == "run":
        out = out or Path(first, "report.html")
        page = write_report(first, *others, out=out, root=data_root, projection=map, new_images=new_images, report=say)
    else:
        address, embedder = (data_root or "", first) if kind == "model" else (first, model)
        page = write_gallery_report(address, out=out or Path("report.html"), model=embedder, projection=map, report=say)
    print(f"Wrote {page}")


def _report_at_the_end(result: "TrainingResult") -> None:
    """Write the report of a new run; print its path, the commands to run next, and the seconds of each step."""
    out, metrics = result.path / "report.html", result.path / "metrics.json"
    if out.exists() and out.stat().st_mtime_ns >= metrics.stat().st_mtime_ns:  # a finished run was resumed
        return
    from proxemic.files import read_json
    from proxemic.runs.verdict import next_commands
    from proxemic.training.record import seconds_sentence

    def write() -> Path:
        from proxemic.report import write_report

        return write_report(result.path, out=out, embedded=result.embedded, report=print)

    print("Next:")
    print_report(write, f"proxemic report {result.path}")
    for purpose, command in next_commands(result.path, result.metrics).items():
        print(f"{purpose[0].upper()}{purpose[1:]}: {command}")
    print(seconds_sentence(read_json(result.path / "seconds.json")))


def print_report(write: Callable[[], Path], command: str) -> None:
    """Write a report and print its path, or why it could not be written; the run is finished all the same."""
    try:
        print(f"Report: {write()}")
    except Exception as error:
        sentence = " ".join(str(error).split()) or type(error).__name__
        print(f"The report was not written: {sentence} Write it with {command}")
