"""The section of why pictures are near, and its maps."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from judged import judged_rows, noise
from proxemic.report import Judged
from proxemic.report.why_near import overlay, why_near
from proxemic.retrieval import Embedder
from shelves import write_model


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    embedder = Embedder.load(write_model(tmp_path_factory.mktemp("why") / "model"))
    rows = judged_rows([row % 3 for row in range(30)], spread=1.5)
    return replace(rows, embeddings=embedder.embed([noise(row) for row in range(30)]), embedder=embedder)


def test_wrong_and_right_pairs_are_explained(judged: Judged) -> None:
    section = why_near(judged)
    assert section is not None
    assert [section.html.count(name) for name in ("Wrong</span>", "Right</span>", "<img")] == [3, 3, 24]
    assert "exact, 2 × 2 and 2 × 2 places" in section.html
    assert "their values add up to the similarity" in section.html
    assert 'alt="query: what makes ' in section.html
    cosines = [float(item) for item in re.findall(r"cosine (\d\.\d+)", section.html)]
    centred = [float(item) for item in re.findall(r"(-?\d\.\d+) without the mean", section.html)]
    assert sum(cosines) > sum(centred), "what all pictures share is subtracted"


def test_gradients_are_said_to_be_approximate(judged: Judged) -> None:
    class Own(torch.nn.Module):
        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images.flatten(1)

    assert judged.embedder is not None
    own = Embedder(Own(), judged.embedder.transform)
    section = why_near(replace(judged, embeddings=own.embed([noise(row) for row in range(30)]), embedder=own))
    assert section is not None
    assert "approximate, by gradients" in section.html
    assert "exact" not in section.html


def test_without_a_network_or_pictures_nothing_is_explained(judged: Judged) -> None:
    assert why_near(replace(judged, embedder=None)) is None
    assert why_near(replace(judged, picture=lambda *_: None)) is None


def test_orange_is_where_the_contributions_are() -> None:
    seen = Image.new("RGB", (32, 32), "grey")
    drawn = np.asarray(overlay(seen, torch.tensor([[1.0, 0.0], [0.0, -1.0]], dtype=torch.float64), 1.0)).astype(int)
    assert drawn.shape == (160, 160, 3)
    red, blue = drawn[:, :, 0] - drawn[:, :, 2], drawn[:, :, 2] - drawn[:, :, 0]
    assert max(divmod(int(red.argmax()), 160)) < 80
    assert min(divmod(int(blue.argmax()), 160)) >= 80
    assert abs(red[10, 150]) < 10
