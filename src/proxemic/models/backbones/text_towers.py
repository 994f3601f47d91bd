"""Tokenizers of networks for texts and images, read from a folder of transformers and stored as one JSON text."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.models.description import TOKENIZER

TOKENIZER_SETTINGS = "tokenizer_config.json"
TOKENS = ("special_tokens_map.json", "added_tokens.json")  # next to the settings in older folders
_PUNCTUATION = r"[!-/:-@\[-`{-~]"


def read_tokenizer(folder: Path, settings: Mapping[str, Any], length: int, padding: int) -> str | None:
    """Read the tokenizer of a folder, if there is a `tokenizer.json`, as the processor of transformers uses it.

    Args:
        folder: A folder of transformers.
        settings: Content of its `tokenizer_config.json`.
        length: Number of tokens to which texts are cut and padded.
        padding: Token that fills shorter texts, if the tokenizer names none.

    Raises:
        ValueError: If the file is damaged.
    """
    if not (folder / TOKENIZER).is_file():
        return None
    tokenizer = parse_tokenizer((folder / TOKENIZER).read_text(encoding="utf-8"), folder / TOKENIZER)
    if settings.get("tokenizer_class") == "SiglipTokenizer":
        return _with_steps_of_siglip(tokenizer, settings, length, padding)
    from transformers import AutoTokenizer

    try:
        theirs = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # each tokenizer has checks of its own
        message = " ".join(str(error).split())[:200]
        raise ValueError(f"transformers cannot read the tokenizer in {folder}: {message}") from error
    if theirs.pad_token_id is None:
        theirs.pad_token = theirs.convert_ids_to_tokens(padding)
    theirs(["a text"], padding="max_length", truncation=True, max_length=length)  # which the tokenizer then keeps
    return theirs.backend_tokenizer.to_str()


def _with_steps_of_siglip(tokenizer: Any, settings: Mapping[str, Any], length: int, padding: int) -> str:
    """Add the steps of `SiglipTokenizer`, which needs sentencepiece, before those of its file."""
    from tokenizers import Regex, normalizers

    named = settings.get("pad_token")
    named = named.get("content") if isinstance(named, Mapping) else named
    number = tokenizer.token_to_id(named) if isinstance(named, str) else None
    tokenizer.enable_truncation(length)
    tokenizer.enable_padding(length=length, pad_id=padding if number is None else number)
    steps = [
        normalizers.Lowercase(),
        normalizers.Replace(Regex(_PUNCTUATION), ""),
        normalizers.Replace(Regex(r"\s+"), " "),
        normalizers.Strip(),
    ]
    own = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
    tokenizer.normalizer = normalizers.Sequence([*steps, *own])
    return tokenizer.to_str()


def parse_tokenizer(content: str, file: object = TOKENIZER) -> Any:
    """Return the tokenizer that a JSON text describes; raise `ValueError` if it is damaged."""
    with optional_dependency("transformers"):
        from tokenizers import Tokenizer
    try:
        return Tokenizer.from_str(content)
    except Exception as error:  # the only class that tokenizers raises
        raise ValueError(f"{file} is not a tokenizer: {' '.join(str(error).split())[:200]}") from error


def tokenize(tokenizer: Any, texts: Sequence[str]) -> Int64[Tensor, "texts length"]:
    """Return the tokens of texts, cut or padded to the same length."""
    return torch.tensor([item.ids for item in tokenizer.encode_batch([*texts])])


def no_text_tower(owner: object, *, has_tower: bool) -> UserError:
    """Return the error for a model that cannot embed texts."""
    if has_tower:
        return UserError(f"{owner} has no {TOKENIZER}: fetch it into the model's folder, and give that folder.")
    return UserError(
        f"{owner} embeds no texts: take a model with a text tower, such as hf:openai/clip-vit-base-patch32 or "
        "hf:google/siglip-base-patch16-224 (--model)."
    )
