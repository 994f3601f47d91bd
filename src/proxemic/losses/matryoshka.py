"""Nested embeddings: a proxy loss on several prefixes of the embedding, so that each prefix can be used alone."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from proxemic.losses.checks import check_count
from proxemic.losses.described import Described
from proxemic.losses.proxy_loss import ProxyLoss
from proxemic.losses.user_defined import ProxyLossFactory, loss_name

_LEAST = 8


class MatryoshkaLoss(Described):
    """Sum of a proxy loss over prefixes of the embedding: ``Σ_{m ∈ M} L_m(x_{1:m}, y)``.

    The first dimensions of an embedding are then an embedding themselves: ``proxemic gallery create --dim 64`` keeps
    only the first 64, and ``proxemic evaluate --dims`` measures what that costs. M holds the given sizes and D. The
    loss of each prefix has proxies of its own, and all losses have the same weight (c_m = 1 in the paper). A loss of
    cosines scales each prefix to unit length.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D of the embeddings.
        proxy_loss: Class of the loss of each prefix, such as `ProxyAnchorLoss`, or a function that makes the loss from
            ``num_classes`` and ``embedding_size``, such as a partial with hyper-parameters.
        dims: Sizes m of the prefixes, from 1 to D; None halves D until 8.

    Attributes:
        losses: The loss of each prefix, by ascending size; give their parameters to the optimiser.

    Raises:
        ValueError: If a size is out of range, or the loss is not a proxy loss or depends on the lengths of embeddings.

    Source: Kusupati et al., "Matryoshka Representation Learning", NeurIPS 2022, equation 1.

    >>> from proxemic.losses import NormalizedSoftmaxLoss
    >>> loss = MatryoshkaLoss(num_classes=5, embedding_size=32, proxy_loss=NormalizedSoftmaxLoss)
    >>> loss.dims, loss(torch.randn(4, 32), torch.tensor([0, 1, 2, 4])).shape
    ((8, 16, 32), torch.Size([]))
    """

    def __init__(
        self, num_classes: int, embedding_size: int, *, proxy_loss: ProxyLossFactory, dims: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        check_count("embedding_size", embedding_size, 1, "it is the dimension of the embeddings")
        if dims is None:
            dims = [embedding_size // 2**power for power in range(1, embedding_size.bit_length())]
            dims = [dim for dim in dims if dim >= _LEAST]
        for dim in dims:
            check_count("dims", dim, 1, "it counts the first dimensions of an embedding")
            if dim > embedding_size:
                raise ValueError(f"dims has {dim}, but embeddings have {embedding_size} dimensions: give fewer.")
        self.num_classes, self.embedding_size = num_classes, embedding_size
        self.dims = tuple(sorted({*dims, embedding_size}))
        parts = [proxy_loss(num_classes=num_classes, embedding_size=dim) for dim in self.dims]
        for loss in parts:
            if not isinstance(loss, ProxyLoss) or loss.reads_norms:
                raise ValueError(
                    f"proxy_loss makes {loss_name(loss)}, but must make a proxy loss that does not depend on the "
                    "lengths of embeddings, such as ProxyAnchorLoss."
                )
        self.losses = nn.ModuleList(parts)

    def forward(self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]) -> Float[Tensor, ""]:
        """Compute the loss of a batch.

        Args:
            embeddings: ``[B, D]``, floating.
            labels: ``[B]``, integers in [0, num_classes).
        """
        pairs = zip(self.dims, self.losses, strict=True)
        return torch.stack([loss(embeddings[:, :dim], labels) for dim, loss in pairs]).sum()
