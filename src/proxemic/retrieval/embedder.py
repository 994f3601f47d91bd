"""A trained network with the preprocessing of its images: what turns pictures into vectors."""

import hashlib
import json
import os
import pickle
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, cast, get_args

import numpy as np
import torch
from jaxtyping import Float32
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import normalize
from torch.utils.data import DataLoader, Dataset, get_worker_info
from tqdm import tqdm

from proxemic.arrays import as_tensor
from proxemic.data import Preprocessing, read_image
from proxemic.data.pixels import Pixels
from proxemic.data.reading import ImageInput, UnreadableImageError
from proxemic.data.vectors import Vectors
from proxemic.errors import UserError
from proxemic.models import EmbeddingModel, read_checksum
from proxemic.models.backbones.text_towers import no_text_tower, parse_tokenizer, tokenize
from proxemic.models.backbones.timm_models import TimmBackbone
from proxemic.models.config import ONNX
from proxemic.models.folding import fold_batch_norm
from proxemic.models.outputs import embeddings_in
from proxemic.models.saving import has_own_backbone
from proxemic.retrieval.stores.store import Distance, GalleryInfo
from proxemic.runs.directory import RunDirectory
from proxemic.runs.embed import embed_batches, load_embedder, pick_device
from proxemic.runs.evaluate import EvaluationPrecision
from proxemic.runs.onnx_files import read_onnx_model
from proxemic.runs.pretrained import model_path
from proxemic.runs.workers import worker_settings

Transform = Callable[[Image.Image], Any]
"""To a floating tensor `[C, H, W]`, or a mapping that has it as `pixel_values`."""

Picture = ImageInput | Tensor
"""What `Embedder.embed` takes: what `read_image` does, or a prepared tensor `[C, H, W]`."""

Prepared = tuple[Tensor, list[int], dict[int, str]]
"""A batch: what could be read, its places, and why the others cannot be read, by their places."""


@dataclass(frozen=True, eq=False)
class Embedded:
    """Embeddings of the pictures at `places`, and why others could not be read, by their places."""

    embeddings: Float32[Tensor, "readable dim"]
    places: list[int]
    unreadable: dict[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.places) + len(self.unreadable)

    @classmethod
    def join(cls, parts: Sequence["Embedded"]) -> "Embedded":
        """Put parts one after another."""
        return cls(
            torch.cat([part.embeddings for part in parts]),
            [place for part in parts for place in part.places],
            {place: why for part in parts for place, why in part.unreadable.items()},
        )


class Preparation:
    """From a picture to the tensor ``[C, H, W]`` that a network is given; it is pickled without the network.

    Args:
        transform: `Preprocessing`, or any function of an RGB image; of a mapping that it gives, as processors of
            transformers do, ``pixel_values`` are taken.
    """

    def __init__(self, transform: Preprocessing | Transform) -> None:
        self.is_ours = isinstance(transform, Preprocessing)
        self.side = transform.reduced_side if isinstance(transform, Preprocessing) else None
        self._transform: Transform = transform.evaluation() if isinstance(transform, Preprocessing) else transform

    def __call__(self, picture: Picture) -> Tensor:
        if isinstance(picture, Tensor):
            return picture
        image = read_image(picture, self.side)
        prepared: Any = self._transform(image if self.is_ours else image.convert("RGB"))
        if isinstance(prepared, Mapping) and "pixel_values" in prepared:
            values = prepared["pixel_values"]
            prepared = as_tensor("pixel_values", values)
            prepared = prepared[0] if prepared.ndim == 4 and len(prepared) == 1 else prepared
        if not isinstance(prepared, Tensor) or prepared.ndim != 3 or not prepared.is_floating_point():
            shape = list(prepared.shape) if isinstance(prepared, Tensor) else type(prepared).__name__
            raise ValueError(f"transform gives {shape}, but must give a floating tensor [channels, height, width].")
        return prepared

    def batches(
        self,
        pictures: Sequence[Picture] | Pixels | Vectors,
        batch_size: int,
        workers: int,
        *,
        strict: bool,
        pin: bool = False,
    ) -> Iterator[Prepared]:
        """Prepare batch by batch; with `strict`, a picture that cannot be read is an `UnreadableImageError`."""
        if batch_size < 1 or workers < 0:
            raise ValueError(f"batch_size is {batch_size} and workers {workers}, but must be 1 or more, and 0 or more.")
        if isinstance(pictures, Vectors):
            for first in range(0, len(pictures), batch_size):
                places = [*range(first, min(first + batch_size, len(pictures)))]
                yield pictures.fetch(places), places, {}
            return
        settings = worker_settings(workers)
        # A loader draws a seed, which is not to change that of the caller.
        settings |= {"generator": torch.Generator(), "pin_memory": pin}
        try:
            loader = DataLoader(_Pictures(self, pictures, strict), batch_size, collate_fn=_collate, **settings)
            for batch, places, failures in loader:
                yield pickle.loads(batch) if isinstance(batch, bytes) else batch, places, failures
        except UnreadableImageError as error:
            # torch's frames hold the loading processes and the error, which holds the frames. Left to the garbage
            # collector, the processes would be waited for in vain, for five seconds.
            traceback.clear_frames(error.__traceback__)
            raise


class _Pictures(Dataset[tuple[int, Tensor | str]]):
    def __init__(self, prepare: Preparation, pictures: Sequence[Picture] | Pixels, strict: bool) -> None:
        self.prepare, self.pictures, self.strict = prepare, pictures, strict

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, place: int) -> tuple[int, Tensor | str]:
        try:
            if isinstance(self.pictures, Pixels):
                return place, self.prepare(self.pictures.load(place, self.prepare.side))
            return place, self.prepare(self.pictures[place])
        except UnreadableImageError as error:
            if self.strict:
                raise
            return place, error.reason or str(error)


def _collate(items: Sequence[tuple[int, Tensor | str]]) -> tuple[Tensor | bytes, list[int], dict[int, str]]:
    prepared = {place: item for place, item in items if isinstance(item, Tensor)}
    failures = {place: item for place, item in items if isinstance(item, str)}
    shapes = [*dict.fromkeys(tuple(item.shape) for item in prepared.values())]
    if len(shapes) > 1:
        raise ValueError(
            f"images of one batch are prepared to {list(shapes[0])} and {list(shapes[1])}: have transform give "
            "one shape."
        )
    batch: Tensor | bytes = torch.stack([*prepared.values()]) if prepared else torch.empty(0)
    if get_worker_info() is not None:
        # Here, as the queue between the processes does the same later, but hangs where that fails.
        try:
            batch.share_memory_()
        except RuntimeError:  # a container has little to share: send a copy, which is slower
            batch = pickle.dumps(batch)
    return batch, [*prepared], failures


class Embedder:
    """A network that embeds pictures, with what is done to them before.

    Args:
        model: From prepared images ``[B, C, H, W]`` to embeddings ``[B, D]``: any module, which is used in evaluation
            mode, on the device where it is. Of a tuple, a mapping or an output of transformers the embeddings are taken
            as in `embed_dataset`; to choose another value, wrap the model in a module of your own.
        transform: What prepares a picture: `Preprocessing`, or any function of an upright RGB image of Pillow that
            gives a tensor ``[C, H, W]``, such as timm's ``create_transform``, or a mapping with ``pixel_values``, as an
            image processor of transformers does.
        distance: By which its embeddings are compared.
        checksum: Identifies the model that made embeddings; None computes it from the weights.
        path: The path that it was loaded from, if it was.
        precision: ``32-true``, or ``bf16-mixed``.
        dim: Keep the first numbers of an embedding alone, as many as this; None keeps all. With cosine, they are scaled
            to unit length again. See `proxemic.losses.MatryoshkaLoss`.

    Raises:
        ValueError: If an argument is none of these.

    >>> from torchvision.transforms.v2.functional import pil_to_tensor
    >>> embedder = Embedder(nn.Flatten(), lambda image: pil_to_tensor(image.resize((4, 4))) / 255)
    >>> embedder.embed([Image.new("RGB", (9, 5), "red"), np.zeros((7, 7), np.uint8)]).shape
    torch.Size([2, 48])
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
        dim: int | None = None,
    ) -> None:
        if not isinstance(model, nn.Module) or not (isinstance(transform, Preprocessing) or callable(transform)):
            raise ValueError("model must be a torch module, and transform a Preprocessing or a function of an image")
        self.model = model.eval()
        self.transform = transform
        self.distance: Distance = distance
        self.path = path
        self.precision: EvaluationPrecision = precision
        self.takes_vectors = isinstance(model, EmbeddingModel) and model.config.takes_vectors
        """Whether the model is only a head, which takes vectors ``[B, F]`` instead of images."""
        self._checksum = checksum
        self._dim = dim
        self.prepare = Preparation(transform)

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
                see `proxemic.runs.pretrained.model_path`. Beside ``model.onnx``, ``model.json`` has the
                ``preprocessing`` and perhaps the ``distance``; where there is none, what `export` has noted in the file
                itself is taken.
            device: Where to compute; auto takes an accelerator where there is one.
            precision: ``32-true``, or ``bf16-mixed``.
            backbone: The class of the backbone, where that is a class of your own; of a run it is found.

        Raises:
            UserError: If there is no such model, or it needs `backbone`.
            ValueError: If a file is malformed.
            ImportError: If the network needs timm, transformers or onnxruntime, which is not installed.
        """
        path = model_path(path)
        facts: dict[str, Any] = {"path": path.absolute(), "precision": precision}
        if path.suffix.lower() == ONNX:
            model, preprocessing, usage, file = read_onnx_model(path)
            distance = _checked_distance(usage.get("distance", "cosine"), file)
            return cls(model, preprocessing, distance=distance, checksum=read_checksum(path), **facts)
        folder = path if path.is_dir() else path.parent
        if not (path / "model.safetensors" if path.is_dir() else path).is_file():
            raise UserError(
                f"{path} is no model: give the directory of a finished run, a model.safetensors, an .onnx file, or "
                "timm:NAME or hf:NAME for a pretrained network."
            )
        if backbone is None and has_own_backbone(folder):
            from proxemic.recipes.reader import own_backbone  # which imports much

            backbone = own_backbone(folder)
        model, preprocessing = load_embedder(path, backbone)
        for part in [*model.modules()]:
            if isinstance(part, TimmBackbone):
                part.network = fold_batch_norm(part.network.eval())
        model.to(_device(device))
        return cls(model, preprocessing, distance=_distance_of(folder), checksum=read_checksum(path), **facts)

    def first(self, dim: int) -> "Embedder":
        """Return an embedder that keeps the first numbers of each embedding.

        Its checksum is another, as neither its vectors nor its thresholds are those of all numbers.

        Raises:
            ValueError: If there are not so many.
        """
        if not 1 <= dim <= self.dim:
            raise ValueError(f"dim is {dim}, but must be from 1 to {self.dim}, the numbers of an embedding.")
        if dim == self.dim:
            return self
        facts: dict[str, Any] = {"distance": self.distance, "path": self.path, "precision": self.precision}
        checksum = first_checksum(self.checksum, dim)
        return Embedder(self.model, self.transform, checksum=checksum, dim=dim, **facts)

    def as_in(self, info: GalleryInfo) -> "Embedder":
        """Return this embedder, or what keeps the first numbers of its embeddings if a gallery has these alone."""
        return self.first(info.dim) if info.embedder == first_checksum(self.checksum, info.dim) else self

    @property
    def takes_texts(self) -> bool:
        """Whether the model has a text tower, so that texts are embedded among the pictures."""
        return self._tokenizer is not None

    @cached_property
    def _tokenizer(self) -> Any:
        content = getattr(getattr(self.model, "backbone", None), "tokenizer", None)
        return None if content is None else parse_tokenizer(content)

    @cached_property
    def checksum(self) -> str:
        """Identifies the model that made embeddings: SHA-256 of the weights, unless it was given."""
        if self._checksum is not None:
            return self._checksum
        digest = hashlib.sha256(type(self.model).__qualname__.encode())
        for name, value in self.model.state_dict().items():
            digest.update(json.dumps([name, str(value.dtype), [*value.shape]]).encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()

    @property
    def stopped(self) -> str | None:
        """Where the run that it was loaded from stopped, if that is unfinished: "stopped in epoch 1 of 30"."""
        return None if self.path is None else RunDirectory.of_model(self.path).stopped

    @property
    def device(self) -> torch.device:
        """Where it computes; ONNX Runtime decides for itself."""
        return next((part.device for part in self.model.parameters()), torch.device("cpu"))

    @cached_property
    def network(self) -> nn.Module:
        """The model as a module from prepared images ``[B, C, H, W]`` to embeddings ``[B, D]``, a tensor."""
        return _Tensors(self.model, self._keep)

    def _keep(self, embeddings: Tensor) -> Tensor:
        if self._dim is None:
            return embeddings
        kept = embeddings[:, : self._dim].float()
        return normalize(kept, dim=1) if self.distance == "cosine" else kept

    @cached_property
    def dim(self) -> int:
        """Numbers of an embedding."""
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
            batches = (batch for batch, _, _ in self.prepare.batches(listed, batch_size, workers, strict=True))
        return torch.cat([torch.empty(0, 0), *self.embed_prepared(batches)][1:] or [torch.empty(0, self.dim)])

    def embed_texts(self, texts: str | Sequence[str], *, batch_size: int = 64) -> Float32[Tensor, "texts dim"]:
        """Embed texts, in order, in the space of the pictures, as float32 on the CPU.

        Args:
            texts: One or several; what exceeds the length that the model takes (CLIP: 77 tokens) is left out.
            batch_size: Texts that the network sees at once.

        Raises:
            UserError: If the model has no text tower; CLIP and SigLIP (``hf:NAME``) have one.
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
        tokens = tokenize(self._tokenizer, texts).split(batch_size)
        return self._keep(torch.cat([*embed_batches(_Texts(self.model), tokens, self.precision)]))

    def embed_prepared(self, batches: Iterable[Tensor]) -> Iterator[Float32[Tensor, "batch dim"]]:
        """Embed one batch of prepared images after the other."""
        return embed_batches(self.network, batches, self.precision)

    def embed_readable(
        self,
        pictures: Sequence[Picture] | Pixels | Vectors,
        *,
        at_least: int = 1,
        batch_size: int = 64,
        workers: int = 0,
        description: str | None = None,
    ) -> Iterator[Embedded]:
        """Embed what can be read, in parts of at least so many pictures, with a progress bar if that has a text."""
        if self.takes_vectors != isinstance(pictures, Vectors):
            takes, came = ("vectors", "pictures") if self.takes_vectors else ("pictures", "vectors")
            raise UserError(f"{self.path or 'The model'} takes {takes}, but {came} are given.")
        begun: deque[tuple[list[int], dict[int, str]]] = deque()

        def batches() -> Iterator[Tensor]:
            on_gpu = self.device.type == "cuda"
            for batch, places, failures in self.prepare.batches(
                pictures, batch_size, workers, strict=False, pin=on_gpu
            ):
                begun.append((places, failures))
                if places:
                    yield batch

        def embedded() -> Iterator[Embedded]:
            for embeddings in self.embed_prepared(batches()):
                while not begun[0][0]:  # the network has not seen batches of which nothing could be read
                    yield Embedded(torch.empty(0, self.dim), *begun.popleft())
                yield Embedded(embeddings, *begun.popleft())
            for places, failures in begun:
                yield Embedded(torch.empty(0, self.dim), places, failures)

        held: list[Embedded] = []
        hidden = True if description is None else None  # None shows the bar on terminals
        with tqdm(total=len(pictures), desc=description, unit="image", leave=False, disable=hidden) as bar:
            for part in embedded():
                held.append(part)
                bar.update(len(part))
                if sum(map(len, held)) >= at_least:
                    yield Embedded.join(held)
                    held.clear()
        if held:
            yield Embedded.join(held)


class _Tensors(nn.Module):
    """Return the embeddings in what a model returns."""

    def __init__(self, model: nn.Module, keep: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self.keep = model, keep

    def forward(self, images: Tensor) -> Tensor:
        return self.keep(embeddings_in(self.model(images)))


class _Texts(nn.Module):
    """From tokens to embeddings: the head is that of the images."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model.embed_features(self.model.backbone.text_features(tokens))


def _device(named: str | torch.device) -> torch.device:
    try:
        device = pick_device(named) if isinstance(named, str) else named
        torch.empty(1, device=device).item()  # which the device meta cannot do
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"The device {named} is not there, or none that torch {torch.__version__} computes on: take cpu, or auto."
        ) from error
    return device


def first_checksum(checksum: str, dim: int) -> str:
    """Return the checksum of the embedder that keeps the first numbers of another's embeddings."""
    return hashlib.sha256(f"{checksum}:{dim}".encode()).hexdigest()


def _distance_of(folder: Path) -> Distance:
    """Return the distance by which the run of a model was evaluated; cosine if it is not a run."""
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
    """Share the cores among ``processes`` as workers that read images; none where workers start slowly."""
    return max(1, len(os.sched_getaffinity(0)) // processes) if sys.platform == "linux" else 0
