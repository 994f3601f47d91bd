"""Embeddings of plain PyTorch data sets, in order, and the user's own metrics."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from proxemic.errors import UserError
from proxemic.runs.evaluate import check_own_metrics, compute_own_metrics
from proxemic.runs.workers import worker_settings
from proxemic.training import EvaluationConfig, embed_dataset

IMAGES = torch.rand(10, 1, 3, 3, generator=torch.Generator().manual_seed(0))
LABELS = torch.arange(10) % 4


class Listed(Dataset[Any]):
    """A data set of samples in a list."""

    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> Any:
        return self.samples[index]


def as_lists(pairs: list[tuple[Tensor, int]]) -> tuple[Tensor, list[int]]:
    return torch.stack([image for image, _ in pairs]), [label for _, label in pairs]


def at_times(pairs: list[tuple[Tensor, int]]) -> Any:
    return as_lists(pairs)[0] if pairs[0][1] else as_lists(pairs)


PAIRS = [(image, int(label)) for image, label in zip(IMAGES, LABELS, strict=True)]
DATA: dict[str, tuple[Any, bool]] = {
    "tensors": (TensorDataset(IMAGES, LABELS), True),
    "images alone": (TensorDataset(IMAGES), False),
    "bare images": (Listed(list(IMAGES)), False),
    "pairs": (Listed(PAIRS), True),
    "more than pairs": (Listed([(image, label, "a path") for image, label in PAIRS]), True),
    "mappings": (Listed([{"image": image, "label": np.int32(label), "path": ""} for image, label in PAIRS]), True),
    "mappings without labels": (Listed([{"image": image} for image, _ in PAIRS]), False),
    "a loader": (DataLoader(TensorDataset(IMAGES, LABELS.int()), batch_size=4), True),
    "lists of labels": (DataLoader(Listed(PAIRS), 4, collate_fn=as_lists), True),
}  # fmt: skip


@pytest.mark.parametrize("name", DATA)
def test_data_sets_and_loaders_are_embedded_in_order(name: str) -> None:
    data, labelled = DATA[name]
    model = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(9, 2).double())
    embeddings, labels = embed_dataset(model, data, batch_size=3)
    torch.testing.assert_close(embeddings, model[2](IMAGES.flatten(1).double()).float())
    assert model.training
    assert model[1].training
    if labelled:
        assert labels is not None
        assert torch.equal(labels, LABELS)
    else:
        assert labels is None


def test_a_loader_keeps_its_own_order_and_drops_what_it_drops() -> None:
    loader = DataLoader(TensorDataset(IMAGES, LABELS), 4, shuffle=True, drop_last=True)
    embeddings, labels = embed_dataset(nn.Flatten(), loader)
    assert len(embeddings) == 8
    assert labels is not None
    for row, label in zip(embeddings, labels, strict=True):
        (place,) = (IMAGES.flatten(1) == row).all(1).nonzero()
        assert LABELS[place] == label


class Words(nn.Module):
    """Embeds token ids, with a mask by position or by name, as a text model does."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 4).double()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        assert not self.training
        return {"embeddings": (self.table(input_ids) * attention_mask[:, :, None]).sum(1), "more": input_ids}


IDS = torch.randint(20, (10, 5), generator=torch.Generator().manual_seed(0))
MASK = (torch.arange(5) < torch.arange(10)[:, None] % 5 + 1).long()
ROWS = [*zip(IDS, MASK, LABELS, strict=True)]
NAMED = [{"input_ids": ids, "unused": 1.0, "attention_mask": mask, "labels": label} for ids, mask, label in ROWS]
SEVERAL: dict[str, tuple[Any, dict[str, Any]]] = {
    "names that the model takes": (NAMED, {}),
    "given names": (NAMED, {"keys": (("input_ids", "attention_mask"), "labels")}),
    "by position": ([((ids, mask), label) for ids, mask, label in ROWS], {}),
    "mappings and labels": ([({"input_ids": ids, "attention_mask": mask}, label) for ids, mask, label in ROWS], {}),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_several_inputs_and_token_ids(name: str) -> None:
    samples, settings = SEVERAL[name]
    model = Words()
    embeddings, labels = embed_dataset(model, Listed(samples), batch_size=4, **settings)
    expected = (model.table(IDS) * MASK[:, :, None]).sum(1).float()
    torch.testing.assert_close(embeddings, expected)
    assert labels is not None
    assert torch.equal(labels, LABELS)


def test_text_models_are_embedded_whatever_the_padding() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=20, max_position_embeddings=8, **sizes)
    model = transformers.BertModel(config, add_pooling_layer=False).train()
    samples = [{"input_ids": ids[: mask.sum()], "labels": label} for ids, mask, label in ROWS]

    def collate(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        ids = nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True, padding_value=-1)
        labels = torch.stack([row["labels"] for row in rows])
        return {"input_ids": ids.clamp(min=0), "attention_mask": (ids >= 0).long(), "labels": labels}

    def embed(batch_size: int) -> Tensor:
        return embed_dataset(model, DataLoader(Listed(samples), batch_size, collate_fn=collate))[0]

    assert embed(1).shape == (10, 8)
    torch.testing.assert_close(embed(10), embed(1), atol=1e-5, rtol=1e-4)
    with_pooler = transformers.BertModel(config)
    (found, _), batch = embed_dataset(with_pooler, [samples[4]]), samples[4]["input_ids"][None]
    torch.testing.assert_close(found, with_pooler.eval()(batch).pooler_output)


def test_plain_functions_get_what_the_batches_hold() -> None:
    embeddings, labels = embed_dataset(lambda words: torch.tensor([[float(len(word))] for word in words]), ["a", "bcd"])
    assert (embeddings.tolist(), labels) == ([[1.0], [3.0]], None)
    weight = torch.ones(9, 2, requires_grad=True)
    embeddings, labels = embed_dataset(lambda images: images.flatten(1) @ weight, Listed(PAIRS), batch_size=3)
    torch.testing.assert_close(embeddings, IMAGES.flatten(1) @ weight.detach())
    assert not embeddings.requires_grad
    assert labels is not None
    assert torch.equal(labels, LABELS)


REFUSED: dict[str, tuple[Any, str]] = {
    "no samples": (Listed([]), "no samples to embed"),
    "bytes": (TensorDataset(torch.zeros(4, 1, 3, 3, dtype=torch.uint8), LABELS[:4]), "a tensor of torch.uint8"),
    "no tensors": (Listed([("a", 1), ("b", 2)]), "is of type str, but must be a tensor of floats"),
    "words": (Listed([(image, "a") for image in IMAGES]), "labels is a tuple but must be a tensor"),
    "floats": (TensorDataset(IMAGES, LABELS.float()), "labels has torch.float32"),
    "several": (TensorDataset(IMAGES, torch.zeros(10, 2, dtype=torch.long)), r"shape \(10, 2\)"),
    "other keys": (Listed([{"pixels": IMAGES[0]}]), "the keys pixels, but not 'image'; give keys="),
    "sometimes": (DataLoader(Listed(PAIRS), 5, collate_fn=at_times), "always or never"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    data, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        embed_dataset(nn.Flatten(), data)


def test_embeddings_may_be_computed_in_bfloat16() -> None:
    model, data = nn.Sequential(nn.Flatten(), nn.Linear(IMAGES[0].numel(), 5)), TensorDataset(IMAGES, LABELS)
    full, half = (embed_dataset(model, data, precision=precision)[0] for precision in ("32-true", "bf16-mixed"))
    assert half.dtype == torch.float32
    assert not torch.equal(half, full)
    torch.testing.assert_close(half, full, rtol=0.05, atol=0.05)


def test_images_for_a_gpu_are_loaded_into_pinned_memory() -> None:
    pinned = {name: worker_settings(2, torch.device(name))["pin_memory"] for name in ("cpu", "mps", "cuda")}
    assert pinned == {"cpu": False, "mps": False, "cuda": True}


class Gives(nn.Module):
    def __init__(self, values: Any) -> None:
        super().__init__()
        self.values = values

    def forward(self, embeddings: Tensor, labels: Tensor) -> Any:
        return self.values


class Draws(nn.Module):
    def forward(self, embeddings: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return {"drawn": torch.rand(())}


def test_what_a_metric_draws_is_always_the_same_and_disturbs_nothing() -> None:
    config = EvaluationConfig(own_metrics=[Draws()])
    torch.manual_seed(1)
    found = compute_own_metrics(config, torch.eye(2), torch.tensor([0, 0]))
    after = torch.rand(1)
    torch.manual_seed(2)
    assert compute_own_metrics(config, torch.eye(2), torch.tensor([0, 0])) == found
    torch.manual_seed(1)
    assert torch.equal(torch.rand(1), after)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (0.5, "Gives, which gives float, but must give a mapping"),
        ({"a": "good"}, "Gives, whose a is 'good', but must be a number"),
        ({"map@r": 0.5}, "names a value 'map@r', but must give each value a name that no other metric has"),
        ({"loss": 0.5}, "names a value 'loss'"),
    ],
)
def test_what_cannot_join_the_metrics_is_refused(values: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_own_metrics(EvaluationConfig(own_metrics=[Gives(values)]))


def test_the_metric_that_chooses_the_epoch_is_one_of_them() -> None:
    own: Any = [Gives({"a": 1}), lambda *_: {"b": torch.tensor([0.5])}]
    check_own_metrics(EvaluationConfig(own_metrics=own, metric="b"))
    with pytest.raises(UserError, match=r"evaluation.metric is 'c', but these are computed: map@r, .*, a, b\."):
        check_own_metrics(EvaluationConfig(own_metrics=own, metric="c"))
    with pytest.raises(UserError, match="names a value 'a'"):
        check_own_metrics(EvaluationConfig(own_metrics=[*own, own[0]]))
