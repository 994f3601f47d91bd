"""``proxemic evaluate``."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proxemic.data import ImageSet, ImageSource, OwnImages

__all__ = ["add_parser", "run"]


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "evaluate",
        help="judge a trained model on images",
        description="Judge a run on its own test classes, or on all images of another folder or table.",
        epilog="The run's data and evaluation settings are flags: --data.root DIR, --evaluation.recall_at [1,10,100], "
        "--evaluation.precision_at [10], --evaluation.map_at [10], --evaluation.ndcg_at [10], "
        "--evaluation.distance euclidean.",
        allow_abbrev=False,
    )
    parser.add_argument("model", type=Path, metavar="RUN|FILE", help="a run directory, or a model.safetensors")
    parser.add_argument(
        "--split",
        choices=("train", "validation", "test", "all"),
        help="which images; by default the test split of the run's own data, and all images of another folder",
    )
    parser.add_argument("--strict", action="store_true", help="an unreadable image is an error, not skipped")
    parser.add_argument("--json", action="store_true", help="print JSON instead of the table")
    parser.add_argument("--out", type=Path, metavar="FILE", help="also write the JSON to this file")
    parser.set_defaults(run=run, takes_flags=True)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Embed, search, print."""
    import json
    import sys

    import torch

    from proxemic.cli.show import print_table
    from proxemic.data import Preprocessing
    from proxemic.errors import UserError
    from proxemic.files import write_atomically
    from proxemic.models import load_model
    from proxemic.recipes.reader import read_evaluation
    from proxemic.training.embed import embed_images, evaluate_embeddings
    from proxemic.training.run import RunDirectory

    path: Path = arguments.model
    if not path.exists():
        raise UserError(f"{path} does not exist: give a run directory or a model.safetensors.")
    recipe = None
    if path.is_dir():
        RunDirectory(path).check_run()
        if not RunDirectory(path).model.exists():
            raise UserError(f"{path} has no model yet: finish it with proxemic train --resume {path}.")
        recipe = RunDirectory(path).recipe
    if arguments.strict:
        flags = [*flags, "--data.strict", "true"]
    request = read_evaluation(recipe, flags)
    own = None if recipe is None else read_evaluation(recipe).data
    images, split, notes = _choose(request.data, own, arguments.split, path)
    for note in notes:
        print(note, file=sys.stderr)
    model, preprocessing = load_model(path)
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    embeddings = embed_images(
        model.to(device), images, Preprocessing(**preprocessing), batch_size=request.evaluation.batch_size
    )
    metrics = evaluate_embeddings(embeddings, images, request.evaluation)
    result = {
        split: dict(metrics),
        "classes": images.num_classes,
        "images": len(images),
        "queries": metrics.queries,
        "queries_left_out": metrics.left_out,
    }
    text = json.dumps(result, indent=2)
    if arguments.out is not None:
        with write_atomically(arguments.out) as temporary:
            temporary.write_text(text + "\n")
    if arguments.json:
        print(text)
        return
    print_table(f"{images.num_classes:,} classes, {metrics.queries:,} queries, {split} images", {split: metrics})
    if metrics.left_out:
        print(f"{metrics.left_out} queries have no other image of their class and are left out.")


def _choose(
    source: "ImageSource", own: "ImageSource | None", split: str | None, run: Path
) -> tuple["ImageSet", str, tuple[str, ...]]:
    """The images to judge, what they are, and what the user should know of them."""
    from proxemic.data import OwnImages
    from proxemic.errors import UserError
    from proxemic.training.run import RunDirectory, fingerprint

    same = type(own) is type(source)
    if isinstance(own, OwnImages) and isinstance(source, OwnImages):
        same = _place(own) == _place(source)
    if split is None:
        split = "all" if isinstance(source, OwnImages) and not same else "test"
    if split == "all":
        if not isinstance(source, OwnImages):
            raise UserError(
                f"--split all is for folders and tables of images: {type(source).__name__} has train and test."
            )
        images, notes = source.load_unsplit()
        return images, split, notes
    splits = source.load()
    if same:
        # Split anew, other images may put classes of the training into the test.
        RunDirectory(run).check_images(fingerprint(splits))
    images = {"train": splits.train, "validation": splits.validation, "test": splits.test}[split]
    if images is None:
        raise UserError("There are no validation classes: data.validation_fraction is 0.")
    return images, split, splits.notes


def _place(source: "OwnImages") -> Path | None:
    return source.root and Path(source.root).resolve()
