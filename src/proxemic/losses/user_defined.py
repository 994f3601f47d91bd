"""Losses that users define: any module ``loss(embeddings, labels)``, trained like the losses of this package."""

import inspect
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Integer
from torch import Tensor, nn

from proxemic.arguments import call_with_known
from proxemic.losses.checks import refuse_samples, waits_again
from proxemic.losses.pairwise import GatheredLoss, PairwiseLoss
from proxemic.losses.proxy_loss import ProxyLoss


class UserLoss(GatheredLoss):
    """A user's module as a loss; it gets float32 embeddings and int64 labels of the global batch of all processes.

    >>> loss = UserLoss(3, 2, nn.CrossEntropyLoss())
    >>> loss(torch.zeros(4, 2), torch.tensor([0, 1, 1, 0]))
    tensor(0.6931)
    """

    def __init__(self, num_classes: int, embedding_size: int, loss: nn.Module) -> None:
        super().__init__(num_classes, embedding_size)
        self.loss = loss

    def forward(
        self,
        embeddings: Float[Tensor, "batch dim"],
        labels: Integer[Tensor, " batch"],
        *,
        weights: None = None,
        reduction: Literal["mean"] = "mean",
    ) -> Float[Tensor, ""]:
        """Compute the loss of a batch, a scalar; raise `ValueError` if the module does not return a single value."""
        name = loss_name(self)
        refuse_samples(weights, reduction, f"the loss {name} takes only embeddings and labels: weigh inside it.")
        batch = self.joined(embeddings, labels)
        self._awaits_checks = waits_again(labels, waited=self._awaits_checks)
        with torch.autocast(embeddings.device.type, enabled=False):
            value = self.loss(*batch)
        if not isinstance(value, Tensor) or value.numel() != 1:
            found = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"The loss {name} returns {found}, but must return a tensor with one value.")
        return value.reshape(())


Loss = ProxyLoss | PairwiseLoss | UserLoss


@runtime_checkable
class LossFactory(Protocol):
    """A function that makes a loss, which may be any module; it may leave out parameters that it does not need."""

    def __call__(self, num_classes: int, embedding_size: int) -> ProxyLoss | PairwiseLoss | nn.Module: ...


@runtime_checkable
class ProxyLossFactory(Protocol):
    """A function that makes a proxy loss."""

    def __call__(self, num_classes: int, embedding_size: int) -> ProxyLoss: ...


def takes_batches(made: type) -> bool:
    """Return whether a class may be a loss: whether its instances can be called with embeddings and labels.

    >>> takes_batches(nn.CrossEntropyLoss), takes_batches(nn.ReLU), takes_batches(nn.TripletMarginLoss)
    (True, False, False)
    """
    try:
        inspect.signature(made.forward).bind("self", "embeddings", "labels")  # type: ignore[attr-defined]
    except TypeError:
        return False
    return True


def make_loss(make: LossFactory, num_classes: int, embedding_size: int, *, normalized: bool = False) -> Loss:
    """Make the loss of a recipe.

    ``normalized`` says that the model scales embeddings to unit length; a loss that depends on their lengths then
    raises `ValueError`.

    >>> type(make_loss(lambda num_classes, embedding_size: nn.CrossEntropyLoss(), 3, 2)).__name__
    'UserLoss'
    """
    loss = call_with_known(make, num_classes=num_classes, embedding_size=embedding_size)
    if not isinstance(loss, ProxyLoss | PairwiseLoss):
        return UserLoss(num_classes, embedding_size, loss)
    if normalized and isinstance(loss, ProxyLoss) and loss.reads_norms:
        raise ValueError(
            f"the loss is {loss_name(loss)}, which depends on the lengths of the embeddings, but model.normalize is "
            "true, which makes them all 1: set model.normalize to false."
        )
    return loss


def loss_name(loss: nn.Module) -> str:
    """Return the name of the class of a loss, or of the user's class that a `UserLoss` wraps."""
    return type(loss.loss if isinstance(loss, UserLoss) else loss).__name__
