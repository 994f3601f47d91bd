"""What features are known by: the file of a network that has one of its own, and where images lie in shards."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from onnx_files import network
from proxemic.data.formats.shards import index_shards
from proxemic.models import ModelConfig, build_model
from proxemic.training.features.fingerprint import image_keys, network_key
from shards import png, write_shard


@pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed")
def test_another_file_of_the_same_name_is_another_network(tmp_path: Path) -> None:
    config = ModelConfig(backbone=str(tmp_path / "net.onnx"), train="head", image_size=8)
    keys = []
    for batch in ("n", 2, "n"):
        (tmp_path / "net.onnx").write_bytes(network((batch, 3, 8, 8)))
        keys.append(network_key(build_model(config)))
    assert keys[0] == keys[2] != keys[1]


def test_images_in_shards_are_known_by_their_place_as_long_as_the_shard_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = tmp_path / "0.tar"
    write_shard(shard, {f"{n}.{end}": content for n in range(3) for end, content in (("png", png(7)), ("cls", b"1"))})
    pixels = index_shards([shard], None, "cls", tmp_path).pixels
    with monkeypatch.context() as patched:
        patched.setattr("proxemic.data.formats.shards.read_image", None)  # nothing is decoded for it
        keys = image_keys(pixels)
    assert len({*keys}) == 3
    assert image_keys(pixels.select([2, 0])) == [keys[2], keys[0]]
    os.utime(shard, ns=(0, 0))
    assert not {*image_keys(pixels)} & {*keys}
