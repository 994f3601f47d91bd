"""Networks in ONNX files as frozen backbones."""

import copy
import json
import pickle
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import conv2d

from onnx_files import WEIGHT, network, node, value, weight
from proxemic.models import ModelConfig, OnnxBackbone, build_model, load_model, save_model

pytestmark = pytest.mark.skipif(find_spec("onnxruntime") is None, reason="onnxruntime is not installed")

IMAGES = torch.linspace(-1, 1, 5 * 3 * 8 * 8).reshape(5, 3, 8, 8)
MAP = conv2d(IMAGES.double(), torch.from_numpy(WEIGHT.copy()).double()).float()


def config(file: Path, **other: Any) -> ModelConfig:
    return ModelConfig(**{"backbone": str(file), "train": "head", "embedding_size": 4, "image_size": 8} | other)


def written(tmp_path: Path, content: bytes, name: str = "net.onnx") -> Path:
    (tmp_path / name).write_bytes(content)
    return tmp_path / name


@pytest.mark.parametrize("batch", ["n", 1, 2, 5, 7])
def test_features_and_maps_are_those_of_the_formula(tmp_path: Path, batch: int | str) -> None:
    file = written(tmp_path, network((batch, 3, 8, 8)))
    model = build_model(config(file))
    assert torch.allclose(model.features(IMAGES), MAP.mean((2, 3)), atol=1e-5)
    mapped = build_model(config(file, backbone_args={"output": "map"}, pooling="max"))
    assert mapped.backbone.num_features == 5
    assert torch.allclose(mapped.features(IMAGES), MAP.amax((2, 3)), atol=1e-5)


def test_only_the_head_is_trained(tmp_path: Path) -> None:
    model = build_model(config(written(tmp_path, network())))
    assert {name.partition(".")[0] for name, _ in model.named_parameters()} == {"head"}
    model(IMAGES).sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    for train in ("all", "last:1"):
        with pytest.raises(ValueError, match="is an ONNX file, which cannot be trained; set train to head"):
            config(tmp_path / "net.onnx", train=train)
    for given in ({"pretrained": True}, {"weights": "w.safetensors"}):
        with pytest.raises(ValueError, match="has its weights in the file; leave them out"):
            config(tmp_path / "net.onnx", **given)


def test_a_saved_model_has_the_file_with_it(tmp_path: Path) -> None:
    file = written(tmp_path, network())
    model = build_model(config(file, backbone_args={"output": "map"})).eval()
    save_model(tmp_path / "run", model, {"size": 8})
    file.unlink()
    loaded, _ = load_model(tmp_path / "run")
    assert torch.equal(loaded(IMAGES), model(IMAGES))
    assert loaded.config == model.config
    save_model(tmp_path / "again", loaded, {"size": 8})
    assert torch.equal(load_model(tmp_path / "again" / "model.safetensors")[0](IMAGES), model(IMAGES))
    kept = tmp_path / "run" / "backbone.onnx"
    assert kept.read_bytes() == network()
    sha256 = json.loads((tmp_path / "run" / "model.json").read_text())["network"]["sha256"]
    kept.write_bytes(network((1, 3, 8, 8)))
    with pytest.raises(ValueError, match=f"is not the file with SHA-256 {sha256} that model.json names; restore it"):
        load_model(tmp_path / "run")
    kept.unlink()
    with pytest.raises(
        ValueError, match=rf"there is no such file.*: it is the copy of .*net\.onnx with SHA-256 {sha256}"
    ):
        load_model(tmp_path / "run")


def test_copies_run_by_themselves(tmp_path: Path) -> None:
    model = build_model(config(written(tmp_path, network())))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(other(IMAGES), model(IMAGES))
    backbone = model.backbone
    assert isinstance(backbone, OnnxBackbone)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        assert torch.allclose(backbone(IMAGES).flatten(1), MAP.mean((2, 3)), atol=1e-5)
        assert backbone._threads == 2
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be loaded by ONNX Runtime"),
        (network()[:-100], "cannot be loaded by ONNX Runtime"),
        (network(nodes=[node("Run", ["x"], "y", "evil")]), "must find all operators and weights in the file itself"),
        (
            network(inputs=[value("x", ["n", 3, "h", "w"]), value("z", [1])]),
            r"has the inputs x: .*, z: .*, but must have",
        ),
        (network(inputs=[value("x", ["n", 3, "h", "w"], 10)], nodes=()), "float16|cannot be loaded"),
        (network(("n", 1, "h", "w")), "takes images of 1 channels, but they have 3; set images.channels"),
        (network(("n", 8, 8, 3)), "takes images of 8 channels, but they have 3; export it with the channels first"),
        (network(("n", 3, 16, 16)), "takes images of 16 by 16 pixels, but they have 8 by 8; set images.size to 16"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path: Path, content: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(config(written(tmp_path, content)))


@pytest.mark.parametrize("place", ["w.bin", "{folder}/w.bin", "../w.bin"])
def test_weights_outside_of_the_file_are_not_read(tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inside").mkdir()
    for folder in (tmp_path, tmp_path / "inside"):
        (folder / "w.bin").write_bytes(WEIGHT.tobytes())
    monkeypatch.chdir(tmp_path / "inside")
    content = network(weights=weight(elsewhere=place.format(folder=tmp_path)))
    with pytest.raises(ValueError, match="must find all operators and weights in the file itself"):
        build_model(config(written(tmp_path / "inside", content)))


def test_missing_and_huge_files_and_unknown_outputs(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no such file; give one that ends in \.onnx"):
        build_model(config(tmp_path / "none.onnx"))
    with (tmp_path / "huge.onnx").open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(ValueError, match="has 2,147,483,648 bytes, but an ONNX file has at most 2,147,483,647"):
        build_model(config(tmp_path / "huge.onnx"))
    file = written(tmp_path, network())
    with pytest.raises(ValueError, match=r"backbone_args has output 'pooled', but .* has features, map"):
        build_model(config(file, backbone_args={"output": "pooled"}))
    with pytest.raises(ValueError, match="backbone_args has depth, but an ONNX file has only the argument output"):
        build_model(config(file, backbone_args={"depth": 2}))
