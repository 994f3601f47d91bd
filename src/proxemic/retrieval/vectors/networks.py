"""Networks that embed prepared images: run by torch, or on a CPU by ONNX Runtime, which needs no torch."""

import hashlib
import importlib.util
import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
from jaxtyping import Float32

from proxemic.errors import UserError, UserNote
from proxemic.files import read_json, write_atomically, write_json
from proxemic.lazy import Tensor, torch
from proxemic.models.components import components, mean_and_covariance
from proxemic.models.description import WEIGHTS, read_description

MANY = 32
"""From this number of images on, a network is converted, and the faster of the two engines embeds them."""
SAMPLE = 16
"""Images on which a converted network is compared and timed."""
TORCH, ONNX_RUNTIME = "torch", "ONNX Runtime"
_FORMAT = 1
_TIMES = 2

Arrays = Float32[np.ndarray, "images channels height width"]
Outputs = Float32[np.ndarray, "images outputs"]


def unit_rows(rows: Float32[np.ndarray, "rows dim"]) -> Float32[np.ndarray, "rows dim"]:
    """Scale rows to unit length, as `torch.nn.functional.normalize` does.

    >>> unit_rows(np.array([[3, 4], [0, 0]], np.float32)).round(1).tolist()
    [[0.6000000238418579, 0.800000011920929], [0.0, 0.0]]
    """
    return rows / _lengths(rows)


def _lengths(rows: Float32[np.ndarray, "rows dim"]) -> Float32[np.ndarray, "rows 1"]:
    return np.maximum(np.sqrt(np.einsum("ij,ij->i", rows, rows)), np.float32(1e-12))[:, None]


@dataclass(frozen=True, eq=False)
class LinearHead:
    """A linear head over features, which scales its outputs, and optionally the features, to unit length."""

    weight: Float32[np.ndarray, "dim features"]
    bias: Float32[np.ndarray, " dim"]
    unit_features: bool

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the head of a saved model that consists of a network and a head."""
        import safetensors

        file = path / WEIGHTS if path.is_dir() else path
        with safetensors.safe_open(file, framework="np") as content:
            weight, bias = content.get_tensor("head.1.weight"), content.get_tensor("head.1.bias")
        return cls(weight, bias, read_description(path).settings.get("unit_features", False))

    @classmethod
    def whiten(cls, features: Outputs, dim: int = 512) -> Self:
        """Make the head that `proxemic.retrieval.whitened_head` makes, without torch."""
        mean, covariance = mean_and_covariance(unit_rows(features))
        weight, bias = components(mean, covariance, min(dim, features.shape[1]), whiten=True)
        # Contiguous as it is read again, so that products round equally.
        return cls(np.ascontiguousarray(weight, np.float32), bias.astype(np.float32), True)

    @classmethod
    def restore(cls, file: Path, made_from: str) -> Self | None:
        """Return a head that `keep` has written; None if it was made from other features, or there is none."""
        import safetensors

        try:
            with safetensors.safe_open(file, framework="np") as content:
                if (content.metadata() or {}).get("made_from") == made_from:
                    return cls(content.get_tensor("weight"), content.get_tensor("bias"), True)
        except (OSError, safetensors.SafetensorError):
            pass
        return None

    def keep(self, file: Path, made_from: str) -> None:
        """Write a head that scales features to unit length; `UserError` if that fails."""
        from safetensors.numpy import save

        content = save({"weight": self.weight, "bias": self.bias}, {"made_from": made_from})
        with write_atomically(file) as temporary:
            temporary.write_bytes(content)

    def __call__(self, features: Outputs) -> Outputs:
        outputs = features @ self.weight.T
        if self.unit_features:
            outputs /= _lengths(features)
        outputs += self.bias
        outputs /= _lengths(outputs)
        return outputs


class Network(Protocol):
    """A function of batches of prepared images; `engine` names what computes it."""

    engine: ClassVar[str]

    def run(self, batches: Iterable[Any]) -> Iterator[Outputs]:
        """Embed batches, arrays or tensors ``[images, channels, height, width]``, one by one."""
        ...


@dataclass(frozen=True)
class TorchNetwork:
    """A module of torch, on its own device."""

    engine: ClassVar[str] = TORCH
    module: Any
    precision: Any

    def run(self, batches: Iterable[Any]) -> Iterator[Outputs]:
        from proxemic.runs.embed import embed_batches

        for outputs in embed_batches(self.module, map(torch.as_tensor, batches), self.precision):
            yield outputs.numpy()


class OnnxNetwork:
    """The content of a converted file, run on the CPU with as many threads as torch would take."""

    engine: ClassVar[str] = ONNX_RUNTIME

    def __init__(self, content: bytes) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        named = os.environ.get("OMP_NUM_THREADS", "")
        threads = int(named) if named.isdecimal() else 0  # 0 takes all cores
        options.intra_op_num_threads = torch.get_num_threads() if TORCH in sys.modules else threads
        self._session: Any = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        (self._input,) = self._session.get_inputs()

    def takes(self, images: Tensor) -> bool:
        """Return whether prepared images have the shape for which the network was converted."""
        return list(images.shape[1:]) == list(self._input.shape[1:])

    def run(self, batches: Iterable[Any]) -> Iterator[Outputs]:
        # One by one: a fifth faster than in batches, and the other images of a batch do not change a vector.
        for batch in batches:
            images = np.ascontiguousarray(batch, np.float32)
            yield np.concatenate(
                [self._session.run(None, {self._input.name: images[[row]]})[0] for row in range(len(images))]
            )


class Converted:
    """The copy of a saved network for ONNX Runtime in the user's cache.

    ``NAME.json`` is written last. It has the name and the checksum of the file, and how many seconds each engine took
    to embed a few images; or it says why the network cannot be converted, which the same versions do not try again.

    Args:
        folder: The folder of all converted networks.
        name: What identifies weights, preprocessing and precision.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self._described = folder, folder / f"{name}.json"

    @cached_property
    def _facts(self) -> dict[str, Any]:
        """The content of the description; empty if there is none of this format."""
        try:
            facts = read_json(self._described) if self._described.exists() else {}
        except UserError:
            return {}
        is_ours = facts.get("format") == _FORMAT and ("why" not in facts or facts.get("versions") == _versions())
        return facts if is_ours else {}

    @property
    def is_settled(self) -> bool:
        """Whether the network was converted or cannot be converted, as without ONNX Runtime, which is optional."""
        return self.network is not None or "why" in self._facts or not _are_installed("onnx", "onnxruntime")

    @property
    def is_faster(self) -> bool:
        """Whether ONNX Runtime embeds many images in less time than torch."""
        seconds = self._facts.get("seconds", {})
        return seconds.get(ONNX_RUNTIME, 1) < seconds.get(TORCH, 0)

    @cached_property
    def network(self) -> OnnxNetwork | None:
        """The network; None if it was not converted, or the file is damaged, which is noted once."""
        if "sha256" not in self._facts or not _are_installed("onnxruntime"):
            return None
        file = self.folder / str(self._facts.get("file"))
        try:
            content = file.read_bytes()
            if hashlib.sha256(content).hexdigest() != self._facts["sha256"]:
                raise ValueError("its checksum is wrong")
            return OnnxNetwork(content)
        except Exception as error:  # ONNX Runtime raises classes of its own
            _note(f"The converted network {file} cannot be used ({error}), and will be converted again.")
            self._described.unlink(missing_ok=True)
            self._facts = {}
            return None

    def convert(self, network: TorchNetwork, images: Arrays) -> None:
        """Convert a network, compare it with torch on prepared images, time both, and write the files."""
        facts: dict[str, Any] = {"format": _FORMAT, "versions": _versions()}
        content = b""
        try:
            content = _write(network.module, images)
            made, (reference,) = OnnxNetwork(content), network.run([images])
            _check(reference, next(made.run([images])))
        except Exception as error:  # torch and ONNX Runtime have many exceptions for networks that they cannot convert
            self.network, facts["why"] = None, " ".join(str(error).split())[:200]
            _note(f"The network cannot be run by ONNX Runtime ({facts['why']}): torch embeds the photos.")
        else:
            digest, name = hashlib.sha256(content).hexdigest(), self._described.stem
            seconds = {engine.engine: _fastest(engine, images) for engine in (network, made)}
            facts |= {"file": f"{name}-{digest[:16]}.onnx", "sha256": digest, "seconds": seconds}
            self.network = made
        self._facts = facts
        try:
            if "file" in facts:
                with write_atomically(self.folder / facts["file"]) as temporary:
                    temporary.write_bytes(content)
            write_json(self._described, facts)
        except UserError as error:
            _note(f"The converted network is not kept: {error}")


def _write(module: Any, images: Arrays) -> bytes:
    from proxemic.retrieval.exporting.graphs import trace_onnx

    return trace_onnx(module, torch.from_numpy(images[:2]))


def _check(reference: Outputs, outputs: Outputs) -> None:
    from proxemic.retrieval.exporting.parity import LARGEST_DIFFERENCE, largest_difference

    difference = largest_difference(*map(torch.from_numpy, (reference, outputs)))
    if not difference <= LARGEST_DIFFERENCE:
        raise ValueError(f"embeddings differ by {difference:.1e}, and {LARGEST_DIFFERENCE:.0e} is allowed")


def _fastest(network: Network, images: Arrays) -> float:
    """Return the seconds of the fastest of a few runs."""
    seconds = []
    for _ in range(_TIMES):
        began = time.perf_counter()
        for _ in network.run([images]):
            pass
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _are_installed(*names: str) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in names)


def _versions() -> dict[str, str]:
    return {name: version(name) for name in (TORCH, "onnxruntime")}


def _note(text: str) -> None:
    warnings.warn(text, UserNote, stacklevel=2)
