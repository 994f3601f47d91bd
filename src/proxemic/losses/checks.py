"""What is asked of every loss's arguments and of every batch; each refusal says what came, what is allowed, the fix."""

import math
from operator import index
from typing import SupportsIndex

import torch
from torch import Tensor

__all__ = ["check_count", "check_embeddings", "check_finite", "check_labels", "check_positive"]


def check_positive(name: str, value: float) -> float:
    """``value``, if it is finite and above 0; else a `ValueError` that names it."""
    if not (value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} is {value}, but must be a positive number.")
    return float(value)


def check_finite(name: str, value: float) -> float:
    """``value``, if it is finite; else a `ValueError` that names it."""
    if not math.isfinite(value):
        raise ValueError(f"{name} is {value}, but must be a finite number.")
    return float(value)


def check_count(name: str, value: int, least: int, why: str) -> None:
    """Raise `ValueError` unless ``value`` is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex) or index(value) < least:
        raise ValueError(f"{name} is {value}, but must be a whole number of at least {least}: {why}.")


def check_embeddings(embeddings: Tensor, embedding_size: int, least: int = 1) -> None:
    """Raise `ValueError` unless the embeddings are ``[B, embedding_size]``, floating, and at least ``least``."""
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
