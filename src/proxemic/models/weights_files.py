"""Loading of published weights from files, without running code from them."""

import hashlib
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

# Keys of the network's weights in checkpoints of arcface_torch and of many others.
_CHECKPOINT = ("state_dict_backbone", "state_dict")


def load_weights_file(network: nn.Module, file: Path, name: str, unused: tuple[str, ...] = ()) -> None:
    """Load the tensors of a `.safetensors`, `.pth`, `.pt` or `.pth.tar` file.

    The network may be a part of what was saved: a checkpoint's `state_dict_backbone` or `state_dict`, or a module of a
    larger network, such as `module.` of DataParallel. The file may contain further tensors whose names begin with one
    of `unused`. Raises `ValueError` and leaves the network unchanged if the file does not fit.
    """
    # Old files lack this counter.
    needed = {key: value for key, value in network.state_dict().items() if not key.endswith("num_batches_tracked")}
    tensors = _part(_read(file), needed, file)
    tensors = {key: value for key, value in tensors.items() if not unused or not key.startswith(unused)}
    problems = [f"{key} is missing" for key in needed if key not in tensors]
    problems += [f"{key} is unknown" for key in tensors if key not in network.state_dict()]
    # Conversions from Caffe give batch norm's weights as [1, channels].
    problems += [
        f"{key} has shape {list(tensors[key].shape)} but must be {list(value.shape)}"
        for key, value in needed.items()
        if key in tensors and tensors[key].squeeze().shape != value.squeeze().shape
    ]
    if problems:
        more = f" and {len(problems) - 3} more" if len(problems) > 3 else ""
        raise ValueError(f"weights in {file} do not fit {name!r}: {', '.join(problems[:3])}{more}")
    with torch.no_grad():
        for key, value in needed.items():
            value.copy_(tensors[key].reshape(value.shape))


def holds_embedding_model(file: Path) -> bool:
    """Return whether a file holds an `EmbeddingModel`, as `save_model` writes it, rather than a backbone."""
    try:
        parts = {name.partition(".")[0] for name in read_shapes(file)}
    except (OSError, SafetensorError):
        return False
    return "backbone" in parts and parts <= {"backbone", "pooling", "head"}


def load_embedding_model(model: nn.Module, file: Path, name: str) -> bool:
    """Load the backbone of another `EmbeddingModel`, and pooling and head if they fit; return whether the head did."""
    load_weights_file(model.get_submodule("backbone"), file, name)
    tensors, loaded = load_file(file), ""
    for part in ("pooling", "head"):
        module = model.get_submodule(part)
        theirs = {key.removeprefix(f"{part}."): value for key, value in tensors.items() if key.startswith(f"{part}.")}
        ours = module.state_dict()
        if theirs.keys() == ours.keys() and all(theirs[key].shape == ours[key].shape for key in ours):
            module.load_state_dict(theirs)
            loaded = part
    return loaded == "head"


def read_shapes(file: Path) -> dict[str, list[int]]:
    """Read tensor shapes from the header of a safetensors file; raise `OSError` or `SafetensorError` if damaged."""
    with safe_open(file, framework="pt") as tensors:
        return {name: list(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118


def _part(tensors: Mapping[str, Tensor], needed: Mapping[str, Tensor], file: Path) -> Mapping[str, Tensor]:
    """Return the network's tensors with their names in the network, which may have a prefix in the file."""
    first = next(iter(needed))
    prefixes = ["", *(key.removesuffix(first) for key in tensors if key.endswith(f".{first}"))]
    counts = {prefix: sum(prefix + key in tensors for key in needed) for prefix in prefixes}
    best = max(counts, key=counts.__getitem__)
    whole = [prefix for prefix in counts if counts[prefix] == len(needed)]
    if best and len(whole) > 1:
        raise ValueError(
            f"{file} contains the weights {len(whole)} times, as {', '.join(whole)}; save only one of them"
        )
    return {key.removeprefix(best): value for key, value in tensors.items() if key.startswith(best)}


def _read(file: Path) -> Mapping[str, Tensor]:
    if not file.name.endswith((".safetensors", ".pth", ".pt", ".pth.tar")) or not file.is_file():
        raise ValueError(f"weights is {str(file)!r} but must be an existing .safetensors, .pth, .pt or .pth.tar file")
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    # A number without letters is more likely a date or a count of steps.
    named = re.search(r"-(?=[0-9]*[a-f])([0-9a-f]{8,64})(\.pth)?\.\w+$", file.name)
    if named and not digest.startswith(named[1]):
        raise ValueError(
            f"weights in {file} are damaged: their SHA-256 begins with {digest[: len(named[1])]} instead of "
            f"{named[1]}, as the file's name says; fetch the file again"
        )
    read = load_file if file.suffix == ".safetensors" else partial(torch.load, map_location="cpu", weights_only=True)
    try:
        loaded: Any = read(file)
    except Exception as error:  # torch.load may raise anything for other files
        message = " ".join(str(error).split())[:200]
        raise ValueError(f"weights in {file} are not readable as a file of tensors: {message}") from error
    for key in _CHECKPOINT:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if not isinstance(loaded, Mapping) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in loaded.items()
    ):
        raise ValueError(f"weights in {file} are not a mapping of names to tensors; save a model's state_dict()")
    return loaded
