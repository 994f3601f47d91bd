"""Stores of vectors: every kind of number, in memory and in a file, selections, damage."""

import os
import pickle
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from proxemic.data import EmbeddingDataset, ImageSet, Rows
from proxemic.data.vectors import (
    FloatType,
    UnreadableVectorsError,
    VectorArray,
    VectorAugmentation,
    VectorFile,
    Vectors,
)

ROWS, DIM = 50, 7


def no_transform(_: object) -> torch.Tensor:
    raise AssertionError("vectors are not transformed")


def written(path: Path, kind: FloatType, offset: int = 0) -> tuple[VectorFile, np.ndarray]:
    """Write a file of random numbers; return it with the same numbers in float32."""
    numbers = torch.randn(ROWS, DIM, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    content = numbers.numpy().astype(kind)
    path.write_bytes(bytes(offset) + content.tobytes())
    return VectorFile(path, offset, (ROWS, DIM), kind), content.astype(np.float32)


@pytest.mark.parametrize("kind", ["<f2", "<f4", "<f8", ">f2", ">f4", ">f8"])
def test_rows_are_read_in_any_order_and_several_times(tmp_path: Path, kind: FloatType) -> None:
    file, known = written(tmp_path / "rows.bin", kind, offset=13)
    for places in ([3], [4, 5, 6], [49, 0, 7, 8, 8, 0, 1], [*range(ROWS)]):
        assert np.array_equal(file.read(np.array(places)).numpy(), known[places])
    again = pickle.loads(pickle.dumps(file))
    assert np.array_equal(again.read(np.array([2, 1])).numpy(), known[[2, 1]])
    assert len(pickle.dumps(file)) < 1000


def test_selections_of_selections(tmp_path: Path) -> None:
    file, known = written(tmp_path / "rows.bin", "<f4")
    vectors = Vectors(file, names=np.array([f"row {row}" for row in range(ROWS)], dtype=np.dtypes.StringDType()))
    chosen = vectors.select([9, 3, 40]).select(np.array([2, 0]))
    assert np.array_equal(chosen.fetch([0, 1]).numpy(), known[[40, 9]])
    assert chosen.names == ("row 40", "row 9")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_number_that_is_not_finite_is_named_by_its_row(tmp_path: Path, workers: int) -> None:
    array = np.zeros((ROWS, DIM), "<f8")
    array[17, 3], array[20, 0] = np.nan, 1e300
    array.tofile(tmp_path / "rows.bin")
    vectors = Vectors(VectorFile(tmp_path / "rows.bin", 0, (ROWS, DIM), "<f8"))
    images = ImageSet(Rows.of(vectors), torch.arange(ROWS) % 2, ("a", "b"))
    loader = DataLoader(EmbeddingDataset(images, no_transform), batch_size=10, num_workers=workers)
    batches = iter(loader)
    next(batches)
    with pytest.raises(UnreadableVectorsError) as refused:
        next(batches)
    traceback.clear_frames(refused.tb)  # which hold the loading process until the garbage collector waits for it
    del batches
    assert str(refused.value) == (
        f"{tmp_path}/rows.bin, row 18: the vector has a number that is not finite: mend it, or leave the row out."
    )
    with pytest.raises(UnreadableVectorsError, match="row 21: "):
        vectors.select([20]).fetch([0])


def test_a_file_that_is_short_changes_or_goes(tmp_path: Path) -> None:
    file, _ = written(tmp_path / "rows.bin", "<f4")
    with pytest.raises(UnreadableVectorsError, match="1,400 bytes, but 51 vectors of 7 dimensions need 1,428"):
        VectorFile(tmp_path / "rows.bin", 0, (ROWS + 1, DIM), "<f4")
    os.utime(tmp_path / "rows.bin", ns=(1, 1))
    with pytest.raises(UnreadableVectorsError, match="has been changed since it was opened"):
        file.read(np.array([0]))
    (tmp_path / "rows.bin").unlink()
    with pytest.raises(UnreadableVectorsError, match="no such file"):
        file.read(np.array([0]))


def test_a_data_set_fetches_a_whole_batch_at_once() -> None:
    class Counting(VectorArray):
        calls = 0

        def read(self, places: np.ndarray) -> torch.Tensor:
            Counting.calls += 1
            return super().read(places)

    images = ImageSet(Rows.of(Vectors(Counting(torch.eye(6)))), torch.tensor([0, 1, 2, 0, 1, 2]), ("a", "b", "c"))
    kept = images.select_classes([2, 0])
    (batch, labels) = next(iter(DataLoader(EmbeddingDataset(kept, no_transform), batch_size=4)))
    assert Counting.calls == 1
    assert batch.tolist() == torch.eye(6)[[0, 2, 3, 5]].tolist()
    assert labels.tolist() == [1, 0, 1, 0]


SEEDS = [11, 5, 2**62, 0, 3, 9]


def some_vectors(dim: int = 8) -> Vectors:
    return Vectors(VectorArray(torch.randn(6, dim, generator=torch.Generator().manual_seed(1))))


def test_the_noise_has_the_norm_that_is_asked_for_and_depends_on_the_seed_alone() -> None:
    vectors = some_vectors(4096)
    fetch = VectorAugmentation(noise=0.5).training(vectors)
    plain, noisy = vectors.fetch(range(6)), fetch(range(6), SEEDS)
    assert torch.allclose((noisy - plain).norm(dim=1), 0.5 * plain.norm(dim=1), rtol=0.05)
    assert torch.equal(fetch([4, 2], [SEEDS[4], SEEDS[2]]), noisy[[4, 2]])
    assert not torch.equal(fetch([4], [7])[0], noisy[4])


@pytest.mark.parametrize("noise", [-0.1, float("nan")])
def test_values_out_of_their_range(noise: float) -> None:
    with pytest.raises(ValueError, match=r"^vectors\.noise is .* but must be .*0"):
        VectorAugmentation(noise=noise)
