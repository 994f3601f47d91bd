"""Computes embeddings of images, or of the samples of any data set."""

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset
from tqdm import tqdm

from proxemic.arrays import as_tensor
from proxemic.data import EmbeddingDataset, ImageSet
from proxemic.data.pixels import FilePixels
from proxemic.distributed.gather import gather_uneven
from proxemic.errors import UserNote
from proxemic.metrics.arrays import as_integers
from proxemic.models import EmbeddingModel, load_model
from proxemic.models.backbones.timm_models import TimmBackbone
from proxemic.models.description import DESCRIPTION, ONNX
from proxemic.models.folding import fold_batch_norm
from proxemic.models.outputs import embeddings_in
from proxemic.precision import full_precision
from proxemic.runs.directory import RunDirectory
from proxemic.runs.kept import Keeping, PictureKeys, kept_vectors
from proxemic.runs.library_preprocessing import AnyPreprocessing, read_preprocessing
from proxemic.runs.onnx_files import read_onnx_model
from proxemic.runs.precision import EvaluationPrecision
from proxemic.runs.workers import shared_memory_errors, worker_settings

Keys = tuple[str | Sequence[str], str]


def load_embedder(path: Path, backbone: type[nn.Module] | None = None) -> tuple[EmbeddingModel, AnyPreprocessing]:
    """Load a model or an ONNX file, and the preprocessing of its images; warn if its run is unfinished."""
    if path.suffix.lower() == ONNX:
        return read_onnx_model(path)[:2]
    model, preprocessing = load_model(path, backbone)
    run = RunDirectory.of_model(path)
    if run.stopped:
        note = f"{path} {run.stopped}: its model is the best one so far. Finish it with proxemic train --resume "
        warnings.warn(f"{note}{run.path}.", UserNote, stacklevel=2)
    return model, read_preprocessing(preprocessing, (path if path.is_dir() else path.parent) / DESCRIPTION)


@torch.no_grad()
def embed_images(
    model: nn.Module,
    images: ImageSet,
    preprocessing: AnyPreprocessing,
    *,
    batch_size: int = 256,
    workers: int = 0,
    description: str = "embedding",
    shared: bool = False,
    precision: EvaluationPrecision = "32-true",
    checksum: str | None = None,
) -> Float[Tensor, "images dim"]:
    """Embed images in order; the embeddings are float32 on the CPU.

    With the `checksum` of a saved model, embeddings of image files that any command has computed before are read from
    the user's cache, and new ones are kept there.

    The network computes in float32, or in bfloat16 with the precision bf16-mixed. If ``shared``, the processes that
    train together share the batches, and each process gets all embeddings.
    """
    rank, world = (dist.get_rank(), dist.get_world_size()) if shared and dist.is_initialized() else (0, 1)
    batches = torch.arange(len(images)).split(batch_size)
    shares = [torch.cat([torch.empty(0, dtype=torch.int64), *batches[first::world]]) for first in range(world)]
    data = EmbeddingDataset(
        images, preprocessing.evaluation(), side=preprocessing.reduced_side, bits=preprocessing.bits
    )
    kept = None if checksum is None or shared else kept_vectors(checksum, preprocessing, precision)
    keeping = None
    if kept is not None and type(images.pixels) is FilePixels:
        keeping = Keeping(kept, PictureKeys.of(images.pixels))
    own = shares[rank].tolist() if keeping is None else keeping.missing.tolist()
    bar = tqdm(
        _loader(model, Subset(data, own), batch_size, workers), description, leave=False, disable=True if rank else None
    )
    parts, done = [torch.empty(0, 0)], 0
    with shared_memory_errors(), keeping or nullcontext():
        for part in embed_batches(model, (batch for batch, _ in bar), precision):
            if keeping is not None:
                keeping.add(own[done : done + len(part)], part.numpy())
            parts.append(part)
            done += len(part)
    embeddings = torch.cat(parts[1:] or parts)
    if keeping is not None:
        return torch.from_numpy(keeping.completed(embeddings.numpy()))
    return embeddings if world == 1 else torch.cat(gather_uneven(embeddings))[torch.cat(shares).argsort()]


def embed_dataset(
    model: nn.Module | Callable[..., Any],
    data: Dataset[Any] | DataLoader[Any] | Sized,
    *,
    keys: Keys = ("image", "label"),
    batch_size: int = 256,
    workers: int = 0,
    description: str = "embedding",
    precision: EvaluationPrecision = "32-true",
) -> tuple[Float[Tensor, "samples dim"], Int64[Tensor, " samples"] | None]:
    """Embed any PyTorch data set: images, token ids, or samples with several inputs.

    A module runs in evaluation mode on its own device, and floating-point inputs are converted to the type of its first
    floating-point parameter; afterwards the modes of its submodules are restored. Any other function gets the batches
    unchanged.

    The embeddings are the model's output, or its first element if the output is a tuple. In a mapping or an output of
    transformers, the embeddings are ``embeddings``, ``sentence_embedding``, ``text_embeds`` or ``image_embeds``, else
    ``pooler_output``, else the mean of ``last_hidden_state`` over the tokens, else the only value. The mean leaves out
    padding if ``attention_mask`` is an input that is passed by name. For any other value, give a function.

    Args:
        model: A module or function that returns embeddings ``[B, D]``.
        data: A data set, a list of samples, or a `DataLoader`, which sets the order and may drop samples. A sample is
            an input and an integer label, an input alone, or a mapping. An input is a tensor, a tuple of tensors (the
            model's positional arguments), or a mapping of tensors (its keyword arguments). Anything after the label is
            ignored.
        keys: For samples that are mappings: the name of the input, or a tuple of names of inputs that are passed by
            name; and the name of the label (``labels`` is also found). If a sample lacks that input, its inputs are all
            values for which the model has arguments, such as ``input_ids`` and ``attention_mask``.
        batch_size: Samples per batch of a data set.
        workers: Processes that load the samples of a data set.
        description: Text of the progress bar, which is shown on terminals only.
        precision: 32-true, or bf16-mixed to let a module compute in bfloat16, which is faster on most GPUs but less
            exact.

    Returns:
        Embeddings ``[N, D]``, float32 on the CPU, and labels ``[N]``, or None if there are none.

    Raises:
        ValueError: If there are no samples, or inputs, labels or outputs are not as described.

    >>> from proxemic.metrics import retrieval_metrics
    >>> from torch.utils.data import TensorDataset
    >>> images, labels = torch.rand(20, 1, 4, 4), torch.arange(20) // 2
    >>> embeddings, labels = embed_dataset(nn.Flatten(), TensorDataset(images, labels))
    >>> embeddings.shape, retrieval_metrics(embeddings, labels).queries
    (torch.Size([20, 16]), 20)
    >>> tokens = [{"input_ids": torch.tensor(ids), "label": label} for label, ids in enumerate(([1, 2], [0, 3]))]
    >>> embed_dataset(lambda input_ids: torch.eye(4)[input_ids].mean(1), tokens)
    (tensor([[0.0000, 0.5000, 0.5000, 0.0000],
            [0.5000, 0.0000, 0.0000, 0.5000]]), tensor([0, 1]))
    """
    if not isinstance(data, DataLoader):
        data = _loader(model, data, batch_size, workers)
    given: list[Any] = []

    def inputs() -> Iterator[Any]:
        for batch in tqdm(data, description, leave=False, disable=None):
            values, label = inputs_and_labels(batch, keys, model)
            given.append(label)
            yield values

    embeddings = [*embed_batches(model, inputs(), precision)]
    labels = [
        as_integers("labels", as_tensor("labels", label), len(batch)).cpu()
        for label, batch in zip(given, embeddings, strict=True)
        if label is not None
    ]
    if not embeddings:
        raise ValueError("the data set has no samples to embed; a DataLoader with drop_last drops an incomplete batch")
    if labels and len(labels) < len(given):
        raise ValueError("some batches have labels and others none; give them always or never")
    return torch.cat(embeddings), torch.cat(labels) if labels else None


def _loader(model: object, data: Any, batch_size: int, workers: int) -> DataLoader[Any]:
    generator = torch.Generator()  # the loader draws a seed: not from the generator that training draws from
    return DataLoader(data, batch_size, generator=generator, **worker_settings(workers, _device_of(model)))


def _device_of(model: object) -> torch.device | None:
    """Return the device of a module; None for any other function."""
    if not isinstance(model, nn.Module):
        return None
    return next((part.device for part in model.parameters()), torch.device("cpu"))


def embed_batches(
    model: nn.Module | Callable[..., Any], batches: Iterable[Any], precision: EvaluationPrecision = "32-true"
) -> Iterator[Float[Tensor, "batch dim"]]:
    """Embed batches, with modules in evaluation mode; the embeddings are float32 on the CPU."""
    device = _device_of(model)
    if device is None or not isinstance(model, nn.Module):
        for batch in batches:
            with torch.no_grad():
                embeddings = call(model, batch).float().cpu()
            yield embeddings
        return
    dtype = next((part.dtype for part in model.parameters() if part.is_floating_point()), None)
    half = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16-mixed")
    with evaluation_mode(model), folded(model):
        for batch in batches:
            check_inputs(batch)
            with full_precision(), half, torch.no_grad():
                embeddings = call(model, batch, device, dtype).float().cpu()
            yield embeddings


@contextmanager
def folded(model: nn.Module) -> Iterator[None]:
    """Run the block in evaluation mode, with batch norm of timm's networks folded into convolutions."""
    backbones = [(part, part.network) for part in model.modules() if isinstance(part, TimmBackbone)]
    try:
        for backbone, network in backbones:
            backbone.network = fold_batch_norm(network)
        yield
    finally:
        for backbone, network in backbones:
            backbone.network = network


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Run the block in evaluation mode, then restore the mode of each module."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, mode in modes:
            part.training = mode


def inputs_and_labels(batch: Any, keys: Keys, model: nn.Module | Callable[..., Any]) -> tuple[Any, Any]:
    """Return the inputs and labels (or None) of a batch, as described in `embed_dataset`."""
    if not isinstance(batch, Mapping):
        if not isinstance(batch, Sequence) or isinstance(batch[0], str):
            return batch, None
        return batch[0], batch[1] if len(batch) > 1 else None
    names, label_name = keys
    labels = batch.get(label_name, batch.get("labels"))
    if names in batch:
        return batch[names], labels
    wanted = names
    if isinstance(names, str):
        arguments = inspect.signature(model.forward if isinstance(model, nn.Module) else model).parameters
        wanted = [name for name in arguments if name in batch and name not in (label_name, "labels")] or [names]
    for name in wanted:
        if name not in batch:
            raise ValueError(
                f"samples have the keys {', '.join(map(str, batch))}, but not {name!r}; give keys=, such as "
                "(('input_ids', 'attention_mask'), 'label')"
            )
    return {name: batch[name] for name in wanted}, labels


def check_inputs(inputs: Any) -> None:
    """Raise `ValueError` unless a module's inputs are tensors, and not encoded images."""
    values = (
        inputs.values() if isinstance(inputs, Mapping) else inputs if isinstance(inputs, list | tuple) else [inputs]
    )
    for value in values:
        if not isinstance(value, Tensor) or value.dtype == torch.uint8:
            came = "a tensor of torch.uint8" if isinstance(value, Tensor) else f"of type {type(value).__name__}"
            raise ValueError(
                f"an input of the model is {came}, but must be a tensor of floats, or of integers such as token ids; "
                "transform or tokenize the samples in the data set, or give a function that does so as model"
            )


def call(
    model: nn.Module | Callable[..., Any],
    inputs: Any,
    device: torch.device | None = None,
    dtype: torch.dtype | None = None,
) -> Float[Tensor, "batch dim"]:
    """Call the model with a tensor, a tuple's tensors, or a mapping's by name, and return the embeddings."""

    def move(value: Any) -> Any:
        if device is None or not isinstance(value, Tensor):
            return value
        # From pinned memory, the copy does not block the CPU.
        return value.to(device, dtype if value.is_floating_point() else None, non_blocking=device.type == "cuda")

    if isinstance(inputs, Mapping):
        moved = {name: move(value) for name, value in inputs.items()}
        return embeddings_in(model(**moved), moved.get("attention_mask"))
    several = isinstance(inputs, tuple | list) and all(isinstance(value, Tensor) for value in inputs)
    return embeddings_in(model(*map(move, inputs)) if several else model(move(inputs)))


def pick_device(accelerator: str) -> torch.device:
    """Return this machine's device for a recipe's ``training.accelerator``."""
    if accelerator == "auto":
        return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")
    return torch.device(accelerator)
