"""Embed images and texts with a trained network and the preprocessing of its images."""

import copy
import hashlib
import json
import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_args

import numpy as np
from jaxtyping import Float32
from PIL import Image
from tqdm import tqdm

from proxemic.data.pixels import FilePixels, Pixels
from proxemic.data.vectors import Vectors
from proxemic.errors import UserError
from proxemic.lazy import Tensor, is_tensor, torch
from proxemic.models.description import ONNX
from proxemic.retrieval.galleries.stores.store import Distance, GalleryInfo
from proxemic.retrieval.vectors.embedded import Embedded
from proxemic.retrieval.vectors.networks import LinearHead, Network, OnnxNetwork, Outputs, TorchNetwork, unit_rows
from proxemic.retrieval.vectors.preparation import Picture, Preparation, Transform, check_reading
from proxemic.runs.kept import Keeping, KeptVectors, PictureKeys, kept_vectors
from proxemic.runs.library_preprocessing import AnyPreprocessing
from proxemic.runs.precision import EvaluationPrecision
from proxemic.runs.pretrained import model_path

if TYPE_CHECKING:
    from torch import nn

_AT_ONCE = 8192  # kept outputs that are read at once


def _check_precision(precision: str) -> None:
    if precision not in get_args(EvaluationPrecision):
        raise ValueError(f"precision is {precision!r}, but must be {' or '.join(get_args(EvaluationPrecision))}.")


class Embedder:
    """A network that embeds images, with the preprocessing of its images.

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
        dim: Keep only this many of the first dimensions of an embedding, scaled to unit length again with cosine; None
            keeps all. See `proxemic.losses.MatryoshkaLoss`.

    Raises:
        ValueError: If the model is not a module, or the transform is not a function.

    >>> from torch import nn
    >>> from torchvision.transforms.v2.functional import pil_to_tensor
    >>> embedder = Embedder(nn.Flatten(), lambda image: pil_to_tensor(image.resize((4, 4))) / 255)
    >>> embedder.embed([Image.new("RGB", (9, 5), "red"), np.zeros((7, 7), np.uint8)]).shape
    torch.Size([2, 48])
    """

    def __init__(
        self,
        model: "nn.Module",
        transform: AnyPreprocessing | Transform,
        *,
        distance: Distance = "cosine",
        checksum: str | None = None,
        path: Path | None = None,
        precision: EvaluationPrecision = "32-true",
        dim: int | None = None,
    ) -> None:
        from proxemic.models import EmbeddingModel

        is_transform = isinstance(transform, AnyPreprocessing) or callable(transform)
        if not isinstance(model, torch.nn.Module) or not is_transform:
            raise ValueError("model must be a torch module, and transform a Preprocessing or a function of an image")
        _check_precision(precision)
        self.model = model.eval()
        self.source = self
        self.head = None
        self.kept_by = None
        self.computed_by = Counter()
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
    """The model whose outputs are cached: embeddings are their first dimensions, or what `head` makes of them."""
    head: LinearHead | None
    """The head that makes embeddings from the outputs of `source`."""
    kept_by: str | None
    """The checksum by which its outputs are kept; None if they are not."""
    computed_by: Counter[str]
    """How many images this model has embedded itself, by torch or by ONNX Runtime: they were not in the cache."""

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        device: "str | torch.device" = "auto",
        precision: EvaluationPrecision = "32-true",
        backbone: "type[nn.Module] | None" = None,
    ) -> "Embedder":
        """Load a run, a ``model.safetensors`` with its ``model.json``, an ONNX file, or a pretrained network.

        Args:
            path: The directory or the file; or ``timm:NAME``, ``hf:NAME`` or ``hf:FOLDER`` for a pretrained network,
                see `proxemic.runs.pretrained.model_path`. ``model.json`` next to ``model.onnx`` states the
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
        from proxemic.retrieval.vectors.saved import SavedEmbedder, load_onnx_file

        path = model_path(path)
        _check_precision(precision)  # here, too, as the network is loaded only if an image must be embedded
        if path.suffix.lower() == ONNX:
            return load_onnx_file(path, precision)
        if not (path / "model.safetensors" if path.is_dir() else path).is_file():
            raise UserError(
                f"{path} is not a model: give the directory of a finished run, a model.safetensors, an .onnx file, or "
                "timm:NAME or hf:NAME for a pretrained network."
            )
        return SavedEmbedder(path.absolute(), device=device, backbone=backbone, precision=precision)

    def first(self, dim: int) -> "Embedder":
        """Return an embedder that keeps the first dimensions of each embedding.

        The new embedder has a checksum of its own, because its embeddings and thresholds differ from those of the whole
        embeddings.

        Args:
            dim: How many dimensions to keep.

        Raises:
            ValueError: If an embedding has fewer dimensions.
        """
        if not 1 <= dim <= self.dim:
            raise ValueError(f"dim is {dim}, but must be from 1 to {self.dim}, the dimensions of an embedding.")
        if dim == self.dim:
            return self
        cut = copy.copy(self)
        for name in ("dim", "checksum", "network"):
            vars(cut).pop(name, None)
        cut._checksum, cut._dim = first_checksum(self.checksum, dim), dim
        return cut

    def with_head(self, head: LinearHead, checksum: str) -> "Embedder":
        """Return an embedder that applies a head to the embeddings of this one."""
        made = copy.copy(self)
        for name in ("dim", "checksum", "network"):
            vars(made).pop(name, None)
        made.head, made.dim, made._checksum = head, len(head.bias), checksum
        return made

    def as_in(self, info: GalleryInfo) -> "Embedder":
        """Return this embedder, cut to the first dimensions of an embedding if the gallery keeps only these."""
        return self.first(info.dim) if info.embedder == first_checksum(self.checksum, info.dim) else self

    @property
    def takes_texts(self) -> bool:
        """Whether the model has a text tower, which embeds texts in the space of the images."""
        return self._tokenizer is not None

    @cached_property
    def _tokenizer(self) -> Any:
        from proxemic.models.backbones.text_towers import parse_tokenizer

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
        from proxemic.runs.directory import RunDirectory

        return None if self.path is None else RunDirectory.of_model(self.path).stopped

    @property
    def device(self) -> "torch.device":
        """The device of the model; ONNX Runtime chooses its own."""
        return next((part.device for part in self.model.parameters()), torch.device("cpu"))

    @cached_property
    def network(self) -> "nn.Module":
        """The model as a module that maps prepared images ``[B, C, H, W]`` to a tensor of embeddings ``[B, D]``."""
        from proxemic.retrieval.vectors.modules import Tensors

        return Tensors(self.model, self._first)

    def choose_network(self, count: int, pictures: Sequence[Picture] | Pixels | None = None) -> Network:
        """Return the network for a number of images; `SavedEmbedder` may convert one, and try it on the first images.

        Without `pictures`, the images are queries, and nothing is converted.
        """
        del count, pictures
        return TorchNetwork(self.network, self.precision)

    def _first(self, embeddings: Tensor) -> Tensor:
        if self._dim is None:
            return embeddings
        first = embeddings[:, : self._dim].float()
        return torch.nn.functional.normalize(first, dim=1) if self.distance == "cosine" else first

    def _cut(self, vectors: Outputs) -> Outputs:
        if self._dim is None:
            return vectors
        first = vectors[:, : self._dim]
        return unit_rows(first) if self.distance == "cosine" else first

    def finish(self, outputs: Outputs) -> Float32[np.ndarray, "images dim"]:
        """Turn outputs of `source` into embeddings."""
        return self._cut(outputs if self.head is None else self.head(outputs))

    @property
    def computed(self) -> int:
        """How many images this model has embedded itself."""
        return self.computed_by.total()

    @cached_property
    def dim(self) -> int:
        """Number of dimensions of an embedding."""
        if self._dim is not None:
            return self._dim
        from proxemic.models import EmbeddingModel

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
        """Embed images in order, and return float32 embeddings ``[images, dim]`` on the CPU.

        Args:
            pictures: One or several paths, bytes of files, PIL images, arrays ``[H, W]`` or ``[H, W, C]`` of uint8, or
                prepared tensors ``[C, H, W]``; or a batch of prepared tensors, ``[B, C, H, W]``. A model that is only
                a head takes vectors ``[B, F]``.
            batch_size: Images per batch of the network.
            workers: Processes that read and prepare images.

        Raises:
            UnreadableImageError: If an image cannot be read.
            ValueError: If an item is not an image.
        """
        return torch.from_numpy(self.vectors(pictures, batch_size=batch_size, workers=workers))

    def vectors(self, pictures: Any, *, batch_size: int = 64, workers: int = 0) -> Float32[np.ndarray, "images dim"]:
        """Embed as `embed` does, and return an array; if the network is converted, torch is not imported."""
        source = self.source
        if is_tensor(pictures) and pictures.ndim in (2, 4):
            network = source.choose_network(len(pictures))
            if isinstance(network, OnnxNetwork) and not network.takes(pictures):
                network = TorchNetwork(source.network, source.precision)
            batches: Iterable[Any] = pictures.float().split(batch_size)
        else:
            is_one = isinstance(pictures, str | os.PathLike | bytes | Image.Image | np.ndarray) or is_tensor(pictures)
            listed = cast("Sequence[Picture]", [pictures] if is_one else pictures)
            is_prepared = any(map(is_tensor, listed))
            torch_only = TorchNetwork(source.network, source.precision) if is_prepared else None
            network = torch_only or source.choose_network(len(listed))
            batches = (batch for batch, _, _ in self._prepared(network, listed, batch_size, workers, strict=True))
        if not (outputs := [*network.run(batches)]):
            return np.empty((0, self.dim), np.float32)
        return self.finish(np.concatenate(outputs))

    def _prepared(
        self,
        network: Network,
        pictures: Sequence[Picture] | Pixels | Vectors,
        batch_size: int,
        workers: int,
        *,
        strict: bool,
    ) -> Iterator[tuple[Any, list[int], dict[int, str]]]:
        """Prepare images for a network in batches, without torch if neither needs it."""
        check_reading(batch_size, workers)
        if isinstance(network, OnnxNetwork) and not workers and not isinstance(pictures, Vectors):
            return self.prepare.arrays(pictures, batch_size, strict=strict)
        on_gpu = isinstance(network, TorchNetwork) and self.device.type == "cuda"
        return self.prepare.batches(pictures, batch_size, workers, strict=strict, pin=on_gpu)

    def embed_texts(self, texts: str | Sequence[str], *, batch_size: int = 64) -> Float32[Tensor, "texts dim"]:
        """Embed texts in the space of the images, and return float32 embeddings ``[texts, dim]`` on the CPU.

        Args:
            texts: One or several texts; a text is cut to the length that the model takes (CLIP: 77 tokens).
            batch_size: Texts per batch of the network.

        Raises:
            UserError: If the model has no text tower, as CLIP and SigLIP (``hf:NAME``) have.
            ValueError: If a text is empty.
        """
        texts = [texts] if isinstance(texts, str) else [*texts]
        if not all(text.strip() for text in texts):
            raise ValueError("a text is empty, but must say what photos are searched for.")
        if not texts:
            return torch.empty(0, self.dim)
        from proxemic.models.backbones.text_towers import no_text_tower, tokenize
        from proxemic.retrieval.vectors.modules import Texts
        from proxemic.runs.embed import embed_batches

        if not self.takes_texts:
            has_tower = getattr(getattr(self.model, "backbone", None), "has_text_tower", False)
            raise no_text_tower(self.path or "The model", has_tower=has_tower)
        check_reading(batch_size)
        tokens = tokenize(self._tokenizer, texts).split(batch_size)
        return self._first(torch.cat([*embed_batches(Texts(self.model), tokens, self.precision)]))

    def embed_readable(
        self,
        pictures: Sequence[Picture] | Pixels | Vectors,
        *,
        at_least: int = 1,
        batch_size: int = 64,
        workers: int = 0,
        description: str | None = None,
    ) -> Iterator[Embedded]:
        """Embed the readable images in parts of `at_least` images; a `description` shows a progress bar.

        Embeddings that a saved model has made of image files before are read from the user's cache, and new ones are
        kept there.
        """
        if self.takes_vectors != isinstance(pictures, Vectors):
            takes, came = ("vectors", "photos") if self.takes_vectors else ("photos", "vectors")
            raise UserError(f"{self.path or 'The model'} takes {takes}, but {came} are given.")
        held: list[Embedded] = []
        hidden = True if description is None else None  # None shows the bar on terminals
        with tqdm(total=len(pictures), desc=description, unit="image", leave=False, disable=hidden) as bar:
            for part in self.source._outputs(pictures, batch_size, workers, max(at_least, _AT_ONCE)):
                held.append(replace(part, vectors=self.finish(part.vectors)) if part.places else part)
                bar.update(len(part))
                if sum(map(len, held)) >= at_least:
                    yield Embedded.join(held, self.dim)
                    held.clear()
        if held:
            yield Embedded.join(held, self.dim)

    @property
    def kept(self) -> KeptVectors | None:
        """The cached outputs of this model; None if the model was not saved, or a user's own class computes them."""
        if self.kept_by is None or not isinstance(self.transform, AnyPreprocessing):
            return None
        return kept_vectors(self.kept_by, self.transform, self.precision)

    def keeping(self, pictures: Sequence[Picture] | Pixels | Vectors) -> Keeping | None:
        """Return the cache of the outputs for images; None if the images are not files, or the model is not saved."""
        if type(pictures) is not FilePixels or (kept := self.kept) is None:
            return None
        return Keeping(kept, PictureKeys.of(pictures))

    def _outputs(
        self, pictures: Sequence[Picture] | Pixels | Vectors, batch_size: int, workers: int, at_once: int
    ) -> Iterator[Embedded]:
        """Read the cached outputs of images; compute the others, and cache them."""
        keeping = self.keeping(pictures)
        if keeping is None or not isinstance(pictures, FilePixels):
            yield from self.compute(pictures, batch_size, workers)
            return
        missing, done = keeping.missing, 0
        with keeping:
            for batch in self.compute(pictures.select(missing), batch_size, workers) if len(missing) else ():
                new = batch.at(missing)
                keeping.add(new.places, new.vectors, new.engine)
                end = 1 + max(*new.places, *new.unreadable, done)
                yield from self._read(keeping, pictures, range(done, end), new)
                done = end
        for first in range(done, len(pictures), at_once):
            yield from self._read(keeping, pictures, range(first, min(first + at_once, len(pictures))))

    def _read(self, keeping: Keeping, pictures: FilePixels, between: range, *new: Embedded) -> Iterator[Embedded]:
        """Yield the cached outputs of the images between two places, with the new ones among them, in order."""
        places, parts = keeping.known(between), [*new]
        if len(places):
            try:
                parts.append(Embedded(keeping.read(places), places.tolist(), known=len(places)))
            except KeyError:  # they were removed meanwhile
                parts += [part.at(places) for part in self.compute(pictures.select(places), 64, 0)]
        yield Embedded.join(parts, self.dim).in_order()

    def compute(
        self, pictures: Sequence[Picture] | Pixels | Vectors, batch_size: int, workers: int
    ) -> Iterator[Embedded]:
        """Compute the outputs of images, batch by batch."""
        begun: deque[tuple[list[int], dict[int, str]]] = deque()
        network = self.choose_network(len(pictures), None if isinstance(pictures, Vectors) else pictures)
        empty = np.empty((0, self.dim), np.float32)

        def batches() -> Iterator[Any]:
            for batch, places, failures in self._prepared(network, pictures, batch_size, workers, strict=False):
                begun.append((places, failures))
                if places:
                    yield batch

        for outputs in network.run(batches()):
            self.computed_by[network.engine] += len(outputs)
            while not begun[0][0]:  # the network has not seen batches of which nothing could be read
                yield Embedded(empty, *begun.popleft())
            yield Embedded(outputs, *begun.popleft(), engine=network.engine)
        for places, failures in begun:
            yield Embedded(empty, places, failures)


def first_checksum(checksum: str, dim: int) -> str:
    """Return the checksum of an embedder that keeps only the first `dim` dimensions of an embedding."""
    return hashlib.sha256(f"{checksum}:{dim}".encode()).hexdigest()
