"""The losses written only from the papers' formulas: in float64, one sample and one class at a time."""

from collections.abc import Callable
from math import exp, pi

import torch
from torch import Tensor


def cosine(x: Tensor, w: Tensor) -> Tensor:
    return (x @ w) / (x.norm() * w.norm())


def class_score(x: Tensor, proxies: Tensor, gamma: float = 0.1) -> Tensor:
    s = torch.stack([cosine(x, w) for w in proxies])
    q = torch.exp(s / gamma) / torch.exp(s / gamma).sum()
    return (q * s).sum()


def nearest_score(x: Tensor, proxies: Tensor) -> Tensor:
    return torch.stack([cosine(x, w) for w in proxies]).max()


def mean_score(x: Tensor, proxies: Tensor) -> Tensor:
    return torch.stack([cosine(x, w) for w in proxies]).mean()


def scores(x: Tensor, w: Tensor, score: Callable[[Tensor, Tensor], Tensor] = class_score) -> Tensor:
    return torch.stack([torch.stack([score(row, c) for c in w]) for row in x])


def distance(x: Tensor, proxies: Tensor, gamma: float = 0.1) -> Tensor:
    """Negated softmax-pooled score of negated distances."""
    s = -torch.stack([(x - w).square().sum().sqrt() for w in proxies])
    q = torch.exp(s / gamma) / torch.exp(s / gamma).sum()
    return -(q * s).sum()


def distances(x: Tensor, w: Tensor) -> Tensor:
    return scores(x, w, distance)


Margins = float | list[float]


def of_classes(margin: Margins, w: Tensor) -> list[float]:
    """The margin of each class."""
    return margin if isinstance(margin, list) else [margin] * len(w)


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


def proxy_anchor(x: Tensor, w: Tensor, y: list[int], alpha: float = 32.0, margin: Margins = 0.1) -> Tensor:
    s, m = scores(x, w), of_classes(margin, w)
    pull = push = torch.tensor(0.0, dtype=x.dtype)
    for c in range(len(w)):
        if c in y:
            pull = pull + log1p_sum_exp([-alpha * (s[i, c] - m[c]) for i, own in enumerate(y) if own == c])
        push = push + log1p_sum_exp([alpha * (s[i, c] + m[c]) for i, own in enumerate(y) if own != c])
    return pull / len(set(y)) + push / len(w)


def all_pair(x: Tensor, w: Tensor, y: list[int], alpha: float = 32.0, margin: Margins = 0.1) -> Tensor:
    s, m = scores(x, w), of_classes(margin, w)
    total = torch.tensor(0.0, dtype=x.dtype)
    for i, own in enumerate(y):
        terms = [alpha * (m[c] - s[i, c] if c == own else s[i, c] + m[c]) for c in range(len(w))]
        total = total + log1p_sum_exp(terms)
    return total / len(y) + 0.2 * center_regularizer(w)


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


def soft_triple(x: Tensor, w: Tensor, y: list[int], scale: float = 20.0, margin: Margins = 0.01) -> Tensor:
    s, m = scores(x, w), of_classes(margin, w)
    total = torch.tensor(0.0, dtype=x.dtype)
    for i, own in enumerate(y):
        total = total + log1p_sum_exp([scale * (s[i, c] - s[i, own] + m[own]) for c in range(len(w)) if c != own])
    return total / len(y) + 0.2 * center_regularizer(w)


def multi_proxy_anchor(x: Tensor, w: Tensor, y: list[int], margin: Margins = 0.1) -> Tensor:
    return proxy_anchor(x, w, y, margin=margin) + 0.2 * center_regularizer(w)


def data_wise(x: Tensor, w: Tensor, y: list[int], alpha: float = 32.0, margin: Margins = 0.1) -> Tensor:
    s, m = scores(x, w), of_classes(margin, w)
    total = torch.tensor(0.0, dtype=x.dtype)
    for i, own in enumerate(y):
        total = total + log1p_sum_exp([-alpha * (s[i, own] - m[own])])
        total = total + log1p_sum_exp([alpha * (s[i, c] + m[c]) for c in range(len(w)) if c != own])
    return total / len(y) + 0.2 * center_regularizer(w)


def margin_softmax(
    x: Tensor,
    w: Tensor,
    y: list[int],
    scale: float,
    margin: Callable[[Tensor, Tensor, int], Tensor],
    score: Callable[[Tensor, Tensor], Tensor] = class_score,
) -> Tensor:
    """Cross-entropy where ``margin(θ, x, y)`` is the positive score; the angle θ by arccos."""
    s = scores(x, w, score)
    total = torch.tensor(0.0, dtype=x.dtype)
    for i, own in enumerate(y):
        positive = margin(torch.arccos(s[i, own]), x[i], own)
        total = total + log1p_sum_exp([scale * (s[i, c] - positive) for c in range(len(w)) if c != own])
    return total / len(y)


def smoothed(logits: Tensor, y: list[int], epsilon: float = 0.1) -> Tensor:
    """Cross-entropy of logits ``[batch, classes]`` whose targets spread ε over all classes."""
    total = torch.tensor(0.0, dtype=logits.dtype)
    for row, own in zip(logits, y, strict=True):
        log_sum = row.max() + torch.exp(row - row.max()).sum().log()
        for c in range(len(row)):
            total = total - (epsilon / len(row) + (1 - epsilon) * (c == own)) * (row[c] - log_sum)
    return total / len(y)


def easy_arc(theta: Tensor, m: float) -> Tensor:
    return torch.cos(theta + m) if theta < pi / 2 else torch.cos(theta)


def sphere(theta: Tensor, m: int) -> Tensor:
    j = int(theta.item() // (pi / m))
    return (-1) ** j * torch.cos(m * theta) - 2 * j


def arc(theta: Tensor, m: Tensor | float) -> Tensor:
    m = torch.as_tensor(m, dtype=theta.dtype)
    return torch.cos(theta + m) if theta + m <= pi else torch.cos(theta) - m * torch.sin(m)


def mag_face(x: Tensor, w: Tensor, y: list[int]) -> Tensor:
    def clipped(row: Tensor) -> Tensor:
        return row.norm().clamp(10, 110)

    def margin(theta: Tensor, row: Tensor, _: int) -> Tensor:
        return arc(theta, 0.45 + (0.8 - 0.45) * (clipped(row) - 10) / (110 - 10))

    lengths = torch.stack([clipped(row) for row in x])
    return margin_softmax(x, w, y, 64.0, margin) + 35.0 * (lengths / 110**2 + 1 / lengths).mean()


def ada_face(
    x: Tensor, w: Tensor, y: list[int], mean: float, std: float, m: float = 0.4, h: float = 0.333, scale: float = 64.0
) -> Tensor:
    """AdaFace with given mean and standard deviation of the lengths; the authors' code adds 0.001 to the latter."""

    def margin(theta: Tensor, row: Tensor, _: int) -> Tensor:
        quality = (h * (row.detach().norm().clamp(0.001, 100) - mean) / (std + 0.001)).clamp(-1, 1)
        return (theta - m * quality).clamp(0, pi).cos() - (m * quality + m)

    return margin_softmax(x, w, y, scale, margin)


def curricular_face(x: Tensor, w: Tensor, y: list[int], t: float, m: float = 0.5, scale: float = 64.0) -> Tensor:
    s = scores(x, w)
    total = torch.tensor(0.0, dtype=x.dtype)
    for i, own in enumerate(y):
        theta = torch.arccos(s[i, own])
        hardest = torch.cos(theta.detach() + m)
        negatives = [s[i, c] if s[i, c] <= hardest else s[i, c] * (t + s[i, c]) for c in range(len(w)) if c != own]
        total = total + log1p_sum_exp([scale * (negative - arc(theta, m)) for negative in negatives])
    return total / len(y)


def smoothed_curricular_face(x: Tensor, w: Tensor, y: list[int], t: float, m: float = 0.5) -> Tensor:
    s = scores(x, w)
    rows = []
    for i, own in enumerate(y):
        theta = torch.arccos(s[i, own])
        hardest = torch.cos(theta.detach() + m)
        row = [s[i, c] if s[i, c] <= hardest else s[i, c] * (t + s[i, c]) for c in range(len(w))]
        row[own] = arc(theta, m)
        rows.append(64.0 * torch.stack(row))
    return smoothed(torch.stack(rows), y)


def elastic_face(
    x: Tensor, w: Tensor, y: list[int], margins: list[float], form: str = "arc", scale: float = 64.0
) -> Tensor:
    """ElasticFace with the given margin of each sample."""
    own = {row.data_ptr(): margin for row, margin in zip(x, margins, strict=True)}

    def margin(theta: Tensor, row: Tensor, _: int) -> Tensor:
        m = own[row.data_ptr()]
        return arc(theta, m) if form == "arc" else torch.cos(theta) - m

    return margin_softmax(x, w, y, scale, margin)


def squared_distance(x: Tensor, proxies: Tensor) -> Tensor:
    """``‖x̂ − ŵ‖²``; with several proxies, 2 less twice their pooled cosine."""
    if len(proxies) == 1:
        return (x / x.norm() - proxies[0] / proxies[0].norm()).square().sum()
    return 2 - 2 * class_score(x, proxies)


def proxy_nca(x: Tensor, w: Tensor, y: list[int], scale: float) -> Tensor:
    total = torch.tensor(0.0, dtype=x.dtype)
    for i, own in enumerate(y):
        similar = torch.stack([torch.exp(-scale * squared_distance(x[i], c)) for c in w])
        others = torch.cat((similar[:own], similar[own + 1 :])).sum()
        total = total - torch.log(similar[own] / others)
    return total / len(y)


def proxy_nca_plus_plus(x: Tensor, w: Tensor, y: list[int], temperature: float = 1 / 9) -> Tensor:
    total = torch.tensor(0.0, dtype=x.dtype)
    for i, own in enumerate(y):
        similar = torch.stack([torch.exp(-squared_distance(x[i], c) / temperature) for c in w])
        total = total - torch.log(similar[own] / similar.sum())
    return total / len(y)


def hist(inputs: tuple[Tensor, ...], y: list[int], tau: float, alpha: float) -> Tensor:
    """One Gaussian per class; batch norm with weight 1 and bias 0."""
    x, w, log_variances, enter, enter_bias, leave, leave_bias = inputs
    variances = log_variances[:, 0].clamp(0, 6).exp()
    units = torch.stack([row / row.norm() for row in x])
    means = torch.stack([c[0] / c[0].norm() for c in w])
    d = torch.stack(
        [torch.stack([((u - m).square() / v).sum() for m, v in zip(means, variances, strict=True)]) for u in units]
    )
    total = torch.tensor(0.0, dtype=x.dtype)
    for i, own in enumerate(y):
        total = total + log1p_sum_exp([tau * (d[i, own] - d[i, c]) for c in range(len(w)) if c != own])
    present = sorted(set(y))
    h = torch.stack(
        [
            torch.stack([torch.ones((), dtype=x.dtype) if c == own else torch.exp(-alpha * d[i, c]) for c in present])
            for i, own in enumerate(y)
        ]
    )
    dv, de = torch.diag(h.sum(1) ** -0.5), torch.diag(1 / h.sum(0))
    g = dv @ h @ de @ h.T @ dv
    hidden = g @ (x @ enter.T + enter_bias)
    normal = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-5).sqrt()
    activated = torch.where(normal > 0, normal, 0.1 * normal)
    out = g @ (activated @ leave.T + leave_bias)
    graph = torch.stack([-torch.log(torch.exp(out[i, own]) / torch.exp(out[i]).sum()) for i, own in enumerate(y)])
    return total / len(y) + graph.mean()
