"""Evaluate models on the images of their run, on another folder or table, or on queries against a gallery."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from proxemic.data import ImageSet, ImageSource, Splits
from proxemic.data.formats.tables import SplitName
from proxemic.data.sources import OwnSource, OwnVectors, load_query_gallery
from proxemic.data.sources.own_source import NewImages
from proxemic.data.vectors import Vectors
from proxemic.errors import UserError
from proxemic.models import EmbeddingModel, read_checksum, takes_vectors
from proxemic.recipes.reader import Evaluation, own_backbone, read_evaluation
from proxemic.runs.embed import embed_images, load_embedder, pick_device
from proxemic.studies.targets import is_run
from proxemic.training import RunDirectory


def embed_models(
    paths: Sequence[Path], images: ImageSet, request: Evaluation, report: Callable[[str], object]
) -> list[ImageSet]:
    """Embed the images of `choose_images` with each model."""
    embedded, precision = list[ImageSet](), request.evaluation.precision
    for path in paths:
        model, preprocessing = load_embedder(path, own_backbone(path))
        check_made_by(path, model, images, report)
        embeddings = embed_images(
            model.to(pick_device("auto")),
            images,
            preprocessing,
            batch_size=request.evaluation.batch_size,
            workers=request.batches.workers,
            precision=precision,
            checksum=read_checksum(path) if model.config.custom_backbone is None else None,
        )
        rows = replace(images.rows, embeddings=embeddings, precision=precision)
        embedded.append(replace(images, rows=rows))
    return embedded


def trained_labels(paths: Sequence[Path], images: ImageSet) -> list[int] | None:
    """Return the labels of the classes on which a model was trained, by name; None if these are unknown."""
    classes = [RunDirectory.of_model(path).read_classes() for path in paths]
    if None in classes:
        return None
    names = {name for class_ in classes if class_ is not None for name in class_.trained}
    return [label for label, name in enumerate(images.class_names) if name in names]


def check_made_by(path: Path, model: EmbeddingModel, images: ImageSet, report: Callable[[str], object]) -> None:
    """Warn if the vectors come from another model than the vectors on which the head was trained."""
    made_by, known = images.pixels.made_by if isinstance(images.pixels, Vectors) else None, model.config.input_model
    if made_by is not None and known is not None and made_by != known:
        report(
            f"WARNING: {path} was trained on vectors of the model {known}, but these come from {made_by}: the figures "
            "are meaningless unless the two are the same model."
        )


def choose_images(
    paths: Sequence[Path],
    split: SplitName | Literal["all"] | None,
    query: Path | None,
    gallery: Path | None,
    *,
    labels: Path | None = None,
    gallery_labels: Path | None = None,
    strict: bool,
    overrides: dict[str, Any],
    new_images: NewImages = "leave",
) -> tuple[ImageSet, str, Sequence[str], Evaluation]:
    """Load the images to evaluate models on; return also their split, notes for the user, and the settings."""
    run = RunDirectory(paths[0]) if is_run(paths[0]) else None
    recipe = run and run.recipe
    if run is not None:
        run.check_run()
    if "evaluation.precision" not in overrides and "precision" not in (overrides.get("evaluation") or ()):
        # Not the precision of the first run's recipe, which may differ from the second run's.
        overrides = _added(overrides, "evaluation.precision", "32-true")
    data_keys = [key for key in overrides if key.startswith("data")]
    if (query is None) != (gallery is None):
        raise UserError("--query and --gallery must be given together: give images, or files of vectors, for both.")
    for name, file in {"labels": labels, "gallery-labels": gallery_labels}.items():
        if file is not None and (query is None or not takes_vectors(paths[0])):
            raise UserError(
                f"--{name} is for embeddings, but {paths[0]} is a model: leave it out, or give a model of vectors with "
                "--query and --gallery."
            )
    if query is not None and gallery is not None:
        given = [*data_keys, *(["split"] if split else []), *(["new-images"] if new_images == "join" else [])]
        if given:
            raise UserError(f"--{given[0]} has no meaning with --query and --gallery.")
        # The data of a recipe is not used, but without a recipe there must be some.
        request = read_evaluation(recipe, overrides if recipe else _added(overrides, "data.root", str(query)))
        if _take_vectors(paths, (query, gallery)):
            asked, searched = OwnVectors(query, labels=labels), OwnVectors(gallery, labels=gallery_labels)
            images, notes = load_query_gallery(asked, searched)
        else:
            images, notes = load_query_gallery(query, gallery, strict=strict)
        return images, "all", notes, request
    if strict:
        overrides = _added(overrides, "data.strict", "true")
    request = read_evaluation(recipe, overrides)
    source, trained_on = request.data, None
    if run is not None:
        trained_on = run.locate(read_evaluation(recipe).data)
        if "data" not in overrides and not any(key.startswith("data.root") for key in overrides):
            source = run.locate(source)
            run.check_root(source)
    return *_load(source, trained_on, split, paths, new_images), request


def _take_vectors(paths: Sequence[Path], files: Sequence[Path]) -> bool:
    """Return whether the models take vectors; `UserError` if they differ, or the files hold the wrong kind."""
    first, *others = (takes_vectors(path) for path in paths)
    if any(other != first for other in others):
        kinds = ("vectors", "images") if first else ("images", "vectors")
        raise UserError("{0} takes {2}, but {1} takes {3}: evaluate them one by one.".format(*paths, *kinds))
    for file in files:
        suffix = file.suffix.lower()
        if first and suffix not in (".parquet", ".npy"):
            raise UserError(f"{paths[0]} takes vectors, but {file} holds none: give a .parquet or .npy.")
        if not first and suffix == ".npy":
            raise UserError(f"{paths[0]} takes images, but {file} holds vectors: give a folder or a table of images.")
    return first


def _added(overrides: dict[str, Any], key: str, value: str) -> dict[str, Any]:
    return type(overrides)({**overrides, key: value})  # flags stay flags, so that messages name them


def _load(
    source: ImageSource,
    trained_on: ImageSource | None,
    split: SplitName | Literal["all"] | None,
    paths: Sequence[Path],
    new_images: NewImages,
) -> tuple[ImageSet, str, Sequence[str]]:
    """Return the images, their split, and notes; ``trained_on`` is the source of the first run's images."""
    run, same, moved, given = RunDirectory.of_model(paths[0]), type(trained_on) is type(source), None, False
    if isinstance(source, OwnSource):
        if isinstance(trained_on, OwnSource):
            places = [value.root and Path(value.root).resolve() for value in (trained_on, source)]
            same = places[0] == places[1]
            moved = None if same or split else _moved_splits(source, run, new_images)
        if not same and moved is None and split != "all":
            given = source.gives_splits()
            split = split or ("test" if given else "all")
        if new_images == "join" and (split == "all" or not (same or moved)):
            raise UserError(
                "--new-images adds images to a split of a run, but no such split is evaluated: leave it out."
            )
        if split and (split == "all" or given):
            images, notes = source.load_unsplit() if split == "all" else source.load_split(split)
            return images, split, notes
    elif split == "all":
        raise UserError(f"--split all is for folders and tables of images: {type(source).__name__} has train and test.")
    split, splits = split or "test", moved or (run.load(source, new_images) if same else source.load())
    for path in paths[1:]:
        # The other run's split could put its training classes into the test.
        if (same or moved) and is_run(path) and not RunDirectory(path).begun_like(run):
            raise UserError(
                f"{path} and {run.path} were begun with other images, or another split of them: evaluate them one by "
                "one, or on other images with --data.root."
            )
    images = splits.test_images if split == "test" else {"train": splits.train, "validation": splits.validation}[split]
    if images is None:
        raise UserError("There are no validation classes: data.validation_fraction is 0.")
    note = (
        f"The images have the names and classes of those of {paths[0]}: they are taken for the same images in another "
        "place, and the test classes are evaluated. If they are other images, give --split all."
    )
    return images, split, (*splits.notes, note) if moved else splits.notes


def _moved_splits(source: OwnSource, run: RunDirectory, new_images: NewImages) -> Splits | None:
    """Return the splits of a run if these may be its moved images: all are there, by name and class."""
    classes = run.read_classes()
    if classes is None or source.root is None:
        return None
    names = {*classes.train, *(classes.validation or ()), *(classes.test or ())}
    if not names <= {*source.class_names()}:
        return None  # without reading the images
    try:
        return run.load(source, new_images, complete=True)
    except (UserError, ValueError):
        return None
