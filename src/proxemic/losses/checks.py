"""What is asked of every loss's arguments and of every batch; each refusal says what came, what is allowed, the fix."""

import math
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any, NoReturn, TypeGuard

import torch
from torch import Tensor, nn


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is one finite number, NumPy's included: no bool, no tensor."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


def is_pair(value: object) -> TypeGuard[Sequence[float]]:
    """Whether it is two finite numbers."""
    return isinstance(value, Sequence) and len(value) == 2 and all(map(is_number, value))


def shown(value: object) -> str:
    """What came, short enough for a sentence: numbers and words, one or a few, or else its type.

    >>> shown(3), shown("max"), shown((0.1, None)), shown(torch.ones(9)), shown(Tensor)
    ('3', "'max'", '(0.1, None)', 'of type Tensor', 'the class Tensor')
    """
    if isinstance(value, type):
        return f"the class {value.__name__}"
    several = isinstance(value, tuple | list)
    plain = all(isinstance(each, Real | str | None) for each in (value if several else [value]))
    text = repr(value) if several or isinstance(value, str) else str(value)
    return text if plain and len(text) < 80 else f"of type {type(value).__name__}"


def check_positive(name: str, value: float) -> float:
    """``value``, if it is finite and above 0; else a `ValueError` that names it."""
    if not (is_number(value) and value > 0):
        raise ValueError(f"{name} is {shown(value)}, but must be a positive number.")
    return float(value)


def check_finite(name: str, value: float) -> float:
    """``value``, if it is finite; else a `ValueError` that names it."""
    if not is_number(value):
        raise ValueError(f"{name} is {shown(value)}, but must be a finite number.")
    return float(value)


def check_count(name: str, value: int, least: int, why: str) -> None:
    """Raise `ValueError` unless ``value`` is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} is {shown(value)}, but must be a whole number of at least {least}: {why}.")


def check_counts(counts: Tensor | Sequence[int]) -> Tensor:
    """Samples of each class, at least 1, as float64; else a `ValueError`."""
    try:
        values = torch.as_tensor(counts).detach()
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


def check_modules(name: str, value: Iterable[nn.Module]) -> list[nn.Module]:
    """The modules of a sequence of them; else a `ValueError` that names it."""
    one = isinstance(value, nn.Module) and not isinstance(value, nn.ModuleList)
    several = isinstance(value, Iterable) and not (one or isinstance(value, Tensor))
    modules: list[Any] = list(value) if several else [None]
    if not all(isinstance(each, nn.Module) for each in modules):
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


def check_labels(labels: Tensor, batch: int, num_classes: int) -> None:
    """Raise `ValueError` unless the labels are ``[batch]``, integers in [0, num_classes).

    On a GPU a label out of range fails later, by a device-side assertion, so that the check need not wait for the GPU.
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
    labels = labels.long()  # of a narrow type, the comparison would be made in that type
    if labels.is_cuda:
        torch._assert_async(((labels >= 0) & (labels < num_classes)).all())
    elif len(labels) and (labels.min() < 0 or labels.max() >= num_classes):
        wrong = labels.min() if labels.min() < 0 else labels.max()
        raise ValueError(
            f"labels hold {wrong.item()}, but num_classes={num_classes} allows 0 to {num_classes - 1}: "
            "number the training classes from 0 without gaps."
        )


def check_reduction(reduction: str) -> None:
    """Raise `ValueError` unless it is one that the losses know."""
    if reduction not in ("mean", "none"):
        raise ValueError(f"reduction is {shown(reduction)}, but must be 'mean', or 'none' for values of samples.")


def check_weights(weights: Tensor | Sequence[float], embeddings: Tensor, *, all_of_them: bool = True) -> Tensor:
    """Weights of samples as a tensor beside the embeddings, without a gradient; else a `ValueError`.

    On a GPU a weight out of range fails later, by a device-side assertion.

    Args:
        weights: One a sample, 0 or more, and not all 0.
        embeddings: Of the samples.
        all_of_them: Not so where other processes have the rest of the batch: here all may be 0.
    """
    try:
        weights = torch.as_tensor(weights).detach().to(embeddings)
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
    if weights.is_cuda:
        torch._assert_async(right)
    elif not right:
        raise ValueError("weights must be finite and 0 or more, at least one of them above 0: check how they are made.")
    return weights


def refuse_samples(weights: object, reduction: str, whose: str) -> None:
    """Raise `ValueError` if samples are to be weighed or told apart, by a loss that cannot.

    Args:
        weights: As they came.
        reduction: As it came.
        whose: What values the loss has instead, and what to do.
    """
    check_reduction(reduction)
    if weights is not None or reduction == "none":
        raise ValueError(f"weights or reduction='none' came, but {whose}")


def refuse_script(loss: nn.Module) -> NoReturn:
    """Raise `TypeError`, as `torch.jit.script` is answered with that of what it cannot do."""
    raise TypeError(
        f"{type(loss).__name__} cannot be scripted: script the network alone, which is what is deployed, or compile "
        "the loss with torch.compile."
    )
