"""Checks of the losses' arguments and of batches; each message says what came, what is allowed and the fix."""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn

from proxemic.arrays import as_tensor


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is one finite number, of Python or of NumPy, but neither a bool nor a tensor."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def shown(value: object) -> str:
    """Format a value for a message: one or a few numbers and strings as they are, anything else by its type.

    >>> shown(3), shown("max"), shown((0.1, None)), shown(torch.ones(9)), shown(Tensor)
    ('3', "'max'", '(0.1, None)', 'of type Tensor', 'the class Tensor')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    several = isinstance(value, tuple | list)
    plain = all(isinstance(item, Real | str | None) for item in (value if several else [value]))
    text = repr(value) if several or isinstance(value, str) else str(value)
    return text if plain and len(text) < 80 else f"of type {type(value).__name__}"


def check_number(
    name: str,
    value: float,
    rule: str,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
) -> float:
    """Return ``value`` if it is a finite number within the bounds; else a `ValueError` that gives the rule."""
    if not (is_number(value) and above < value < below and least <= value <= most):
        raise ValueError(f"{name} is {shown(value)}, but {rule}.")
    return value


def check_positive(name: str, value: float) -> float:
    """Return ``value`` as a float, if it is finite and above 0; else a `ValueError`."""
    return float(check_number(name, value, "must be a positive number", above=0))


def check_finite(name: str, value: float) -> float:
    """Return ``value`` as a float, if it is finite; else a `ValueError`."""
    return float(check_number(name, value, "must be a finite number"))


def check_count(name: str, value: int, least: int, why: str) -> None:
    """Raise `ValueError` unless ``value`` is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} is {shown(value)}, but must be a whole number of at least {least}: {why}.")


def check_counts(counts: Tensor | np.ndarray | Sequence[int]) -> Tensor:
    """Return the samples of each class, at least 1, as float64; else raise a `ValueError`."""
    try:
        values = as_tensor("counts", counts).detach()
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"counts are {shown(counts)}, but must be how many samples each class has.") from error
    if values.ndim != 1 or not len(values) or values.is_complex() or values.dtype == torch.bool:
        raise ValueError(f"counts have shape {list(values.shape)} ({values.dtype}), but must be one number per class.")
    right = (values >= 1) & values.isfinite()
    if not right.all():
        wrong = int(right.byte().argmin())
        raise ValueError(
            f"counts hold {values[wrong].item()} for class {wrong}, but every class must have at least 1 sample."
        )
    return values.double()


def check_callable(name: str, value: object, what: str) -> None:
    """Raise `ValueError` unless ``value`` can be called as ``what`` says."""
    if not callable(value) or isinstance(value, type):
        raise ValueError(f"{name} is {shown(value)}, but must be {what}.")


def check_modules(name: str, value: Any) -> list[nn.Module]:
    """Return the modules of a sequence of modules; else raise a `ValueError` that names it."""
    modules: list[Any] = list(value) if isinstance(value, Sequence | nn.ModuleList) else [None]
    if not all(isinstance(module, nn.Module) for module in modules):
        raise ValueError(
            f"{name} is {shown(value)}, but must be a tuple of modules, for example (MeanProxyNorm(1.0),)."
        )
    return modules


def check_embeddings(embeddings: Tensor, embedding_size: int, least: int = 1) -> None:
    """Raise `ValueError` unless the embeddings are ``[B, embedding_size]``, floating, and at least ``least``."""
    if not isinstance(embeddings, Tensor):
        raise ValueError(
            f"embeddings are {shown(embeddings)}, but must be a tensor [batch, {embedding_size}], the network's output."
        )
    if embeddings.ndim != 2 or embeddings.shape[1] != embedding_size:
        raise ValueError(
            f"embeddings have shape {list(embeddings.shape)}, but this loss takes [batch, {embedding_size}]: "
            "make embedding_size equal to the model's output dimension."
        )
    if not embeddings.is_floating_point():
        raise ValueError(f"embeddings are {embeddings.dtype}, but must be floating: convert with .float().")
    if len(embeddings) < least:
        raise ValueError("embeddings hold no rows, but the mean over an empty batch is not defined.")


def check_labels(labels: Tensor, batch: int, num_classes: int | None, *, wait: bool = True) -> None:
    """Raise `ValueError` unless the labels are ``[batch]``, integers in [0, num_classes), or any if that is None.

    If the check is not to wait for a GPU, or is compiled, a label out of range fails later, by an assertion of the
    device.
    """
    if not isinstance(labels, Tensor):
        raise ValueError(
            f"labels are {shown(labels)}, but must be a tensor of {batch} integers: convert them with torch.as_tensor."
        )
    if labels.ndim != 1 or len(labels) != batch:
        raise ValueError(
            f"labels have shape {list(labels.shape)}, but each of the {batch} embeddings needs one: pass [{batch}]."
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels are {labels.dtype}, but must be integers, as torch.int64 is: convert with .long().")
    if num_classes is None:
        return
    labels = labels.long()  # of a narrow type, the comparison would be made in that type
    if _is_deferred(labels, wait=wait):
        torch._assert_async(((labels >= 0) & (labels < num_classes)).all())
    elif len(labels):
        least, most = map(int, labels.aminmax())
        if least < 0 or most >= num_classes:
            raise ValueError(
                f"labels hold {least if least < 0 else most}, but num_classes={num_classes} allows 0 to "
                f"{num_classes - 1}: number the training classes from 0 without gaps."
            )


def check_reduction(reduction: str) -> None:
    """Validate `reduction`; raise `ValueError` unless the losses know it."""
    if reduction not in ("mean", "none"):
        raise ValueError(f"reduction is {shown(reduction)}, but must be 'mean', or 'none' for values of samples.")


def check_weights(
    weights: Tensor | np.ndarray | Sequence[float],
    embeddings: Tensor,
    *,
    all_of_them: bool = True,
    wait: bool = True,
) -> Tensor:
    """Validate weights per sample; return a tensor like the embeddings, without gradient, or raise `ValueError`.

    They must be 0 or more and, unless other processes have the rest of the batch (``all_of_them=False``), not all 0.
    ``wait`` is that of `check_labels`.
    """
    try:
        weights = as_tensor("weights", weights).detach().to(embeddings)
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"weights are {shown(weights)}, but must be one number per sample.") from error
    if weights.shape != embeddings.shape[:1]:
        raise ValueError(
            f"weights have shape {list(weights.shape)}, but each of the {len(embeddings)} embeddings needs one: pass "
            f"[{len(embeddings)}], as class_weights[labels] is."
        )
    right = (weights >= 0).all() & weights.isfinite().all()
    if all_of_them:
        right = right & (weights.sum() > 0)
    if _is_deferred(weights, wait=wait):
        torch._assert_async(right)
    elif not right:
        raise ValueError("weights must be finite and 0 or more, at least one of them above 0: check how they are made.")
    return weights


def _is_deferred(values: Tensor, *, wait: bool) -> bool:
    return torch.compiler.is_compiling() or (values.is_cuda and not wait)


def waits_again(labels: Tensor, *, waited: bool) -> bool:
    """Return whether a loss waits for the checks of its next batch: until its first one on a GPU has passed."""
    return waited and (torch.compiler.is_compiling() or not labels.is_cuda)


def refuse_samples(weights: object, reduction: str, why: str) -> None:
    """Raise `ValueError` if weights or values per sample are asked of a loss that has none, which ``why`` explains."""
    check_reduction(reduction)
    if weights is not None or reduction == "none":
        raise ValueError(f"weights or reduction='none' came, but {why}")
