"""The commands that use a trained network on photos and galleries."""

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from proxemic.addresses import is_pretrained_name, without_password
from proxemic.allocator import share_one_heap
from proxemic.cli.derive import options_of
from proxemic.cli.notes import say, say_unreadable
from proxemic.conditions import read_conditions
from proxemic.errors import UserError
from proxemic.tables import counted

_TOKEN = "PROXEMIC_TOKEN"
_INTERRUPTED = 130  # as a shell reports Ctrl-C
_SHOWN = 10


@options_of("proxemic.retrieval:embed_to_file")
def embed(sources: Sequence[str], /, *, out: str, model: str | None = None, **options: Any) -> None:
    """Embed images, with or without labels, and write the embeddings to a file of vectors.

    After an interruption, the same command continues; vectors then differ by at most 1e-6 from those of a single pass.
    Under torchrun, several processes of a machine share the work: torchrun --nproc-per-node 8 -m proxemic embed ...

    Args:
        sources (SOURCE): Folders, tables (.csv, .tsv, .parquet) with the column path, images, patterns such as
            'photos/**/*.jpg', or .txt files with a path on each line; for a model that is only a head, one file of
            vectors.
        out (FILE)
        model (MODEL): A run, a model.safetensors, an .onnx file with a .json next to it; or a pretrained network:
            timm:NAME, hf:NAME, such as hf:facebook/dinov2-small, or hf:FOLDER (default:
            timm:tf_efficientnet_lite0).
        ray_address (ADDRESS)
    """
    from proxemic.retrieval.vectors.bulk import embed_to_file
    from proxemic.runs.precision import computed_in

    try:
        written = embed_to_file(sources, out, model, report=say, **options)
    except KeyboardInterrupt:
        raise UserError("Stopped: what was embedded is kept, and the same command continues.") from None
    if written is not None:
        rate = f", {written.embedded / written.seconds:,.0f} images/s" if written.embedded else ""
        print(f"{written.rows:,} x {written.dim} in {written.path}{computed_in(written.precision)}{rate}")


@options_of("proxemic.retrieval:calibrate", but=["keep"])
def calibrate(
    model: str | None = None,
    /,
    *,
    gallery: str | None = None,
    data_root: str | None = None,
    format: Literal["table", "json", "csv", "markdown"] = "table",
    **options: Any,
) -> None:
    """Learn from held-out classes how near a photo must be to be recognised.

    The model must not have been trained on these classes: take a run's validation classes, or others. Each photo is a
    query among the photos of all other classes. If its nearest photo there is within the threshold, that is a false
    accept. The threshold is kept in the gallery. Without --gallery, it is kept in calibration.json next to the run or
    the model file, where proxemic recognize finds it; for a pretrained network by name, it is only printed.

    Args:
        model (MODEL): A run directory, a model.safetensors, an .onnx file, timm:NAME, or hf:NAME; not needed with
            --gallery, which knows its model.
        gallery (GALLERY): Learn the threshold for this gallery, at its size: each of its classes in turn is used as the
            unknown class, or the classes of --data.root are.
        data_root (SOURCE): Take other labelled photos, a folder or a table, or a file of labelled vectors. Training
            classes of the run are left out; so are its test classes, if there are others. With --gallery, photos of
            unknown classes, with or without labels.
        rate (RATE)
    """
    say(f"Calibrating {model if gallery is None else without_password(gallery)}")
    from proxemic.retrieval import calibrate
    from proxemic.retrieval.searching.thresholds import calibration_file

    calibration = calibrate(model, data_root, gallery=gallery, report=say, **options)
    print(calibration.text(format))
    if format == "table":
        if gallery is not None:
            print(f"Kept in {without_password(gallery)}")
        elif model is not None and is_pretrained_name(model):
            print("Not kept: a threshold belongs to the gallery on which it was learnt (--gallery)")
        elif model is not None:
            print(f"Kept in {calibration_file(model)}")


@options_of("proxemic.retrieval:clean")
def clean(source: Sequence[str], /, *, model: str | None = None, **options: Any) -> None:
    """Find wrong labels, duplicates and outliers among photos.

    The findings are written as tables and as a page with the photos, worst first; nothing is removed or changed. The
    model may have been trained on the same labels. Duplicates are exact or near copies, also across splits (a table's
    column split, or folders train, validation and test). Copies that are recompressed, resized, brightened or mirrored
    are found; cropped or rotated ones are not. Photos without a label are only examined for duplicates and outliers.

    Args:
        source (SOURCE): Folders of photos, tables (.csv, .tsv, .parquet) with the column path and perhaps label and
            split, photos, patterns, .txt files with a path on each line; or one file of vectors (.parquet, .npy).
        model (MODEL): A run, a model.safetensors, an .onnx file, timm:NAME, or hf:NAME (default for photos:
            timm:tf_efficientnet_lite0).
        out (DIR): Write labels.csv, duplicates.csv, outliers.csv, unreadable.csv and index.html into it.
    """
    say("Looking at", *source)
    from proxemic.retrieval.curation import clean
    from proxemic.retrieval.curation.findings import NOT_FOUND
    from proxemic.tables import Table, terminal_text

    found = clean(source, model, report=say, **options)
    print(found.summary())
    suspects = [[item.path, item.label, item.suggested, f"{item.score:.3f}"] for item in found.labels]
    duplicates = []
    for duplicate in found.duplicates:
        across = f"{duplicate.split} repeats {duplicate.split_of}" if duplicate.across_splits else ""
        differ = f"{duplicate.label} and {duplicate.label_of}" if duplicate.labels_differ else ""
        duplicates.append([duplicate.path, duplicate.of, duplicate.kind, "; ".join(filter(None, [across, differ]))])
    outliers = [[outlier.path, outlier.label, f"{outlier.score:.1f}"] for outlier in found.outliers]
    tables = []
    for title, columns, rows, align in (
        ("Suspected labels", ["path", "label", "suggested", "score"], suspects, "lllr"),
        ("Duplicates", ["path", "of", "kind", ""], duplicates, "llll"),
        ("Outliers", ["path", "label", "score"], outliers, "llr"),
    ):
        if rows:
            notes = [f"{len(rows) - _SHOWN:,} more"] if len(rows) > _SHOWN else []
            notes += [NOT_FOUND] if title == "Duplicates" else []
            tables.append(Table(columns, rows[:_SHOWN], title, notes, align))
    if tables:
        print(f"\n{terminal_text(tables)}")


@options_of("proxemic.retrieval:cluster")
def cluster(source: Sequence[str], /, *, model: str | None = None, **options: Any) -> None:
    """Group photos that have no labels.

    The groups are written as a table, or as a folder of links with a folder for each group. If photos have labels,
    the agreement of the groups with them is printed.

    Args:
        source (SOURCE)
        model (MODEL): A run, a model.safetensors, an .onnx file, timm:NAME, or hf:NAME (default for photos:
            timm:tf_efficientnet_lite0).
        out (FILE.csv|DIR): A table with the columns path, cluster (-1: none) and distance to the medoid; or a new
            folder of links.
    """
    say("Looking at", *source)
    from proxemic.retrieval.curation.clustering import cluster

    print(cluster(source, model, report=say, **options).summary())


@options_of("proxemic.retrieval:export")
def export(model: str, /, *, to: Literal["onnx", "torch"] = "onnx", out: str | None = None, **options: Any) -> None:
    """Export a model as an ONNX file or a program of torch, with a model card.

    The preprocessing (NAME.json) and the model card (NAME.md) are written next to the exported file. First, the export
    is compared with the model on images: if embeddings differ by more than 1e-4, or Recall@1 differs, nothing is
    written. For --half and --int8, the loss of Recall@1 is printed.

    Args:
        model (MODEL): A run directory, a model.safetensors, timm:NAME, or hf:NAME.
        out (FILE)
        source (SOURCE): Compare on these labelled images, a folder or a table, not on the run's test images.
        most_images: Compare on about N images, of whole classes (default: on all).
        licence (NAME): The license for the model card, as hubs name it, such as mit or cc-by-nc-4.0.
    """
    say(f"Exporting {model}")
    from proxemic.retrieval import export

    print(export(model, to, out, report=say, **options).text())


@options_of("proxemic.retrieval:search_gallery")
def search(
    gallery: str,
    query: Sequence[str] = (),
    /,
    *,
    text: Sequence[str] = (),
    where: Sequence[str] = (),
    format: Literal["table", "json", "csv"] = "table",
    html: Path | None = None,
    png: Path | None = None,
    model: str | None = None,
    **options: Any,
) -> None:
    """Find the photos of a gallery that are nearest to other photos, or to a text.

    A plain folder of photos can be searched without a gallery: its vectors are kept in the user's cache (proxemic
    cache). Queries are photos, vectors or texts. Unreadable queries are listed; the exit code is 2 if none is readable.

    Args:
        text (TEXT)
        where (COLUMN=VALUE): A condition on hits, such as label=shoe; may be repeated. Values of one column are
            alternatives; different columns must all match; label= selects hits without a label.
        html: Also write a contact sheet: one web page, .html.
        png: Also write a contact sheet as an image, .png.
    """
    conditions = read_conditions(where, "--where")
    sheets = {".html": html, ".png": png}
    for ending, path in sheets.items():
        if path is not None and path.suffix.lower() != ending:
            raise UserError(f"--{ending[1:]} is {path}, but must end in {ending}.")
    say("Searching", gallery)
    began = time.perf_counter()  # importing torch is part of the wait
    from proxemic.retrieval import open_gallery, search_gallery

    if any(sheets.values()):
        from proxemic.retrieval.searching.contact_sheet import check_sheet

        for path in sheets.values():
            check_sheet(path, query)
    opened = open_gallery(gallery, model, report=say)
    result = search_gallery(opened, *query, text=text, where=conditions, **options)
    say_unreadable(result.unreadable, "query", "queries")
    if not any(answer.hits for answer in result.answers):
        lacking = "no photos that meet the conditions" if len(opened) else "no photos: add some first"
        say(f"{opened.store.address} has {lacking}")
    print(result.text(format))
    made = [
        f"{counted(count, 'query', 'queries')} embedded by {engine}" for engine, count in result.embedded_by.items()
    ]
    seconds = f"{time.perf_counter() - began:.1f} seconds"
    say("; ".join([f"Searched {counted(len(opened), 'vector')} in {seconds}", *made]))
    for path in filter(None, sheets.values()):
        from proxemic.retrieval import write_contact_sheet

        write_contact_sheet(result, path)
        say(f"{path} shows them")


@options_of("proxemic.retrieval:recognize")
def recognize(
    gallery: str,
    query: Sequence[str],
    /,
    *,
    format: Literal["table", "json", "csv"] = "table",
    model: str | None = None,
    **options: Any,
) -> None:
    """Label photos by the nearest labelled photos of a gallery, or report them as unknown.

    A photo gets the label of the nearest labelled photo if that is within the threshold, which proxemic calibrate has
    learnt for the gallery or its run, or which you give. Queries with labels are counted as right, wrong or unknown.
    Unreadable queries are listed; the exit code is 2 if no query is readable.
    """
    say("Recognising by", gallery)
    from proxemic.retrieval import Gallery, recognize

    found = recognize(Gallery.open(gallery, model), *query, **options)
    say_unreadable(found.unreadable, "query", "queries")
    for note in found.notes:
        say(note)
    print(found.text(format))


@options_of("proxemic.retrieval:improve_gallery")
def improve(gallery: str, /, *, out: str | None = None, **options: Any) -> None:
    """Create a better gallery from the labels of a gallery, in seconds.

    A head on top of the gallery's vectors is whitened, which needs no labels, and trained on the labels. Only the steps
    that help on held-out photos are kept. The given gallery is unchanged, and no photo is embedded again. Two labels
    per class help a little, five or more help much. If you correct labels with gallery relabel, improve again.

    Args:
        out (DIR): A new folder for the better gallery and its model (default: only measure).
    """
    say("Improving", gallery)
    from proxemic.retrieval import improve_gallery

    found = improve_gallery(gallery, out, report=say, **options)
    print(found.text())
    if found.address is not None:
        print(f"Made {found.address}: search it like any other gallery; it contains its model")


@options_of("proxemic.serve:serve")
def serve(
    gallery: str,
    /,
    *,
    token: str | None = None,
    max_bytes: int = 20_000_000,
    max_pixels: int = 50_000_000,
    max_seconds: float = 30,
    max_queue: int = 64,
    **options: Any,
) -> None:
    """Show a gallery in a browser, and answer searches over HTTP.

    Drop, paste or choose a photo on the page to see its neighbours; /openapi.json describes the HTTP interface. Only
    this machine can reach the server, unless --host is given. With --review, another page shows suspected labels,
    duplicates and outliers, and people decide about them; proxemic gallery apply then corrects the labels.

    Args:
        token: A secret that clients must send, 16 characters or more; the variable PROXEMIC_TOKEN hides it from other
            users of this machine.
        names (NAME): A further host name of the server; may be repeated.
        max_bytes: Largest size of a request, in bytes.
        max_pixels: Largest number of pixels of a query, and of all photos that are decoded at the same time.
        max_seconds (S): Time limit in seconds to receive a request, and to answer it.
        max_queue: Largest number of waiting requests.
    """
    say("Opening", gallery)
    before = signal.getsignal(signal.SIGINT)

    def report(line: str) -> None:
        signal.signal(signal.SIGINT, before)
        say(line)

    # Python prints a traceback of Ctrl-C in the middle of some imports, and goes on. There is nothing to lose yet.
    signal.signal(signal.SIGINT, lambda *_: os._exit(_INTERRUPTED))
    try:
        from proxemic.serve import Limits, serve

        share_one_heap()
        limits = Limits(bytes=max_bytes, pixels=max_pixels, seconds=max_seconds, queue=max_queue)
        token = token or os.environ.get(_TOKEN) or None
        serve(gallery, token=token, limits=limits, report=report, **options)
    finally:
        signal.signal(signal.SIGINT, before)
