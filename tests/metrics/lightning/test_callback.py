from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from lightning.pytorch import Trainer
from torch import Tensor, nn
from torch.utils.data import DataLoader

import evaluated
from evaluated import CONFIG, PREPROCESSING, Module
from proxemic.data import EmbeddingDataset, ImageSet
from proxemic.errors import TrainingDiverged, UserNote
from proxemic.metrics import RetrievalCallback
from proxemic.runs.embed import embed_images
from proxemic.runs.evaluate import evaluate_embeddings

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.filterwarnings(
        "ignore:.*does not have many workers",
        "ignore:.*smaller than the logging interval",
        "ignore:.*LeafSpec.* is deprecated",
        "ignore:.*in eval mode at the start of training",
    ),
]


@pytest.fixture
def images() -> ImageSet:
    return evaluated.images()


def fit(module: Module, images: ImageSet, *callbacks: RetrievalCallback, epochs: int = 1) -> Trainer:
    trainer = Trainer(
        accelerator="cpu", max_epochs=epochs, callbacks=list(callbacks), logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    torch.manual_seed(0)
    trainer.fit(module, DataLoader(EmbeddingDataset(images, PREPROCESSING.evaluation()), 10))
    return trainer


@pytest.mark.parametrize("flags", [False, True])
def test_a_users_module_is_evaluated_after_the_epoch(images: ImageSet, flags: bool) -> None:
    plain = images
    if flags:
        asks = torch.rand(50, generator=torch.Generator().manual_seed(0)) < 0.5
        plain = ImageSet.from_names(images.pixels, [*map(str, images.label_texts())], asks, ~asks)
        bursts = [*map(str, (torch.arange(50) // 12 * 6 + images.labels).tolist())]
        images = replace(plain, rows=plain.rows.with_texts(sequence=bursts))
    evaluate, module = RetrievalCallback(images, PREPROCESSING, CONFIG), Module()
    trainer = fit(module, images, evaluate)
    found = evaluate_embeddings(embed_images(module, images, PREPROCESSING, batch_size=16), images, CONFIG)
    assert evaluate.latest is not None
    assert evaluate.latest == found
    assert "ramp" in found
    if flags:
        without = evaluate_embeddings(embed_images(module, plain, PREPROCESSING, batch_size=16), plain, CONFIG)
        assert without.chance["recall@1"] > found.chance["recall@1"]
    assert (evaluate.latest.queries, evaluate.latest.left_out) == (found.queries, int(flags))
    logged = {name: value.item() for name, value in trainer.callback_metrics.items()}
    assert logged == {f"validation/{name}": pytest.approx(value, rel=1e-6, abs=1e-7) for name, value in found.items()}


def test_evaluating_leaves_the_training_as_it_is(images: ImageSet) -> None:
    torch.manual_seed(1)
    plain, evaluated = Module(), Module()
    evaluated.load_state_dict(plain.state_dict())
    fit(plain, images, epochs=2)
    fit(evaluated, images, RetrievalCallback(images, PREPROCESSING, CONFIG), epochs=2)
    assert torch.equal(plain.net[2].weight, evaluated.net[2].weight)  # type: ignore[arg-type]


def test_every_second_epoch_under_another_name(images: ImageSet) -> None:
    evaluate = RetrievalCallback(images, PREPROCESSING, CONFIG, every_n_epochs=2, prefix="unseen ")
    assert not fit(Module(), images, evaluate, epochs=1).callback_metrics
    assert evaluate.latest is None
    assert "unseen map@r" in fit(Module(), images, evaluate, epochs=2).callback_metrics
    with pytest.raises(ValueError, match="every_n_epochs is 0"):
        RetrievalCallback(images, PREPROCESSING, every_n_epochs=0)


def test_values_are_nan_with_one_warning_where_no_image_has_a_match(images: ImageSet) -> None:
    singles = replace(images, labels=torch.arange(50), class_names=tuple(map(str, range(50))))
    evaluate = RetrievalCallback(singles, PREPROCESSING, CONFIG)
    with pytest.warns(UserNote, match="none of the 50 queries") as warned:
        trainer = fit(Module(), images, evaluate)
    assert [item.category for item in warned].count(UserNote) == 1
    assert evaluate.latest is not None
    assert (evaluate.latest.queries, evaluate.latest.left_out) == (0, 50)
    known = {name for name, value in trainer.callback_metrics.items() if not value.isnan()}
    assert known == {"validation/ramp"}
    assert "validation/map@r" in trainer.callback_metrics


def test_embeddings_that_are_not_finite_stop_the_run(images: ImageSet) -> None:
    with pytest.raises(TrainingDiverged, match="held-out images are no longer finite in epoch 1"):
        fit(Module(factor=float("nan")), images, RetrievalCallback(images, PREPROCESSING, CONFIG))


@pytest.mark.parametrize("rank", [0, 1])
def test_two_processes_evaluate_as_one(together: list[dict[str, Any]], rank: int) -> None:
    found = together[rank]["training"]
    assert len(found["evaluated"]) == 2
    assert found["evaluated"] == found["alone"]
    assert found["evaluated"][0] != found["evaluated"][1]
    assert found["logged"] == {
        f"validation/{name}": torch.tensor(value).item() for name, value in found["evaluated"][1].items()
    }
    best = max(values["map@r"] for values in found["evaluated"])
    assert found["best"] == found["stopping"] == torch.tensor(best).item()


def test_all_processes_stop_where_one_finds_that_embeddings_are_not_finite(together: list[dict[str, Any]]) -> None:
    for found in together:
        (sentence,) = found["diverged"]
        assert "held-out images are no longer finite in epoch 1" in sentence


@pytest.mark.parametrize("rank", [0, 1])
def test_lightnings_own_validation_with_a_sample_that_comes_twice(together: list[dict[str, Any]], rank: int) -> None:
    found = together[rank]["training"]
    assert found["validated"] == found["validated alone"]


@pytest.mark.parametrize("world", [1, 2, 3, 9])
def test_any_number_of_processes_embed_as_one(images: ImageSet, world: int, monkeypatch: pytest.MonkeyPatch) -> None:
    module, shares, found = Module(), list[Tensor](), list[Tensor]()
    whole = embed_images(module, images, PREPROCESSING, batch_size=8)

    def gather(share: Tensor) -> list[Tensor]:
        shares.append(share if len(share) else torch.empty(0, 4))
        return shares if len(shares) == world else [whole]

    monkeypatch.setattr("proxemic.runs.embed.gather_uneven", gather)
    for rank in range(world):
        known = {"is_initialized": True, "get_rank": rank, "get_world_size": world}
        monkeypatch.setattr("proxemic.runs.embed.dist", Mock(**{f"{name}.return_value": known[name] for name in known}))
        found.append(embed_images(module, images, PREPROCESSING, batch_size=8, shared=True))
    assert torch.equal(found[-1], whole)
    assert module.net.training
    assert not module.frozen.training


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
def test_modules_of_other_precisions_embed(images: ImageSet, kind: torch.dtype) -> None:
    torch.manual_seed(0)
    module = Module()
    expected = embed_images(module, images, PREPROCESSING)
    found = embed_images(module.to(kind), images, PREPROCESSING)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=0.05 if kind == torch.bfloat16 else 1e-5, rtol=0.0)


class Ranks(nn.Module):
    """A model whose first parameter has integers, followed by the modules ``after``."""

    def __init__(self, *after: nn.Module) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.arange(3), requires_grad=False)
        self.after = nn.Sequential(nn.Flatten(), *after)

    def forward(self, images: Tensor) -> Tensor:
        return self.after(images)


def test_the_precision_is_that_of_the_first_floats(images: ImageSet) -> None:
    assert embed_images(Ranks(nn.Linear(64, 4).double()), images, PREPROCESSING).shape == (50, 4)
    assert embed_images(Ranks(), images, PREPROCESSING).unique().numel() > 2
