"""Pair and triplet losses of pytorch-metric-learning (PML), with the interface of the proxy losses."""

import copy
from typing import Any, Literal

import torch
import torch.distributed as dist
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn

from proxemic.distributed.class_sharding import ClassSharding, make_class_sharding
from proxemic.distributed.gather import share_first
from proxemic.extras import optional_dependency
from proxemic.losses.checks import check_count, check_embeddings, check_labels, refuse_samples, shown, waits_again
from proxemic.losses.described import Described


class GatheredLoss(Described):
    """Base class of losses without proxies; every process computes the loss from the global batch of all processes."""

    def __init__(self, num_classes: int | None, embedding_size: int) -> None:
        super().__init__()
        self.num_classes, self.embedding_size = num_classes, embedding_size
        self._sharding: ClassSharding | None = None
        self._awaits_checks = True

    def distribute(self, *, group: dist.ProcessGroup | None = None, even_batches: bool = False) -> None:
        """Compute the loss of the global batch of all processes from now on, like `ProxyLoss.distribute`.

        Each process computes the whole loss: embeddings are gathered once, and nothing is sent back. If the loss draws
        random numbers, seed torch's generator equally on all processes.
        """
        self._sharding = make_class_sharding(self._sharding, self.num_classes or 0, False, group, even_batches)
        share_first([*self.parameters(), *self.buffers()], self._sharding.group)

    def joined(
        self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"]
    ) -> tuple[Float[Tensor, "joined dim"], Int[Tensor, " joined"]]:
        """Check a batch, and return the embeddings (at least float32) and labels of all processes."""
        check_embeddings(embeddings, self.embedding_size, least=1 if self._sharding is None else 0)
        check_labels(labels, len(embeddings), self.num_classes, wait=self._awaits_checks)
        x, labels = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)), labels.long()
        return (x, labels) if self._sharding is None else self._sharding.gather(x, labels)[1:]


class PairwiseLoss(GatheredLoss):
    """A loss of PML on the pairs or triplets of a batch, as ``loss(embeddings, labels)``.

    Value and gradient are PML's: those of ``loss(embeddings, labels, miner(embeddings, labels))``, or with a memory
    those of ``CrossBatchMemory(loss, embedding_size, memory_size, miner)(embeddings, labels)``, whose miner chooses
    from the memory. A batch without any pair has the value and the gradient 0; so has a single sample, which PML's
    memory would compare with itself. Gradients of parts of a batch do not add up to the gradient of the whole batch;
    see `proxemic.training.gradient_cache.InMicroBatches`.

    The ``state_dict`` holds the memory and PML's parameters, which are trained like those of any loss. Random numbers
    come from torch's global generator.

    Args:
        num_classes: Classes C ≥ 2, to check the labels; None allows any integers.
        embedding_size: Dimension D ≥ 1 of the embeddings, which must be given.
        loss: A loss of `pytorch_metric_learning.losses`, or an instance of your own subclass of its
            ``BaseMetricLossFunction``, that takes labels and has no weights per class; it is copied. Losses with
            proxies and PML's wrappers of losses are not allowed.
        miner: A miner of `pytorch_metric_learning.miners` that chooses pairs or triplets; it is copied. ``None`` lets
            the loss choose.
        memory_size: Number of embeddings of the latest batches, including this one, to compare the batch with (PML's
            ``CrossBatchMemory``); at least the size of a batch. 0 compares the batch with itself. Every call adds to
            the memory. Miners also compare each sample with its copy in the memory, at a distance near 0: miners that
            sort all pairs, such as ``HDCMiner``, choose by the last bit of such distances.

    Raises:
        ValueError: If a size is out of range, or the loss or the miner is not allowed.
        ModuleNotFoundError: If PML is not installed.

    Source: Musgrave, Belongie, Lim, "PyTorch Metric Learning", 2020; the memory: Wang, Zhang, Huang, Scott,
    "Cross-Batch Memory for Embedding Learning", CVPR 2020.

    >>> from pytorch_metric_learning import losses, miners
    >>> loss = PairwiseLoss(embedding_size=4, loss=losses.MultiSimilarityLoss(), miner=miners.MultiSimilarityMiner())
    >>> embeddings = torch.randn(6, 4, requires_grad=True)
    >>> loss(embeddings, torch.tensor([0, 0, 1, 1, 7, 7])).backward()
    """

    def __init__(
        self,
        num_classes: int | None = None,
        embedding_size: int = 0,
        *,
        loss: nn.Module,
        miner: nn.Module | None = None,
        memory_size: int = 0,
    ) -> None:
        super().__init__(num_classes, embedding_size)
        if num_classes is not None:
            check_count("num_classes", num_classes, 2, "a class needs another one to be distinguished from")
        check_count("embedding_size", embedding_size, 1, "it is the dimension of the embeddings")
        check_count("memory_size", memory_size, 0, "it counts the embeddings of the latest batches; 0 keeps none")
        _check_loss_and_miner(loss, miner)
        self.memory_size = memory_size
        # A recipe makes one loss and one miner, and may build several losses from them.
        self.loss, self.miner = copy.deepcopy((loss, miner))
        if memory_size:
            from proxemic.losses.pair_memory import PairMemory  # which imports PML

            self.loss, self.miner = PairMemory(self.loss, self.miner, embedding_size, memory_size), None
        self._try()

    def distribute(self, *, group: dist.ProcessGroup | None = None, even_batches: bool = False) -> None:
        super().distribute(group=group, even_batches=even_batches)
        if self.memory_size:
            assert self._sharding is not None
            position = self.loss.get_extra_state()
            share_first([position], self._sharding.group)
            self.loss.set_extra_state(position)

    def forward(
        self,
        embeddings: Float[Tensor, "batch dim"],
        labels: Integer[Tensor, " batch"],
        *,
        reference: tuple[Float[Tensor, "others dim"], Int[Tensor, " others"]] | None = None,
        weights: None = None,
        reduction: Literal["mean"] = "mean",
    ) -> Float[Tensor, ""]:
        """Compute the loss of a batch; samples cannot have weights, because each value belongs to a pair or a triplet.

        Args:
            embeddings: ``[B, D]``, floating; half precision is computed in float32.
            labels: ``[B]``, integers in [0, num_classes), or any integers without ``num_classes``.
            reference: Embeddings ``[M, D]`` and labels ``[M]`` to compare the batch with instead of itself, from a
                second view or a second network: PML's ``ref_emb`` and ``ref_labels``. No pair is left out.
            weights: Must be ``None``.
            reduction: Must be ``"mean"``; the loss's reducer decides how pairs are averaged.

        Returns:
            A scalar, float32 (float64 for float64 embeddings).

        Raises:
            ValueError: If an argument is not allowed, the batch does not fit into the memory, or both a reference and a
                memory are given. On a GPU, a label out of range raises this error in the first batch; later batches
                fail with a device-side assertion.
        """
        refuse_samples(
            weights,
            reduction,
            "PairwiseLoss has losses of pairs or triplets, not of samples: set the loss's reducer to choose how PML "
            "averages them, or take a softmax loss or DataWiseMultiProxyAnchorLoss.",
        )
        if reference is not None:
            self._check_reference(reference)
        batch = self.joined(embeddings, labels)
        self.check_batch_size(len(batch[0]))
        others = () if reference is None else self.joined(*reference)
        self._awaits_checks = waits_again(labels, waited=self._awaits_checks)
        with torch.autocast(embeddings.device.type, enabled=False):
            if self.memory_size:
                return self.loss(*batch).reshape(())
            pairs = None if self.miner is None else self.miner(*batch, *others)
            return self.loss(*batch, pairs, *others).reshape(())

    def _check_reference(self, reference: object) -> None:
        if self.memory_size:
            raise ValueError(
                f"reference is given, but memory_size is {self.memory_size}, which compares the batch with the memory: "
                "leave one of the two out."
            )
        if not isinstance(reference, tuple | list) or len(reference) != 2:
            raise ValueError(f"reference is {shown(reference)}, but must be a tuple of embeddings and labels.")

    def check_batch_size(self, batch: int) -> None:
        """Raise `ValueError` if a batch of this size does not fit into the memory."""
        if 0 < self.memory_size < batch:
            raise ValueError(
                f"memory_size is {self.memory_size}, but must be at least the size of a batch, which is {batch}: raise "
                "it, usually to several batches, or set it to 0."
            )

    def _try(self) -> None:
        """Raise `ValueError` for mistakes that PML notices only in a training step, such as a wrong argument type."""
        trial = copy.deepcopy(self)
        batch = min(4, self.memory_size or 4)
        last = (self.num_classes or 2) - 1
        labels = torch.tensor([0, 0, last, last], device="cpu")[:batch]
        try:
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                x = torch.randn(batch, self.embedding_size, device="cpu", requires_grad=True)
                for _ in range(2):  # a loss that keeps the graph of the first step fails in the second
                    trial(x, labels).backward()
        except Exception as error:
            inner: Any = self.loss
            inner = inner.memory.loss if self.memory_size else inner
            raise ValueError(
                f"loss is {type(inner).__name__}, which fails on a first batch ({type(error).__name__}: {error}): "
                "check the arguments of the loss and the miner; in a recipe, a distance or reducer needs a class_path."
            ) from error


def _check_loss_and_miner(loss: nn.Module, miner: nn.Module | None) -> None:
    with optional_dependency("pairs"):
        from pytorch_metric_learning.losses import BaseMetricLossFunction, CrossBatchMemory, WeightRegularizerMixin
        from pytorch_metric_learning.miners import BaseMiner
    name = type(loss).__name__
    if isinstance(loss, CrossBatchMemory):
        raise ValueError("loss is CrossBatchMemory: give the loss inside it, and memory_size.")
    if not isinstance(loss, BaseMetricLossFunction):
        if type(loss).__module__.startswith("pytorch_metric_learning.losses."):
            raise ValueError(
                f"loss is PML's {name}, which calls other losses: give the loss inside it"
                f"{', and the second view as reference=' if name == 'SelfSupervisedLoss' else ''}."
            )
        raise ValueError(
            f"loss is {type(loss).__module__}.{name}, but must be a loss of pytorch_metric_learning.losses, for "
            "example TripletMarginLoss, or an instance of your own subclass of its BaseMetricLossFunction."
        )
    # PML's losses store what depends on the classes under these names.
    if isinstance(loss, WeightRegularizerMixin) or hasattr(loss, "num_classes") or hasattr(loss, "proxies"):
        from proxemic import losses

        ours = next((base.__name__ for base in type(loss).__mro__ if base.__name__ in losses.__all__), None)
        raise ValueError(
            f"loss is PML's {name}, which has proxies or class weights: take "
            f"{f'proxemic.losses.{ours}' if ours else 'a loss of proxemic.losses'} directly, not inside PairwiseLoss."
        )
    if not (miner is None or isinstance(miner, BaseMiner)):
        raise ValueError(
            f"miner is {type(miner).__module__}.{type(miner).__name__}, but must be a miner of "
            "pytorch_metric_learning.miners, for example MultiSimilarityMiner, or None."
        )
