"""How compact the classes of a scene are."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from proxemic.analysis.toy import Scene, separation


@given(st.integers(0, 1000), st.integers(1, 5), st.integers(2, 6))
def test_separation_is_that_of_plain_loops(seed: int, dim: int, classes: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.cat((torch.arange(classes), torch.randint(classes, (20,), generator=generator)))
    given = Scene(torch.randn(len(labels), dim, generator=generator, dtype=torch.float64), labels)
    rows = {c: [x for x, y in zip(given.embeddings, given.labels, strict=True) if y == c] for c in range(classes)}
    means = {c: sum(rows[c], torch.zeros(dim).double()) / len(rows[c]) for c in rows}
    within = sum(sum(float((x - means[c]).norm()) for x in rows[c]) / len(rows[c]) for c in rows) / classes
    apart = {c: [float((means[c] - means[d]).norm()) for d in rows if d != c] for c in rows}
    found = separation(given)
    assert found["within"] == pytest.approx(within, abs=1e-12)
    assert found["between"] == pytest.approx(sum(map(sum, apart.values())) / (classes * (classes - 1)))
    assert found["nearest"] == pytest.approx(sum(map(min, apart.values())) / classes)
    assert found["ratio"] == pytest.approx(found["nearest"] / within if within else math.inf)
