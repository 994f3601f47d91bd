"""The answers against the paper's table and derivations by hand; the measurement against what could fool it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from proxemic.analysis import Characteristics, characteristics, every_proxy_loss
from proxemic.losses import (
    ArcFaceLoss,
    CosFaceLoss,
    NormalizedSoftmaxLoss,
    ProxyAnchorLoss,
    ProxyLoss,
    SphereFaceLoss,
    WarpedSoftmaxLoss,
)
from proxemic.losses.scores.scoring import Scoring

COLUMNS = ("stability", "manifold", "similarity", "P-P", "N-N", "P-N")

# Table 1 of the MPA paper.
PAPER = {
    "ProxyNCALoss": "yes no no no yes no",
    "ProxyAnchorLoss": "no no yes (yes) yes no",
    "SoftTripleLoss": "yes yes no no yes yes",
    "MultiProxyAnchorLoss": "no yes yes (yes) yes no",
    "DataWiseMultiProxyAnchorLoss": "yes yes yes no yes no",
    "AllPairMultiProxyAnchorLoss": "yes yes yes no yes yes",
}
# A softmax sees differences only; a margin that is not a constant, or a warp with a slope, sees where they are.
SOFTMAX = "yes no no no yes yes"
OTHERS = {
    **dict.fromkeys(["NormalizedSoftmaxLoss", "CosFaceLoss", "ProxyNCAPlusPlusLoss"], SOFTMAX),
    **dict.fromkeys(["EuclideanSoftmaxLoss", "HISTLoss"], SOFTMAX),
    **dict.fromkeys(["AdaFaceLoss", "ArcFaceLoss", "CurricularFaceLoss", "ElasticFaceLoss"], "yes no yes no yes yes"),
    **dict.fromkeys(["MagFaceLoss", "SphereFaceLoss", "WarpedSoftmaxLoss"], "yes no yes no yes yes"),
}


@pytest.fixture(scope="module")
def found() -> dict[str, Characteristics]:
    # A fifth of the default samples must do, so that all of them have something to spare.
    return {name: characteristics(loss, samples=192) for name, loss in every_proxy_loss().items()}


def line(found: Characteristics) -> str:
    assert tuple(found.answers()) == COLUMNS
    return " ".join(found.answers().values())


def test_the_table_of_the_paper(found: dict[str, Characteristics]) -> None:
    assert {name: line(found[name]) for name in PAPER} == PAPER


def test_the_other_losses(found: dict[str, Characteristics]) -> None:
    assert {name: line(found[name]) for name in OTHERS} == OTHERS


def test_the_documented_table_is_today_s(found: dict[str, Characteristics]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "characteristics.md").read_text()
    rows = [text.replace("*", "").strip("| ").split(" | ") for text in page.splitlines() if text.startswith("| ")]
    documented = [row for row in rows if row[0].endswith("Loss")]
    assert documented == [[name, *line(item).split()] for name, item in found.items()]


def test_no_measurement_is_near_the_tolerance(found: dict[str, Characteristics]) -> None:
    for name, item in found.items():
        for value in (item.other_samples, item.shift, item.same_class, item.negatives, item.opposite):
            assert value < 1e-11 or value > 0.05, (name, item)
        assert item.other_classes == 0, name


def test_the_seed_changes_the_measurements_but_no_answer(found: dict[str, Characteristics]) -> None:
    losses = every_proxy_loss(seed=1)
    for name in ("HISTLoss", "MultiProxyAnchorLoss", "SphereFaceLoss", "WarpedSoftmaxLoss"):
        other = characteristics(losses[name], seed=1, samples=144)
        assert line(other) == line(found[name]), name
        assert other.negatives != found[name].negatives


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (lambda: NormalizedSoftmaxLoss(20, 3, scale=1e5), SOFTMAX),
        (lambda: NormalizedSoftmaxLoss(20, 3, scale=0.01), SOFTMAX),
        (lambda: NormalizedSoftmaxLoss(2, 3), SOFTMAX),
        (lambda: CosFaceLoss(20, 3, margin=0.5, scale=200.0), SOFTMAX),
        (lambda: ArcFaceLoss(20, 3, margin=1.5), "yes no yes no yes yes"),
        (lambda: SphereFaceLoss(20, 3, margin=1), SOFTMAX),
        (lambda: ProxyAnchorLoss(2, 3), "no no yes (yes) yes no"),
        (lambda: ProxyAnchorLoss(1000, 3, alpha=180.0, proxies_per_class=2), "no yes yes (yes) yes no"),
    ],
)
def test_sharp_flat_and_small_losses(loss: Callable[[], ProxyLoss], expected: str) -> None:
    assert line(characteristics(loss(), samples=192)) == expected


@pytest.mark.parametrize(("alpha", "expected"), [(1e6, "no"), (1e-6, "yes")])
def test_a_warp_is_measured_by_the_gradient_that_trains(alpha: float, expected: str) -> None:
    # Below α the value is the distance itself, so a shift cancels; autograd's second derivative, which takes Δ for a
    # constant, would not see that.
    loss = WarpedSoftmaxLoss(20, 3, alpha=alpha, k1=0.5, k2=2.0)
    assert characteristics(loss, samples=192).similarity == expected


def test_margins_per_class_that_are_all_the_same_are_one_margin() -> None:
    losses = (ProxyAnchorLoss(10, 3, margin=margin) for margin in (0.1, torch.full((10,), 0.1)))
    one, many = (characteristics(loss, samples=192) for loss in losses)
    assert vars(many) == pytest.approx(vars(one), rel=1e-6, abs=1e-12)


def test_what_a_loss_does_beyond_the_scores(found: dict[str, Characteristics]) -> None:
    # MagFace and AdaFace read each embedding's own length; HIST's graph ties embeddings together.
    assert {name for name, item in found.items() if item.beyond_scores} == {"HISTLoss"}


Objective = Callable[[Tensor, Tensor, Tensor], Tensor]


class _OfObjective(ProxyLoss):
    """An objective of the positive logits, the negatives and the embeddings."""

    def __init__(self, function: Objective) -> None:
        super().__init__(20, 3, scoring=Scoring(40.0))
        self.function = function

    def objective(self, positive: Tensor, negative: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        return self.function(40 * positive, negative, embeddings)


OBJECTIVES: dict[str, tuple[Objective, str]] = {
    "all positives": (lambda p, n, _: (-p).logsumexp(0) + n.mean(), "no no no yes yes no"),
    "positives only": (lambda p, *_: -p.mean(), "yes no no no no no"),
    "the own positive": (lambda p, *_: F.softplus(-p).mean(), "yes no yes no no no"),
    "differences": (lambda p, n, _: (n - p).logsumexp(0), "no no no yes yes yes"),
    "the next embedding": (lambda p, _, x: (-p * (1 + x.norm(dim=1).roll(1))).mean(), "no no no no no no"),
    # The softmax as written in books: its gradient, 1/p − 1/p + …, loses digits where it is small.
    "a cancellation": (lambda p, n, _: -(p.exp() / (p.exp() + n.exp())).log().mean(), SOFTMAX),
}


@pytest.mark.parametrize(("objective", "expected"), OBJECTIVES.values(), ids=OBJECTIVES)
def test_objectives_made_up(objective: Objective, expected: str) -> None:
    assert line(characteristics(_OfObjective(objective), samples=192)) == expected


def test_nothing_is_left_behind() -> None:
    loss = every_proxy_loss()["HISTLoss"]
    before = {name: value.clone() for name, value in loss.state_dict().items()}
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    with torch.no_grad():
        assert characteristics(loss, samples=24) == characteristics(loss, samples=24)
    every_proxy_loss()
    assert torch.equal(state, torch.get_rng_state())
    assert torch.get_num_threads() == threads
    assert all(value.grad is None for value in loss.parameters())
    assert all(torch.equal(value, before[name]) for name, value in loss.state_dict().items())


def test_the_seed_draws_the_proxies() -> None:
    first, same, other = (every_proxy_loss(seed=seed) for seed in (1, 1, 2))
    for name, loss in first.items():
        assert torch.equal(loss.proxies, same[name].proxies)
        assert not torch.equal(loss.proxies, other[name].proxies), name


def test_proxies_per_class_of_all() -> None:
    assert {loss.proxies_per_class for loss in every_proxy_loss(3).values()} == {3}
    with pytest.raises(ValueError, match="proxies_per_class is 0"):
        every_proxy_loss(0)


def test_what_is_refused() -> None:
    loss = every_proxy_loss()["ProxyNCALoss"]
    with pytest.raises(ValueError, match="samples is 0"):
        characteristics(loss, samples=0)
    with pytest.raises(ValueError, match="_OfObjective with a gradient that is not finite"):
        characteristics(_OfObjective(lambda p, *_: (p / 0).mean()))
