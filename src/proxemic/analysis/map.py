"""Project embeddings to two dimensions, and plot them with thumbnails."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from proxemic.analysis.drawing import add_legend
from proxemic.extras import optional_dependency
from proxemic.losses.checks import check_positive
from proxemic.threads import cpu_threads

_ROWS = 4096  # turned into float64 at a time


@dataclass(frozen=True, eq=False)
class PrincipalComponents:
    """The directions of largest variance of embeddings.

    Args:
        mean: Mean of the embeddings.
        directions: Orthonormal directions by decreasing variance; the largest coordinate in magnitude is positive.
        shares: Fraction of the variance along each direction, in [0, 1]; 0 if all embeddings are equal.
    """

    mean: Float64[Tensor, "dim"]
    directions: Float64[Tensor, "dim k"]
    shares: Float64[Tensor, "k"]

    def project(self, rows: Float[Tensor, "samples dim"]) -> Float64[Tensor, "samples k"]:
        """Compute the coordinates of embeddings or proxies along the directions, relative to the mean."""
        return torch.cat([(part.double() - self.mean) @ self.directions for part in rows.detach().cpu().split(_ROWS)])


@torch.no_grad()
def principal_components(embeddings: Float[Tensor, "samples ..."], k: int = 2) -> PrincipalComponents:
    r"""Compute the first k eigenvectors of the covariance of the embeddings, in float64.

    $$\frac{1}{n} \sum_x (x - \bar x)(x - \bar x)^\top = V \operatorname{diag}(\lambda) V^\top, \qquad
    \text{share}_j = \lambda_j / \textstyle\sum_i \lambda_i$$

    Args:
        embeddings: Finite embeddings of at least 2 samples.
        k: Number of directions, from 1 to dim.

    Raises:
        ValueError: If an argument is out of its range, or embeddings are NaN or infinite.

    >>> found = principal_components(torch.tensor([[0.0, 0.0], [4.0, 0.0], [2.0, 1.0], [2.0, -1.0]]))
    >>> found.shares.tolist(), found.project(torch.tensor([[5.0, 3.0]])).tolist()
    ([0.8, 0.2], [[3.0, 3.0]])
    """
    _check_rows(embeddings, 2)
    if not 1 <= k <= embeddings.shape[1]:
        raise ValueError(f"k is {k}, but must be from 1 to {embeddings.shape[1]}, the dimensions of the embeddings.")
    parts = embeddings.detach().cpu().split(_ROWS)
    mean = torch.stack([part.double().sum(0) for part in parts]).sum(0) / len(embeddings)
    covariance = torch.zeros(len(mean), len(mean), dtype=torch.float64)
    for part in parts:
        away = part.double() - mean
        covariance.addmm_(away.T, away, alpha=1 / len(embeddings))
    values, vectors = torch.linalg.eigh(covariance)
    values, vectors = values.flip(0)[:k].clamp(min=0), vectors.flip(1)[:, :k]
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    total = float(covariance.trace()) or 1.0
    return PrincipalComponents(mean, vectors * largest.sign(), values / total)


def t_sne(embeddings: Float[Tensor, "samples ..."], *, perplexity: float = 30.0) -> Float64[Tensor, "samples 2"]:
    """Compute a t-SNE of the embeddings: neighbours stay neighbours, but distances and axes have no meaning.

    It starts from the principal components and is deterministic. t-SNE cannot project further embeddings, so give
    embeddings and proxies together. On one core, 1,000 embeddings take ten seconds and 5,000 embeddings a minute.

    Args:
        embeddings: Finite embeddings of at least 4 samples, compared by Euclidean distance; normalise them if only
            directions matter.
        perplexity: Perplexity above 0, roughly the number of neighbours of a sample; at most a third of the number of
            other samples is used.

    Raises:
        ValueError: If an argument is out of its range, or embeddings are NaN or infinite.
        ModuleNotFoundError: If scikit-learn is not installed.

    Source: van der Maaten and Hinton, Visualizing Data using t-SNE, JMLR 9 (2008); scikit-learn's Barnes-Hut version.

    >>> t_sne(torch.eye(8)).shape
    torch.Size([8, 2])
    """
    _check_rows(embeddings, 4)
    check_positive("perplexity", perplexity)
    with optional_dependency("train"):
        from sklearn.manifold import TSNE
        from threadpoolctl import threadpool_limits
    start = 1e-4 * _start(embeddings)  # scikit-learn's scale
    perplexity = min(perplexity, (len(embeddings) - 1) / 3)
    # With several threads, sums would differ in the last bit, and soon the whole map.
    with threadpool_limits(1):
        begin: Any = start.float().numpy()  # scikit-learn documents arrays, but annotates names only
        method = TSNE(perplexity=perplexity, init=begin, random_state=0)
        places = method.fit_transform(embeddings.detach().float().cpu().numpy())
    return torch.from_numpy(places).double()


def umap(embeddings: Float[Tensor, "samples ..."], *, neighbours: int = 15) -> Float64[Tensor, "samples 2"]:
    """Compute a UMAP of the embeddings: neighbours stay near, but distances and axes have no meaning.

    It starts from the principal components and is deterministic. The first call of a process compiles for up to a
    minute; then 1,000 embeddings take some seconds on one core.

    Args:
        embeddings: Finite embeddings of at least 4 samples, compared by Euclidean distance; normalise them if only
            directions matter.
        neighbours: Number of neighbours of a sample, at least 2; at most the number of other samples is used.

    Raises:
        ValueError: If an argument is out of its range, or embeddings are NaN or infinite.
        ModuleNotFoundError: If umap-learn, of the extra ``umap``, is not installed.

    Source: McInnes, Healy and Melville, UMAP: Uniform Manifold Approximation and Projection, 2018; umap-learn.
    """
    _check_rows(embeddings, 4)
    if neighbours < 2:
        raise ValueError(f"neighbours is {neighbours}, but must be 2 or more")
    with optional_dependency("umap"):
        from umap import UMAP
    rows, start = embeddings.detach().float().cpu().numpy(), _start(embeddings)
    if not start.any():  # all embeddings are the same
        return start
    begin: Any = start.float().numpy()
    method: Any = UMAP(n_neighbors=min(neighbours, len(rows) - 1), init=begin, random_state=0, n_jobs=1)
    with cpu_threads():
        return torch.from_numpy(method.fit_transform(rows)).double()


def _start(embeddings: Float[Tensor, "samples dim"]) -> Float64[Tensor, "samples 2"]:
    """Return the start of a map: the principal components, scaled to a standard deviation of 1 in the first."""
    start = torch.zeros(len(embeddings), 2, dtype=torch.float64)
    components = principal_components(embeddings, min(2, embeddings.shape[1])).project(embeddings)
    # Equal embeddings have no standard deviation to scale by.
    start[:, : components.shape[1]] = components / (components[:, 0].std(correction=0) or 1.0)
    return start


def _check_rows(embeddings: Tensor, least: int) -> None:
    if embeddings.ndim != 2 or len(embeddings) < least or embeddings.shape[1] == 0:
        raise ValueError(
            f"embeddings has shape {list(embeddings.shape)}, but must be [samples, dim] with {least} samples or more."
        )
    broken = int((~embeddings.isfinite()).any(1).sum())
    if broken:
        raise ValueError(
            f"embeddings has NaN or infinite values in {broken} of {len(embeddings)} embeddings; drop them."
        )


# Colour-blind safe (Okabe and Ito); shapes distinguish classes of the same colour.
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")
SHAPES = ("o", "s", "^", "D")
NAMED_CLASSES = len(COLOURS) * len(SHAPES)
OTHERS = "#b5b5b5"
_SIDE, _LEFT, _BOTTOM, _TOP, _LEGEND = 6.4, 0.75, 0.6, 0.45, 2.4  # inches
_THUMBNAIL, _PIXELS = 0.36, 96  # side of a thumbnail in inches, and its largest side in pixels
_MOST, _TRIES = 40, 400


def plot_map(
    points: Float64[Tensor, "samples 2"],
    labels: Int64[Tensor, "..."],
    class_names: Sequence[str],
    *,
    proxies: Float64[Tensor, "proxies 2"] | None = None,
    proxy_labels: Int64[Tensor, "..."] | None = None,
    thumbnails: Callable[[int], Any] | None = None,
    axis_names: tuple[str, str] | None = None,
    title: str = "",
) -> Any:
    """Draw embeddings in two dimensions, with equal scales on both axes.

    Up to 24 classes are named and have their own colour and shape. With more classes, colours and shapes repeat, and
    the legend names none. Proxies are stars in the colour of their class, or grey if the label is -1. Thumbnails, by
    index of the point, are drawn where they hide nothing. Without ``axis_names`` the axes have no scale.
    """
    stars = points[:0] if proxies is None else proxies
    star_labels = labels[:0] if proxy_labels is None else proxy_labels
    with optional_dependency("train"):
        from matplotlib.figure import Figure
    width, height = _LEFT + _SIDE + _LEGEND, _BOTTOM + _SIDE + _TOP
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((_LEFT / width, _BOTTOM / height, _SIDE / width, _SIDE / height))
    places = torch.cat([points, stars])
    low, high = places.amin(0), places.amax(0)
    reach = (float((high - low).max()) or 1.0) * 1.12
    corner = (low + high - reach) / 2
    if thumbnails is not None:
        _draw_thumbnails(axes, points, labels, thumbnails, avoid=stars, corner=corner, scale=reach / _SIDE)
    for label in labels.unique().tolist():
        members = points[labels == label]
        axes.plot(*members.T, **_style(label), linestyle="", markersize=5, markeredgewidth=0.4, zorder=3)
    for label in star_labels.unique().tolist():  # other classes (-1) first
        places = stars[star_labels == label]
        if label < 0:
            axes.plot(*places.T, "*", color=OTHERS, markersize=8, markeredgecolor="white", zorder=2)
        else:
            style = _style(label)
            axes.plot(*places.T, "*", color=style["color"], markersize=16, markeredgecolor="black", zorder=4)
            inside = style | {"color": "white", "markeredgewidth": 0}
            axes.plot(*places.T, **inside, linestyle="", markersize=4.5, zorder=4.1)
    x, y = corner.tolist()
    axes.set(xlim=(x, x + reach), ylim=(y, y + reach))
    if axis_names is None:
        axes.set(xticks=[], yticks=[])
        axes.set_xlabel("no scale: only the neighbours of a point have a meaning", fontsize=9)
    else:
        axes.set_xlabel(axis_names[0], fontsize=9)
        axes.set_ylabel(axis_names[1], fontsize=9)
        axes.tick_params(labelsize=8)
    axes.spines[:].set_color("#999999")
    axes.set_title(title, fontsize=10, loc="left", parse_math=False)
    _draw_legend(axes, labels.unique().tolist(), class_names, star_labels)
    return figure


def _draw_legend(axes: Any, present: Sequence[int], class_names: Sequence[str], star_labels: Tensor) -> None:
    named = len(class_names) <= NAMED_CLASSES
    styles = [(_cut(class_names[label]), _style(label) | {"linestyle": ""}) for label in present if named]
    star = {"marker": "*", "linestyle": "", "markersize": 11}
    if (star_labels >= 0).any():
        styles.append(("proxy of a class", star | {"color": "white", "markeredgecolor": "black"}))
    if (star_labels < 0).any():
        styles.append(("proxy of another class", star | {"color": OTHERS, "markeredgecolor": "white"}))
    title = None if named else f"{len(present)} classes:\ncolours and shapes repeat"
    add_legend(
        axes, styles, title=title, title_fontsize=8, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0.0,
        alignment="left",
    )  # fmt: skip


def _style(label: int) -> dict[str, Any]:
    shape = SHAPES[label // len(COLOURS) % len(SHAPES)]
    return {"color": COLOURS[label % len(COLOURS)], "marker": shape, "markeredgecolor": "white"}


def _cut(name: str) -> str:
    # Matplotlib's legend leaves out labels that start with an underscore.
    name = f" {name}" if name.startswith("_") else name
    return name if len(name) <= 26 else f"{name[:25]}…"


def place_thumbnails(
    points: Float64[Tensor, "samples 2"],
    order: Sequence[int],
    *,
    side: float,
    frame: float,
    avoid: Float64[Tensor, "others 2"] | None = None,
    most: int = _MOST,
) -> dict[int, tuple[float, float]]:
    """Place squares next to points greedily: within the frame, and over no point and no other square."""
    turn = torch.arange(16, dtype=torch.float64) * (torch.pi / 8)
    around = torch.stack([turn.cos(), turn.sin()], 1)
    offsets = torch.cat([side * distance * around for distance in (0.9, 1.25)])
    hidden = points if avoid is None else torch.cat([points, avoid])
    placed: dict[int, tuple[float, float]] = {}
    for index in order:
        if len(placed) == most:
            break
        centres = points[index] + offsets
        free = ((centres - frame / 2).abs() <= (frame - side) / 2).all(1)
        free &= ~_near(centres, hidden, 0.65 * side)
        taken = torch.tensor([*placed.values()], dtype=torch.float64).view(-1, 2)
        free &= ~_near(centres, taken, 1.06 * side)
        if free.any():
            x, y = centres[int(free.int().argmax())].tolist()
            placed[index] = (x, y)
    return placed


def _near(
    centres: Float64[Tensor, "centres 2"], others: Float64[Tensor, "others 2"], reach: float
) -> Bool[Tensor, "centres"]:
    """Return which centres have one of the others within reach along both axes."""
    return ((centres[:, None] - others).abs() < reach).all(2).any(1)


def _draw_thumbnails(
    axes: Any,
    points: Float64[Tensor, "samples 2"],
    labels: Int64[Tensor, "samples"],
    thumbnails: Callable[[int], Any],
    *,
    avoid: Float64[Tensor, "others 2"],
    corner: Float64[Tensor, "2"],
    scale: float,
) -> None:
    """Draw framed images, connected to their points, starting with one of each class."""
    from matplotlib.patches import Rectangle

    by_class = [(labels == label).nonzero().flatten().tolist() for label in labels.unique().tolist()]
    order = [index for turn in zip_longest(*by_class) for index in turn if index is not None][:_TRIES]
    placed = place_thumbnails(
        (points - corner) / scale, order, side=_THUMBNAIL, frame=_SIDE, avoid=(avoid - corner) / scale
    )
    half = scale * _THUMBNAIL / 2
    for index, centre in placed.items():
        x, y = (corner + scale * torch.tensor(centre)).tolist()
        image = thumbnails(index).convert("RGB")
        image.thumbnail((_PIXELS, _PIXELS))
        wide, high = (half * length / max(image.size) for length in image.size)
        place, point, colour = (x - half, y - half), points[index].tolist(), _style(int(labels[index]))["color"]
        axes.plot([x, point[0]], [y, point[1]], color=colour, linewidth=0.8, zorder=1)
        axes.add_patch(Rectangle(place, 2 * half, 2 * half, color="white", zorder=1.5))
        axes.imshow(image, extent=(x - wide, x + wide, y - high, y + high), aspect="auto", zorder=1.6)
        axes.add_patch(Rectangle(place, 2 * half, 2 * half, fill=False, edgecolor=colour, zorder=1.7))
