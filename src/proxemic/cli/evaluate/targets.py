"""What is judged: models on images, or embeddings from files."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from proxemic.cli.evaluate.checks import is_run
from proxemic.cli.evaluate.judged import Judged, judge_by_category, judge_rows
from proxemic.cli.evaluate.seen import find_moved, judge_apart, trained_classes
from proxemic.data import ImageSet, ImageSource, OwnImages, RowGroups
from proxemic.data.embeddings import (
    LabelledEmbeddings,
    RowLabels,
    check_embedding_name,
    read_embeddings,
    write_embeddings,
)
from proxemic.data.sources import join_query_gallery, load_query_gallery
from proxemic.data.tables import NOTE_COLUMNS, SplitName, unused_columns
from proxemic.errors import UserError
from proxemic.models import is_model
from proxemic.recipes.reader import own_backbone, read_evaluation, read_evaluation_config
from proxemic.training import EvaluationConfig, RunDirectory
from proxemic.training.embed import embed_images, load_embedder
from proxemic.training.run_directory import fingerprint

__all__ = ["judge"]


def judge(targets: list[Path], arguments: argparse.Namespace, flags: list[str]) -> list[Judged]:
    """Judge one or two targets, the second as the first."""
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
    for labels in (arguments.labels, arguments.gallery_labels):
        if labels is not None and labels.suffix.lower() != ".npy" and (unused := unused_columns(labels, NOTE_COLUMNS)):
            print(f"{labels} has columns that are not used: {', '.join(unused)}.", file=sys.stderr)
    judged = [judge_rows(path, "all", content, config) for path, content in zip(targets, contents, strict=True)]
    return [judge_by_category(each) for each in judged] if arguments.by else judged


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
        ("sequence", _texts(one.rows.sequences), _texts(other.rows.sequences)),
        ("category", _texts(one.rows.categories), _texts(other.rows.categories)),
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


def _texts(groups: RowGroups | None) -> tuple[str | None, ...] | None:
    return None if groups is None else groups.texts()


def _flags(content: LabelledEmbeddings) -> list[list[bool]]:
    """Whether each row asks, and whether it answers; without flags all do both."""
    everyone = [True] * len(content.embeddings)
    flags = (content.rows.is_query, content.rows.is_gallery)
    return [everyone if each is None else each.tolist() for each in flags]


def _judge_models(targets: list[Path], arguments: argparse.Namespace, flags: list[str]) -> list[Judged]:
    for name in ("labels", "gallery_labels"):
        if getattr(arguments, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} is for embeddings, but {targets[0]} is a model.")
    task = _task(targets, arguments, flags)
    for note in task.notes:
        print(note, file=sys.stderr)
    if arguments.by and task.images.categories is None:
        raise UserError(
            "--by category needs categories, but these images have none: give --data.root a table with a column "
            "category."
        )
    seen = trained_classes(targets, task.images.class_names)
    device = torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    judged = []
    for path in targets:
        model, preprocessing = load_embedder(path, own_backbone(path))
        embeddings = embed_images(
            model.to(device), task.images, preprocessing, batch_size=task.config.batch_size, workers=task.workers
        )
        content = LabelledEmbeddings.of_images(embeddings, task.images)
        if arguments.save_embeddings is not None:
            bare = arguments.save_embeddings.suffix.lower() == ".npy"
            write_embeddings(arguments.save_embeddings, LabelledEmbeddings(embeddings) if bare else content)
        whole = judge_rows(path, task.split, content, task.config)
        whole = judge_by_category(whole) if arguments.by else whole
        judged.append(judge_apart(whole, content, seen, task.config))
    return judged


@dataclass(frozen=True)
class _Task:
    """The images to judge, what they are, what the user should know of them, and how to judge."""

    images: ImageSet
    split: str
    notes: Sequence[str]
    config: EvaluationConfig
    workers: int


def _task(targets: list[Path], arguments: argparse.Namespace, flags: list[str]) -> _Task:
    run = RunDirectory(targets[0]) if is_run(targets[0]) else None
    recipe = run and run.recipe
    given = [flag for flag in flags if flag.startswith("--data")]
    if (arguments.query is None) != (arguments.gallery is None):
        raise UserError("--query and --gallery are folders or tables of images, and go together: give both.")
    if arguments.query is not None:
        if given or arguments.split:
            raise UserError(f"{given[0] if given else '--split'} has no meaning beside --query and --gallery.")
        # The data of a recipe are not looked at, but without one there must be some.
        request = read_evaluation(recipe, flags if recipe else [f"--data.root={arguments.query}", *flags])
        images, notes = load_query_gallery(arguments.query, arguments.gallery, strict=arguments.strict)
        return _Task(images, "all", notes, request.evaluation, request.batches.workers)
    if arguments.strict:
        flags = [*flags, "--data.strict", "true"]
    request = read_evaluation(recipe, flags)
    source, own = request.data, None
    if run is not None:
        own = run.locate(read_evaluation(recipe).data)
        if not any(flag == "--data" or flag.startswith(("--data.root", "--data=")) for flag in given):
            source = run.locate(source)
    return _Task(*_choose(source, own, arguments.split, targets), request.evaluation, request.batches.workers)


def _choose(
    source: ImageSource, own: ImageSource | None, split: SplitName | Literal["all"] | None, targets: list[Path]
) -> tuple[ImageSet, str, Sequence[str]]:
    """The images, what they are, and notes."""
    same, moved, given = type(own) is type(source), None, False
    if isinstance(own, OwnImages) and isinstance(source, OwnImages):
        same = _place(own) == _place(source)
        if not same and split is None:
            moved = find_moved(source, RunDirectory(targets[0]))
    if isinstance(source, OwnImages) and not same and moved is None and split != "all":
        given = source.gives_splits()
        split = split or ("test" if given else "all")
    split = split or "test"
    if split == "all":
        if not isinstance(source, OwnImages):
            raise UserError(
                f"--split all is for folders and tables of images: {type(source).__name__} has train and test."
            )
        images, notes = source.load_unsplit()
        return images, split, notes
    if given and isinstance(source, OwnImages):
        images, notes = source.load_split(split)
        return images, split, notes
    splits = moved or source.load()
    for path in targets:
        # Split anew, other images may put classes of the training into the test.
        if (same or moved) and is_run(path):
            RunDirectory(path).check_images(fingerprint(splits))
    images = splits.test_images if split == "test" else {"train": splits.train, "validation": splits.validation}[split]
    if images is None:
        raise UserError("There are no validation classes: data.validation_fraction is 0.")
    note = (
        f"The images are taken for those of {targets[0]} in another place, as they have its classes with as many "
        "images of each: its test classes are judged. If they are others, give --split all."
    )
    return images, split, (*splits.notes, note) if moved else splits.notes


def _place(source: OwnImages) -> Path | None:
    return source.root and Path(source.root).resolve()
