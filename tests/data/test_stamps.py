from pathlib import Path

from images import write_folder
from proxemic.data.pixels import FilePixels
from proxemic.data.stamps import stamps_of


def test_stamps_tell_files_that_have_changed_and_boxes(tmp_path: Path) -> None:
    paths = sorted(write_folder(tmp_path / "photos", classes=2, images=2).rglob("*.png"))
    pixels = FilePixels([*paths, paths[0], "s3://bucket/a.png"], [None] * 4 + [(0, 0, 4, 4), None])
    before = stamps_of(pixels)
    assert stamps_of(pixels) == before
    assert len({*before}) == 6
    assert before[5] is None
    paths[1].write_bytes(b"x")
    paths[2].unlink()
    paths[3].chmod(0o600)
    after = stamps_of(pixels)
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False, False, False, True, True]
    assert after[2] is None
