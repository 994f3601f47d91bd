"""Tar shards as a source: found files, splits, and a training that is killed and resumed."""

from pathlib import Path

import pytest

from proxemic.data import EmbeddingDataset, Preprocessing, WebDatasetShards
from shards import colour, png, write_shard, write_shards


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache the indices beside the shards."""
    monkeypatch.setattr("platformdirs.user_cache_path", lambda _: tmp_path / "cache")


def test_whole_classes_are_held_out(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", classes=8, each=4)
    splits = WebDatasetShards(tmp_path / "shards", test_fraction=0.5, validation_fraction=0.5).load()
    assert splits.validation is not None
    parts = [splits.train, splits.validation, splits.test_images]
    assert [part.num_classes for part in parts] == [2, 2, 4]
    assert {name for part in parts for name in part.class_names} == set("01234567")
    for part in parts:
        for place, label in enumerate(part.labels.tolist()):
            value = colour(part.pictures[place])
            assert isinstance(value, int)
            assert value // 5 == int(part.class_names[label])
    preprocessing = Preprocessing(size=8, resize=None, channels=1, mean=(0.0,), std=(1.0,))
    image, label = EmbeddingDataset(splits.train, preprocessing.evaluation())[3]
    assert image[0, 0, 0] * 255 // 5 == int(splits.train.class_names[label])


def test_folders_of_shards_give_splits(tmp_path: Path) -> None:
    for folder, first in (("train", 0), ("val", 4), ("test", 8)):
        files = {
            f"{n}.{end}": content
            for n in range(first, first + 4)
            for end, content in (("png", png(n)), ("cls", b"%d" % (n // 2)))
        }
        write_shard(tmp_path / folder / "0.tar", files)
    source = WebDatasetShards(tmp_path)
    splits = source.load()
    assert splits.validation is not None
    assert splits.train.class_names == ("0", "1")
    assert splits.validation.class_names == ("2", "3")
    assert splits.test_images.class_names == ("4", "5")
    assert source.gives_splits()
    assert len(source.load_unsplit()[0]) == 12
    assert not WebDatasetShards(tmp_path / "train").gives_splits()
    pytest.importorskip("braceexpand")
    assert WebDatasetShards(
        tmp_path / "{train,test}" / "{0..0}.tar", validation_fraction=0
    ).load().test_images.class_names == ("4", "5")


def test_a_pattern_a_folder_and_a_shard(tmp_path: Path) -> None:
    pytest.importorskip("braceexpand")
    write_shards(tmp_path / "shards", classes=4, each=8, per_shard=16)
    for root in (tmp_path / "shards", tmp_path / "shards" / "{000..001}.tar"):
        assert len(WebDatasetShards(root, test_fraction=0.5, validation_fraction=0).load_unsplit()[0]) == 32
    assert len(WebDatasetShards(tmp_path / "shards" / "000.tar").load_unsplit()[0]) == 16
    (tmp_path / "shards" / "again.tar").symlink_to(tmp_path / "shards" / "000.tar")
    for root in (tmp_path / "shards", tmp_path / "shards" / "{000,000,001}.tar"):
        assert len(WebDatasetShards(root, test_fraction=0.5, validation_fraction=0).load_unsplit()[0]) == 32
    with pytest.raises(ValueError, match=r"1 of 3 shards are missing, as .*002\.tar: give a folder"):
        WebDatasetShards(tmp_path / "shards" / "{000..002}.tar").load()
    with pytest.raises(ValueError, match="is no pattern of shards: Unbalanced"):
        WebDatasetShards(tmp_path / "shards" / "{000.tar").load()


def test_a_pattern_needs_the_extra_and_a_folder_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_shards(tmp_path, classes=4, each=8)
    monkeypatch.setitem(__import__("sys").modules, "braceexpand", None)
    WebDatasetShards(tmp_path, test_fraction=0.5, validation_fraction=0).load()
    with pytest.raises(ModuleNotFoundError, match=r"braceexpand is not installed: .*\[webdataset\]"):
        WebDatasetShards(tmp_path / "{000..001}.tar").load()


def test_what_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    for root, message in (
        (None, r"data\.root is missing: give a folder of shards"),
        (tmp_path, r"it has no \.tar file: give a folder"),
        (tmp_path / "none.tar", "1 of 1 shards are missing"),
        (Path("https://example.org/0.tar"), "1 of 1 shards are missing"),
        (Path("pipe:touch ran"), "1 of 1 shards are missing"),
    ):
        with pytest.raises(ValueError, match=message):
            WebDatasetShards(root).load()
    (tmp_path / "0.tar.gz").write_bytes(b"\x1f\x8b" + b"x" * 1000)
    with pytest.raises(ValueError, match="is compressed by gzip"):
        WebDatasetShards(tmp_path).load()


def test_samples_that_are_left_out_are_counted(tmp_path: Path) -> None:
    write_shards(tmp_path, classes=4, each=4)
    write_shard(tmp_path / "more.tar", {"lonely.png": png(0)})
    said = "1 samples without an image or a label, lonely in more.tar"
    assert f"Left out: {said}." in WebDatasetShards(tmp_path, test_fraction=0.5, validation_fraction=0).load().notes
    with pytest.raises(ValueError, match=f"has {said}: mend them"):
        WebDatasetShards(tmp_path, strict=True).load()
    with pytest.raises(ValueError, match="has no sample with an image and a label ending in txt: name the ending"):
        WebDatasetShards(tmp_path, label="txt").load()
