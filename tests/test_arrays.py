"""Arrays of any layout become tensors with their values, wherever users give them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from proxemic.arrays import as_tensor
from proxemic.data import ClassBalancedBatches
from proxemic.losses.checks import check_counts, check_weights
from proxemic.losses.margins import class_margins
from proxemic.metrics import pair_distances, retrieval_metrics
from proxemic.retrieval import Gallery

ROWS = np.arange(12.0).reshape(4, 3) + 1
FIELDS = np.zeros(4, dtype=[("x", "f8"), ("y", "f4")])
LAYOUTS: dict[str, np.ndarray] = {
    "turned round": ROWS[::-1],
    "one row of those turned round": ROWS[::-1][:1],
    "no row of those turned round": ROWS[::-1][:0],
    "columns turned round": ROWS[:, ::-1],
    "one column of those turned round": ROWS[:, ::-1][:, :1],
    "transposed": ROWS.T,
    "every second": ROWS[::2, ::2],
    "broadcast": np.broadcast_to(ROWS[:1], (3, 3)),
    "in another byte order": ROWS.astype(">f8")[::-1][:1],
    "a field of one record": FIELDS["x"][1:2],
    "not aligned": np.frombuffer(b"." + ROWS.tobytes(), offset=1),
    "one number": np.array(1.5),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_arrays_of_any_layout(name: str) -> None:
    array = LAYOUTS[name]
    tensor = as_tensor("rows", array)
    assert tensor.shape == array.shape
    assert np.array_equal(tensor.numpy(), array)


def test_a_plain_array_is_not_copied() -> None:
    array = ROWS.copy()
    assert as_tensor("rows", array).data_ptr() == array.ctypes.data


def backwards(*values: Any) -> Any:
    """These values in memory from the last to the first."""
    return np.array(values)[::-1].copy()[::-1]


USES: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
    "weights": (lambda values: check_weights(values, torch.eye(2)), [0.5, 2.0]),
    "margins": (lambda values: class_margins(values, 2, lambda _, value: value), [0.1, 0.3]),
    "counts": (check_counts, [3, 1]),
    "labels of batches": (lambda values: [*ClassBalancedBatches(values, 2, 1, seed=0)], [0, 1, 1, 2]),
}


@pytest.mark.parametrize("name", USES)
def test_numbers_given_to_losses_and_data(name: str) -> None:
    use, values = USES[name]
    assert str(use(backwards(*values))) == str(use(values))


def test_vectors_given_to_metrics_and_galleries(tmp_path: Path) -> None:
    rows: Any = ROWS[::-1]
    one, labels = rows[:1], backwards(0, 0, 1, 1)
    assert retrieval_metrics(rows, labels) == retrieval_metrics(rows.tolist(), labels.tolist())
    assert retrieval_metrics(one, labels[:1], one, labels[:1])["recall@1"] == 1.0
    assert pair_distances(one, one).tolist() == [0.0]
    gallery = Gallery.create(tmp_path / "gallery", dim=3)
    gallery.add_vectors(one, ["last"])
    gallery.add_vectors(ROWS[:3][::-1], ["2", "1", "0"])
    assert [hit.path for (hit,) in gallery.search_vectors(one, k=1)] == ["last"]
    gallery.close()
