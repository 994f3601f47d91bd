"""What is judged: models on images, or embeddings from files."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from proxemic.data import (
    ImageSet,
    ImageSource,
    LabelledEmbeddings,
    OwnImages,
    RowLabels,
    check_embedding_name,
    join_query_gallery,
    load_query_gallery,
    read_embeddings,
    write_embeddings,
)
from proxemic.errors import UserError
from proxemic.metrics import RetrievalMetrics
from proxemic.models import is_model
from proxemic.recipes.reader import own_backbone, read_evaluation, read_evaluation_config
from proxemic.training import EvaluationConfig, RunDirectory
from proxemic.training.embed import embed_images, evaluate_embeddings, load_embedder
from proxemic.training.run import fingerprint

__all__ = ["Judged", "judge"]


@dataclass(frozen=True)
class Judged:
    """One model or file of embeddings, judged.

    Args:
        name: What the user called it.
        split: Which images they are.
        rows: What is known of the rows.
        metrics: What was found.
        metric: The one that says which classes and queries are the worst.
    """

    name: str
    split: str
    rows: RowLabels
    metrics: RetrievalMetrics
    metric: str


def judge(targets: list[Path], arguments: argparse.Namespace, flags: list[str]) -> list[Judged]:
    """Judge one or two targets, the second as the first."""
    for path in targets:
        if not path.exists():
            raise UserError(f"{path} does not exist: give a run directory, a model.safetensors or embeddings.")
    models = [path.is_dir() or is_model(path) for path in targets]
    if all(models):
        return _judge_models(targets, arguments, flags)
    if any(models):
        raise UserError(f"{targets[0]} and {targets[1]} are a model and embeddings: give two of one kind.")
    return _judge_embeddings(targets, arguments, flags)


def _judge_embeddings(targets: list[Path], arguments: argparse.Namespace, flags: list[str]) -> list[Judged]:
    for path in targets:
        check_embedding_name(path)
    names = ("query", "split", "save_embeddings", "strict")
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(arguments, name)]
    given += [flag for flag in flags if flag.startswith("--data")]
    if given:
        raise UserError(f"{given[0]} is for models, but {targets[0]} holds embeddings.")
    if arguments.gallery_labels is not None and arguments.gallery is None:
        raise UserError("--gallery-labels is given without --gallery: give the embeddings that it labels.")
    if arguments.gallery is not None and len(targets) > 1:
        raise UserError("--gallery holds embeddings of one model: judge the two one by one.")
    config = read_evaluation_config(None, flags)
    contents = [read_embeddings(path, arguments.labels) for path in targets]
    if arguments.gallery is not None:
        contents = [join_query_gallery(contents[0], read_embeddings(arguments.gallery, arguments.gallery_labels))]
    _check_same_rows(targets, contents)
    return [_judged(path, "all", content, config) for path, content in zip(targets, contents, strict=True)]


def _check_same_rows(targets: list[Path], contents: list[LabelledEmbeddings]) -> None:
    if len(contents) == 1:
        return
    one, other = contents
    one_flags, other_flags = (_flags(content) for content in contents)
    for name, mine, theirs in (
        ("number of rows", len(one.embeddings), len(other.embeddings)),
        ("paths", one.rows.paths, other.rows.paths),
        ("labels", _names(one.rows), _names(other.rows)),
        ("is_query or is_gallery", one_flags, other_flags),
    ):
        if mine is not None and theirs is not None and mine != theirs:
            raise UserError(
                f"{targets[0]} and {targets[1]} differ in {name}, but two models are compared on the same queries, "
                "row by row."
            )


def _names(rows: RowLabels) -> list[str] | None:
    if rows.labels is None or rows.class_names is None:
        return None
    return [rows.class_names[label] for label in rows.labels.tolist()]


def _flags(content: LabelledEmbeddings) -> list[list[bool]]:
    """Whether each row asks, and whether it answers; without flags all do both."""
    everyone = [True] * len(content.embeddings)
    flags = (content.rows.is_query, content.rows.is_gallery)
    return [everyone if each is None else each.tolist() for each in flags]


def _judge_models(targets: list[Path], arguments: argparse.Namespace, flags: list[str]) -> list[Judged]:
    for name in ("labels", "gallery_labels"):
        if getattr(arguments, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} is for embeddings, but {targets[0]} is a model.")
    images, split, notes, config = _images(targets, arguments, flags)
    for note in notes:
        print(note, file=sys.stderr)
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    judged = []
    for path in targets:
        model, preprocessing = load_embedder(path, own_backbone(path))
        embeddings = embed_images(model.to(device), images, preprocessing, batch_size=config.batch_size)
        content = LabelledEmbeddings.of_images(embeddings, images)
        if arguments.save_embeddings is not None:
            bare = arguments.save_embeddings.suffix.lower() == ".npy"
            write_embeddings(arguments.save_embeddings, LabelledEmbeddings(embeddings) if bare else content)
        judged.append(_judged(path, split, content, config))
    return judged


def _judged(path: Path, split: str, content: LabelledEmbeddings, config: EvaluationConfig) -> Judged:
    metrics = evaluate_embeddings(content.embeddings, content.rows, config)
    # A metric of one's own has no value for each class.
    metric = config.metric if config.metric in metrics.per_query else "map@r"
    return Judged(str(path), split, content.rows, metrics, metric)


def _images(
    targets: list[Path], arguments: argparse.Namespace, flags: list[str]
) -> tuple[ImageSet, str, Sequence[str], EvaluationConfig]:
    """The images to judge, what they are, what the user should know of them, and how to judge."""
    recipe, *_ = [_recipe(path) for path in targets]
    if (arguments.query is None) != (arguments.gallery is None):
        raise UserError("--query and --gallery are folders or tables of images, and go together: give both.")
    if arguments.query is not None:
        given = [flag for flag in flags if flag.startswith("--data")]
        if given or arguments.split:
            raise UserError(f"{given[0] if given else '--split'} has no meaning beside --query and --gallery.")
        images, notes = load_query_gallery(arguments.query, arguments.gallery, strict=arguments.strict)
        return images, "all", notes, read_evaluation_config(recipe, flags)
    if arguments.strict:
        flags = [*flags, "--data.strict", "true"]
    request = read_evaluation(recipe, flags)
    own = None if recipe is None else read_evaluation(recipe).data
    return *_choose(request.data, own, arguments.split, targets), request.evaluation


def _recipe(path: Path) -> Path | None:
    """The recipe of a finished run; None for a model without one."""
    if not path.is_dir():
        return None
    run = RunDirectory(path)
    run.check_run()
    if not run.model.exists():
        raise UserError(f"{path} has no model yet: finish it with proxemic train --resume {path}.")
    return run.recipe


def _choose(
    source: ImageSource, own: ImageSource | None, split: str | None, targets: list[Path]
) -> tuple[ImageSet, str, Sequence[str]]:
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
    for path in targets:
        # Split anew, other images may put classes of the training into the test.
        if same and path.is_dir():
            RunDirectory(path).check_images(fingerprint(splits))
    images = splits.test_images if split == "test" else {"train": splits.train, "validation": splits.validation}[split]
    if images is None:
        raise UserError("There are no validation classes: data.validation_fraction is 0.")
    return images, split, splits.notes


def _place(source: OwnImages) -> Path | None:
    return source.root and Path(source.root).resolve()
