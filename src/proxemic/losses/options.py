"""Keyword arguments that every proxy loss takes in addition to its own."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypedDict, Unpack, get_type_hints

from torch import Tensor, nn

from proxemic.losses.scores import Pooling
from proxemic.losses.scores.products import Precision


class ProxyOptions(TypedDict, total=False):
    """Keyword arguments of every proxy loss, which its constructor passes to that of `ProxyLoss` as ``**options``.

    A class sets its default values in the class attribute `ProxyLoss.defaults`.

    Attributes:
        proxies_per_class: K ≥ 1.
        pooling: Turns the K similarities of a class into its score. ``None`` keeps the pooling of the loss's `Scoring`.
        regularizers: Modules that map the proxies ``[C, K, D]`` to a scalar, which is added to the loss.
        chunk_size: Number of classes whose scores are held at once. ``None`` chooses it from B, C, K and D.
        sample_rate: r in (0, 1], the fraction of the classes absent from the batch that a step uses; see `ProxyLoss`.
        products: Precision of the operands of the matrix products: ``"float32"``, ``"tf32"``, ``"half"`` or
            ``"split"``, see `proxemic.losses.scores.products`; the scores of target classes are always exact. ``None``
            follows the run: half in automatic mixed precision on a GPU, otherwise what
            `torch.set_float32_matmul_precision` allows.
        label_smoothing: ε in [0, 1), for softmax losses: the target of the cross-entropy is ``1 − ε + ε/C`` for the
            label and ``ε/C`` for the other classes, as in `torch.nn.CrossEntropyLoss`. Above 0, the scores are computed
            a second time.
        init: Fills the proxies ``[C, K, D]`` in place, as the functions of `proxemic.losses.initialization` do.
    """

    proxies_per_class: int
    pooling: Pooling | None
    regularizers: Sequence[nn.Module]
    chunk_size: int | None
    sample_rate: float
    products: Precision | None
    label_smoothing: float
    init: Callable[[Tensor], object]


def list_options(loss: Any) -> None:
    """Add the options and their defaults to the signature of a constructor that takes ``**options``.

    `help` and written recipes, which contain all defaults, then name every keyword.
    """
    constructor = vars(loss).get("__init__")
    if constructor is None:
        return
    *parameters, last = inspect.signature(constructor).parameters.values()
    if last.annotation == Unpack[ProxyOptions]:
        for name, annotation in get_type_hints(ProxyOptions).items():
            default = loss.defaults[name]
            parameters.append(last.replace(name=name, kind=last.KEYWORD_ONLY, default=default, annotation=annotation))
        constructor.__signature__ = inspect.Signature(parameters)
