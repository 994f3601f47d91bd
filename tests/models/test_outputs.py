"""Selection of embeddings in models' outputs, as `embed_dataset` documents it."""

from typing import Any

import pytest
import torch

from proxemic.models.outputs import embeddings_in

ROWS, OTHER = torch.arange(6.0).reshape(3, 2), torch.full((3, 2), -1.0)
TOKENS = torch.stack([ROWS, ROWS + 2, OTHER], dim=1)
MASK = torch.tensor([[1, 1, 0]] * 3)

FOUND: dict[str, tuple[Any, torch.Tensor]] = {
    "a tensor": (ROWS, ROWS),
    "the first of a tuple": ((ROWS, OTHER), ROWS),
    "the first of a list": ([ROWS], ROWS),
    "a name": ({"embeddings": ROWS, "pooler_output": OTHER, "logits": OTHER}, ROWS),
    "the name of sentence-transformers": ({"token_embeddings": TOKENS, "sentence_embedding": ROWS}, ROWS),
    "a projection": ({"text_embeds": ROWS, "last_hidden_state": TOKENS}, ROWS),
    "the pooler": ({"last_hidden_state": TOKENS, "pooler_output": ROWS}, ROWS),
    "the pooler of a convolutional network": ({"pooler_output": ROWS[:, :, None, None]}, ROWS),
    "no pooler": ({"last_hidden_state": TOKENS, "pooler_output": None}, ROWS + 1),
    "a map": ({"last_hidden_state": torch.stack([ROWS, ROWS + 2], 2)[:, :, None]}, ROWS + 1),
    "the only value": ({"features": ROWS}, ROWS),
}


@pytest.mark.parametrize("name", FOUND)
def test_embeddings_are_found(name: str) -> None:
    output, expected = FOUND[name]
    assert torch.equal(embeddings_in(output, MASK), expected)


def test_without_a_mask_all_tokens_count() -> None:
    torch.testing.assert_close(embeddings_in({"last_hidden_state": TOKENS}), TOKENS.mean(1))


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ({"text_embeds": ROWS, "image_embeds": ROWS}, "a dict with text_embeds, image_embeds"),
        (TOKENS, r"returns \[3, 3, 2\] of torch.float32, but"),
        (ROWS.long(), r"returns \[3, 2\] of torch.int64, but"),
        (None, "returns a NoneType, but"),
    ],
)
def test_what_is_not_clear_is_refused(output: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        embeddings_in(output)
