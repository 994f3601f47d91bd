"""What all proxy losses are: proxies, one streamed pass over them, an objective, regularisers."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Literal, NoReturn

import torch
import torch.distributed as dist
from jaxtyping import Float, Int
from torch import Tensor, nn

from proxemic.distributed.class_sharding import ClassSharding, make_class_sharding
from proxemic.distributed.gather import gather_rows, own_rows, reduce_scores_across, share_first, sum_across
from proxemic.losses.checks import (
    check_callable,
    check_count,
    check_embeddings,
    check_labels,
    check_modules,
    check_reduction,
    check_weights,
    is_number,
    refuse_script,
    told,
)
from proxemic.losses.described import Described
from proxemic.losses.initialization import kaiming_normal
from proxemic.losses.margins import Margin, MarginRule, class_margins
from proxemic.losses.scores.pooling import Pooling
from proxemic.losses.scores.regularizers import Regularizer
from proxemic.losses.scores.sampling import SampledClasses, SamplingWeights
from proxemic.losses.scores.scoring import Scoring, dense_class_scores, pair_scores
from proxemic.losses.scores.streaming import streamed_scores
from proxemic.optim.sparse_rows import step_rows
from proxemic.optim.unmoved import watch_proxies

__all__ = ["ProxyLoss"]


class ProxyLoss(Described, ABC):
    """Base of the proxy losses: ``objective(P, N) + Σ regularisers(proxies)``.

    A subclass says what is summed (`Scoring`) and writes `objective`. Gradients are of first order only.

    A data-wise loss is a mean of values of the samples, which can be weighed, or had one by one (see `forward`); a
    class-wise one, as Proxy-Anchor, takes the logarithm of sums over the batch.

    With ``sample_rate`` r < 1 a step looks at the classes of the batch and at a random part of the others, at least
    the share r, each of which stands for several (Partial FC: An et al., "Killing Two Birds with One Stone", CVPR 2022,
    where they stand for themselves alone, which makes the loss smaller). Sums over classes are then unbiased: those of
    class-wise losses and a `CenterRegularizer`, with their gradients, and of a data-wise loss the sum of exponentials
    inside its log-sum-exp; the logarithm of that, and so the loss, is smaller on average. The gradient of the proxies
    is sparse, and torch's optimisers step the rows looked at alone, with their momentum and other state, and decay no
    others; Adam's bias correction counts the steps of the whole run. Clipping and the like must be able to take sparse
    gradients. At r = 1 all is exact and dense.

    Args:
        num_classes: Classes C ≥ 2.
        embedding_size: Dimension D ≥ 1 of the embeddings.
        scoring: Similarity, pooling, scale, and whether negatives are summed over classes or over samples.
        proxies_per_class: K ≥ 1.
        regularizers: Modules that map the proxies ``[C, K, D]`` to a scalar.
        chunk_size: Classes whose scores are held at once; ``None`` chooses from batch, C, K and D.
        sample_rate: r in (0, 1], the share of the other classes that a step looks at.
        init: Fills the proxies ``[C, K, D]`` in place.

    Attributes:
        proxies: Parameter ``[C, K, D]``; give it to the optimiser, usually with a learning rate of its own. After
            `distribute` with ``sharded=True``, those of this process's classes.

    Raises:
        ValueError: If a size is not allowed.
    """

    proxies: nn.Parameter

    def __init__(
        self,
        num_classes: int,
        embedding_size: int,
        *,
        scoring: Scoring,
        proxies_per_class: int = 1,
        regularizers: Iterable[nn.Module] = (),
        chunk_size: int | None = None,
        sample_rate: float = 1.0,
        init: Callable[[Tensor], object] = kaiming_normal,
    ) -> None:
        super().__init__()
        check_count("num_classes", num_classes, 2, "a class needs another one to be told apart from")
        check_count("embedding_size", embedding_size, 1, "it is the dimension of the embeddings")
        check_count("proxies_per_class", proxies_per_class, 1, "every class has a proxy; 1 is the usual choice")
        if chunk_size is not None:
            check_count("chunk_size", chunk_size, 1, "it counts classes; None chooses it")
        if not (is_number(sample_rate) and 0 < sample_rate <= 1):
            raise ValueError(
                f"sample_rate is {told(sample_rate)}, but is a share of the classes: above 0, up to 1 for all."
            )
        if not isinstance(scoring.pooling, Pooling):
            raise ValueError(
                f"pooling is {told(scoring.pooling)}, but must be a pooling of proxemic.losses, for example "
                "SoftmaxPooling(0.1) or MaxPooling()."
            )
        check_callable("init", init, "a function that fills the proxies in place, as proxemic.losses.initialization's")
        self.scoring = scoring
        self.sample_rate = sample_rate
        self._num_classes = num_classes
        self._spread: ClassSharding | None = None
        self._margin_rule: tuple[MarginRule, Callable[[str, float], float], str] | None = None
        self._awaits_counts = False
        self.chunk_size = chunk_size
        self.proxies = nn.Parameter(torch.empty(num_classes, proxies_per_class, embedding_size))
        self.regularizers = nn.ModuleList(check_modules("regularizers", regularizers))
        if sample_rate < 1:
            step_rows(self.proxies)
            self._need_own_regularizers("sample_rate is below 1")
        with torch.no_grad():
            init(self.proxies)
        watch_proxies(self)

    @property
    def num_classes(self) -> int:
        """C."""
        return self._num_classes

    @property
    def proxies_per_class(self) -> int:
        """K."""
        return self.proxies.shape[1]

    @property
    def embedding_size(self) -> int:
        """D."""
        return self.proxies.shape[2]

    @abstractmethod
    def objective(
        self,
        positive: Float[Tensor, " batch"],
        negative: Float[Tensor, "*batch"],
        labels: Int[Tensor, " batch"],
        embeddings: Float[Tensor, "batch dim"],
    ) -> Float[Tensor, "*batch"]:
        """Each sample's value, of which the loss is the mean; of a class-wise loss, one value for the batch.

        ``positive`` and ``negative`` are those of `streamed_scores`: the positive class scores, and the log-sum-exp of
        each sample's scaled negatives; or, of a class-wise loss, a scalar.
        """

    def class_bias(self) -> Float[Tensor, " classes"] | None:
        """What is added to the scaled score of each class where it is a negative, in the sums; ``None``: nothing."""
        return None

    @property
    def data_wise(self) -> bool:
        """Whether the negatives are summed for each sample, not for each class, so that samples have values."""
        return self.scoring.push is None

    def centers(
        self, proxies: Float[Tensor, "classes proxies dim"], rows: Callable[[Tensor], Tensor] = lambda it: it
    ) -> Float[Tensor, "classes proxies features"]:
        """What the similarity takes for the proxies: they themselves, unless a loss derives it from them.

        Args:
            proxies: Of the classes at hand.
            rows: Gives the rows of another parameter that belong to the same classes.
        """
        return proxies

    def distribute(
        self, *, sharded: bool = False, group: dist.ProcessGroup | None = None, even_batches: bool = False
    ) -> None:
        """From now on the loss is that of the joined batch of all processes, each of which passes its own part.

        Every process gets the same value, that of one process with all samples, and its gradients: the whole gradient
        of the proxies (of its own, if sharded), so that they need no averaging; and, for the network, W times that of
        its own embeddings, as `torch.nn.parallel.DistributedDataParallel` takes the mean over the W processes. Each
        process works on C/W classes. Call it on all processes, before an optimiser is given the parameters: these get
        the values that the first process has, but for sharded proxies, of which each keeps its own.

        A step gathers the embeddings and labels once, scatters the embeddings' gradient once, and reduces three floats
        a sample, one of class-wise losses. Where the proxies are replicated, their gradient is gathered too, and of
        sampled classes the choice sent.

        Args:
            sharded: Each process keeps ``⌈C/W⌉`` consecutive classes, fewer on the last, and their optimiser state.
                Take an optimiser that steps every row by itself (not LBFGS or Adafactor). What looks at the gradients
                of all parameters must join the processes': `proxemic.optim.clipping.clip_norm` in place of
                `torch.nn.utils.clip_grad_norm_`, `ShardedGradScaler` in place of `GradScaler`.
            group: The processes; ``None`` is all.
            even_batches: Every step has as many samples on each process; else their numbers are exchanged first, for
                which a GPU is waited for.

        Raises:
            ValueError: If there is no process group, or this process is not of it, this was done before, or the loss
                cannot be sharded.
        """
        if sharded:
            self._need_own_regularizers("proxies are sharded")
        self._spread = make_class_sharding(self._spread, self.num_classes, sharded, group, even_batches)
        if sharded:
            self._keep(self._spread.own)
        alike = [each for each in self.parameters() if not (sharded and each is self.proxies)]
        share_first([*alike, *self.buffers()], self._spread.group)

    def forward(
        self,
        embeddings: Float[Tensor, "batch dim"],
        labels: Int[Tensor, " batch"],
        *,
        weights: Float[Tensor, " batch"] | Sequence[float] | None = None,
        reduction: Literal["mean", "none"] = "mean",
    ) -> Float[Tensor, "*batch"]:
        """The loss of a batch, or of each of its samples.

        With sample weights the mean is ``Σ_i w_i l_i / Σ_i w_i``, as of the class weights of
        `torch.nn.CrossEntropyLoss`: equal weights change nothing. Regularisers are added to it. Without a reduction,
        the value of a sample is ``w_i (l_i + R)`` with the regularisers R, so that the sum of the values over that of
        the weights is the loss.

        Args:
            embeddings: ``[B, D]``, floating; half precision is computed in float32.
            labels: ``[B]``, integers in [0, num_classes).
            weights: ``[B]``, 0 or more and not all 0, of a data-wise loss; they get no gradient. ``None``: all alike.
            reduction: ``"mean"``, or ``"none"`` for the values of the samples, of a data-wise loss.

        Returns:
            A scalar, or ``[B]`` without a reduction; float32 (float64 for float64 embeddings).

        Raises:
            ValueError: If a shape, a dtype, a label or a weight is not allowed, or if samples of a class-wise loss are
                to be weighed or told apart. On a GPU a label or a weight out of range fails later, by a device-side
                assertion, so that the check need not wait for the GPU.
        """
        check_embeddings(embeddings, self.embedding_size, least=1 if self._spread is None else 0)
        check_labels(labels, len(embeddings), self.num_classes)
        check_reduction(reduction)
        if self._awaits_counts:
            self._check_counted()
        alone = weights is not None or reduction == "none"
        if alone and not self.data_wise:
            raise self._no_samples("it takes the logarithm of sums over the batch, class by class")
        labels = labels.long()
        with torch.autocast(embeddings.device.type, enabled=False):
            parts = whole = embeddings.to(self._dtype(embeddings))
            if weights is not None:
                weights = check_weights(weights, parts, all_of_them=self._spread is None)
            sizes: list[int] = []
            if self._spread is not None:
                parts, whole, labels, sizes = self._spread.join(parts, labels)
                if weights is not None:
                    joined = gather_rows(weights, self._spread.group, sizes)
                    weights = check_weights(joined, whole)
            classes = SampledClasses.of(labels, len(self.proxies), self.sample_rate, self._spread, parts.dtype)
            own, among = classes.own, classes.own.among
            if (bias := self.class_bias()) is not None:
                held = bias if self._spread is None or not self._spread.sharded else bias[self._spread.own]
                among = replace(among, bias=classes.own_values(held).to(parts.dtype))
            proxies, terms, inside = self._regularized(classes.own_rows(self.proxies).to(parts.dtype), own.among)
            centers = self.centers(proxies, classes.own_rows)
            scoring = self.step_scoring(lambda: self._own_scores(parts, centers, own.labels), whole.detach())
            positive, negative, term = streamed_scores(
                parts,
                centers,
                own.labels,
                scoring,
                self.chunk_size,
                inside,
                among,
            )
            if self._spread is not None:
                positive, negative, term = reduce_scores_across(positive, negative, term, self._spread.group)
            values = self.step_objective(positive, negative, labels, whole, classes)
            if alone and values.ndim == 0:
                raise self._no_samples("its objective gives one value for the batch")
            terms = [*terms, term] if inside else terms
            if reduction == "none":
                values = sum(terms, values) if weights is None else sum(terms, values) * weights
                return values if self._spread is None else own_rows(values, self._spread.group, sizes)
            return sum(terms, values.mean() if weights is None else (values * weights).sum() / weights.sum())

    def step_scoring(
        self, positive: Callable[[], Float[Tensor, " batch"]], embeddings: Float[Tensor, "batch dim"]
    ) -> Scoring:
        """`scoring`, as the pass over the classes is to take it in this step, for losses that change it.

        A loss with running statistics moves them here while it is in training mode, so that `objective` does not.

        Args:
            positive: Makes the positive class scores of the (joined) batch, without gradient: B·K·D operations and,
                over processes, an all-reduce of a number a sample.
            embeddings: Of the (joined) batch, without gradient.
        """
        return self.scoring

    def step_objective(
        self,
        positive: Float[Tensor, " batch"],
        negative: Float[Tensor, "*batch"],
        labels: Int[Tensor, " batch"],
        embeddings: Float[Tensor, "batch dim"],
        classes: SampledClasses,
    ) -> Float[Tensor, "*batch"]:
        """`objective`, told which classes the step looks at, for losses that have more to do with them."""
        return self.objective(positive, negative, labels, embeddings)

    def class_scores(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        """Score of every class, without margin: cosine in [-1, 1], or minus the distance; larger is nearer."""
        check_embeddings(embeddings, self.embedding_size)
        self._need_all_classes()
        with torch.autocast(embeddings.device.type, enabled=False):
            queries = self.scoring.similarity.prepare(embeddings.to(self._dtype(embeddings)))
            centers = self.centers(self.proxies.to(queries.dtype))
            return dense_class_scores(queries, centers, self.scoring.similarity, self.scoring.pooling)

    @torch.no_grad()
    def predict(self, embeddings: Float[Tensor, "batch dim"]) -> Int[Tensor, " batch"]:
        """The nearest class of each embedding."""
        return self.class_scores(embeddings).argmax(1)

    def count_classes(self, counts: Int[Tensor, " classes"] | Sequence[int]) -> None:
        """Tell the loss how many samples each class has; a margin that is a `MarginRule` follows from it.

        Other losses do not use it. The margins are kept in the ``state_dict``, so that a loss that was loaded has them.

        Args:
            counts: ``[C]``, of all classes, at least 1 each.

        Raises:
            ValueError: If they are not such counts, or a margin that follows is out of range.
        """
        counts = torch.as_tensor(counts)
        if counts.shape != (self.num_classes,):
            raise ValueError(
                f"counts have shape {list(counts.shape)}, but must be one for each of the {self.num_classes} classes: "
                "torch.bincount(labels, minlength=num_classes) gives them."
            )
        if self._margin_rule is not None:
            rule, check, name = self._margin_rule
            self.get_buffer(name).copy_(class_margins(rule(counts.cpu()), self.num_classes, check))

    def __prepare_scriptable__(self) -> NoReturn:
        refuse_script(self)

    def _regularized(self, proxies: Tensor, among: SamplingWeights) -> tuple[Tensor, list[Tensor], list[Regularizer]]:
        """The proxies as the loss is to use them, terms to add to it, and those that are made with its chunks."""
        terms, inside = [], []
        for regularizer in self.regularizers:
            if not isinstance(regularizer, Regularizer):
                terms.append(regularizer(self.proxies.to(proxies.dtype)))  # of all, on every process alike
            elif regularizer.separable and type(self).centers is ProxyLoss.centers:
                inside.append(regularizer)
            else:
                proxies, term = regularizer.through(proxies, among)
                if regularizer.separable and among.group is not None:
                    term = sum_across(term, among.group)
                terms.append(term)
        return proxies, terms, inside

    def _set_margin(self, margin: Margin, check: Callable[[str, float], float], name: str = "margin") -> None:
        """Keep one number as an attribute, those of the classes as a buffer ``[C]``."""
        if is_number(margin):
            setattr(self, name, check("margin", margin))
            return
        margins = class_margins(margin, self.num_classes, check)
        self.register_buffer(name, margins.to(self.proxies.device))
        if isinstance(margin, MarginRule):
            self._margin_rule, self._awaits_counts = (margin, check, name), True

    def _check_counted(self) -> None:
        assert self._margin_rule is not None
        rule, _, name = self._margin_rule
        if self.get_buffer(name).isnan().any():
            raise ValueError(
                f"margin is {type(rule).__name__}, which needs to know how many samples each class has: call "
                "loss.count_classes(torch.bincount(labels, minlength=num_classes)) with the labels of all training "
                "images."
            )
        self._awaits_counts = False  # a GPU is waited for once

    def _no_samples(self, why: str) -> ValueError:
        return ValueError(
            f"weights or reduction='none' came, but {type(self).__name__} has no values of samples: {why}. Take a "
            "data-wise loss, as DataWiseMultiProxyAnchorLoss or a softmax loss, or leave them out."
        )

    @torch.no_grad()
    def _own_scores(
        self,
        embeddings: Float[Tensor, "batch dim"],
        centers: Float[Tensor, "classes proxies features"],
        labels: Int[Tensor, " batch"],
    ) -> Float[Tensor, " batch"]:
        """The positive scores of the joined batch; ``labels`` out of [0, classes) are of other processes' classes."""
        scores = embeddings.new_zeros(len(labels))
        if len(centers):
            own = labels.clamp(0, len(centers) - 1)
            queries = self.scoring.similarity.prepare(embeddings)
            scores = pair_scores(queries, centers[own], self.scoring).masked_fill(own != labels, 0)
        return scores if self._spread is None else sum_across(scores, self._spread.group)

    def _keep(self, part: slice) -> None:
        """Drop the proxies of other classes."""
        self.proxies = nn.Parameter(self.proxies.detach()[part].clone(), self.proxies.requires_grad)
        if self.sample_rate < 1:
            step_rows(self.proxies)

    def _need_all_classes(self) -> None:
        if len(self.proxies) != self.num_classes:
            raise ValueError(
                f"proxies hold {len(self.proxies)} of {self.num_classes} classes, as they are sharded over processes: "
                "score all classes in one process, with the proxies that a run exports."
            )

    def _need_own_regularizers(self, why: str) -> None:
        for regularizer in self.regularizers:
            if not isinstance(regularizer, Regularizer):
                raise ValueError(
                    f"{why}, but the regulariser {type(regularizer).__name__} takes all proxies at once: take those of "
                    "proxemic.losses, or derive yours from proxemic.losses.scores.regularizers.Regularizer."
                )

    def _dtype(self, embeddings: Tensor) -> torch.dtype:
        """Float32 at least, so that half precision costs no digits here."""
        return torch.promote_types(torch.promote_types(embeddings.dtype, self.proxies.dtype), torch.float32)
