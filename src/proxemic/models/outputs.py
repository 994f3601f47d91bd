"""Selection of the embeddings in a model's output: a tensor, tuple, mapping or output of transformers."""

from collections.abc import Mapping
from typing import Any

from jaxtyping import Float, Shaped
from torch import Tensor

_NAMES = ("embeddings", "sentence_embedding", "text_embeds", "image_embeds")


def embeddings_in(
    output: Any, attention_mask: Shaped[Tensor, "batch tokens"] | None = None
) -> Float[Tensor, "batch dim"]:
    """Return the embeddings in a model's output.

    A tensor is returned unchanged; of a tuple or list, the first element is returned. Of a mapping, such as an output
    of transformers, it is the value of ``embeddings``, ``sentence_embedding``, ``text_embeds`` or ``image_embeds``,
    otherwise ``pooler_output``, otherwise the mean of ``last_hidden_state`` over the tokens in ``attention_mask``,
    otherwise the only value.

    Raises:
        ValueError: If the result is not a floating tensor ``[batch, dim]``, or several of the first four names exist.
    """
    found = output
    if isinstance(output, tuple | list) and output:
        found = output[0]
    elif isinstance(output, Mapping):
        named = [output[name] for name in _NAMES if output.get(name) is not None]
        hidden = output.get("last_hidden_state")
        if named:
            found = named[0] if len(named) == 1 else None
        elif output.get("pooler_output") is not None:
            found = output["pooler_output"].flatten(1)  # [batch, dim, 1, 1] of convolutional networks
        elif hidden is not None:
            found = _mean(hidden, attention_mask)
        elif len(output) == 1:
            (found,) = output.values()
    if not isinstance(found, Tensor) or found.ndim != 2 or not found.is_floating_point():
        kind = f"{list(found.shape)} of {found.dtype}" if isinstance(found, Tensor) else f"a {type(output).__name__}"
        with_keys = f" with {', '.join(map(str, output))}" if isinstance(output, Mapping) else ""
        raise ValueError(
            f"the model returns {kind}{with_keys}, but embeddings are a floating tensor [batch, dim]: wrap the model "
            "in a module that returns them, or use a model with pooling and without a classifier, such as a timm "
            "model with num_classes=0"
        )
    return found


def _mean(hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    if hidden.ndim == 3 and attention_mask is not None:
        weights = attention_mask.to(hidden.dtype)[:, :, None]
        return (hidden * weights).sum(1) / weights.sum(1).clamp(min=1)
    return hidden.mean(1) if hidden.ndim == 3 else hidden.flatten(2).mean(2)
