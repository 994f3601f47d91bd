"""Files of features that a killed process leaves half written."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from proxemic.errors import UserError
from proxemic.training.features.files import FeatureWriter, find_features

ROWS = torch.arange(30.0).view(10, 3)


def write(path: Path, first: int, last: int) -> None:
    with FeatureWriter(path, (10, 3)).open() as writer:
        assert writer.rows == first
        for row in range(first, last):
            writer.append(ROWS[row : row + 1])


def test_rows_are_kept_and_the_file_is_there_once_all_are(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "features"
    write(path, 0, 4)
    assert find_features(path, (10, 3)) is None
    write(path, 4, 10)
    reader = find_features(path, (10, 3))
    assert reader is not None
    assert torch.equal(reader.read(np.array([9, 0, 9])), ROWS[[9, 0, 9]])
    assert [each.name for each in path.parent.iterdir()] == ["features"]


@pytest.mark.parametrize("torn", [1, 5, 11])
def test_what_a_kill_tore_off_is_written_again(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "features"
    write(path, 0, 4)
    part = path.with_name("features.part")
    part.write_bytes(part.read_bytes() + bytes(torn))
    write(path, 4, 10)
    reader = find_features(path, (10, 3))
    assert reader is not None
    assert torch.equal(reader.read(np.arange(10)), ROWS)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ValueError, match="features is damaged"):
        find_features(path, (10, 3))


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match=r"could not be written: permission denied; free some space or check"):
        write(tmp_path / "features", 0, 1)
