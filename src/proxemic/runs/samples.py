"""Inputs and labels in the batches of any data set, and the call of any model with them."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from proxemic.models.outputs import embeddings_in

Keys = tuple[str | Sequence[str], str]


def inputs_and_labels(batch: Any, keys: Keys, model: nn.Module | Callable[..., Any]) -> tuple[Any, Any]:
    """Return the model's inputs and the labels, or None, in a batch; the rules are those of `embed_dataset`."""
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
    """Raise `ValueError` unless inputs of a module are tensors, and not the bytes of images."""
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
    """Call the model with a tensor, several of a tuple, or those of a mapping by name, and return its embeddings."""

    def move(value: Any) -> Any:
        if device is None or not isinstance(value, Tensor):
            return value
        # From pinned memory, the processor does not wait for the copy.
        return value.to(device, dtype if value.is_floating_point() else None, non_blocking=device.type == "cuda")

    if isinstance(inputs, Mapping):
        moved = {name: move(value) for name, value in inputs.items()}
        return embeddings_in(model(**moved), moved.get("attention_mask"))
    several = isinstance(inputs, tuple | list) and all(isinstance(value, Tensor) for value in inputs)
    return embeddings_in(model(*map(move, inputs)) if several else model(move(inputs)))
