"""Group unlabelled images by their embeddings."""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int64
from torch import Tensor

from proxemic.data import FilePixels
from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.files import check_folder, readable, working_folder, write_csv, write_errors
from proxemic.metrics import Distance, PartitionAgreement, pair_distances, partition_agreement
from proxemic.metrics.clustering import unit_rows
from proxemic.outputs import check_output, has_columns
from proxemic.retrieval.searching.thresholds import Calibration, calibration_file
from proxemic.retrieval.vectors.embedder import Embedder
from proxemic.retrieval.vectors.embedding import Source, gather, open_with_model, report_embedded
from proxemic.runs.pretrained import is_cached


def average_linkage(
    x: Float[Tensor, "rows dim"], distance: Distance
) -> tuple[Int64[np.ndarray, "merges 2"], Float64[np.ndarray, " merges"]]:
    """Repeatedly merge the two groups of rows with the smallest mean distance until one group is left.

    Returns:
        The two groups that each step merges, and their distance. Groups are numbered as in scikit-learn: first the
        rows, then the results of the steps.
    """
    with optional_dependency("train"):
        from sklearn.cluster import AgglomerativeClustering
    if len(x) < 2:
        return np.empty((0, 2), np.int64), np.empty(0)
    if distance == "cosine" and (zero := (x == 0).all(1)).any():
        raise ValueError(f"vector {int(zero.nonzero()[0])} is zero, and has no cosine distance: leave it out.")
    made = AgglomerativeClustering(
        n_clusters=None,  # pyright: ignore[reportArgumentType]
        distance_threshold=0,
        linkage="average",
        metric=distance,
    )
    made.fit(x.double().numpy())
    return np.asarray(made.children_, np.int64), np.asarray(made.distances_, np.float64)


def cut(
    merges: Int64[np.ndarray, "merges 2"], distances: Float64[np.ndarray, " merges"], threshold: float
) -> Int64[Tensor, " rows"]:
    """Return the group of each row after all merges below a threshold.

    >>> cut(np.array([[0, 1], [2, 3]]), np.array([0.1, 0.5]), 0.2).tolist()
    [1, 1, 0]
    """
    rows = len(merges) + 1
    group = np.arange(2 * rows - 1)
    for step in reversed(range(len(merges))):  # from the whole down to the rows
        if distances[step] < threshold:
            group[merges[step]] = group[rows + step]
    return torch.from_numpy(np.unique(group[:rows], return_inverse=True)[1])


def best_cut(
    merges: Int64[np.ndarray, "merges 2"], distances: Float64[np.ndarray, " merges"], labels: Int64[Tensor, " rows"]
) -> float:
    """Find the threshold whose groups agree best with classes, by the pairwise F1.

    >>> best_cut(np.array([[0, 1], [2, 3]]), np.array([0.1, 0.5]), torch.tensor([0, 0, 1]))
    0.3
    """
    groups = [Counter([label]) for label in labels.tolist()]
    true_pairs = sum(count * (count - 1) // 2 for count in Counter(labels.tolist()).values())
    right = joined = 0
    best, threshold = 0.0, 0.0
    for step, (one, other) in enumerate(merges.tolist()):
        small, large = sorted((groups[one], groups[other]), key=len)
        right += sum(count * large[label] for label, count in small.items())
        joined += small.total() * large.total()
        groups.append(small + large)
        groups[one] = groups[other] = Counter()
        score = 2 * right / (joined + true_pairs)
        if score > best:
            upper = distances[step + 1] if step + 1 < len(distances) else distances[step]
            best, threshold = score, float(distances[step] + upper) / 2
    return threshold


Method = Literal["hdbscan", "agglomerative", "kmeans"]
MOST = 20_000  # most rows of agglomerative clustering: 1.6 GB of distances
_LONGEST = 200  # most bytes of a link's name
_COLUMNS = ("path", "cluster", "distance")


@dataclass(frozen=True, eq=False)
class Clusters:
    """Images in groups.

    Args:
        names: The names of the images.
        numbers: The cluster of each image, from 1, the largest first; -1 for images in no cluster.
        distances: Distance of each image to the medoid of its cluster; NaN for images in no cluster.
        medoids: The row of each cluster's medoid, the image nearest to the mean of the cluster.
        threshold: The threshold of agglomerative clustering; None for other methods.
        agreement: Agreement with the labels; None if no image has a label.
        unreadable: Why further images could not be read, by their names.
        pixels: The images; None for vectors.
    """

    names: tuple[str, ...]
    numbers: Int64[Tensor, " rows"]
    distances: Float32[Tensor, " rows"]
    medoids: tuple[int, ...]
    threshold: float | None
    agreement: PartitionAgreement | None
    unreadable: Mapping[str, str]
    pixels: FilePixels | None

    def summary(self) -> str:
        """Count the clusters in a sentence, warn if most images are in none, and report the agreement with labels."""
        none = int((self.numbers < 0).sum())
        sizes = self.numbers[self.numbers > 0].bincount()[1:]
        of = f" of {int(sizes.min()):,} to {int(sizes.max()):,}" if len(sizes) else ""
        text = f"{len(self.names):,} photos: {len(self.medoids):,} clusters{of}, {none:,} photos in none."
        if none > len(self.names) / 2:
            text += (
                " Most photos are in no group: give the number of groups (--groups), a larger threshold "
                "(--threshold) or a smaller --min-size, or learn a threshold from labelled photos with proxemic "
                "calibrate."
            )
        if (found := self.agreement) is not None:
            text += (
                f" With the labels: NMI {found.nmi:.4f}, AMI {found.ami:.4f}, pairwise F1 {found.f1:.4f} (precision "
                f"{found.precision:.4f}, recall {found.recall:.4f})."
            )
        return text

    def write(self, out: str | os.PathLike[str]) -> Path:
        """Write a table if the name ends in .csv, otherwise a new folder of links to the images.

        The table has the columns ``path``, ``cluster`` and ``distance``. The folder contains ``cluster-0001`` and so
        on, with numbered links, the medoid first, and ``none``.

        Args:
            out: The .csv file, or a new folder.

        Returns:
            The path.

        Raises:
            UserError: If the folder exists already, there are no images to link to, or it cannot be written.
        """
        out = Path(out)
        check_folder(out)
        if out.suffix.lower() == ".csv":
            check_output(out, has_columns(_COLUMNS))
            cells = zip(self.names, self.numbers.tolist(), self.distances.tolist(), strict=True)
            rows = [[name, number, f"{apart:.6g}" if number > 0 else None] for name, number, apart in cells]
            write_csv(out, _COLUMNS, rows)
        else:
            self._write_links(out)
        return out

    def _write_links(self, out: Path) -> None:
        _check_new(out)
        if self.pixels is None:
            raise UserError(f"--out {out} is a folder for links, but vectors are not photos: name a .csv file.")
        if remote := next((path for path in self.pixels.paths if isinstance(path, str)), None):
            raise UserError(
                f"--out {out} is a folder for links, but {remote} is not a file on this machine: name a .csv file."
            )
        with working_folder(out) as temporary, write_errors(out):
            for number in (*range(1, len(self.medoids) + 1), -1):
                rows = (self.numbers == number).nonzero()[:, 0]
                folder = temporary / (f"cluster-{number:04d}" if number > 0 else "none")
                if len(rows) or number > 0:
                    folder.mkdir(parents=True)
                order = rows[self.distances[rows].argsort(stable=True)].tolist()
                for place, row in enumerate(order, start=1):
                    path = Path(self.pixels.paths[row]).absolute()
                    (folder / f"{place:05d}-{_safe(path)}").symlink_to(path)
            temporary.replace(out)


def cluster(
    sources: Source,
    model: Embedder | str | os.PathLike[str] | None = None,
    *,
    method: Method | None = None,
    groups: int | None = None,
    min_size: int | None = None,
    threshold: float | None = None,
    rate: float | None = None,
    out: str | os.PathLike[str] | None = None,
    batch_size: int = 64,
    workers: int = 0,
    report: Callable[[str], object] = print,
) -> Clusters:
    """Group images whose embeddings are near to each other.

    K-means divides all images into a given number of groups. Agglomerative clustering, with average linkage, joins
    groups as long as their mean distance is below a threshold; it holds the distances of all pairs in memory. HDBSCAN
    needs neither a number nor a threshold, finds groups of any density, and leaves out images in no group.

    Args:
        sources: One or several sources of `list_pictures`, or one file of vectors.
        model: An `Embedder`, or its path or name. None takes EfficientNet-Lite0 with ImageNet's weights for images, and
            no model for vectors.
        method: ``kmeans``, ``agglomerative`` or ``hdbscan``. None takes k-means if the number of groups is given,
            agglomerative clustering if a threshold is given or was learnt by `calibrate` and there are no more than
            20,000 images, or else HDBSCAN.
        groups: The number of groups of k-means.
        min_size: Fewest images of a group; smaller groups are dissolved. None takes 5, and 1 for k-means.
        threshold: Mean distance up to which agglomerative clustering joins groups; None takes the threshold that
            `calibrate` learnt for groups.
        rate: Take the threshold that `calibrate` learnt for this false accept rate instead, which makes smaller groups.
        out: Where to write the groups, see `Clusters.write`; None writes nothing.
        batch_size: Images per batch of the network.
        workers: Processes that read and prepare images.
        report: Called with notes for the user.

    Returns:
        The clusters.

    Raises:
        UserError: If nothing can be read, there is no threshold, there are too many images for agglomerative
            clustering, or `out` cannot be written.
        ValueError: If an argument is out of its range.
        ImportError: Without scikit-learn, of the extra ``train``.

    >>> import tempfile
    >>> import numpy as np
    >>> path = Path(tempfile.mkdtemp()) / "points.npy"
    >>> angles = np.concatenate([np.linspace(0, 0.1, 8), np.linspace(2, 2.1, 6)])
    >>> np.save(path, np.stack([np.cos(angles), np.sin(angles)], axis=1))
    >>> cluster(path, method="agglomerative", threshold=0.1).numbers.tolist()
    [1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]
    """
    if method not in (None, *get_args(Method)):
        raise ValueError(f"method is {method!r}, but must be {', '.join(get_args(Method))} or None.")
    if min_size is not None and min_size < (2 if groups is None else 1):
        raise ValueError(f"min_size is {min_size}, but must be 2 or more.")
    if threshold is not None and not 0 < threshold < float("inf"):
        raise ValueError(f"threshold is {threshold}, but must be a distance above 0.")
    if out is not None and Path(out).suffix.lower() == ".csv":
        check_output(out, has_columns(_COLUMNS), given_as="--out")
    elif out is not None:
        _check_new(Path(out))  # before the work
    opened, embedder = open_with_model(sources, model, report)
    is_chosen = method is not None or threshold is not None or rate is not None
    method, threshold = _settle(method, groups, threshold, rate, embedder, report)
    if method == "agglomerative" and is_chosen:
        count = sum(map(len, opened))
        if count > MOST:
            raise UserError(
                f"Agglomerative clustering holds the distances of all pairs, and takes {MOST:,} photos at most, but "
                f"there are {count:,}: take the method hdbscan, or cluster parts of them."
            )
    distance = "cosine" if embedder is None else embedder.distance
    rows = gather(opened, embedder, distance, batch_size=batch_size, workers=workers)
    assert rows.embeddings is not None
    x = torch.as_tensor(rows.embeddings)
    x = unit_rows(x) if distance == "cosine" else x
    for note in rows.notes:
        report(note)
    if rows.unreadable:
        report(f"{len(rows.unreadable):,} photos cannot be read, and are left out.")
    if method == "agglomerative" and len(x) > MOST:
        method, threshold = "hdbscan", None
        report(f"Agglomerative clustering takes {MOST:,} photos at most: HDBSCAN is used for {len(x):,}.")
    least = (5 if groups is None else 1) if min_size is None else min_size
    if groups is not None:
        raw = _kmeans(x, groups)
    elif threshold is not None:
        raw = cut(*average_linkage(x, distance), threshold)
    else:
        raw = _hdbscan(x, least)
    numbers = _by_size(raw, least)
    distances, medoids = _to_medoids(x, numbers, distance)
    labels, _ = rows.numbers("label")
    known = labels >= 0
    clusters = Clusters(
        tuple(rows.names),
        numbers,
        distances,
        medoids,
        threshold,
        partition_agreement(labels[known], numbers[known]) if known.any() else None,
        rows.unreadable,
        rows.pixels if isinstance(rows.pixels, FilePixels) else None,
    )
    report_embedded(embedder, rows, report)
    if out is not None:
        report(f"Written: {clusters.write(out)}")
    return clusters


def _settle(
    method: Method | None,
    groups: int | None,
    threshold: float | None,
    rate: float | None,
    embedder: Embedder | None,
    report: Callable[[str], object],
) -> tuple[Method, float | None]:
    """Choose the method, and the threshold of agglomerative clustering."""
    if (groups is not None or method == "kmeans") and (
        groups is None or method not in (None, "kmeans") or threshold is not None or rate is not None
    ):
        raise UserError("k-means takes the number of groups, and nothing else does: give --groups alone.")
    if groups is not None:
        return "kmeans", None
    if threshold is not None and rate is not None:
        raise UserError("A threshold and a false accept rate are given, which has its own: leave out one of them.")
    if method == "hdbscan" and (threshold is not None or rate is not None):
        raise UserError("HDBSCAN has no threshold: leave it out, or take the method agglomerative.")
    path = None if embedder is None or embedder.path is None or is_cached(embedder.path) else embedder.path
    is_calibrated = path is not None and calibration_file(path).is_file()
    if method == "hdbscan" or (method is None and threshold is rate is None and not is_calibrated):
        return "hdbscan", None
    if threshold is None:
        if embedder is None or path is None:
            raise UserError(
                "Agglomerative clustering needs a distance: give one (--threshold), or a run or gallery for which "
                "proxemic calibrate has learnt one (--model)."
            )
        calibration = Calibration.read(path, embedder.checksum)
        if calibration.distance != embedder.distance:
            raise UserError(f"The thresholds of {path} are on the {calibration.distance} distance: give --threshold.")
        if rate is None:
            threshold, why = calibration.grouping, "at which groups agree best with classes"
        else:
            threshold, why = calibration.threshold, f"for a false accept rate of {calibration.rate:g}"
            if (note := calibration.check_rate(rate)) is not None:
                report(note)
        report(f"Groups are joined up to a mean distance of {threshold:.4f}, {why}, {calibration.learnt()}.")
    return "agglomerative", threshold


def _kmeans(x: Float32[Tensor, "rows dim"], groups: int) -> Int64[Tensor, " rows"]:
    if not 1 <= groups <= len(x):
        raise UserError(f"--groups is {groups:,}, but must be from 1 to {len(x):,}, the number of photos.")
    with optional_dependency("train"):
        from sklearn.cluster import KMeans
        from sklearn.exceptions import ConvergenceWarning
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # equal images leave clusters empty
        made = KMeans(groups, n_init=3, random_state=0)  # pyright: ignore[reportArgumentType]
        return torch.from_numpy(made.fit_predict(x.numpy())).long()


def _hdbscan(x: Float32[Tensor, "rows dim"], min_size: int) -> Int64[Tensor, " rows"]:
    """Cluster by HDBSCAN; on unit vectors, Euclidean distances have the order of cosine distances."""
    with optional_dependency("train"):
        from sklearn.cluster import HDBSCAN
    if len(x) < min_size:
        return torch.full((len(x),), -1)
    if torch.allclose(x, x[:1], atol=1e-6):  # HDBSCAN never finds one group alone
        return torch.zeros(len(x), dtype=torch.int64)
    # Classes of images are small, many and close together: with scikit-learn's defaults, eom and min_samples equal to
    # min_cluster_size, all unseen characters of Omniglot form one cluster. On Glyphs and Omniglot, F1 is 0.70 and 0.36
    # with these settings, 0.57 and 0.02 with the defaults.
    made = HDBSCAN(
        min_cluster_size=min_size,
        min_samples=2,
        cluster_selection_method="leaf",
        copy=True,  # pyright: ignore[reportArgumentType]
    )
    return torch.from_numpy(made.fit_predict(x.double().numpy())).long()


def _by_size(numbers: Int64[Tensor, " rows"], min_size: int) -> Int64[Tensor, " rows"]:
    """Renumber clusters from 1, the largest first, ties by their first row; -1 for clusters that are too small."""
    known, counts = numbers[numbers >= 0].unique(return_counts=True)
    large = [
        (-int(count), int((numbers == item).nonzero()[0]), int(item))
        for item, count in zip(known, counts, strict=True)
        if count >= min_size
    ]
    renumbered = torch.full_like(numbers, -1)
    for number, (_, _, item) in enumerate(sorted(large), start=1):
        renumbered[numbers == item] = number
    return renumbered


def _to_medoids(
    x: Float32[Tensor, "rows dim"], numbers: Int64[Tensor, " rows"], distance: Distance
) -> tuple[Float32[Tensor, " rows"], tuple[int, ...]]:
    distances = torch.full((len(x),), torch.nan)
    medoids: list[int] = []
    for number in range(1, int(numbers.amax()) + 1 if len(x) else 1):
        rows = (numbers == number).nonzero()[:, 0]
        members = x[rows].double()
        # The row nearest to the mean has the least sum of squared distances, and of cosine distances, to the others.
        medoid = rows[(members - members.mean(0)).square().sum(1).argmin()]
        distances[rows] = pair_distances(x[rows], x[medoid].expand(len(rows), -1), distance=distance).float()
        medoids.append(int(medoid))
    return distances, tuple(medoids)


def _check_new(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"--out {folder} exists: name a new folder, or a .csv file for a table.")


def _safe(path: Path) -> str:
    """Return a readable file name that leaves room for a number before it."""
    stem = readable(path.stem).encode()[: _LONGEST - len(path.suffix.encode("utf-8", "replace"))]
    return stem.decode(errors="ignore") + readable(path.suffix)
