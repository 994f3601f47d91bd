"""The papers' statements as numbers: the naive formulas give the same, and what is wrong as printed is seen to be."""

import math

import pytest
import torch
from torch import Tensor

from proxemic.analysis.gap import GapBounds, gap_bounds
from proxemic.analysis.landscape import WarpPotential
from proxemic.analysis.theorems import GROWING, Statement, check_theorems, pair_bounds, plot_proposition


def test_a_statement_keeps_the_case_nearest_to_its_bound() -> None:
    observed, bound = torch.tensor([1.0, 3.0, 2.0]), torch.tensor([4.0, 3.5, 1.0])
    assert Statement.of("a", "x ≤ y", observed, bound) == Statement("a", "x ≤ y", 2.0, 1.0, 2, 3)
    assert Statement.of("a", "x ≥ y", observed, bound) == Statement("a", "x ≥ y", 1.0, 4.0, 1, 3)


def test_only_what_is_known_to_be_wrong_fails() -> None:
    found = {theorem.name: theorem for theorem in check_theorems(12, seed=3)}
    wrong = {name for name, item in found.items() if item.holds < item.cases}
    assert wrong == {"Proposition 2, 3 embeddings per class", "Equation 3.8"}
    assert {*found} >= {"Proposition 3", "Lemma 1", "Theorem 1", "Theorem 2", "Proposition III.2", "Lemma III.1, f = t"}


def test_the_proxies_of_the_cases_lean_by_various_amounts(monkeypatch: pytest.MonkeyPatch) -> None:
    means = []

    def noted(proxies: Tensor) -> GapBounds:
        means.append(float(proxies.mean(0).norm()))
        return gap_bounds(proxies)

    monkeypatch.setattr("proxemic.analysis.theorems.gap_bounds", noted)
    check_theorems(12, seed=3)
    assert min(means) < 0.3 < 0.7 < max(means)


def naive(x: Tensor, y: list[int], w: Tensor) -> dict[str, float]:
    """The largest excess of every statement over all triplets and anchors, from the formulas alone."""
    x, w = x / x.norm(dim=1, keepdim=True), w / w.norm(dim=1, keepdim=True)
    triples = [
        (a, p, n)
        for a in range(len(x))
        for p in range(len(x))
        for n in range(len(x))
        if a != p and y[a] == y[p] and y[n] != y[a]
    ]
    found: dict[str, float] = {}
    for name, (g, _) in GROWING.items():
        found[f"Proposition 1, g = {name}"] = max(
            float(g((x[a] - x[p]).norm()) - g((x[a] - x[n]).norm()))
            - float(g((x[a] - w[y[a]]).norm()) - g((x[a] - w[y[n]]).norm()))
            for a, p, n in triples
        )
    return found


def test_given_embeddings_have_the_bounds_of_the_formulas() -> None:
    torch.manual_seed(0)
    w, y = torch.randn(3, 4, dtype=torch.float64), [0, 0, 1, 1, 2, 2]
    x = w[y] + 0.3 * torch.randn(6, 4, dtype=torch.float64)
    statements = {bound.name: bound for bound in pair_bounds(x, torch.tensor(y), w)}
    epsilon = max(float((a / a.norm() - w[c] / w[c].norm()).norm()) for a, c in zip(x, y, strict=True))
    for name, excess in naive(x, y, w).items():
        assert statements[name].observed == pytest.approx(excess, abs=1e-12)
        assert statements[name].bound == pytest.approx(2 * epsilon * GROWING[name.rpartition(" = ")[2]][1])
    unit = x / x.norm(dim=1, keepdim=True)
    excess = max(
        -float(unit[a] @ unit[a ^ 1])
        + math.log(sum(math.exp(float(unit[a] @ unit[n])) for n in range(6) if y[n] != y[a]))
        + float(unit[a] @ w[y[a]] / w[y[a]].norm())
        - math.log(sum(math.exp(float(unit[a] @ w[c] / w[c].norm())) for c in range(3) if c != y[a]))
        for a in range(6)
    )
    printed, corrected = (statements[f"Proposition 2, 2 embeddings per class{end}"] for end in ("", ", corrected"))
    assert printed.observed == corrected.observed == pytest.approx(excess, abs=1e-12)
    assert corrected.bound - printed.bound == pytest.approx(math.log(2))


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="two classes or more"):
        pair_bounds(torch.eye(3), torch.tensor([0, 1, 2]), torch.eye(3))
    with pytest.raises(ValueError, match="draws is 0"):
        check_theorems(0)


def test_the_proposition_s_picture_is_the_formula() -> None:
    _, rows = plot_proposition(WarpPotential(2.0, 0.5, 1.5))
    assert rows[200] == pytest.approx((-2.0, 0.5 * 2 - 6, 1.5, 1.0))
