"""The losses, written from the formulas of the papers alone: float64, one sample, one class at a time."""

from math import exp

import torch
from torch import Tensor


def cosine(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w) / (x.norm() * w.norm())


def class_score(x: Tensor, proxies: Tensor, gamma: float = 0.1) -> Tensor:
    s = torch.stack([cosine(x, w) for w in proxies])
    q = torch.exp(s / gamma) / torch.exp(s / gamma).sum()
    return (q * s).sum()


def scores(x: Tensor, w: Tensor, gamma: float = 0.1) -> Tensor:
    return torch.stack([torch.stack([class_score(row, c, gamma) for c in w]) for row in x])


def distances(x: Tensor, w: Tensor) -> Tensor:
    return torch.stack([torch.stack([(row - c[0]).square().sum().sqrt() for c in w]) for row in x])


def log1p_sum_exp(terms: list[Tensor]) -> Tensor:
    """log(1 + Σ e^t), with the largest term taken out so that float64 does not overflow either."""
    top = max(0.0, *(t.item() for t in terms)) if terms else 0.0
    return top + torch.log(exp(-top) + sum((torch.exp(t - top) for t in terms), torch.tensor(0.0, dtype=torch.float64)))


def normalized_softmax(x: Tensor, w: Tensor, y: list[int], scale: float = 20.0) -> Tensor:
    s = scores(x, w)
    total = torch.tensor(0.0, dtype=x.dtype)
    for i, own in enumerate(y):
        total = total + log1p_sum_exp([scale * (s[i, c] - s[i, own]) for c in range(len(w)) if c != own])
    return total / len(y)


def mean_proxy_norm(w: Tensor) -> Tensor:
    units = torch.stack([p / p.norm() for c in w for p in c])
    return units.mean(0).norm()


def center_regularizer(w: Tensor) -> Tensor:
    classes, k, _ = w.shape
    total = torch.tensor(0.0, dtype=w.dtype)
    for c in range(classes):
        for first in range(k):
            for second in range(first + 1, k):
                total = total + (2 - 2 * cosine(w[c, first], w[c, second])).sqrt()
    return total / (classes * k * (k - 1)) if k > 1 else total


def proxy_anchor(x: Tensor, w: Tensor, y: list[int], alpha: float = 32.0, margin: float = 0.1) -> Tensor:
    s = scores(x, w)
    pull = push = torch.tensor(0.0, dtype=x.dtype)
    for c in range(len(w)):
        if c in y:
            pull = pull + log1p_sum_exp([-alpha * (s[i, c] - margin) for i, own in enumerate(y) if own == c])
        push = push + log1p_sum_exp([alpha * (s[i, c] + margin) for i, own in enumerate(y) if own != c])
    return pull / len(set(y)) + push / len(w)


def all_pair(x: Tensor, w: Tensor, y: list[int], alpha: float = 32.0, margin: float = 0.1, tau: float = 0.2) -> Tensor:
    s = scores(x, w)
    total = torch.tensor(0.0, dtype=x.dtype)
    for i, own in enumerate(y):
        terms = [alpha * (margin - s[i, c] if c == own else s[i, c] + margin) for c in range(len(w))]
        total = total + log1p_sum_exp(terms)
    return total / len(y) + tau * center_regularizer(w)


def euclidean_softmax(x: Tensor, w: Tensor, y: list[int], temperature: float = 1.0) -> Tensor:
    t = temperature * distances(x, w)
    total = torch.tensor(0.0, dtype=x.dtype)
    for i, own in enumerate(y):
        total = total + log1p_sum_exp([t[i, own] - t[i, c] for c in range(len(w)) if c != own])
    return total / len(y)


def warped_softmax(
    x: Tensor, w: Tensor, y: list[int], alpha: float, k1: float, k2: float, delta_scale: float, temperature: float
) -> Tensor:
    t = distances(x, w)
    total = torch.tensor(0.0, dtype=x.dtype)
    for i, own in enumerate(y):
        if t[i, own] < alpha:
            f1 = k1 * t[i, own] + (delta_scale * (t[i, own] - k1 * t[i, own])).detach()
        else:
            f1 = k2 * t[i, own] + (1 - k2) * alpha
        total = total + log1p_sum_exp([temperature * (f1 - t[i, c]) for c in range(len(w)) if c != own])
    return total / len(y)
