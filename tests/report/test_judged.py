"""What a report is about is what the run has recorded."""

from pathlib import Path

import pytest
import torch

from proxemic.errors import UserError
from proxemic.files import read_json
from proxemic.report import Judged, judge_run


@pytest.fixture(scope="module")
def judged(run: Path) -> Judged:
    return judge_run(run, [run])


def test_the_metrics_are_those_of_the_run(run: Path, judged: Judged) -> None:
    recorded = read_json(run / "metrics.json")
    assert judged.split == "test"
    assert dict(judged.metrics) == pytest.approx(recorded["test"])
    assert dict(judged.metrics_before["untrained"]) == pytest.approx(recorded["untrained"])
    assert recorded["untrained"] != recorded["test"]
    assert dict(judged.others[0].metrics) == pytest.approx(recorded["test"])


def test_neighbours_are_the_nearest_others(judged: Judged) -> None:
    rows = torch.nn.functional.normalize(judged.embeddings.double(), dim=1)
    distances = (1 - rows @ rows.T).fill_diagonal_(torch.inf)
    found = judged.found
    assert found.queries.tolist() == [*range(len(rows))]
    assert found.neighbours.shape == (len(rows), 10)
    torch.testing.assert_close(found.distances.double(), distances.sort(1).values[:, :10], atol=1e-5, rtol=0)
    torch.testing.assert_close(distances.gather(1, found.neighbours), found.distances.double(), atol=1e-5, rtol=0)


def test_names_and_pictures(judged: Judged) -> None:
    image = judged.picture(0, 16)
    assert image is not None
    assert min(image.size) == 16
    assert judged.images is not None
    assert judged.label(0) == judged.images.class_names[0]


def test_what_training_has_embedded_is_taken(run: Path) -> None:
    there = judge_run(run)
    given = judge_run(run, embedded={"test": there.before["untrained"]})
    assert torch.equal(given.embeddings, there.before["untrained"])
    assert not given.before


def test_a_run_that_is_not_finished_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not hold a run"):
        judge_run(tmp_path)
