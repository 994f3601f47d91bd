"""Losses with moving averages or random margins, in training mode."""

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from losses import oracles
from losses.test_losses import gradients
from proxemic.losses import AdaFaceLoss, ArcFaceLoss, CurricularFaceLoss, ElasticFaceLoss, ProxyLoss

MOVING: dict[str, Callable[..., ProxyLoss]] = {
    "ada-face": AdaFaceLoss,
    "curricular-face": CurricularFaceLoss,
    "elastic-face": ElasticFaceLoss,
    "elastic-cos-plus": lambda *sizes, **more: ElasticFaceLoss(*sizes, form="cos", plus=True, **more),
}
each_loss = pytest.mark.parametrize("name", MOVING)


def put(proxies: list[list[float]]) -> Callable[[Tensor], object]:
    return lambda w: w.copy_(torch.tensor(proxies).unsqueeze(1))


def at(*degrees: float) -> list[list[float]]:
    return [[math.cos(math.radians(degree)), math.sin(math.radians(degree))] for degree in degrees]


def test_the_angle_of_ada_face_stops_at_0_and_at_180_degrees() -> None:
    loss = AdaFaceLoss(2, 2, scale=1.0, init=put(at(0, 90))).eval()
    loss.load_state_dict({"norm_mean": torch.tensor(10.0), "norm_std": torch.tensor(1.0)}, strict=False)
    for angle, length, positive, other in ((10, 100.0, 1 - 0.8, 80), (170, 0.01, -1.0, 80)):  # ẑ = 1 and −1
        x = (length * torch.tensor(at(angle))).requires_grad_()
        positives = loss.with_margin(torch.tensor(at(angle))[:, 0], torch.tensor([0]), x)
        assert positives.item() == pytest.approx(positive, abs=1e-6)
        value = loss(x, torch.tensor([0]))
        expected = math.log(1 + math.exp(math.cos(math.radians(other)) - positive))
        assert value.item() == pytest.approx(expected, rel=1e-6)


def test_ada_face_s_averages_by_hand() -> None:
    loss = AdaFaceLoss(2, 2, momentum=0.5)
    x = torch.tensor([[30.0, 0.0], [0.0, 50.0], [0.0, 400.0], [0.0, 0.0]])  # clipped to 30, 50, 100 and 0.001
    loss(x[:2], torch.tensor([0, 1]))
    assert loss.norm_mean.item() == pytest.approx((20 + 40) / 2)
    assert loss.norm_std.item() == pytest.approx((100 + math.sqrt(200)) / 2)  # of a sample: over one less
    loss(x[2:], torch.tensor([0, 1]))
    assert loss.norm_mean.item() == pytest.approx((30 + 50.0005) / 2)
    before = loss.norm_std.item()
    loss(x[:1], torch.tensor([0]))  # one length has no deviation
    assert loss.norm_mean.item() == pytest.approx((40.00025 + 30) / 2)
    assert loss.norm_std.item() == before


@pytest.mark.parametrize("form", ["arc", "cos"])
@pytest.mark.parametrize("plus", [False, True])
@pytest.mark.parametrize("proxies", [1, 3])
def test_elastic_margins_are_those_drawn_whatever_the_chunk(form: Any, plus: bool, proxies: int) -> None:
    torch.manual_seed(0)
    y = [3, 0, 3, 1, 2]
    loss = ElasticFaceLoss(
        6, 7, form=form, plus=plus, margin=0.4, deviation=0.1, proxies_per_class=proxies, init=torch.nn.init.normal_
    )
    x = torch.randn(5, 7, requires_grad=True)
    torch.manual_seed(7)
    drawn = (0.4 + 0.1 * torch.randn(5)).tolist()
    x64, w64 = x.detach().double().requires_grad_(), loss.proxies.detach().double().requires_grad_()
    margins = drawn
    if plus:  # the larger, the farther from the own proxy
        cosines = oracles.scores(x64, w64)[range(5), y].tolist()
        largest_first, farthest_first = sorted(drawn, reverse=True), sorted(range(5), key=cosines.__getitem__)
        margins = [largest_first[farthest_first.index(i)] for i in range(5)]
        assert margins != drawn
    expected = oracles.elastic_face(x64, w64, y, margins, form)
    wanted = gradients(expected, x64, w64)
    for chunk in (1, 4, 6, None):
        loss.chunk_size = chunk
        torch.manual_seed(7)
        value = loss(x, torch.tensor(y))
        assert value.item() == pytest.approx(expected.item(), rel=1e-5)
        for got, want in zip(gradients(value, x, loss.proxies), wanted, strict=True):
            assert (got.double() - want).norm() <= 1e-5 * want.norm()
    assert loss(x, torch.tensor(y)) != value  # the next step draws others


def test_elastic_angles_stay_where_an_angle_can_be_widened() -> None:
    loss = ElasticFaceLoss(3, 2, margin=0.0, deviation=0.3)
    cosine, labels = torch.linspace(-1, 1, 500), torch.zeros(500, dtype=torch.long)
    loss.step_scoring(lambda: cosine, torch.empty(500, 2))
    assert (loss.with_margin(cosine, labels, torch.empty(500, 2)) <= cosine).all()  # no margin below 0


@each_loss
@pytest.mark.parametrize("chunk", [2, None])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_steps_in_training_equal_the_formula_with_what_the_averages_became(
    name: str, chunk: int | None, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    loss = MOVING[name](5, 7, chunk_size=chunk, **({} if "elastic" in name else {"momentum": 0.5}))
    for step in range(3):
        x = (10 * torch.randn(4, 7)).to(dtype).requires_grad_()
        y = torch.tensor([0, 1, 1, 4])
        torch.manual_seed(step)
        value = loss(x, y)
        assert all(grad.isfinite().all() for grad in gradients(value, x, loss.proxies))
        state = {key: buffer.item() for key, buffer in loss.named_buffers()}
        x64, w64 = x.detach().double(), loss.proxies.detach().double()
        if isinstance(loss, AdaFaceLoss):
            expected = oracles.ada_face(x64, w64, y.tolist(), state["norm_mean"], state["norm_std"])
        elif isinstance(loss, CurricularFaceLoss):
            expected = oracles.curricular_face(x64, w64, y.tolist(), state["t"])
        else:
            continue
        assert value.item() == pytest.approx(expected.item(), rel=1e-5)


@each_loss
def test_training_moves_and_draws_and_evaluation_does_not(name: str) -> None:
    torch.manual_seed(0)
    loss, x, y = MOVING[name](5, 7), 10 * torch.randn(4, 7), torch.tensor([0, 1, 1, 4])
    before, generator = copy.deepcopy(loss.state_dict()), torch.get_rng_state()
    value = loss.eval()(x, y)
    assert torch.equal(loss(x, y), value)
    assert all(torch.equal(buffer, before[key]) for key, buffer in loss.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)
    assert loss.train()(x, y) != value


@each_loss
def test_a_loss_loaded_in_the_middle_continues_alike(name: str) -> None:
    torch.manual_seed(0)
    batches = [(10 * torch.randn(4, 7), torch.randint(5, (4,))) for _ in range(4)]

    def steps(loss: ProxyLoss, numbers: range) -> list[Tensor]:
        found = []
        for number in numbers:
            torch.manual_seed(number)  # as training does at every step
            found.append(loss(*batches[number]).detach())
        return found

    whole, resumed = MOVING[name](5, 7), MOVING[name](5, 7)
    steps(whole, range(2))
    resumed.load_state_dict(copy.deepcopy(whole.state_dict()))
    assert steps(whole, range(2, 4)) == steps(resumed, range(2, 4))


@pytest.mark.cpu
@pytest.mark.parametrize("proxies", [1, 3])
def test_outliers_are_those_of_the_formula_and_of_the_other_library(proxies: int) -> None:
    pml = pytest.importorskip("pytorch_metric_learning.losses")
    torch.manual_seed(proxies)
    theirs = pml.SubCenterArcFaceLoss(num_classes=6, embedding_size=3, sub_centers=proxies)
    loss = ArcFaceLoss(6, 3, proxies_per_class=proxies)
    with torch.no_grad():
        loss.proxies.copy_(theirs.W.T.unflatten(0, (6, proxies)))
    x, y = 3 * torch.randn(60, 3), torch.randint(5, (60,))  # class 5 has no sample
    expected = torch.zeros(60, dtype=torch.bool)
    for c in range(5):
        mine = [i for i in range(60) if y[i] == c]
        cosines = {i: [oracles.cosine(x[i].double(), w.double()) for w in loss.proxies.detach()[c]] for i in mine}
        nearest = [max(range(proxies), key=cosines[i].__getitem__) for i in mine]
        dominant = max(range(proxies), key=nearest.count)
        for i in mine:
            expected[i] = math.degrees(math.acos(cosines[i][dominant])) > 75
    found = loss.outliers(x, y)
    assert torch.equal(found, expected)
    assert 0 < found.sum() < 60
    assert sorted(theirs.get_outliers(x, y, return_dominant_centers=True)[0].tolist()) == found.nonzero()[:, 0].tolist()
    assert loss.outliers(x[:0], y[:0]).shape == (0,)
    assert not loss.outliers(x, y, degrees=180).any()
    with pytest.raises(ValueError, match="degrees is -1, but must be an angle"):
        loss.outliers(x, y, degrees=-1)
