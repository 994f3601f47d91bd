"""Maps of embeddings: rows in two dimensions, by principal components, t-SNE or UMAP."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from proxemic.extras import optional_dependency
from proxemic.losses.checks import check_positive
from proxemic.threads import cpu_threads

_ROWS = 4096  # turned into float64 at a time


@dataclass(frozen=True, eq=False)
class PrincipalComponents:
    """The directions in which embeddings vary most.

    Args:
        mean: Mean of the embeddings.
        directions: Orthonormal, by decreasing variance; the largest coordinate of each in magnitude is positive.
        shares: Share of the variance along each direction, in [0, 1]; 0 where all embeddings are the same.
    """

    mean: Float64[Tensor, "dim"]
    directions: Float64[Tensor, "dim k"]
    shares: Float64[Tensor, "k"]

    def project(self, rows: Float[Tensor, "rows dim"]) -> Float64[Tensor, "rows k"]:
        """Coordinates of any rows along the directions, from the mean: of the embeddings, or of proxies."""
        return torch.cat([(part.double() - self.mean) @ self.directions for part in rows.detach().cpu().split(_ROWS)])


@torch.no_grad()
def principal_components(embeddings: Float[Tensor, "rows ..."], k: int = 2) -> PrincipalComponents:
    r"""The first k eigenvectors of the covariance of the embeddings, in float64.

    $$\frac{1}{n} \sum_x (x - \bar x)(x - \bar x)^\top = V \operatorname{diag}(\lambda) V^\top, \qquad
    \text{share}_j = \lambda_j / \textstyle\sum_i \lambda_i$$

    Args:
        embeddings: Finite embeddings, at least 2 rows.
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


def t_sne(embeddings: Float[Tensor, "rows ..."], *, perplexity: float = 30.0) -> Float64[Tensor, "rows 2"]:
    """A t-SNE of the embeddings: neighbours stay neighbours, while distances and axes mean nothing.

    It starts from the principal components, and nothing in it is random. As t-SNE cannot project further rows,
    embeddings and proxies are given together. On one core 1,000 rows take ten seconds and 5,000 a minute.

    Args:
        embeddings: Finite embeddings, at least 4 rows; unit rows where directions count, as the distances are
            Euclidean.
        perplexity: Perplexity above 0, about how many neighbours a row has; with few rows at most (rows - 1)/3.

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
    start = 1e-4 * _start(embeddings)  # as scikit-learn scales it
    perplexity = min(perplexity, (len(embeddings) - 1) / 3)
    # Of several threads the sums would differ in the last bit, and soon the whole map.
    with threadpool_limits(1):
        begin: Any = start.float().numpy()  # scikit-learn annotates a name, but documents either
        method = TSNE(perplexity=perplexity, init=begin, random_state=0)
        places = method.fit_transform(embeddings.detach().float().cpu().numpy())
    return torch.from_numpy(places).double()


def umap(embeddings: Float[Tensor, "rows ..."], *, neighbours: int = 15) -> Float64[Tensor, "rows 2"]:
    """A UMAP of the embeddings: near rows stay near, while distances and axes mean nothing.

    It starts from the principal components, with a fixed seed on one thread. The first call of a process compiles,
    which may take a minute; 1,000 rows then take some seconds on one core.

    Args:
        embeddings: Finite embeddings, at least 4 rows; unit rows where directions count, as the distances are
            Euclidean.
        neighbours: How many neighbours a row has, 2 or more; with few rows at most rows - 1.

    Raises:
        ValueError: If an argument is out of its range, or embeddings are NaN or infinite.
        ModuleNotFoundError: If umap-learn is not installed, of the extra ``umap``.

    Source: McInnes, Healy and Melville, UMAP: Uniform Manifold Approximation and Projection, 2018; umap-learn.
    """
    _check_rows(embeddings, 4)
    if neighbours < 2:
        raise ValueError(f"neighbours is {neighbours}, but must be 2 or more")
    with optional_dependency("umap"):
        from umap import UMAP
    rows, start = embeddings.detach().float().cpu().numpy(), _start(embeddings)
    if not start.any():  # all rows are the same
        return start
    begin: Any = start.float().numpy()
    method: Any = UMAP(n_neighbors=min(neighbours, len(rows) - 1), init=begin, random_state=0, n_jobs=1)
    with cpu_threads():
        return torch.from_numpy(method.fit_transform(rows)).double()


def _start(embeddings: Float[Tensor, "rows dim"]) -> Float64[Tensor, "rows 2"]:
    """The principal components, such that the first has a standard deviation of 1, where a map begins."""
    start = torch.zeros(len(embeddings), 2, dtype=torch.float64)
    components = principal_components(embeddings, min(2, embeddings.shape[1])).project(embeddings)
    # Rows that are all the same have no spread to scale by.
    start[:, : components.shape[1]] = components / (components[:, 0].std(correction=0) or 1.0)
    return start


def _check_rows(embeddings: Tensor, least: int) -> None:
    if embeddings.ndim != 2 or len(embeddings) < least or embeddings.shape[1] == 0:
        raise ValueError(
            f"embeddings has shape {list(embeddings.shape)}, but must be [rows, dim] with {least} rows or more."
        )
    broken = int((~embeddings.isfinite()).any(1).sum())
    if broken:
        raise ValueError(f"embeddings has NaN or infinite values in {broken} of {len(embeddings)} rows; drop them.")
