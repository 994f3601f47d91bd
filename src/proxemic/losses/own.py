"""Any module ``loss(embeddings, labels)`` as a loss that is trained like those of this package."""

from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

import torch
import torch.distributed as dist
from jaxtyping import Float, Integer
from torch import Tensor, nn

from proxemic.arguments import call_with_known
from proxemic.distributed.class_sharding import ClassSharding, make_class_sharding
from proxemic.distributed.gather import share_first
from proxemic.losses.checks import check_embeddings, check_labels, refuse_samples
from proxemic.losses.pairwise import PairwiseLoss
from proxemic.losses.proxy_loss import ProxyLoss


class OwnLoss(nn.Module):
    """A user's module, given float32 embeddings and int64 labels of the batch of all processes.

    Args:
        num_classes: Classes C, for the check of the labels.
        embedding_size: Dimension D of the embeddings.
        loss: From embeddings ``[B, D]`` and labels ``[B]`` to a tensor of one value.

    >>> loss = OwnLoss(3, 2, nn.CrossEntropyLoss())
    >>> loss(torch.zeros(4, 2), torch.tensor([0, 1, 1, 0]))
    tensor(0.6931)
    """

    def __init__(self, num_classes: int, embedding_size: int, loss: nn.Module) -> None:
        super().__init__()
        self.num_classes, self.embedding_size, self.loss = num_classes, embedding_size, loss
        self._sharding: ClassSharding | None = None

    def distribute(self, *, group: dist.ProcessGroup | None = None, even_batches: bool = False) -> None:
        """From now on the loss is that of the joined batch of all processes; see `PairwiseLoss.distribute`."""
        self._sharding = make_class_sharding(self._sharding, self.num_classes, False, group, even_batches)
        share_first([*self.parameters(), *self.buffers()], self._sharding.group)

    def forward(
        self,
        embeddings: Float[Tensor, "batch dim"],
        labels: Integer[Tensor, " batch"],
        *,
        weights: None = None,
        reduction: Literal["mean"] = "mean",
    ) -> Float[Tensor, ""]:
        """The loss of a batch, a scalar.

        Raises:
            ValueError: If a shape, a dtype or a label is not allowed, the module gives anything but one value, or
                samples are to be weighed or told apart.
        """
        name = loss_name(self)
        refuse_samples(weights, reduction, f"the loss {name} is given embeddings and labels alone: weigh inside it.")
        check_embeddings(embeddings, self.embedding_size, least=1 if self._sharding is None else 0)
        check_labels(labels, len(embeddings), self.num_classes)
        labels = labels.long()
        with torch.autocast(embeddings.device.type, enabled=False):
            x = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
            if self._sharding is not None:
                _, x, labels = self._sharding.gather(x, labels)
            value = self.loss(x, labels)
        if not isinstance(value, Tensor) or value.numel() != 1:
            came = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"The loss {loss_name(self)} gives {came}, but must give a tensor of one value.")
        return value.reshape(())


Loss = ProxyLoss | PairwiseLoss | OwnLoss


@runtime_checkable
class MakesLoss(Protocol):
    """Makes a loss for a number of classes and a dimension of embeddings.

    A recipe may name any module here: these two are filled in where its constructor has parameters of these names.
    """

    def __call__(self, num_classes: int, embedding_size: int) -> ProxyLoss | PairwiseLoss | nn.Module: ...


def make_loss(make: MakesLoss, num_classes: int, embedding_size: int, *, normalized: bool = False) -> Loss:
    """The loss that a recipe asks for.

    Args:
        make: Of the recipe.
        num_classes: Number of training classes.
        embedding_size: Dimension of the embeddings.
        normalized: The model scales embeddings to unit length.

    Raises:
        ValueError: If the loss depends on the lengths of the embeddings, and the model normalises them.

    >>> type(make_loss(lambda num_classes, embedding_size: nn.CrossEntropyLoss(), 3, 2)).__name__
    'OwnLoss'
    """
    loss = call_with_known(make, num_classes=num_classes, embedding_size=embedding_size)
    if not isinstance(loss, ProxyLoss | PairwiseLoss):
        return OwnLoss(num_classes, embedding_size, loss)
    if normalized and isinstance(loss, ProxyLoss) and loss.reads_norms:
        raise ValueError(
            f"the loss is {loss_name(loss)}, which reads the lengths of the embeddings, but model.normalize is true, "
            "which makes them all 1: set model.normalize to false."
        )
    return loss


def load_loss(run: str | Path) -> Loss:
    """The loss of a trained run, with the weights of its chosen epoch; `proxemic.models.load_model` gives its network.

    Args:
        run: A run directory. The recipe in it is read, not its images.

    Raises:
        UserError: If there is no such run, or its training has not ended.
    """
    from proxemic.protocols.runs.finished import FinishedRun  # the losses themselves need nothing of a training

    return FinishedRun(Path(run)).loss


def loss_name(loss: nn.Module) -> str:
    """The name of the class of a loss; of a user's, that of the user's class."""
    return type(loss.loss if isinstance(loss, OwnLoss) else loss).__name__
