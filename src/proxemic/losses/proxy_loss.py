"""Base class of the proxy losses: proxies, one streamed pass over them, an objective, regularisers."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal, Unpack

import torch
import torch.distributed as dist
from jaxtyping import Float, Int, Integer
from torch import Tensor, nn
from torch.nn.functional import normalize

from proxemic.arrays import as_tensor
from proxemic.distributed.class_sharding import ClassSharding, fingerprint, make_class_sharding
from proxemic.distributed.gather import gather_rows, local_rows, reduce_scores_across, share_first, sum_across
from proxemic.losses.checks import (
    check_callable,
    check_count,
    check_embeddings,
    check_labels,
    check_modules,
    check_number,
    check_reduction,
    check_weights,
    is_number,
    shown,
    waits_again,
)
from proxemic.losses.clusters import k_means
from proxemic.losses.described import Described
from proxemic.losses.initialization import kaiming_normal
from proxemic.losses.margins import Margin, MarginRule, class_margins
from proxemic.losses.options import ProxyOptions, list_options
from proxemic.losses.scores import Cosine, Regularizer, SampledClasses, SamplingWeights, Scoring, streamed_scores
from proxemic.losses.scores.plan import Plan
from proxemic.losses.scores.products import Precision, Products, check_products
from proxemic.losses.scores.scoring import (
    dense_class_scores,
    negative_logits,
    pair_scores,
    put_target,
    streamed_sum_negatives,
)
from proxemic.losses.scores.streaming import Compiler, compiler
from proxemic.optim.unmoved import watch_proxies
from proxemic.precision import without_autocast


class ProxyLoss(Described, ABC):
    """Base class of the proxy losses: ``objective(P, N) + Σ regularizers(proxies)``.

    A subclass passes a `Scoring`, which defines the scores and sums, and implements `objective`. Second derivatives are
    exact if there are so few scores that torch's autograd computes them; otherwise they raise a `RuntimeError`.

    A data-wise (softmax-type) loss is a mean of per-sample losses, which can be weighted or returned one by one (see
    `forward`). A class-wise (Proxy-Anchor-type) loss takes the logarithm of sums over the batch.

    With ``sample_rate`` r < 1, a step uses the classes of the batch and a random fraction of the others, at least r.
    Each sampled class stands for several (unlike in Partial FC: An et al., "Killing Two Birds with One Stone", CVPR
    2022, where it stands only for itself, which makes the loss smaller). Sums over classes are then unbiased: those of
    class-wise losses and of a `CenterRegularizer`, with their gradients, and the sum of exponentials inside the
    log-sum-exp of a data-wise loss. The logarithm of that sum, and so the loss, is smaller on average. The gradient of
    the proxies is dense unless the optimiser was passed to `proxemic.optim.step_rows`, as recipes do. It is then
    sparse, and the optimiser updates and decays only the rows of the sampled classes; Adam's bias correction counts the
    steps of the whole run, and gradient clipping must support sparse gradients. At r = 1 everything is exact and dense.

    Args:
        num_classes: Number of classes C ≥ 2.
        embedding_size: Dimension D ≥ 1 of the embeddings.
        scoring: Similarity, pooling, scale, and whether negatives are summed over classes or over samples.
        **options: `ProxyOptions`.

    Attributes:
        proxies: Parameter ``[C, K, D]``; give it to the optimiser, usually with its own learning rate. After
            `distribute` with ``sharded=True`` it holds only this process's classes.

    Raises:
        ValueError: If an argument, also of a subclass, is out of range.
    """

    defaults: ClassVar[ProxyOptions] = ProxyOptions(
        proxies_per_class=1,
        pooling=None,
        regularizers=(),
        chunk_size=None,
        sample_rate=1.0,
        products=None,
        label_smoothing=0.0,
        init=kaiming_normal,
    )
    """Default options. A subclass that defines a constructor lists only the defaults that differ."""

    reads_norms: ClassVar[bool] = False
    """Whether the loss depends on the lengths of the embeddings, so that the model must not normalise them."""

    proxies: nn.Parameter

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        inherited: Any = super(cls, cls)
        cls.defaults = ProxyOptions(**{**inherited.defaults, **cls.defaults})
        list_options(cls)

    def __init__(
        self, num_classes: int, embedding_size: int, *, scoring: Scoring, **options: Unpack[ProxyOptions]
    ) -> None:
        super().__init__()
        if unknown := sorted(options.keys() - self.defaults.keys()):
            raise TypeError(f"{type(self).__name__}.__init__() got an unexpected keyword argument {unknown[0]!r}")
        chosen: dict[str, Any] = {**self.defaults, **options}
        per_class, pooling, init = chosen["proxies_per_class"], chosen["pooling"], chosen["init"]
        self.chunk_size: int | None = chosen["chunk_size"]
        check_count("num_classes", num_classes, 2, "a class needs another one to be distinguished from")
        check_count("embedding_size", embedding_size, 1, "it is the dimension of the embeddings")
        check_count("proxies_per_class", per_class, 1, "every class has a proxy; 1 is the usual choice")
        if self.chunk_size is not None:
            check_count("chunk_size", self.chunk_size, 1, "it counts classes; None chooses it")
        rule = "must be a fraction of the classes: above 0, up to 1 for all"
        self.sample_rate = check_number("sample_rate", chosen["sample_rate"], rule, above=0, most=1)
        self.products: Precision | None = check_products(chosen["products"])
        rule = "must be the fraction of the target that is spread over all classes: from 0 to below 1"
        self.label_smoothing = check_number("label_smoothing", chosen["label_smoothing"], rule, least=0, below=1)
        if self.label_smoothing and type(self).target_logits is ProxyLoss.target_logits:
            raise ValueError(
                f"label_smoothing is {shown(self.label_smoothing)}, but {type(self).__name__} is not a cross-entropy "
                "over the classes: set it to 0, or take a softmax loss."
            )
        check_callable("init", init, "a function that fills the proxies in place, such as torch.nn.init.normal_")
        self.scoring = scoring if pooling is None else replace(scoring, pooling=pooling)
        self.num_classes = num_classes
        self._sharding: ClassSharding | None = None
        self._unchecked_shard: Tensor | None = None  # its fingerprint, until the first forward
        self._margin_rule: tuple[MarginRule, Callable[[str, float], float], str] | None = None
        self._awaits_counts = False
        self._awaits_checks = True
        self._compiler: Compiler | None = None
        self.proxies = nn.Parameter(torch.empty(num_classes, per_class, embedding_size))
        self.regularizers = nn.ModuleList(check_modules("regularizers", chosen["regularizers"]))
        if self.sample_rate < 1:
            self._require_regularizers_of_shards("sample_rate is below 1")
        with torch.no_grad():
            init(self.proxies)
        watch_proxies(self)

    @property
    def proxies_per_class(self) -> int:
        """K."""
        return self.proxies.shape[1]

    @property
    def embedding_size(self) -> int:
        """D."""
        return self.proxies.shape[2]

    @property
    def data_wise(self) -> bool:
        """Whether negatives are summed per sample, not per class, so that every sample has a value."""
        return self.scoring.class_reduction is None

    @abstractmethod
    def objective(
        self,
        positive: Float[Tensor, " batch"],
        negative: Float[Tensor, "*batch"],
        labels: Int[Tensor, " batch"],
        embeddings: Float[Tensor, "batch dim"],
    ) -> Float[Tensor, "*values"]:
        """Compute the per-sample losses ``[B]``, whose mean is the loss; for a class-wise loss, a scalar.

        Args:
            positive: Score of each sample's target class, without scale or margin.
            negative: Log-sum-exp of each sample's scaled negatives; for a class-wise loss, the reduced sum.
            labels: Target classes.
            embeddings: The embeddings, as the model returned them.
        """

    def target_logits(
        self,
        positive: Float[Tensor, " batch"],
        labels: Int[Tensor, " batch"],
        embeddings: Float[Tensor, "batch dim"],
    ) -> Float[Tensor, " batch"]:
        """Return the logits of the target classes, with margins; only softmax losses define it.

        The arguments are those of `objective`.
        """
        raise ValueError(
            f"labels are given, but {type(self).__name__} is not a cross-entropy over the classes, so that it has no "
            "logits with margins: leave the labels out."
        )

    def class_bias(self) -> Float[Tensor, " classes"] | None:
        """Return a bias to add to each class's scaled score as a negative; ``None`` adds nothing."""
        return None

    def centers(
        self, proxies: Float[Tensor, "classes proxies dim"], rows: Callable[[Tensor], Tensor] = lambda it: it
    ) -> Float[Tensor, "classes proxies features"]:
        """Return what the similarity compares embeddings with: by default, the given proxies of some classes.

        ``rows`` selects the rows of another parameter that belong to the same classes.
        """
        return proxies

    def distribute(
        self, *, sharded: bool = False, group: dist.ProcessGroup | None = None, even_batches: bool = False
    ) -> None:
        """Compute the loss of the global batch of all processes from now on; each process passes its part.

        Every process gets the value that a single process with all samples would get, and its gradients: the complete
        gradient of the proxies (of its shard, if sharded), which needs no averaging; and W times the gradient of its
        own embeddings, because `torch.nn.parallel.DistributedDataParallel` averages over the W processes. Each process
        computes the scores of C/W classes. Call this on all processes before an optimiser gets the parameters: it
        overwrites them with the values of the first process, except sharded proxies, which stay as they are.

        Args:
            sharded: Each process keeps ``⌈C/W⌉`` consecutive classes, fewer on the last one, and their optimiser state.
                The optimiser must update each class's proxies independently (unlike LBFGS or Adafactor). Use
                `proxemic.optim.clipping.clip_norm` instead of `torch.nn.utils.clip_grad_norm_`, and `ShardedGradScaler`
                instead of `GradScaler`: they take the gradients of all processes into account. Before
                `torch.nn.parallel.DistributedDataParallel` wraps a module that contains the loss, make it ignore the
                proxies: ``DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module,
                ["loss.proxies"])``. Otherwise it overwrites them, and the first forward raises an error.
            group: The processes; ``None`` for all.
            even_batches: Promise that all processes have equally many samples in every step. Otherwise each step first
                exchanges the batch sizes, which waits for the GPU.

        Raises:
            ValueError: If there is no process group, this process is not in it, the loss is already distributed, or it
                cannot be sharded.
        """
        if sharded:
            self._require_regularizers_of_shards("proxies are sharded")
        self._sharding = make_class_sharding(self._sharding, self.num_classes, sharded, group, even_batches)
        if sharded:
            proxies = self.proxies.detach()[self._sharding.local].clone()
            self.proxies = nn.Parameter(proxies, self.proxies.requires_grad)
            self._unchecked_shard = fingerprint(proxies)
        replicated = [parameter for parameter in self.parameters() if not (sharded and parameter is self.proxies)]
        share_first([*replicated, *self.buffers()], self._sharding.group)

    def forward(
        self,
        embeddings: Float[Tensor, "batch dim"],
        labels: Integer[Tensor, " batch"],
        *,
        weights: Float[Tensor, " batch"] | Sequence[float] | None = None,
        reduction: Literal["mean", "none"] = "mean",
    ) -> Float[Tensor, "*values"]:
        """Compute the loss of a batch, or its per-sample losses.

        With per-sample weights the loss is ``Σ_i w_i l_i / Σ_i w_i + R`` with the regularisers R, the mean that
        `torch.nn.CrossEntropyLoss` computes with class weights. Without a reduction, the loss of a sample is
        ``w_i (l_i + R)``: the sum of the per-sample losses over the sum of the weights is the loss.

        Args:
            embeddings: ``[B, D]``, floating; half precision is computed in float32.
            labels: ``[B]``, integers in [0, num_classes).
            weights: ``[B]``, 0 or more and not all 0, only for a data-wise loss; they get no gradient. ``None`` weighs
                all samples equally.
            reduction: ``"mean"``, or ``"none"`` for per-sample losses, only for a data-wise loss.

        Returns:
            A scalar, or ``[B]`` without a reduction; float32 (float64 for float64 embeddings).

        Raises:
            ValueError: If an argument is not allowed, a class-wise loss gets weights or is asked for per-sample losses,
                or another wrapper has overwritten the shards (see `distribute`). On a GPU, a label or weight out of
                range raises this error in the first batch; later batches do not wait for the GPU, and fail with a
                device-side assertion.
        """
        sharding = self._sharding
        check_embeddings(embeddings, self.embedding_size, least=1 if sharding is None else 0)
        check_labels(labels, len(embeddings), self.num_classes, wait=self._awaits_checks)
        check_reduction(reduction)
        if self._awaits_counts:
            self._check_counted()
        if (weights is not None or reduction == "none") and not self.data_wise:
            raise self._no_samples("it takes the logarithm of sums over the batch, class by class")
        labels = labels.long()
        products = Products.of_run(self.products, embeddings.device)  # before automatic mixed precision is left
        with without_autocast(embeddings.device.type):
            parts = whole = embeddings.to(self._dtype(embeddings))
            if weights is not None:
                weights = check_weights(weights, parts, all_of_them=sharding is None, wait=self._awaits_checks)
            sizes: list[int] = []
            if sharding is not None:
                if self._unchecked_shard is not None:
                    sharding.check_shards(self.proxies, self._unchecked_shard)
                    self._unchecked_shard = None
                parts, whole, labels, sizes = sharding.join(parts, labels)
                if weights is not None:
                    joined = gather_rows(weights, sharding.group, sizes)
                    weights = check_weights(joined, whole, wait=self._awaits_checks)
            if self._awaits_checks and not waits_again(labels, waited=True):
                self._awaits_checks = False
            classes = SampledClasses.of(labels, len(self.proxies), self.sample_rate, sharding, parts.dtype)
            proxies, step = classes.local_rows(self.proxies).to(parts.dtype), self._step
            if self._compiler is not None and Plan.of_step(self.scoring, parts, proxies, self.chunk_size).dense:
                step = self._compiler(step)
        # The step leaves autocast itself: compiled, its backward runs without autocast only if it was traced so.
        values = step(parts, whole, labels, classes, proxies, weights, products, reduction == "none")
        return values if sharding is None or reduction == "mean" else local_rows(values, sharding.group, sizes)

    def _step(
        self,
        parts: Tensor,
        whole: Tensor,
        labels: Tensor,
        classes: SampledClasses,
        proxies: Tensor,
        weights: Tensor | None,
        products: Products,
        per_sample: bool,
    ) -> Tensor:
        """Compute the loss of the global batch, or its per-sample losses, from the given classes and their proxies."""
        with without_autocast(parts.device.type):
            sharding, local, sampling = self._sharding, classes.local, classes.local.sampling
            if (bias := self.class_bias()) is not None:
                held = bias if sharding is None or not sharding.sharded else bias[sharding.local]
                sampling = replace(sampling, bias=classes.local_values(held).to(parts.dtype))
            proxies, terms, inside = self._regularized(proxies, local.sampling)
            centers = self.centers(proxies, classes.local_rows)
            scoring = self.step_scoring(lambda: self._target_scores(parts, centers, local.labels), whole.detach())
            positive, negative, term = streamed_scores(
                parts, centers, local.labels, scoring, self.chunk_size, inside, sampling, products, self._compiler
            )
            if sharding is not None:
                positive, negative, term = reduce_scores_across(positive, negative, term, sharding.group)
            values = self.step_objective(positive, negative, labels, whole, classes)
            self._check_values(values, len(labels))
            if (weights is not None or per_sample) and values.ndim == 0:
                raise self._no_samples("its objective returns one value for the batch")
            if self.label_smoothing:
                total = streamed_sum_negatives(parts, centers, local.labels, scoring, self.chunk_size, sampling)
                total = total if sharding is None else sum_across(total, sharding.group)
                values = self.smoothed(values, positive, labels, whole, total)
            if not per_sample:
                values = values.mean() if weights is None else (values * weights).sum() / weights.sum()
            values = sum([*terms, term] if inside else terms, values)
            return values * weights if per_sample and weights is not None else values

    def compile(self, *args: Any, **keywords: Any) -> None:
        """Compile everything after the choice of classes; the arguments are those of `torch.compile`.

        A loss that computes its classes in chunks compiles the computation of a chunk, once for all chunks.
        """
        self._compiler = compiler(*args, **keywords)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_compiler": None}  # compiled functions are neither copied nor pickled

    def step_scoring(
        self, positive: Callable[[], Float[Tensor, " batch"]], embeddings: Float[Tensor, "batch dim"]
    ) -> Scoring:
        """Return the `Scoring` of this step; a loss may override it to change the scoring with every step.

        A loss with running statistics updates them here in training mode, so that `objective` changes nothing.
        ``positive`` computes the positive class scores of the (global) batch, at the cost of B·K·D operations and, with
        several processes, an all-reduce of one number per sample. Neither they nor the embeddings have a gradient.
        """
        return self.scoring

    def step_objective(
        self,
        positive: Float[Tensor, " batch"],
        negative: Float[Tensor, "*batch"],
        labels: Int[Tensor, " batch"],
        embeddings: Float[Tensor, "batch dim"],
        classes: SampledClasses,
    ) -> Float[Tensor, "*values"]:
        """Compute `objective`; a loss may override it to use the classes of the step as well."""
        return self.objective(positive, negative, labels, embeddings)

    def smoothed(
        self,
        values: Float[Tensor, "*values"],
        positive: Float[Tensor, " batch"],
        labels: Int[Tensor, " batch"],
        embeddings: Float[Tensor, "batch dim"],
        total: Float[Tensor, " batch"],
    ) -> Float[Tensor, "*values"]:
        """Apply label smoothing to per-sample losses; ``total`` is the sum of the logits of each sample's negatives."""
        # −Σ_c q_c log p_c with q = (1 − ε)·onehot + ε/C is the cross-entropy plus ε (z_y − mean_c z_c).
        target = self.target_logits(positive, labels, embeddings)
        return values + self.label_smoothing * (target - (target + total) / self.num_classes)

    def class_scores(self, embeddings: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch classes"]:
        """Compute each class's score, without margin: a cosine in [-1, 1] or minus a distance; larger is nearer."""
        check_embeddings(embeddings, self.embedding_size)
        self._need_all_classes()
        with torch.autocast(embeddings.device.type, enabled=False):
            queries = self.scoring.similarity.prepare(embeddings.to(self._dtype(embeddings)))
            centers = self.centers(self.proxies.to(queries.dtype))
            return dense_class_scores(queries, centers, self.scoring)

    def class_logits(
        self, embeddings: Float[Tensor, "batch dim"], labels: Integer[Tensor, " batch"] | None = None
    ) -> Float[Tensor, "batch classes"]:
        """Compute the logit of every class: its score times the scale, with the target's margin if labels are given.

        A softmax loss is the cross-entropy of its logits with labels (and its ``label_smoothing``) plus regularisers
        and, in `MagFaceLoss`, the term of the lengths. As in evaluation mode, averages are not updated and margins are
        not drawn.

        Args:
            embeddings: ``[B, D]``, floating; half precision is computed in float32.
            labels: ``[B]``, integers in [0, num_classes), only for a softmax loss; ``None`` gives logits without
                margins.

        Raises:
            ValueError: If an argument is not allowed, labels are given to a loss that is not a softmax loss, or the
                proxies are sharded.

        >>> from proxemic.losses import CosFaceLoss
        >>> loss = CosFaceLoss(2, 2, margin=0.5, scale=4.0, init=lambda w: w.copy_(torch.eye(2).unsqueeze(1)))
        >>> loss.class_logits(torch.tensor([[1.0, 0.0]]))
        tensor([[4., 0.]], grad_fn=<MulBackward0>)
        >>> loss.class_logits(torch.tensor([[1.0, 0.0]]), torch.tensor([0]))
        tensor([[2., 0.]], grad_fn=<ScatterBackward0>)
        """
        scores = self.class_scores(embeddings)
        if labels is None:
            return negative_logits(scores, self.scoring, SamplingWeights(self.num_classes))
        check_labels(labels, len(embeddings), self.num_classes)
        if self._awaits_counts:
            self._check_counted()
        labels, x = labels.long(), embeddings.to(scores.dtype)
        at_rest = copy.copy(self)
        at_rest.training = False
        with torch.autocast(embeddings.device.type, enabled=False):
            positive = scores.gather(1, labels.unsqueeze(1)).squeeze(1)
            target = at_rest.target_logits(positive, labels, x)
            scoring = at_rest.step_scoring(positive.detach, x.detach())
            negatives = negative_logits(scores, scoring, SamplingWeights(self.num_classes, bias=self.class_bias()))
            return put_target(negatives, labels, target)

    @torch.no_grad()
    def predict(self, embeddings: Float[Tensor, "batch dim"]) -> Int[Tensor, " batch"]:
        """Return the nearest class of each embedding."""
        return self.class_scores(embeddings).argmax(1)

    @torch.no_grad()
    def begin_at_class_means(self, embeddings: Float[Tensor, "batch dim"], labels: Int[Tensor, " batch"]) -> None:
        """Move each proxy to the mean of its class's embeddings, before training; classes without any keep theirs.

        The first steps then do not drag the embeddings of a pretrained network towards random proxies. If scores are
        cosines, each proxy turns to the mean of the unit embeddings and keeps its length, because that divides the size
        of its steps.

        Args:
            embeddings: ``[N, D]``, embeddings of training images, computed in evaluation mode.
            labels: ``[N]``, their classes, integers in [0, num_classes).

        Raises:
            ValueError: If a class has several proxies, which would stay equal, or the arguments do not fit.

        >>> from proxemic.losses import ProxyAnchorLoss
        >>> loss = ProxyAnchorLoss(num_classes=2, embedding_size=2)
        >>> loss.begin_at_class_means(torch.eye(2), torch.tensor([1, 0]))
        >>> loss.predict(torch.eye(2))
        tensor([1, 0])
        """
        if self.proxies_per_class > 1:
            raise ValueError(
                f"proxies_per_class is {self.proxies_per_class}, but proxies that all start at the mean of their class "
                "stay equal: draw them at random, or take 1"
            )
        is_cosine = self._check_batch(embeddings, labels)
        self._need_all_classes()
        points = embeddings.to(self.proxies)
        points = normalize(points, dim=1) if is_cosine else points
        counts = torch.bincount(labels, minlength=self.num_classes)[:, None]
        means = torch.zeros_like(self.proxies[:, 0]).index_add_(0, labels, points) / counts.clamp(min=1)
        if is_cosine:
            means = normalize(means, dim=1) * self.proxies[:, 0].norm(dim=1, keepdim=True)
        self.proxies[:, 0] = torch.where(counts > 0, means, self.proxies[:, 0])

    @torch.no_grad()
    def begin_at_clusters(
        self, embeddings: Float[Tensor, "batch dim"], labels: Int[Tensor, " batch"], *, seed: int = 0
    ) -> None:
        """Move the K proxies of each class to the centres of K clusters of its embeddings, found by k-means.

        Random proxies are nearly equally far from all embeddings of a class, so that a single proxy can become the
        nearest of all embeddings; at the centres of clusters, each proxy is the nearest of some images. If scores are
        cosines, k-means clusters directions, and each proxy keeps its length. In a class with fewer than K different
        embeddings, as many proxies move as there are embeddings; the others stay.

        Args:
            embeddings: ``[N, D]``, embeddings of training images, computed in evaluation mode; equal on all processes
                of a distributed loss.
            labels: ``[N]``, their classes, integers in [0, num_classes).
            seed: Seed of the starts of k-means.

        Raises:
            ValueError: If the arguments do not fit.

        >>> from proxemic.losses import SoftTripleLoss
        >>> loss = SoftTripleLoss(num_classes=2, embedding_size=2, proxies_per_class=2)
        >>> loss.begin_at_clusters(torch.tensor([[1.0, 0], [0, 1], [-1, 0], [0, -1]]), torch.tensor([0, 0, 1, 1]))
        >>> torch.nn.functional.normalize(loss.proxies[1].detach(), dim=1).sort(0).values
        tensor([[-1., -1.],
                [ 0.,  0.]])
        """
        is_cosine = self._check_batch(embeddings, labels)
        order = labels.argsort(stable=True)
        classes = embeddings[order].split(labels.bincount(minlength=self.num_classes).tolist())
        held = slice(None) if self._sharding is None or not self._sharding.sharded else self._sharding.local
        for proxies, points in zip(self.proxies, classes[held], strict=True):
            centers = k_means(points, len(proxies), spherical=is_cosine, seed=seed).to(proxies)
            begun = proxies[: len(centers)]
            begun.copy_(centers * begun.norm(dim=1, keepdim=True) if is_cosine else centers)

    def count_classes(self, counts: Int[Tensor, " classes"] | Sequence[int]) -> None:
        """Tell the loss how many samples each class has, so that its `MarginRule` can compute the margins.

        Losses without a rule ignore the counts. The ``state_dict`` holds the margins, so a loaded loss has them.

        Args:
            counts: ``[C]``, of all classes, at least 1 each.

        Raises:
            ValueError: If a count is not allowed, or a margin that follows is out of range.
        """
        counts = as_tensor("counts", counts)
        if counts.shape != (self.num_classes,):
            raise ValueError(
                f"counts have shape {list(counts.shape)}, but must be one for each of the {self.num_classes} classes: "
                "torch.bincount(labels, minlength=num_classes) gives them."
            )
        if self._margin_rule is not None:
            rule, check, name = self._margin_rule
            self.get_buffer(name).copy_(class_margins(rule(counts.cpu()), self.num_classes, check))

    def _regularized(
        self, proxies: Tensor, sampling: SamplingWeights
    ) -> tuple[Tensor, list[Tensor], list[Regularizer]]:
        """Return the proxies to use, terms to add to the loss, and regularisers to compute with its chunks."""
        terms, inside = [], []
        for regularizer in self.regularizers:
            if not isinstance(regularizer, Regularizer):
                terms.append(regularizer(self.proxies.to(proxies.dtype)))  # of all classes, equal on every process
            elif regularizer.separable and type(self).centers is ProxyLoss.centers:
                inside.append(regularizer)
            else:
                proxies, term = regularizer.apply_to(proxies, sampling)
                if regularizer.separable and sampling.group is not None:
                    term = sum_across(term, sampling.group)
                terms.append(term)
        return proxies, terms, inside

    def _set_margin(self, margin: Margin, check: Callable[[str, float], float], name: str = "margin") -> None:
        """Store one margin for all classes as an attribute, or one margin per class as a buffer ``[C]``."""
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
        uncounted = self.get_buffer(name).isnan().any()
        words = (
            f"margin is {type(rule).__name__}, which needs to know how many samples each class has: call "
            "loss.count_classes(torch.bincount(labels, minlength=num_classes)) with the labels of all training images."
        )
        if torch.compiler.is_compiling():
            torch._assert_async(~uncounted, words)
        elif uncounted:
            raise ValueError(words)
        else:
            self._awaits_counts = False  # so that a GPU is waited for once

    def _check_values(self, values: Tensor, batch: int) -> None:
        """Raise `ValueError` if an objective, which a user may have written, returns values of a wrong shape."""
        shape = tuple(values.shape) if isinstance(values, Tensor) else None
        if shape == () or (shape == (batch,) and self.data_wise):
            return
        due = f"one loss per sample, [{batch}]" if self.data_wise else "a scalar, as the loss sums per class"
        found = shown(values) if shape is None else f"a tensor of shape {[*shape]}"
        raise ValueError(f"{type(self).__name__}.objective returns {found}, but must return {due}.")

    def _no_samples(self, why: str) -> ValueError:
        return ValueError(
            f"weights or reduction='none' are given, but {type(self).__name__} has no per-sample losses: {why}. Take a "
            "data-wise loss, such as DataWiseMultiProxyAnchorLoss or a softmax loss, or leave them out."
        )

    @torch.no_grad()
    def _target_scores(self, embeddings: Tensor, centers: Tensor, labels: Tensor) -> Tensor:
        """Compute the global batch's positive scores; labels outside [0, classes) belong to other processes."""
        scores = embeddings.new_zeros(len(labels))
        if len(centers):
            target = labels.clamp(0, len(centers) - 1)
            queries = self.scoring.similarity.prepare(embeddings)
            scores = pair_scores(queries, centers[target], self.scoring).masked_fill(target != labels, 0)
        return scores if self._sharding is None else sum_across(scores, self._sharding.group)

    def _check_batch(self, embeddings: Tensor, labels: Tensor) -> bool:
        """Check a batch, and return whether scores are cosines."""
        check_embeddings(embeddings, self.embedding_size)
        check_labels(labels, len(embeddings), self.num_classes)
        return isinstance(self.scoring.similarity, Cosine)

    def _need_all_classes(self) -> None:
        if len(self.proxies) != self.num_classes:
            raise ValueError(
                f"proxies hold {len(self.proxies)} of {self.num_classes} classes, because they are sharded over "
                "processes: score all classes in one process, with the proxies that a run exports."
            )

    def _require_regularizers_of_shards(self, why: str) -> None:
        for regularizer in self.regularizers:
            if not isinstance(regularizer, Regularizer):
                raise ValueError(
                    f"{why}, but the regulariser {type(regularizer).__name__} needs all proxies at once: take one of "
                    "proxemic.losses, or derive yours from proxemic.losses.Regularizer."
                )

    def _dtype(self, embeddings: Tensor) -> torch.dtype:
        """Return the type to compute in: at least float32, so that half precision loses no digits here."""
        return torch.promote_types(torch.promote_types(embeddings.dtype, self.proxies.dtype), torch.float32)


list_options(ProxyLoss)
