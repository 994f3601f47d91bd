"""A trained network with the preprocessing of its images: what turns pictures into vectors."""

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch
from jaxtyping import Float32
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from proxemic.data import Preprocessing, read_image
from proxemic.data.pixels import ImageInput, Pixels, UnreadableImageError
from proxemic.errors import UserError
from proxemic.files import read_json
from proxemic.models import EmbeddingModel, ModelConfig, OnnxBackbone, read_checksum
from proxemic.models.folding import fold_batch_norm
from proxemic.models.onnx_backbone import read_onnx
from proxemic.models.timm_models import TimmBackbone
from proxemic.retrieval.stores.store import Distance
from proxemic.training.embed import embed_batches, load_embedder, pick_device
from proxemic.training.recipe import EvaluationPrecision
from proxemic.training.workers import worker_settings

Transform = Callable[[Image.Image], Tensor]
Picture = ImageInput | Tensor
"""What `Embedder.embed` takes: what `read_image` does, or a prepared tensor `[C, H, W]`."""


class Embedder:
    """A network that embeds pictures, with what is done to them before.

    Args:
        model: From prepared images ``[B, C, H, W]`` to embeddings ``[B, D]``: any module, of timm or transformers, say,
            which is used in evaluation mode, on the device where it is.
        transform: What prepares a picture: `Preprocessing`, or any function of an upright PIL image of mode L or RGB
            that gives a tensor ``[C, H, W]``, such as timm's ``create_transform``.
        distance: By which its embeddings are compared.
        checksum: What tells its embeddings from those of other models; None computes it from the weights.
        path: Where it was loaded from, if it was.
        precision: ``32-true``, or ``bf16-mixed``.

    Raises:
        ValueError: If an argument is none of these.

    >>> from torchvision.transforms.v2.functional import pil_to_tensor
    >>> embedder = Embedder(nn.Flatten(), lambda image: pil_to_tensor(image.resize((4, 4))) / 255, checksum="pixels")
    >>> embedder.embed([Image.new("RGB", (9, 5), "red"), np.zeros((7, 7), np.uint8)]).shape
    Traceback (most recent call last):
        ...
    ValueError: images of one batch are prepared to [3, 4, 4] and [1, 4, 4]: have transform give one shape.
    """

    def __init__(
        self,
        model: nn.Module,
        transform: Preprocessing | Transform,
        *,
        distance: Distance = "cosine",
        checksum: str | None = None,
        path: Path | None = None,
        precision: EvaluationPrecision = "32-true",
    ) -> None:
        if not isinstance(model, nn.Module) or not (isinstance(transform, Preprocessing) or callable(transform)):
            raise ValueError("model must be a torch module, and transform a Preprocessing or a function of an image")
        self.model = model.eval()
        self.transform = transform
        self.distance: Distance = distance
        self.path = path
        self.precision: EvaluationPrecision = precision
        self._checksum = checksum
        self._prepare = transform.evaluation() if isinstance(transform, Preprocessing) else transform
        self.reduced_side = transform.reduced_side if isinstance(transform, Preprocessing) else None

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        device: str | torch.device = "auto",
        precision: EvaluationPrecision = "32-true",
        backbone: type[nn.Module] | None = None,
    ) -> "Embedder":
        """Load a run, a ``model.safetensors`` with its ``model.json``, or an ONNX file with a JSON file beside it.

        Args:
            path: The directory or the file. Beside ``model.onnx``, ``model.json`` has the ``preprocessing`` and perhaps
                the ``distance``.
            device: Where to compute; auto takes an accelerator where there is one.
            precision: ``32-true``, or ``bf16-mixed``.
            backbone: The class of the backbone, where that is a class of your own; of a run it is found.

        Raises:
            UserError: If there is no such model, or it needs `backbone`.
            ValueError: If a file is malformed.
            ImportError: If the network needs timm, transformers or onnxruntime, which is not installed.
        """
        path = Path(path)
        if path.suffix.lower() == ".onnx":
            return cls._load_onnx(path, precision)
        folder = path if path.is_dir() else path.parent
        if not (path / "model.safetensors" if path.is_dir() else path).is_file():
            raise UserError(
                f"{path} is no model: give the directory of a finished run, a model.safetensors, or an .onnx file."
            )
        model, preprocessing = load_embedder(path, backbone or _own_backbone(folder))
        for part in [*model.modules()]:
            if isinstance(part, TimmBackbone):
                part.network = fold_batch_norm(part.network.eval())
        model.to(pick_device(str(device)) if isinstance(device, str) else device)
        made = read_checksum(path)
        return cls(
            model,
            preprocessing,
            distance=_distance_of(folder),
            checksum=made,
            path=path.absolute(),
            precision=precision,
        )

    @classmethod
    def _load_onnx(cls, path: Path, precision: EvaluationPrecision) -> "Embedder":
        content = read_onnx(path)
        description = read_json(path.with_suffix(".json"))
        try:
            preprocessing = Preprocessing(**description["preprocessing"])
            config = ModelConfig(str(path), in_channels=preprocessing.channels, image_size=preprocessing.size)
            network = nn.Sequential(OnnxBackbone(content, config), nn.Flatten())
        except (KeyError, TypeError) as error:
            raise ValueError(f"{path.with_suffix('.json')} does not say how images are prepared: {error}") from error
        return cls(
            network,
            preprocessing,
            distance=_checked_distance(description.get("distance", "cosine"), path.with_suffix(".json")),
            checksum=hashlib.sha256(content).hexdigest(),
            path=path.absolute(),
            precision=precision,
        )

    @property
    def takes_vectors(self) -> bool:
        """Whether it is a head alone, which takes vectors ``[B, F]`` in place of images."""
        return isinstance(self.model, EmbeddingModel) and self.model.config.takes_vectors

    @cached_property
    def checksum(self) -> str:
        """What tells its embeddings from those of other models: SHA-256 of the weights, unless it was given."""
        if self._checksum is not None:
            return self._checksum
        digest = hashlib.sha256(type(self.model).__qualname__.encode())
        for name, value in self.model.state_dict().items():
            digest.update(json.dumps([name, str(value.dtype), [*value.shape]]).encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    @cached_property
    def dim(self) -> int:
        """Numbers of an embedding."""
        if isinstance(self.model, EmbeddingModel):
            return self.model.config.embedding_size
        return self.embed([Image.new("RGB", (256, 256))]).shape[1]

    def prepare(self, picture: Picture) -> Tensor:
        """What the network is given for a picture, ``[C, H, W]``."""
        if isinstance(picture, Tensor):
            return picture
        prepared = self._prepare(read_image(picture, self.reduced_side))
        if not isinstance(prepared, Tensor) or prepared.ndim != 3 or not prepared.is_floating_point():
            shape = list(prepared.shape) if isinstance(prepared, Tensor) else type(prepared).__name__
            raise ValueError(f"transform gives {shape}, but must give a floating tensor [channels, height, width].")
        return prepared

    def embed(
        self,
        pictures: Sequence[Picture] | Float32[Tensor, "images ..."] | Picture,
        *,
        batch_size: int = 64,
        workers: int = 0,
    ) -> Float32[Tensor, "images dim"]:
        """Embed pictures, in order, as float32 on the CPU.

        Args:
            pictures: Paths, bytes of files, PIL images, arrays ``[H, W]`` or ``[H, W, C]`` of uint8, or prepared
                tensors ``[C, H, W]``; or a batch of these, ``[B, C, H, W]``; for a head alone vectors ``[B, F]``. One
                picture is a list of one.
            batch_size: Pictures that the network sees at once.
            workers: Processes that read and prepare them.

        Raises:
            UnreadableImageError: If one cannot be read as an image.
            ValueError: If there is something else among them.
        """
        if isinstance(pictures, Tensor) and pictures.ndim in (2, 4):
            batches: Iterable[Tensor] = pictures.float().split(batch_size)
        else:
            one = isinstance(pictures, str | os.PathLike | bytes | Image.Image | np.ndarray | Tensor)
            listed = cast("Sequence[Picture]", [pictures] if one else pictures)
            batches = (prepared for prepared, _, _ in self._batches(listed, batch_size, workers, strict=True))
        return torch.cat([torch.empty(0, 0), *self.embed_prepared(batches)][1:] or [torch.empty(0, self.dim)])

    def embed_prepared(self, batches: Iterable[Tensor]) -> Iterator[Float32[Tensor, "batch dim"]]:
        """Embed one batch of prepared images after the other."""
        for embeddings in embed_batches(self.model, batches, self.precision):
            if embeddings.ndim != 2:
                raise ValueError(
                    f"the model gives {list(embeddings.shape)}, but embeddings are [images, dim]: give the part of it "
                    "that does, such as a timm model made with num_classes=0."
                )
            yield embeddings

    def embed_readable(
        self, pictures: Sequence[Picture] | Pixels, *, batch_size: int = 64, workers: int = 0
    ) -> Iterator[tuple[Float32[Tensor, "batch dim"], list[int], dict[int, str]]]:
        """Embed batch by batch what can be read: embeddings, their places, and why others cannot, by their places."""
        kept: list[int] = []
        failed: dict[int, str] = {}

        def batches() -> Iterator[Tensor]:
            for prepared, places, failures in self._batches(pictures, batch_size, workers, strict=False):
                failed.update(failures)
                kept[:] = places
                if places:
                    yield prepared

        for embeddings in self.embed_prepared(batches()):
            yield embeddings, [*kept], {**failed}
            failed.clear()
        if failed:
            yield torch.empty(0, self.dim), [], failed

    def _batches(
        self, pictures: Sequence[Picture] | Pixels, batch_size: int, workers: int, *, strict: bool
    ) -> Iterator[tuple[Tensor, list[int], dict[int, str]]]:
        data = _Prepared(self, pictures, strict)
        generator = torch.Generator()  # a loader draws a seed, which is not to change that of the caller
        yield from DataLoader(data, batch_size, collate_fn=_collate, generator=generator, **worker_settings(workers))


class _Prepared(Dataset[tuple[int, Tensor | str]]):
    def __init__(self, embedder: Embedder, pictures: Sequence[Picture] | Pixels, strict: bool) -> None:
        self.embedder, self.pictures, self.strict = embedder, pictures, strict

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, place: int) -> tuple[int, Tensor | str]:
        try:
            if isinstance(self.pictures, Pixels):
                return place, self.embedder.prepare(self.pictures.load(place, self.embedder.reduced_side))
            return place, self.embedder.prepare(self.pictures[place])
        except UnreadableImageError as error:
            if self.strict:
                raise
            return place, error.reason or str(error)


def _collate(items: Sequence[tuple[int, Tensor | str]]) -> tuple[Tensor, list[int], dict[int, str]]:
    prepared = {place: item for place, item in items if isinstance(item, Tensor)}
    failures = {place: item for place, item in items if isinstance(item, str)}
    shapes = [*dict.fromkeys(tuple(item.shape) for item in prepared.values())]
    if len(shapes) > 1:
        raise ValueError(
            f"images of one batch are prepared to {list(shapes[0])} and {list(shapes[1])}: have transform give "
            "one shape."
        )
    return torch.stack([*prepared.values()]) if prepared else torch.empty(0), [*prepared], failures


def _own_backbone(folder: Path) -> type[nn.Module] | None:
    from proxemic.recipes.reader import own_backbone

    return own_backbone(folder)


def _distance_of(folder: Path) -> Distance:
    """The distance by which the run of a model was evaluated; cosine where there is none."""
    from proxemic.recipes.yaml_files import read_yaml

    recipe = folder / "recipe.yaml"
    content: Any = read_yaml(recipe) if recipe.is_file() else None
    evaluation = content.get("evaluation") if isinstance(content, dict) else None
    named = evaluation.get("distance", "cosine") if isinstance(evaluation, dict) else "cosine"
    return _checked_distance(named, recipe)


def _checked_distance(named: Any, file: Path) -> Distance:
    known: tuple[Literal["cosine", "euclidean"], ...] = ("cosine", "euclidean")
    for distance in known:
        if named == distance:
            return distance
    raise ValueError(f"{file} has distance {named!r}, but it must be cosine or euclidean.")
