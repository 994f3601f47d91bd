"""Checks of the losses' arguments and batches; each message names the value, what is allowed and the fix."""

import math
from collections.abc import Sequence
from numbers import Integral, Real
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn

from proxemic.arrays import as_tensor


def is_number(value: object) -> TypeGuard[float]:
    """Return whether a value is a finite number of Python or NumPy; a bool or a tensor is not."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def shown(value: object) -> str:
    """Format a value for a message: a few numbers or strings are shown, anything else is named by its type.

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
    """Return ``value`` if it is a finite number within the bounds; otherwise raise `ValueError` with the rule."""
    if not (is_number(value) and above < value < below and least <= value <= most):
        raise ValueError(f"{name} is {shown(value)}, but {rule}.")
    return value


def check_positive(name: str, value: float) -> float:
    """Return ``value`` as a float if it is finite and above 0; otherwise raise `ValueError`."""
    return float(check_number(name, value, "must be a positive number", above=0))


def check_finite(name: str, value: float) -> float:
    """Return ``value`` as a float if it is finite; otherwise raise `ValueError`."""
    return float(check_number(name, value, "must be a finite number"))


def check_count(name: str, value: int, least: int, why: str) -> None:
    """Raise `ValueError` unless ``value`` is a whole number, at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} is {shown(value)}, but must be a whole number of at least {least}: {why}.")


def check_counts(counts: Tensor | np.ndarray | Sequence[int]) -> Tensor:
    """Return the number of samples of each class as float64 if all are at least 1; otherwise raise `ValueError`."""
    values = as_tensor("counts", counts).detach()
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
    """Raise `ValueError` unless ``value`` is callable and not a class; ``what`` describes what it must be."""
    if not callable(value) or isinstance(value, type):
        raise ValueError(f"{name} is {shown(value)}, but must be {what}.")


def check_modules(name: str, value: Any) -> list[nn.Module]:
    """Return the modules of a sequence; raise `ValueError` if it is not a sequence of modules."""
    modules: list[Any] = list(value) if isinstance(value, Sequence | nn.ModuleList) else [None]
    if not all(isinstance(module, nn.Module) for module in modules):
        raise ValueError(
            f"{name} is {shown(value)}, but must be a tuple of modules, for example (MeanProxyNorm(1.0),)."
        )
    return modules


def check_embeddings(embeddings: Tensor, embedding_size: int, least: int = 1) -> None:
    """Raise `ValueError` unless embeddings are floating ``[B, embedding_size]`` with ``B ≥ least``."""
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
    if embeddings.shape[0] < least:
        raise ValueError("embeddings are empty, but the mean over an empty batch is not defined.")


def check_labels(labels: Tensor, batch: int, num_classes: int | None, *, wait: bool = True) -> None:
    """Raise `ValueError` unless labels are integers ``[batch]`` in [0, num_classes), or any integers if that is None.

    If the check must not wait for a GPU, or is compiled, a label out of range fails later with an assertion of the
    device.
    """
    if not isinstance(labels, Tensor):
        raise ValueError(
            f"labels are {shown(labels)}, but must be a tensor of {batch} integers: convert them with torch.as_tensor."
        )
    if labels.shape != (batch,):
        raise ValueError(
            f"labels have shape {list(labels.shape)}, but each of the {batch} embeddings needs one: pass [{batch}]."
        )
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise ValueError(f"labels are {labels.dtype}, but must be integers, as in torch.int64: convert with .long().")
    if num_classes is None:
        return
    labels = labels.long()  # a narrow type would be compared in that type
    if _is_deferred(labels, wait=wait):
        torch._assert_async(((labels >= 0) & (labels < num_classes)).all())
    elif batch:
        least, most = map(int, labels.aminmax())
        if least < 0 or most >= num_classes:
            raise ValueError(
                f"labels hold {least if least < 0 else most}, but num_classes={num_classes} allows 0 to "
                f"{num_classes - 1}: number the training classes from 0 without gaps."
            )


def check_reduction(reduction: str) -> None:
    """Raise `ValueError` unless `reduction` is "mean" or "none"."""
    if reduction not in ("mean", "none"):
        raise ValueError(f"reduction is {shown(reduction)}, but must be 'mean', or 'none' for per-sample losses.")


def check_weights(
    weights: Tensor | np.ndarray | Sequence[float],
    embeddings: Tensor,
    *,
    all_of_them: bool = True,
    wait: bool = True,
) -> Tensor:
    """Return per-sample weights as a tensor like the embeddings, without gradient, or raise `ValueError`.

    The weights must be 0 or more, and not all 0 unless other processes hold the rest of the batch
    (``all_of_them=False``). ``wait`` has the same meaning as in `check_labels`.
    """
    weights = as_tensor("weights", weights).detach().to(embeddings)
    if weights.shape != embeddings.shape[:1]:
        raise ValueError(
            f"weights have shape {list(weights.shape)}, but each of the {len(embeddings)} embeddings needs one: pass "
            f"[{len(embeddings)}], for example class_weights[labels]."
        )
    right = (weights >= 0).all() & weights.isfinite().all()
    if all_of_them:
        right = right & (weights.sum() > 0)
    if _is_deferred(weights, wait=wait):
        torch._assert_async(right)
    elif not right:
        raise ValueError("weights must be finite and 0 or more, and at least one above 0: check how you compute them.")
    return weights


def _is_deferred(values: Tensor, *, wait: bool) -> bool:
    return torch.compiler.is_compiling() or (values.is_cuda and not wait)


def waits_again(labels: Tensor, *, waited: bool) -> bool:
    """Return whether a loss waits for the checks of its next batch, as it does until a batch on a GPU has passed."""
    return waited and (torch.compiler.is_compiling() or not labels.is_cuda)


def refuse_samples(weights: object, reduction: str, why: str) -> None:
    """Raise `ValueError` if a loss without per-sample losses gets weights or ``reduction="none"``; ``why`` explains."""
    check_reduction(reduction)
    if weights is not None or reduction == "none":
        raise ValueError(f"weights or reduction='none' are given, but {why}")
