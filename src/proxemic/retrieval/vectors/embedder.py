"""Embed pictures and texts with a trained network and the preprocessing of its images."""

import copy
import hashlib
import json
import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import torch
from jaxtyping import Float32, Int64
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import normalize
from tqdm import tqdm

from proxemic.data.pixels import FilePixels, Pixels
from proxemic.data.vectors import Vectors
from proxemic.errors import UserError
from proxemic.models import EmbeddingModel, read_checksum
from proxemic.models.backbones.text_towers import no_text_tower, parse_tokenizer, tokenize
from proxemic.models.backbones.timm_models import TimmBackbone
from proxemic.models.config import ONNX
from proxemic.models.folding import fold_batch_norm
from proxemic.models.model import without_head
from proxemic.models.outputs import embeddings_in
from proxemic.models.saving import DESCRIPTION, has_own_backbone, load_head, read_description
from proxemic.retrieval.galleries.stores.store import Distance, GalleryInfo
from proxemic.retrieval.vectors.preparation import Picture, Preparation, Transform, check_reading
from proxemic.runs.directory import RunDirectory
from proxemic.runs.embed import embed_batches, load_embedder, pick_device
from proxemic.runs.evaluate import EvaluationPrecision
from proxemic.runs.kept import Keeping, KeptVectors, PictureKeys, kept_vectors
from proxemic.runs.library_preprocessing import AnyPreprocessing, read_preprocessing
from proxemic.runs.onnx_files import read_onnx_model
from proxemic.runs.pretrained import model_path

_AT_ONCE = 8192  # kept outputs that are read at once


@dataclass(frozen=True, eq=False)
class Embedded:
    """Embeddings of the pictures at `places`, and by place why the others could not be read."""

    embeddings: Float32[Tensor, "readable dim"]
    places: list[int]
    unreadable: dict[int, str] = field(default_factory=dict)
    known: int = 0
    """How many of them were embedded before."""

    def __len__(self) -> int:
        return len(self.places) + len(self.unreadable)

    @classmethod
    def join(cls, parts: Sequence["Embedded"], dim: int) -> "Embedded":
        """Concatenate parts."""
        return cls(
            torch.cat([part.embeddings for part in parts if part.places] or [torch.empty(0, dim)]),
            [place for part in parts for place in part.places],
            {place: why for part in parts for place, why in part.unreadable.items()},
            sum(part.known for part in parts),
        )

    def at(self, places: Int64[np.ndarray, " chosen"]) -> "Embedded":
        """Return the same for pictures that were chosen by their places among others."""
        unreadable = {int(places[place]): why for place, why in self.unreadable.items()}
        return Embedded(self.embeddings, places[self.places].tolist(), unreadable, self.known)

    def in_order(self) -> "Embedded":
        """Return the same, ordered by place."""
        order = np.argsort(self.places, kind="stable")
        return replace(self, embeddings=self.embeddings[order], places=np.array(self.places)[order].tolist())


def _check_precision(precision: str) -> None:
    if precision not in get_args(EvaluationPrecision):
        raise ValueError(f"precision is {precision!r}, but must be {' or '.join(get_args(EvaluationPrecision))}.")


class Embedder:
    """A network that embeds pictures, with the preprocessing of its images.

    Args:
        model: Any module that maps prepared images ``[B, C, H, W]`` to embeddings ``[B, D]``. It runs in evaluation
            mode, on its own device. If it returns a tuple, a mapping or an output of transformers, the embeddings are
            chosen as in `embed_dataset`; to choose another value, wrap the model in a module of your own.
        transform: `Preprocessing`, or any function that maps an upright RGB image of Pillow to a tensor ``[C, H, W]``,
            such as timm's ``create_transform``, or to a mapping with ``pixel_values``, as image processors of
            transformers do. `Embedder.load` may also set a `LibraryPreprocessing`.
        distance: ``cosine`` or ``euclidean``: how embeddings are compared.
        checksum: Identifies the model that made embeddings; None computes it from the weights.
        path: The path from which the model was loaded, or None.
        precision: ``32-true``, or ``bf16-mixed``.
        dim: Keep only this many of the first numbers of an embedding, scaled to unit length again with cosine; None
            keeps all. See `proxemic.losses.MatryoshkaLoss`.

    Raises:
        ValueError: If the model is not a module, or the transform is not a function.

    >>> from torchvision.transforms.v2.functional import pil_to_tensor
    >>> embedder = Embedder(nn.Flatten(), lambda image: pil_to_tensor(image.resize((4, 4))) / 255)
    >>> embedder.embed([Image.new("RGB", (9, 5), "red"), np.zeros((7, 7), np.uint8)]).shape
    torch.Size([2, 48])
    """

    def __init__(
        self,
        model: nn.Module,
        transform: AnyPreprocessing | Transform,
        *,
        distance: Distance = "cosine",
        checksum: str | None = None,
        path: Path | None = None,
        precision: EvaluationPrecision = "32-true",
        dim: int | None = None,
    ) -> None:
        if not isinstance(model, nn.Module) or not (isinstance(transform, AnyPreprocessing) or callable(transform)):
            raise ValueError("model must be a torch module, and transform a Preprocessing or a function of an image")
        _check_precision(precision)
        self.model = model.eval()
        self.source = self
        self.head = None
        self.kept_by = None
        self.transform = transform
        self.distance: Distance = distance
        self.path = path
        self.precision: EvaluationPrecision = precision
        self.takes_vectors = isinstance(model, EmbeddingModel) and model.config.takes_vectors
        """Whether the model is only a head, which takes vectors ``[B, F]`` instead of images."""
        self._checksum = checksum
        self._dim = dim
        self.prepare = Preparation(transform)

    source: "Embedder"
    """The model whose outputs are kept: this one's embeddings are their first numbers, or what a head makes of them."""
    head: EmbeddingModel | None
    """The head that makes embeddings from the outputs of `source`."""
    kept_by: str | None
    """The checksum by which its outputs are kept; None if they are not."""
    computed: int = 0
    """How many pictures this model has embedded itself: their vectors were not kept from before."""

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        device: str | torch.device = "auto",
        precision: EvaluationPrecision = "32-true",
        backbone: type[nn.Module] | None = None,
    ) -> "Embedder":
        """Load a run, a ``model.safetensors`` with its ``model.json``, an ONNX file, or a pretrained network.

        Args:
            path: The directory or the file; or ``timm:NAME``, ``hf:NAME`` or ``hf:FOLDER`` for a pretrained network,
                see `proxemic.runs.pretrained.model_path`. ``model.json`` beside ``model.onnx`` states the
                ``preprocessing`` and perhaps the ``distance``; without it, the note that `export` wrote into the ONNX
                file counts.
            device: A device of torch, or auto, which takes an accelerator if there is one.
            precision: ``32-true``, or ``bf16-mixed``.
            backbone: The class of the backbone if it is a class of your own; a run names it itself.

        Raises:
            UserError: If there is no such model, or it needs `backbone`.
            ValueError: If a file is malformed.
            ImportError: If the network needs timm, transformers or onnxruntime, which is not installed.
        """
        path = model_path(path)
        _check_precision(precision)  # here, too, as the network is loaded only if a picture must be embedded
        facts: dict[str, Any] = {"path": path.absolute(), "precision": precision}
        if path.suffix.lower() == ONNX:
            model, preprocessing, usage, file = read_onnx_model(path)
            distance = _checked_distance(usage.get("distance", "cosine"), file)
            embedder = cls(model, preprocessing, distance=distance, checksum=read_checksum(path), **facts)
            embedder.kept_by = embedder.checksum
            return embedder
        folder = path if path.is_dir() else path.parent
        if not (path / "model.safetensors" if path.is_dir() else path).is_file():
            raise UserError(
                f"{path} is not a model: give the directory of a finished run, a model.safetensors, an .onnx file, or "
                "timm:NAME or hf:NAME for a pretrained network."
            )
        if backbone is None and has_own_backbone(folder):
            from proxemic.recipes.reader import own_backbone  # which imports much

            backbone = own_backbone(folder)
        return _SavedEmbedder(
            path.absolute(),
            device=_device(device),
            backbone=backbone,
            distance=_distance_of(folder),
            precision=precision,
        )

    def first(self, dim: int) -> "Embedder":
        """Return an embedder that keeps the first numbers of each embedding.

        It has a checksum of its own, as its vectors and thresholds differ from those of whole embeddings.

        Args:
            dim: How many numbers to keep.

        Raises:
            ValueError: If an embedding has fewer numbers.
        """
        if not 1 <= dim <= self.dim:
            raise ValueError(f"dim is {dim}, but must be from 1 to {self.dim}, the numbers of an embedding.")
        if dim == self.dim:
            return self
        cut = copy.copy(self)
        for name in ("dim", "checksum", "network"):
            vars(cut).pop(name, None)
        cut._checksum, cut._dim = first_checksum(self.checksum, dim), dim
        return cut

    def with_head(self, head: EmbeddingModel, checksum: str) -> "Embedder":
        """Return an embedder that applies a head to the embeddings of this one."""
        made = copy.copy(self)
        for name in ("dim", "checksum", "network"):
            vars(made).pop(name, None)
        made.head, made.dim, made._checksum = head, head.config.embedding_size, checksum
        return made

    def as_in(self, info: GalleryInfo) -> "Embedder":
        """Return this embedder, cut to the first numbers of an embedding if the gallery keeps only these."""
        return self.first(info.dim) if info.embedder == first_checksum(self.checksum, info.dim) else self

    @property
    def takes_texts(self) -> bool:
        """Whether the model has a text tower, which embeds texts in the space of the pictures."""
        return self._tokenizer is not None

    @cached_property
    def _tokenizer(self) -> Any:
        content = getattr(getattr(self.model, "backbone", None), "tokenizer", None)
        return None if content is None else parse_tokenizer(content)

    @cached_property
    def checksum(self) -> str:
        """Identifier of the model that made embeddings: SHA-256 of the weights, unless it was given."""
        if self._checksum is not None:
            return self._checksum
        digest = hashlib.sha256(type(self.model).__qualname__.encode())
        for name, value in self.model.state_dict().items():
            digest.update(json.dumps([name, str(value.dtype), [*value.shape]]).encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    @property
    def stopped(self) -> str | None:
        """When the model's run stopped, such as "stopped in epoch 1 of 30"; None if the run is finished."""
        return None if self.path is None else RunDirectory.of_model(self.path).stopped

    @property
    def device(self) -> torch.device:
        """The device of the model; ONNX Runtime chooses its own."""
        return next((part.device for part in self.model.parameters()), torch.device("cpu"))

    @cached_property
    def network(self) -> nn.Module:
        """The model as a module that maps prepared images ``[B, C, H, W]`` to a tensor of embeddings ``[B, D]``."""
        return _Tensors(self.model, self._first)

    def _first(self, embeddings: Tensor) -> Tensor:
        if self._dim is None:
            return embeddings
        first = embeddings[:, : self._dim].float()
        return normalize(first, dim=1) if self.distance == "cosine" else first

    @torch.no_grad()
    def finish(self, outputs: Float32[Tensor, "images outputs"]) -> Float32[Tensor, "images dim"]:
        """Turn outputs of `source` into embeddings."""
        return self._first(outputs if self.head is None else self.head(outputs))

    @cached_property
    def dim(self) -> int:
        """How many numbers an embedding has."""
        if self._dim is not None:
            return self._dim
        if isinstance(self.model, EmbeddingModel):
            return self.model.config.embedding_size
        return self.embed([Image.new("RGB", (256, 256))]).shape[1]

    def embed(
        self,
        pictures: Sequence[Picture] | Float32[Tensor, "images ..."] | Picture,
        *,
        batch_size: int = 64,
        workers: int = 0,
    ) -> Float32[Tensor, "images dim"]:
        """Embed pictures in order, and return float32 embeddings ``[pictures, dim]`` on the CPU.

        Args:
            pictures: One or several paths, bytes of files, PIL images, arrays ``[H, W]`` or ``[H, W, C]`` of uint8, or
                prepared tensors ``[C, H, W]``; or a batch of prepared tensors, ``[B, C, H, W]``. A model that is only
                a head takes vectors ``[B, F]``.
            batch_size: Pictures per batch of the network.
            workers: Processes that read and prepare pictures.

        Raises:
            UnreadableImageError: If a picture cannot be read.
            ValueError: If something else is among the pictures.
        """
        if isinstance(pictures, Tensor) and pictures.ndim in (2, 4):
            batches: Iterable[Tensor] = pictures.float().split(batch_size)
        else:
            one = isinstance(pictures, str | os.PathLike | bytes | Image.Image | np.ndarray | Tensor)
            listed = cast("Sequence[Picture]", [pictures] if one else pictures)
            batches = (batch for batch, _, _ in self.prepare.batches(listed, batch_size, workers, strict=True))
        if not (outputs := [*embed_batches(self.source.network, batches, self.precision)]):
            return torch.empty(0, self.dim)
        return self.finish(torch.cat(outputs))

    def embed_texts(self, texts: str | Sequence[str], *, batch_size: int = 64) -> Float32[Tensor, "texts dim"]:
        """Embed texts in the space of the pictures, and return float32 embeddings ``[texts, dim]`` on the CPU.

        Args:
            texts: One or several texts; a text is cut to the length that the model takes (CLIP: 77 tokens).
            batch_size: Texts per batch of the network.

        Raises:
            UserError: If the model has no text tower, as CLIP and SigLIP (``hf:NAME``) have.
            ValueError: If a text is empty.
        """
        texts = [texts] if isinstance(texts, str) else [*texts]
        if not all(text.strip() for text in texts):
            raise ValueError("a text is empty, but must say what pictures are searched for.")
        if not texts:
            return torch.empty(0, self.dim)
        if not self.takes_texts:
            has_tower = getattr(getattr(self.model, "backbone", None), "has_text_tower", False)
            raise no_text_tower(self.path or "The model", has_tower=has_tower)
        check_reading(batch_size)
        tokens = tokenize(self._tokenizer, texts).split(batch_size)
        return self._first(torch.cat([*embed_batches(_Texts(self.model), tokens, self.precision)]))

    def embed_readable(
        self,
        pictures: Sequence[Picture] | Pixels | Vectors,
        *,
        at_least: int = 1,
        batch_size: int = 64,
        workers: int = 0,
        description: str | None = None,
    ) -> Iterator[Embedded]:
        """Embed the readable pictures in parts of `at_least` pictures; a `description` shows a progress bar.

        Vectors that a command has made before, by a saved model from picture files, are read from the user's cache, and
        new ones are kept there.
        """
        if self.takes_vectors != isinstance(pictures, Vectors):
            takes, came = ("vectors", "pictures") if self.takes_vectors else ("pictures", "vectors")
            raise UserError(f"{self.path or 'The model'} takes {takes}, but {came} are given.")
        held: list[Embedded] = []
        hidden = True if description is None else None  # None shows the bar on terminals
        with tqdm(total=len(pictures), desc=description, unit="image", leave=False, disable=hidden) as bar:
            for part in self.source._outputs(pictures, batch_size, workers):
                held.append(replace(part, embeddings=self.finish(part.embeddings)) if part.places else part)
                bar.update(len(part))
                if sum(map(len, held)) >= at_least:
                    yield Embedded.join(held, self.dim)
                    held.clear()
        if held:
            yield Embedded.join(held, self.dim)

    @property
    def kept(self) -> KeptVectors | None:
        """The kept outputs of this model; None if it was not saved, or a class of the user's own computes them."""
        if self.kept_by is None or not isinstance(self.transform, AnyPreprocessing):
            return None
        return kept_vectors(self.kept_by, self.transform, self.precision)

    def keeping(self, pictures: Sequence[Picture] | Pixels | Vectors) -> Keeping | None:
        """Return what is kept of the outputs for pictures, and keeps others; None if they are not saved files."""
        if type(pictures) is not FilePixels or (kept := self.kept) is None:
            return None
        return Keeping(kept, PictureKeys.of(pictures))

    def _outputs(
        self, pictures: Sequence[Picture] | Pixels | Vectors, batch_size: int, workers: int
    ) -> Iterator[Embedded]:
        """Read the kept outputs of pictures; compute the others, and keep them."""
        keeping = self.keeping(pictures)
        if keeping is None or not isinstance(pictures, FilePixels):
            yield from self.compute(pictures, batch_size, workers)
            return
        missing, done = keeping.missing, 0
        with keeping:
            for batch in self.compute(pictures.select(missing), batch_size, workers) if len(missing) else ():
                new = batch.at(missing)
                keeping.add(new.places, new.embeddings.numpy())
                end = 1 + max(*new.places, *new.unreadable, done)
                yield from self._read(keeping, pictures, range(done, end), new)
                done = end
        for first in range(done, len(pictures), _AT_ONCE):
            yield from self._read(keeping, pictures, range(first, min(first + _AT_ONCE, len(pictures))))

    def _read(self, keeping: Keeping, pictures: FilePixels, between: range, *new: Embedded) -> Iterator[Embedded]:
        """Yield the kept outputs of the pictures between two places, with the new ones among them, in order."""
        places, parts = keeping.known(between), [*new]
        if len(places):
            try:
                outputs = torch.from_numpy(keeping.read(places))
                parts.append(Embedded(outputs, places.tolist(), known=len(places)))
            except KeyError:  # they were removed meanwhile
                parts += [part.at(places) for part in self.compute(pictures.select(places), 64, 0)]
        yield Embedded.join(parts, self.dim).in_order()

    def compute(
        self, pictures: Sequence[Picture] | Pixels | Vectors, batch_size: int, workers: int
    ) -> Iterator[Embedded]:
        """Compute the outputs of pictures, batch by batch."""
        begun: deque[tuple[list[int], dict[int, str]]] = deque()

        def batches() -> Iterator[Tensor]:
            on_gpu = self.device.type == "cuda"
            for batch, places, failures in self.prepare.batches(
                pictures, batch_size, workers, strict=False, pin=on_gpu
            ):
                begun.append((places, failures))
                if places:
                    yield batch

        for outputs in embed_batches(self.network, batches(), self.precision):
            self.computed += len(outputs)
            while not begun[0][0]:  # the network has not seen batches of which nothing could be read
                yield Embedded(torch.empty(0, self.dim), *begun.popleft())
            yield Embedded(outputs, *begun.popleft())
        for places, failures in begun:
            yield Embedded(torch.empty(0, self.dim), places, failures)


class _SavedEmbedder(Embedder):
    """A saved model, whose network is loaded when the first picture must be embedded.

    If it was joined of a network and a head over its features, `source` is that network, so that the features are kept
    together with those that other heads and galleries use.
    """

    def __init__(
        self,
        path: Path,
        *,
        device: torch.device,
        backbone: type[nn.Module] | None,
        distance: Distance,
        precision: EvaluationPrecision,
    ) -> None:
        description = read_description(path, backbone)
        folder = path if path.is_dir() else path.parent
        self.transform = read_preprocessing(description.preprocessing, folder / DESCRIPTION)
        self.prepare = Preparation(self.transform)
        self.distance, self.path, self.precision = distance, path, precision
        self.takes_vectors = description.config.takes_vectors
        self.dim = description.config.embedding_size
        self._checksum, self._dim, self.head, self.source = read_checksum(path), None, None, self
        self.kept_by = None if description.config.custom_backbone or self.takes_vectors else self._checksum

        @cache
        def load() -> EmbeddingModel:
            with torch.random.fork_rng(devices=()):  # building the network draws numbers
                model, _ = load_embedder(path, backbone)
            for part in [*model.modules()]:
                if isinstance(part, TimmBackbone):
                    part.network = fold_batch_norm(part.network.eval())
            return model.to(device).eval()

        self._load: Callable[[], EmbeddingModel] = load
        if description.features_by is not None:
            self.head, self.source = load_head(path), copy.copy(self)
            self.source._be_source(description.features_by, self.head.backbone.num_features)

    def _be_source(self, checksum: str, features: int) -> None:
        load = self._load
        self._load = lambda: without_head(load())
        self._checksum = self.kept_by = checksum
        self.dim, self.head, self.source = features, None, self

    @cached_property
    def model(self) -> nn.Module:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The network."""
        return self._load()


class _Tensors(nn.Module):
    """Pick the embeddings out of the output of a model."""

    def __init__(self, model: nn.Module, keep: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.keep = model, keep

    def forward(self, images: Tensor) -> Tensor:
        return self.keep(embeddings_in(self.model(images)))


class _Texts(nn.Module):
    """Map tokens to embeddings, with the head that images pass through, too."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model.embed_features(self.model.backbone.text_features(tokens))


def _device(named: str | torch.device) -> torch.device:
    try:
        device = pick_device(named) if isinstance(named, str) else named
        torch.empty(1, device=device).item()  # fails on the device meta
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"The device {named} is not there, or torch {torch.__version__} cannot use it: take cpu, or auto."
        ) from error
    return device


def first_checksum(checksum: str, dim: int) -> str:
    """Return the checksum of an embedder that keeps only the first `dim` numbers of an embedding."""
    return hashlib.sha256(f"{checksum}:{dim}".encode()).hexdigest()


def _distance_of(folder: Path) -> Distance:
    """Return the distance with which the run of a model was evaluated; cosine if the folder is not a run."""
    from proxemic.recipes.yaml_files import read_yaml

    recipe = folder / "recipe.yaml"
    content: Any = read_yaml(recipe) if recipe.is_file() else None
    evaluation = content.get("evaluation") if isinstance(content, dict) else None
    return _checked_distance(evaluation.get("distance", "cosine") if isinstance(evaluation, dict) else "cosine", recipe)


def _checked_distance(named: Any, file: Path) -> Distance:
    if named not in get_args(Distance):
        raise ValueError(f"{file} has distance {named!r}, but it must be cosine or euclidean.")
    return named


def enough_workers(processes: int = 1) -> int:
    """Return how many reading workers each of `processes` should start: its share of the cores, 0 except on Linux."""
    return max(1, len(os.sched_getaffinity(0)) // processes) if sys.platform == "linux" else 0
