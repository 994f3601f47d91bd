"""A saved model as an embedder, which loads a network only when the first image must be embedded."""

import copy
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from proxemic.data.pixels import Pixels
from proxemic.data.transforms import Preprocessing
from proxemic.errors import UserError
from proxemic.lazy import torch
from proxemic.models.description import DESCRIPTION, ONNX, TOKENIZER, has_own_backbone, read_checksum, read_description
from proxemic.retrieval.galleries.stores.store import Distance
from proxemic.retrieval.vectors.embedder import Embedder
from proxemic.retrieval.vectors.networks import MANY, SAMPLE, Converted, LinearHead, Network
from proxemic.retrieval.vectors.preparation import Picture, Preparation
from proxemic.runs.kept import networks_folder
from proxemic.runs.library_preprocessing import read_preprocessing
from proxemic.runs.precision import EvaluationPrecision

if TYPE_CHECKING:
    from torch import nn

    from proxemic.models import EmbeddingModel

_GPUS = ("nvidia[0-9]*", "nvidiactl", "kfd", "dxg", "accel*", "dri/renderD*")  # in /dev


class SavedEmbedder(Embedder):
    """A saved model, whose network is loaded when the first image must be embedded.

    If the model consists of a network and a head over the network's features, `source` is that network. The features
    are then kept in the cache, where other heads and galleries find them.
    """

    def __init__(
        self,
        path: Path,
        *,
        device: "str | torch.device",
        backbone: "type[nn.Module] | None",
        precision: EvaluationPrecision,
    ) -> None:
        self._folder = path if path.is_dir() else path.parent
        if backbone is None and has_own_backbone(self._folder):
            from proxemic.recipes.reader import own_backbone  # which imports much

            backbone = own_backbone(self._folder)
        description = read_description(path, backbone)
        self.transform = read_preprocessing(description.preprocessing, self._folder / DESCRIPTION)
        self.prepare = Preparation(self.transform)
        self.distance, self.path, self.precision = _distance_of(self._folder), path, precision
        self._device = device if device in ("auto", "cpu") else checked_device(device)
        named = description.settings.get("backbone")
        self.takes_vectors = named == "none"
        self.dim = description.dim
        self._checksum, self._dim, self.head, self.source = read_checksum(path), None, None, self
        self.computed_by = Counter()
        self.kept_by = self._checksum if isinstance(named, str) and not self.takes_vectors else None
        self._may_convert = isinstance(named, str) and not named.endswith(ONNX)

        @cache
        def load() -> "EmbeddingModel":
            from proxemic.models.backbones.timm_models import TimmBackbone
            from proxemic.models.folding import fold_batch_norm
            from proxemic.runs.embed import load_embedder

            with torch.random.fork_rng(devices=()):  # building the network draws random numbers
                model, _ = load_embedder(path, backbone)
            for part in [*model.modules()]:
                if isinstance(part, TimmBackbone):
                    part.network = fold_batch_norm(part.network.eval())
            return model.to(checked_device(self._device)).eval()

        self._load: Callable[[], EmbeddingModel] = load
        if description.features_by is not None:
            self.head, self.source = LinearHead.read(path), copy.copy(self)
            self.source._be_source(description.features_by, self.head.weight.shape[1])

    def _be_source(self, checksum: str, features: int) -> None:
        from_whole = self._load

        def load() -> "EmbeddingModel":
            from proxemic.models.model import without_head

            return without_head(from_whole())

        self._load = load
        self._checksum = self.kept_by = checksum
        self.dim, self.head, self.source = features, None, self

    @cached_property
    def model(self) -> "nn.Module":  # pyright: ignore[reportIncompatibleVariableOverride]
        """The network."""
        return self._load()

    @property
    def takes_texts(self) -> bool:
        return (self._folder / TOKENIZER).is_file() and super().takes_texts

    @cached_property
    def converted(self) -> Converted | None:
        """The copy for ONNX Runtime; None for a network or preprocessing of another kind, or if nothing is kept."""
        is_plain = isinstance(self.transform, Preprocessing) and self.precision == "32-true"
        kept = self.kept if is_plain and self._may_convert else None
        return None if kept is None else Converted(networks_folder(), kept.path.stem)

    def choose_network(self, count: int, pictures: Sequence[Picture] | Pixels | None = None) -> Network:
        if (converted := self.converted) is None:
            return super().choose_network(count)
        if pictures is not None and count >= MANY and not converted.is_settled and self._is_on_cpu:
            first = pictures.select(range(SAMPLE)) if isinstance(pictures, Pixels) else pictures[:SAMPLE]
            sample, places, _ = next(self.prepare.arrays(first, SAMPLE, strict=False))
            if len(places) > 1:
                network: Any = super().choose_network(count)
                converted.convert(network, sample)
        is_quick = count < MANY and "torch" not in sys.modules and self._device in ("auto", "cpu")
        if converted.network is not None and (is_quick or (converted.is_faster and self._is_on_cpu)):
            return converted.network
        return super().choose_network(count)

    @property
    def _is_on_cpu(self) -> bool:
        if self._device == "cpu":
            return True
        if self._device == "auto" and sys.platform == "linux":
            # Without importing torch, if it is certain.
            if not any(next(Path("/dev").glob(name), None) for name in _GPUS):
                return True
        return checked_device(self._device).type == "cpu"


def load_onnx_file(path: Path, precision: EvaluationPrecision) -> Embedder:
    """Load a user's ONNX file as an embedder."""
    from proxemic.runs.onnx_files import read_onnx_model

    model, preprocessing, usage, file = read_onnx_model(path)
    distance = _checked_distance(usage.get("distance", "cosine"), file)
    checksum = read_checksum(path)
    made = Embedder(
        model, preprocessing, distance=distance, checksum=checksum, path=path.absolute(), precision=precision
    )
    made.kept_by = checksum
    return made


def checked_device(named: "str | torch.device") -> "torch.device":
    """Return a device of torch; `UserError` if it is not there."""
    from proxemic.runs.embed import pick_device

    try:
        device = pick_device(named) if isinstance(named, str) else named
        torch.empty(1, device=device).item()  # fails on the device meta
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"The device {named} is not there, or torch {torch.__version__} cannot use it: take cpu, or auto."
        ) from error
    return device


def _distance_of(folder: Path) -> Distance:
    """Return the distance with which the run of a model was evaluated; cosine if the folder is not a run."""
    recipe = folder / "recipe.yaml"
    if not recipe.is_file():
        return "cosine"
    from proxemic.recipes.yaml_files import read_yaml

    content: Any = read_yaml(recipe)
    evaluation = content.get("evaluation") if isinstance(content, dict) else None
    return _checked_distance(evaluation.get("distance", "cosine") if isinstance(evaluation, dict) else "cosine", recipe)


def _checked_distance(named: Any, file: Path) -> Distance:
    if named not in get_args(Distance):
        raise ValueError(f"{file} has distance {named!r}, but it must be cosine or euclidean.")
    return named
