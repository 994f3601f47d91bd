"""BN-Inception against its published layers, against plain arithmetic, and its weights from files."""

import hashlib
import socket
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import conv2d, pad

from hostile import assert_code_is_not_run
from proxemic.errors import UserError
from proxemic.models import (
    BNInception,
    ModelConfig,
    bn_inception_backbone,
    build_model,
)

# As in the listing of the published network: name, inputs, outputs, side of the kernel.
STEM = [("conv1_7x7_s2", 3, 64, 7), ("conv2_3x3_reduce", 64, 64, 1), ("conv2_3x3", 64, 192, 3)]
# Block, inputs, then the outputs of 1x1, 3x3_reduce, 3x3, double_3x3_reduce, double_3x3_1 and _2, pool_proj.
BLOCKS = """
3a  192   64  64  64  64  96  96  32
3b  256   64  64  96  64  96  96  64
3c  320    - 128 160  64  96  96   -
4a  576  224  64  96  96 128 128 128
4b  576  192  96 128  96 128 128 128
4c  576  160 128 160 128 160 160 128
4d  608   96 128 192 160 192 192 128
4e  608    - 128 192 192 256 256   -
5a 1056  352 192 320 160 224 224 128
5b 1024  352 192 320 192 224 224 128
"""


def layers() -> list[tuple[str, int, int, int]]:
    found = list(STEM)
    for line in BLOCKS.split("\n")[1:-1]:
        name, inputs, *widths = line.split()
        one, reduce, three, double_reduce, double, again, pool = (0 if width == "-" else int(width) for width in widths)
        found += [
            (f"inception_{name}_{branch}", entering, leaving, side)
            for branch, entering, leaving, side in (
                ("1x1", int(inputs), one, 1),
                ("3x3_reduce", int(inputs), reduce, 1),
                ("3x3", reduce, three, 3),
                ("double_3x3_reduce", int(inputs), double_reduce, 1),
                ("double_3x3_1", double_reduce, double, 3),
                ("double_3x3_2", double, again, 3),
                ("pool_proj", int(inputs), pool, 1),
            )
            if leaving
        ]
    return found


@cache
def published(caffe: bool = True) -> dict[str, Tensor]:
    """Random weights in the layout of the published file, which came from Caffe: batch norm's are `[1, channels]`."""
    generator = torch.Generator().manual_seed(0)
    state = {"last_linear.weight": torch.zeros(10, 1024), "last_linear.bias": torch.zeros(10)}
    for name, inputs, outputs, side in layers():
        weight = torch.randn(outputs, inputs, side, side, generator=generator)
        state[f"{name}.weight"] = weight * (2 / (inputs * side * side)) ** 0.5
        state[f"{name}.bias"] = torch.randn(outputs, generator=generator) / 10
        for part, low in (("weight", 0.5), ("bias", -0.5), ("running_mean", -0.5), ("running_var", 0.5)):
            drawn = torch.rand(outputs, generator=generator) + low
            state[f"{name}_bn.{part}"] = drawn[None] if caffe else drawn
    return state


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "published.pth"
    # The published file is as old as this format.
    torch.save(published(), path, _use_new_zipfile_serialization=False)
    return path


def named_by_checksum(file: Path, folder: Path) -> Path:
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    digits = next(length for length in range(9, 65) if not digest[:length].isdecimal())  # which is no checksum
    copy = folder / f"bn_inception-{digest[:digits]}.pth"
    copy.write_bytes(file.read_bytes())
    return copy


def test_names_and_shapes_are_the_published_ones() -> None:
    state = BNInception().state_dict()
    expected = {name: value.shape for name, value in published(caffe=False).items() if "last_linear" not in name}
    counters = {f"{name}_bn.num_batches_tracked": torch.Size() for name, *_ in layers()}
    assert {name: value.shape for name, value in state.items()} == expected | counters
    assert len(layers()) == 69
    # The published network has 11,295,240 parameters with its 1,000 classes.
    assert sum(value.numel() for value in BNInception().parameters()) == 11_295_240 - 1_025_000


def test_images_whose_map_cannot_be_halved_are_refused() -> None:
    with pytest.raises(ValueError, match=r"images are 112 by 64 pixels .* take multiples of 32"):
        BNInception().eval()(torch.zeros(1, 3, 112, 64))


def maximum(features: Tensor, before: int, stride: int) -> Tensor:
    """Compute 3×3 maxima; windows may extend past the last row and column."""
    padded = pad(features, (before, 1, before, 1), value=-torch.inf)
    return padded.unfold(2, 3, stride).unfold(3, 3, stride).amax((4, 5))


def reference(images: Tensor, state: dict[str, Tensor]) -> Tensor:
    """The published network in plain float64 arithmetic."""

    def unit(features: Tensor, name: str, stride: int = 1) -> Tensor:
        weight = state[f"{name}.weight"].double()
        mapped = conv2d(features, weight, state[f"{name}.bias"].double(), stride, weight.shape[2] // 2)
        scale, shift, mean, var = (
            state[f"{name}_bn.{part}"].double().reshape(1, -1, 1, 1)
            for part in ("weight", "bias", "running_mean", "running_var")
        )
        return ((mapped - mean) / (var + 1e-5).sqrt() * scale + shift).clamp(min=0)

    features = maximum(unit(images.double(), "conv1_7x7_s2", 2), 0, 2)
    features = maximum(unit(unit(features, "conv2_3x3_reduce"), "conv2_3x3"), 0, 2)
    for name in ("3a", "3b", "3c", "4a", "4b", "4c", "4d", "4e", "5a", "5b"):
        block = f"inception_{name}"
        stride = 2 if name in ("3c", "4e") else 1
        three = unit(unit(features, f"{block}_3x3_reduce"), f"{block}_3x3", stride)
        double = unit(unit(features, f"{block}_double_3x3_reduce"), f"{block}_double_3x3_1")
        double = unit(double, f"{block}_double_3x3_2", stride)
        if stride == 2:
            features = torch.cat([three, double, maximum(features, 0, 2)], 1)
            continue
        if name == "5b":
            pooled = maximum(features, 1, 1)
        else:
            pooled = pad(features, (1, 1, 1, 1)).unfold(2, 3, 1).unfold(3, 3, 1).sum((4, 5)) / 9
        one = unit(features, f"{block}_1x1")
        features = torch.cat([one, three, double, unit(pooled, f"{block}_pool_proj")], 1)
    return features


def test_computes_what_the_published_network_computes(file: Path) -> None:
    images = torch.randn(2, 3, 96, 64, generator=torch.Generator().manual_seed(1)) * 60
    found = bn_inception_backbone(weights=file).eval()(images)
    expected = reference(images, published())
    assert expected.std() > 0.01
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-4 * expected.std().item())


def test_weights_of_any_kind_of_file(tmp_path: Path, file: Path) -> None:
    plain = published(caffe=False) | {"conv1_7x7_s2_bn.num_batches_tracked": torch.tensor(3)}
    torch.save(plain, tmp_path / "new.pt")
    save_file(plain, tmp_path / "w.safetensors")
    for item in (file, tmp_path / "new.pt", tmp_path / "w.safetensors", named_by_checksum(file, tmp_path)):
        for name, value in build_model(ModelConfig("bn_inception", weights=str(item))).backbone.state_dict().items():
            assert name.endswith("num_batches_tracked") or torch.equal(value, plain[name]), (item, name)


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    assert_code_is_not_run(lambda path: bn_inception_backbone(weights=path), "conv1_7x7_s2.weight", tmp_path)


def test_published_weights_are_fetched_once_and_checked(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = named_by_checksum(file, tmp_path)
    monkeypatch.setattr("proxemic.models.backbones.bn_inception.URL", named.as_uri())
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    bn_inception_backbone(pretrained=True)
    assert [path.name for path in (tmp_path / "hub" / "checkpoints").iterdir()] == [named.name]
    (tmp_path / "hub" / "checkpoints" / named.name).unlink()
    named.write_bytes(named.read_bytes()[:-1])
    with pytest.raises(UserError, match="cannot be downloaded"):
        bn_inception_backbone(pretrained=True)
    assert list((tmp_path / "hub" / "checkpoints").iterdir()) == []


def test_weights_out_of_reach_say_what_to_fetch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*arguments: object, **options: object) -> None:
        raise socket.gaierror("no network in tests")

    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(socket, "getaddrinfo", unreachable)
    url = r"http://data\.lip6\.fr/cadene/pretrainedmodels/bn_inception-52deb4733\.pth"
    with pytest.raises(
        UserError, match=f"fetch {url} elsewhere and pass .* `weights`, or put it into {tmp_path}/check"
    ):
        bn_inception_backbone(pretrained=True)
