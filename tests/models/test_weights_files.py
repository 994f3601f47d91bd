"""Files of weights by others: checksums in their names, and the network found in their content."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from proxemic.models.weights_files import load_weights_file


def network(seed: int) -> nn.Sequential:
    """Make a network whose first name, `0.weight`, is also the end of another one, `2.0.weight`."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Sequential(nn.Linear(3, 4)))


STATE: Mapping[str, Tensor] = network(0).state_dict()
HEAD = {"weight": torch.zeros(5, 4)}


def prefixed(prefix: str, state: Mapping[str, Tensor] = STATE) -> dict[str, Tensor]:
    return {prefix + key: value for key, value in state.items()}


def load(file: Path, **options: Any) -> dict[str, Tensor]:
    net = network(1)
    load_weights_file(net, file, "net", **options)
    return net.state_dict()


def assert_loaded(file: Path, **options: Any) -> None:
    for key, value in load(file, **options).items():
        assert torch.equal(value, STATE[key]), key


@pytest.mark.parametrize(
    "content",
    [
        STATE,
        prefixed("module."),
        prefixed("_orig_mod.module."),
        {"state_dict": STATE, "epoch": 3},
        {"state_dict": prefixed("module."), "arch": "net"},
        # As MagFace and arcface_torch save a checkpoint.
        {"state_dict": prefixed("features.module.") | prefixed("fc.", HEAD), "epoch": 3, "arch": "net"},
        {"epoch": 3, "state_dict_backbone": STATE, "state_dict_softmax_fc": HEAD, "state_optimizer": {"state": {}}},
    ],
)
def test_the_network_is_found_in_what_was_saved(tmp_path: Path, content: Mapping[str, Any]) -> None:
    torch.save(content, tmp_path / "w.pth.tar")
    assert_loaded(tmp_path / "w.pth.tar")


def test_what_is_unused_may_have_the_prefix_too(tmp_path: Path) -> None:
    save_file(prefixed("module.") | {"module.fc.weight": torch.zeros(5, 4)}, tmp_path / "w.safetensors")
    assert_loaded(tmp_path / "w.safetensors", unused=("fc.",))
    with pytest.raises(ValueError, match=r"do not fit 'net': fc\.weight is unknown$"):
        load(tmp_path / "w.safetensors")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            prefixed("student.") | prefixed("teacher."),
            "contains the weights 2 times, as student., teacher.; save only one of them",
        ),
        (STATE | prefixed("ema."), "do not fit 'net': ema.0.weight is unknown, ema.0.bias is unknown, "),
        (
            {key: value for key, value in prefixed("module.").items() if key != "module.0.bias"},
            "do not fit 'net': 0.bias is missing",
        ),
        (prefixed("module.", STATE | {"0.bias": torch.zeros(7)}), "0.bias has shape [7] but must be [3]"),
        ({"other": STATE}, "are not a mapping of names to tensors"),
    ],
)
def test_what_is_ambiguous_or_does_not_fit_is_refused(tmp_path: Path, content: Any, message: str) -> None:
    torch.save(content, tmp_path / "w.pth")
    with pytest.raises(ValueError, match="weights") as caught:
        load(tmp_path / "w.pth")
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["backbone-20210412.pth", "net-20210412093000.pt", "net-00120000.pth.tar"])
def test_digits_in_a_name_are_no_checksum(tmp_path: Path, name: str) -> None:
    torch.save(STATE, tmp_path / name)
    assert_loaded(tmp_path / name)


@pytest.mark.parametrize("suffix", [".pth", ".pth.tar"])
def test_a_checksum_in_a_name_is_verified(tmp_path: Path, suffix: str) -> None:
    torch.save(STATE, tmp_path / "w.pth")
    digest = hashlib.sha256((tmp_path / "w.pth").read_bytes()).hexdigest()
    (tmp_path / "w.pth").rename(tmp_path / f"net-{digest}{suffix}")
    assert_loaded(tmp_path / f"net-{digest}{suffix}")
    wrong = tmp_path / f"net-0000beef{suffix}"
    (tmp_path / f"net-{digest}{suffix}").rename(wrong)
    with pytest.raises(ValueError, match=rf"are damaged: .* begins with {digest[:8]} instead of 0000beef,"):
        load(wrong)


def test_other_files_are_refused(tmp_path: Path) -> None:
    torch.save(STATE, tmp_path / "w.tar")
    for file in (tmp_path / "w.tar", tmp_path / "gone.pth.tar"):
        with pytest.raises(ValueError, match=r"must be an existing \.safetensors, \.pth, \.pt or \.pth\.tar file"):
            load(file)
