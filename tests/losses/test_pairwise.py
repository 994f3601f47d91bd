"""PairwiseLoss against the losses of pytorch-metric-learning."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import safetensors.torch
import torch
from pytorch_metric_learning import losses as untyped_losses
from pytorch_metric_learning import miners
from torch import Tensor, nn

from proxemic.losses import PairwiseLoss

pytestmark = pytest.mark.cpu

losses: Any = untyped_losses  # its defaults pass for types: an int where a float is meant

LOSSES: dict[str, Callable[[], nn.Module]] = {
    "contrastive": lambda: losses.ContrastiveLoss(neg_margin=0.8),
    "triplet": lambda: losses.TripletMarginLoss(margin=0.3),
    "n-pair": losses.NPairsLoss,
    "lifted structure": losses.LiftedStructureLoss,
    "generalized lifted": losses.GeneralizedLiftedStructureLoss,
    "multi-similarity": losses.MultiSimilarityLoss,
    "margin": lambda: losses.MarginLoss(beta=0.9, learn_beta=True, nu=0.1),
    "margin of each class": lambda: losses.MarginLoss(num_classes=5, beta=0.9, learn_beta=True, nu=0.1),
    "circle": losses.CircleLoss,
}
MINERS: dict[str, Callable[[], nn.Module] | None] = {
    "no miner": None,
    "pairs": lambda: miners.MultiSimilarityMiner(epsilon=0.5),
    "triplets": lambda: miners.TripletMarginMiner(margin=0.5),
    "at random": miners.DistanceWeightedMiner,
}
LABELS = ([0, 0, 1, 1, 3, 3, 3], [3, 1, 1, 4], [2, 2, 0, 0, 4, 4, 4])
each_loss = pytest.mark.parametrize("name", LOSSES)


def make(name: str, **keywords: Any) -> PairwiseLoss:
    return PairwiseLoss(5, 6, loss=LOSSES[name](), **keywords)


def batch(labels: list[int], seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(len(labels), 6, generator=torch.Generator().manual_seed(seed))
    return x.requires_grad_(), torch.tensor(labels)


def steps(call: Callable[[Tensor, Tensor], Tensor], parameters: list[nn.Parameter]) -> list[Tensor]:
    """Compute values and gradients of three batches, with a gradient step on the parameters after each."""
    torch.manual_seed(7)
    found = []
    for step, labels in enumerate(LABELS):
        x, y = batch(labels, step)
        value = call(x, y)
        gradients = torch.autograd.grad(value.sum(), [x, *parameters], allow_unused=True, materialize_grads=True)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients[1:], strict=True):
                parameter -= 0.1 * gradient
        found += [value.detach().reshape(()), *gradients]
    return found


@each_loss
@pytest.mark.parametrize("miner", MINERS)
@pytest.mark.parametrize("memory_size", [0, 12])
def test_it_equals_the_library_used_bare(name: str, miner: str, memory_size: int) -> None:
    if name == "n-pair" and memory_size:
        pytest.skip("not with a memory")
    bare, make_miner = LOSSES[name](), MINERS[miner]
    mine = make_miner() if make_miner else None
    ours = make(name, miner=mine, memory_size=memory_size)
    if memory_size:
        bare = losses.CrossBatchMemory(bare, 6, memory_size, mine)

    def call(x: Tensor, y: Tensor) -> Tensor:
        return bare(x, y, mine(x, y) if mine and not memory_size else None)

    found, expected = steps(ours, list(ours.parameters())), steps(call, list(bare.parameters()))
    assert any(value.abs().max() > 1e-3 for value in expected)
    for one, other in zip(found, expected, strict=True):
        assert torch.equal(one, other)


@each_loss
@pytest.mark.parametrize("memory_size", [0, 12])
@pytest.mark.parametrize("labels", [[2, 2, 2], [3], [0, 1, 2, 4], [0, 1]])
def test_batches_with_few_pairs_have_a_gradient(name: str, memory_size: int, labels: list[int]) -> None:
    if name == "n-pair" and memory_size:
        pytest.skip("not with a memory")
    loss = make(name, memory_size=memory_size)
    x, y = batch(labels)
    value = loss(x, y)
    value.backward()
    assert value.shape == ()
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert value.isfinite()
    if len(labels) == 1:
        assert value == 0
        assert x.grad.abs().max() == 0


def test_a_single_row_is_not_its_own_positive() -> None:
    x, y = batch([3])
    for miner in (None, miners.UniformHistogramMiner(), miners.TripletMarginMiner(margin=2.0)):
        loss = PairwiseLoss(5, 6, loss=losses.MultiSimilarityLoss(), miner=miner, memory_size=12)
        assert loss(x, y) == 0
    kept = batch([3, 1, 1, 3], seed=1)
    loss = make("multi-similarity", memory_size=12)
    loss(*kept)
    value = loss(x, y)
    places = (torch.tensor([0, 0]), torch.tensor([0, 3]), torch.tensor([0, 0]), torch.tensor([1, 2]))
    expected = losses.MultiSimilarityLoss()(x, y, places, kept[0].detach(), kept[1])
    torch.testing.assert_close(value, expected)
    bare = losses.CrossBatchMemory(losses.MultiSimilarityLoss(), 6, 12)
    bare(*kept)
    assert not torch.isclose(bare(x, y), expected), "PML does it rightly now: PairMemory need not"


@each_loss
@pytest.mark.parametrize("miner", MINERS)
def test_a_reference_is_what_the_batch_is_compared_with(name: str, miner: str) -> None:
    if name == "n-pair":
        pytest.skip("of one set alone")
    make_miner = MINERS[miner]
    ours, mine, bare = make(name, miner=make_miner and make_miner()), make_miner and make_miner(), LOSSES[name]()
    x, y = batch(LABELS[0])
    others, their_labels = batch(LABELS[2] + [1, 3], seed=1)
    torch.manual_seed(0)
    value = ours(x, y, reference=(others, their_labels.int()))
    torch.manual_seed(0)
    expected = bare(x, y, mine and mine(x, y, others, their_labels), others, their_labels)
    assert value.shape == ()
    for one, other in zip(
        torch.autograd.grad(value, [x, others], allow_unused=True),
        torch.autograd.grad(expected.sum(), [x, others], allow_unused=True),
        strict=True,
    ):
        assert torch.equal(value, expected.reshape(()))
        assert (one is other is None) or torch.equal(one, other)


@each_loss
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    loss = make(name, memory_size=0 if name == "n-pair" else 16)
    x, y = batch(LABELS[0])
    x = x.detach().to(dtype).requires_grad_()
    kept, expected = x.detach().clone(), copy.deepcopy(loss)(x.detach().float(), y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(x, y)
    value.backward()
    assert value.dtype == torch.float32
    assert torch.equal(value.detach(), expected.detach())
    assert x.grad is not None
    assert x.grad.isfinite().all()
    assert torch.equal(x, kept)
    assert all(tensor.dtype != dtype for tensor in loss.state_dict().values())


@pytest.mark.parametrize("done", [0, 1, 2, 3])
def test_a_loss_with_a_memory_goes_on_from_its_state(done: int) -> None:
    def new() -> PairwiseLoss:
        return make("margin", memory_size=16, miner=miners.MultiSimilarityMiner())

    first, second = new(), new()
    for step in range(done):  # 0 to 21 of 16 places filled
        first(*batch(LABELS[0], step))
    state = safetensors.torch.load(safetensors.torch.save(first.state_dict()))
    second.load_state_dict(state)
    for step in range(3, 6):
        x, y = batch(LABELS[0], step)
        assert torch.equal(first(x, y), second(x, y))
    for one, other in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@each_loss
def test_it_moves_to_a_gpu_with_its_memory(name: str) -> None:
    memory_size = 0 if name == "n-pair" else 16
    here = make(name, memory_size=memory_size, miner=miners.MultiSimilarityMiner())
    there = copy.deepcopy(here).to("cuda")
    for step, labels in enumerate(LABELS):
        x, y = batch(labels, step)
        value = there(x.detach().cuda().requires_grad_(), y.cuda())
        value.backward()
        torch.testing.assert_close(value.cpu(), here(x, y), rtol=1e-4, atol=1e-4)
    assert all(tensor.is_cuda for key, tensor in there.state_dict().items() if "extra" not in key)


def test_the_parameters_are_those_that_are_learned() -> None:
    assert list(make("multi-similarity", miner=miners.MultiSimilarityMiner()).parameters()) == []
    assert make("multi-similarity").state_dict() == {}
    loss = make("margin of each class")
    (beta,) = loss.parameters()
    optimizer = torch.optim.SGD(loss.parameters(), lr=0.1)
    loss(*batch(LABELS[0])).backward()
    optimizer.step()
    assert beta.detach().unique().numel() > 1


def test_the_loss_and_the_miner_are_copied() -> None:
    bare, miner = LOSSES["margin"](), miners.TripletMarginMiner()
    first, second = (PairwiseLoss(5, 6, loss=bare, miner=miner) for _ in range(2))
    with torch.no_grad():
        next(first.parameters()).fill_(3.0)
    assert next(second.parameters()).item() == pytest.approx(0.9)
    assert next(bare.parameters()).item() == pytest.approx(0.9)
    assert first.miner is not miner


def test_it_draws_from_torch_s_generator_and_construction_leaves_it_alone() -> None:
    torch.manual_seed(0)
    state = torch.get_rng_state()
    loss = PairwiseLoss(5, 6, loss=losses.TripletMarginLoss(triplets_per_anchor=1), miner=None)
    assert torch.equal(torch.get_rng_state(), state)
    x, y = batch([0, 0, 0, 0, 1, 1, 1, 1, 2, 2])
    values = []
    for seed in (1, 2, 1):
        torch.manual_seed(seed)
        values.append(loss(x, y).item())
    assert values[0] == values[2] != values[1]


class Own(losses.BaseMetricLossFunction):
    """A user's loss."""

    def compute_loss(self, embeddings: Any, labels: Any, indices_tuple: Any, ref_emb: Any, ref_labels: Any) -> Any:
        return {"loss": {"losses": embeddings.square().sum(), "indices": None, "reduction_type": "already_reduced"}}


def test_a_users_loss() -> None:
    x, y = batch(LABELS[0])
    assert PairwiseLoss(5, 6, loss=Own())(x, y).item() == pytest.approx(x.square().sum().item())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda loss: loss(torch.randn(9, 6), torch.zeros(9, dtype=torch.long)), ["memory_size", "8", "9"]),
        (lambda loss: loss(*batch([0, 1]), reference=batch([0, 1])), ["reference", "memory_size is 8", "leave one"]),
        (lambda _: make("circle")(*batch([0, 1]), reference=torch.ones(2, 6)), ["must be a tuple of embeddings and"]),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_calls_name_the_argument(call: Callable[[PairwiseLoss], Tensor], words: list[str]) -> None:
    with pytest.raises(ValueError, match=words[0]) as error:
        call(make("contrastive", memory_size=8))
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"loss": nn.TripletMarginLoss()}, ["torch.nn", "pytorch_metric_learning.losses"]),
        ({"loss": losses.ProxyAnchorLoss(5, 6)}, ["PML's ProxyAnchorLoss", "take proxemic.losses.ProxyAnchorLoss"]),
        ({"loss": losses.SelfSupervisedLoss(losses.NCALoss())}, ["PML's SelfSupervised", "inside it", "reference="]),
        ({"loss": losses.CrossBatchMemory(losses.CircleLoss(), 6)}, ["CrossBatchMemory", "memory_size"]),
        ({"loss": losses.NPairsLoss(), "memory_size": 8}, ["memory_size is 8", "NPairsLoss", "MarginLoss"]),
        ({"loss": losses.DynamicSoftMarginLoss()}, ["DynamicSoftMarginLoss", "second time"]),
        ({"loss": losses.TripletMarginLoss(distance="Cosine")}, ["TripletMarginLoss", "distance", "class_path"]),
        ({"loss": losses.MarginLoss(num_classes=3)}, ["MarginLoss", "out of bounds"]),
        ({"miner": nn.Identity()}, ["miner", "Identity", "pytorch_metric_learning.miners"]),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_what_is_refused(arguments: dict[str, Any], words: list[str]) -> None:
    keywords: dict[str, Any] = {"num_classes": 5, "embedding_size": 6, "loss": losses.ContrastiveLoss(), **arguments}
    with pytest.raises(ValueError, match=words[0]) as error:
        PairwiseLoss(**keywords)
    assert all(word in str(error.value) for word in words)


def test_without_the_number_of_classes_labels_are_any_integers() -> None:
    pairs = PairwiseLoss(embedding_size=4, loss=losses.TripletMarginLoss())
    x, labels = torch.randn(6, 4), torch.tensor([-5, -5, 2**40, 2**40, 7, 7])
    torch.testing.assert_close(pairs(x, labels), losses.TripletMarginLoss()(x, labels))
    with pytest.raises(ValueError, match="embedding_size is 0, but must be a whole number"):
        PairwiseLoss(loss=losses.TripletMarginLoss())
