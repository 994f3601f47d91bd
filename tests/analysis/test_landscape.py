"""Landscapes: values, minima, named functions, and plots."""

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from proxemic.analysis import Landscape, WarpPotential, find_minimum, landscape_of, plot_landscape
from proxemic.analysis.landscape import (
    Function,
    draw_landscapes,
    landscape_grid,
    named_functions,
    paper_landscapes,
    polygon,
    pushes_off_proxies,
)
from proxemic.losses import EuclideanSoftmaxLoss, Power, WarpedSoftmaxLoss
from proxemic.losses.warped_softmax import warp
from proxemic.plots import write_figure

DISTANCES = st.floats(0.2, 10.0)
TURNS = st.floats(0.0, 2 * math.pi)
PLACES = st.tuples(st.floats(-5, 5), st.floats(-5, 5))
WARPS = st.builds(WarpPotential, st.floats(0.05, 20.0), st.floats(0.05, 0.97), st.floats(1.03, 4.0))
WARP = WarpPotential(3.0, 0.65, 1.5)


def pair(own: tuple[float, float], distance: float, turn: float) -> tuple[Tensor, Tensor]:
    """A target proxy, and one other at a distance from it."""
    place = torch.tensor(own, dtype=torch.float64)
    away = torch.tensor([math.cos(turn), math.sin(turn)], dtype=torch.float64)
    return place, (place + distance * away).unsqueeze(0)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def placed(proxies: Tensor) -> Callable[[Tensor], object]:
    return lambda weight: weight.copy_(proxies.unsqueeze(1))


def naive(point: list[float], own: list[float], others: list[list[float]], heights: list[float], t: float) -> float:
    near = math.dist(point, own)
    far = [math.hypot(math.dist(point, other), height) for other, height in zip(others, heights, strict=True)]
    return math.log(1 + sum(math.exp(t * near**1.5 - t * math.log1p(item)) for item in far))


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_the_loss_is_the_formula(dim: int) -> None:
    points, own, others, heights = random(7, dim), random(dim, seed=1), random(4, dim, seed=2), random(4, seed=3).abs()
    landscape = Landscape(own, others, Power(1.5), torch.log1p, 0.7, heights)
    expected = [naive(point, own.tolist(), others.tolist(), heights.tolist(), 0.7) for point in points.tolist()]
    assert landscape(points).tolist() == pytest.approx(expected, rel=1e-12)
    flat = Landscape(own, others, Power(1.5), torch.log1p, 0.7)
    expected = [naive(point, own.tolist(), others.tolist(), [0.0] * 4, 0.7) for point in points.tolist()]
    assert flat(points).tolist() == pytest.approx(expected, rel=1e-12)
    assert flat.spacing == pytest.approx(min(math.dist(own.tolist(), other) for other in others.tolist()))
    assert len(flat.in_plane) == 4
    assert len(landscape.in_plane) == 0


@settings(max_examples=30)
@given(potential=WARPS, delta_scale=st.sampled_from([1.0, 3.0]))
def test_the_potential_s_slope_is_the_gradient_that_trains(potential: WarpPotential, delta_scale: float) -> None:
    alpha, k1, k2 = potential.alpha, potential.k1, potential.k2
    t = (torch.tensor([0.01, 0.5, 0.999, 1.0, 1.001, 3.0], dtype=torch.float64) * alpha).requires_grad_()
    (slope,) = torch.autograd.grad(potential(t).sum(), t)
    (trained,) = torch.autograd.grad(warp(t, alpha=alpha, k1=k1, k2=k2, delta_scale=delta_scale).sum(), t)
    torch.testing.assert_close(slope, trained)
    assert slope.tolist() == pytest.approx([k1, k1, k1, k2, k2, k2])
    below, at = potential(torch.tensor([alpha * (1 - 1e-12), alpha], dtype=torch.float64)).tolist()
    assert below == pytest.approx(at, rel=1e-9)


@pytest.mark.parametrize("delta_scale", [1.0, 3.0])
@pytest.mark.parametrize("classes", [2, 5])
def test_training_descends_the_landscape(classes: int, delta_scale: float) -> None:
    proxies = 2 * random(classes, 2)
    loss = WarpedSoftmaxLoss(
        classes, 2, alpha=2.0, k1=0.6, k2=1.5, delta_scale=delta_scale, temperature=1.3, init=placed(proxies)
    ).double()
    loss.proxies.data.copy_(proxies.unsqueeze(1))
    landscape = landscape_of(loss, 1)
    assert landscape.f1 == WarpPotential(2.0, 0.6, 1.5)
    points = (proxies[1] + 2 * random(200, 2, seed=1)).requires_grad_()
    (down,) = torch.autograd.grad(landscape(points).sum(), points)
    (trained,) = torch.autograd.grad(len(points) * loss(points, torch.ones(len(points), dtype=torch.long)), points)
    inside = (points - proxies[1]).norm(dim=1) < 2
    assert 10 < inside.sum() < 190
    cross = down[:, 0] * trained[:, 1] - down[:, 1] * trained[:, 0]
    scale = down.norm(dim=1) * trained.norm(dim=1)
    assert (cross.abs() <= 1e-9 * scale).all()
    assert (torch.linalg.vecdot(down, trained) > 0).all()
    # The lengths do differ, by the sigmoid of the logit that Δ is part of.
    assert not torch.allclose(down[inside].norm(dim=1), trained[inside].norm(dim=1), rtol=0.05)


def test_the_value_of_the_loss_does_not_tell_where_training_goes() -> None:
    own, others = pair((0.0, 0.0), 4.0, 0.0)
    value = find_minimum(Landscape(own, others, lambda t: warp(t, alpha=3.0, k1=0.65, k2=1.5)))
    assert (value.distance, value.flat) == (0.0, True)
    assert find_minimum(Landscape(own, others, WARP)).distance == pytest.approx(3.0, abs=1e-6)


@settings(max_examples=25)
@given(potential=WARPS, own=PLACES, distance=DISTANCES, turn=TURNS, temperature=st.floats(0.2, 10.0))
def test_proposition_iii_2_of_the_warp(
    potential: WarpPotential, own: tuple[float, float], distance: float, turn: float, temperature: float
) -> None:
    place, others = pair(own, distance, turn)
    assert_at_alpha(Landscape(place, others, potential, temperature=temperature), potential.alpha)


@settings(max_examples=25)
@given(alpha=st.floats(0.1, 10.0), power=st.floats(1.2, 4.0), own=PLACES, distance=DISTANCES, turn=TURNS)
def test_proposition_iii_2_of_a_smooth_function(
    alpha: float, power: float, own: tuple[float, float], distance: float, turn: float
) -> None:
    place, others = pair(own, distance, turn)
    assert_at_alpha(Landscape(place, others, lambda t: alpha * (t / alpha) ** power / power), alpha)


def assert_at_alpha(landscape: Landscape, alpha: float) -> None:
    found = find_minimum(landscape)
    own, other = landscape.target, landscape.others[0]
    expected = own + alpha * (own - other) / (own - other).norm()  # on the far side
    assert math.dist(found.place, expected.tolist()) < 1e-4
    assert found.distance == pytest.approx(alpha, abs=1e-4)
    assert found.off_line is not None
    assert found.off_line < 1e-4
    assert (found.runs_away, found.flat) == (False, False)
    assert found.value == pytest.approx(landscape(expected.unsqueeze(0)).item(), rel=1e-9)


def test_reversed_the_other_way_there_is_no_minimum() -> None:
    own, others = pair((1.0, 2.0), 4.0, 0.5)
    found = find_minimum(Landscape(own, others, lambda t: torch.where(t < 3, 1.5 * t, 0.65 * t + 2.55)))
    assert found.runs_away


def test_a_warp_that_is_off_in_part() -> None:
    own, others = pair((0.0, 0.0), 4.0, 0.0)
    for potential, at_proxy, distance, flat in (
        (WarpPotential(0.0, 0.65, 1.5), 1.5, 0.0, False),  # inward forces everywhere
        (WarpPotential(3.0, 1.0, 1.5), 1.0, 0.0, True),  # level from the proxy to α
        (WarpPotential(3.0, 0.65, 1.0), 0.65, 3.0, True),  # level from α on
    ):
        found = find_minimum(Landscape(own, others, potential))
        assert (potential.at_proxy, found.flat, found.runs_away) == (at_proxy, flat, False)
        assert found.distance == pytest.approx(distance, abs=1e-4)


def test_the_two_extremes_and_the_plateau() -> None:
    found = {name: find_minimum(landscape) for name, landscape in paper_landscapes()["functions"].items()}
    assert found["f = t²"].runs_away
    assert not found["f = √t"].runs_away
    assert found["f = √t"].distance < 1e-3
    assert not found["f = √t"].flat
    plateau = found["f = t"]
    assert (plateau.distance, plateau.flat, plateau.runs_away) == (0.0, True, False)
    landscape = paper_landscapes()["functions"]["f = t"]
    ray = torch.tensor([[0.0, 0.0], [-1.0, 0.0], [-50.0, 0.0]])
    assert landscape(ray).tolist() == pytest.approx([plateau.value] * 3, rel=1e-12)
    assert landscape(ray + torch.tensor([0.0, 0.5]))[1:].min() > plateau.value + 1e-6
    for name, expected in (("times-0.97", True), ("power-1.5", True), ("times-1.1", False)):
        _, f1, f2 = named_functions(name)
        assert find_minimum(Landscape(*pair((0.0, 0.0), 4.0, 0.0), f1, f2)).runs_away == expected


@settings(max_examples=25)
@given(seed=st.integers(0, 10**6), classes=st.integers(3, 8), potential=WARPS)
def test_with_several_classes_the_minimum_is_at_alpha_or_nearer(
    seed: int, classes: int, potential: WarpPotential
) -> None:
    proxies = 4 * random(classes, 2, seed=seed)
    landscape = Landscape(proxies[0], proxies[1:], potential)
    found = find_minimum(landscape)
    assert found.off_line is None
    assert found.distance <= potential.alpha + 1e-4
    place = torch.tensor([found.place], dtype=torch.float64)
    anywhere = proxies[0] + (potential.alpha + 4) * random(2000, 2, seed=seed)
    nearby = place + 1e-3 * random(500, 2, seed=seed)
    assert landscape.logits(torch.cat((anywhere, nearby))).min() >= landscape.logits(place).item() - 1e-6
    if found.distance > potential.alpha - 1e-6:
        away = place - proxies
        weights = torch.softmax(-away[1:].norm(dim=1), 0)
        cosines = torch.cosine_similarity(away[1:], away[:1])
        assert (weights * cosines).sum() >= potential.k1 - 1e-4


def several_basins(name: str) -> Landscape:
    if name == "two in a window":
        places = [(6.58, 1.41), (-2.19, -1.49), (-5.22, 1.75), (0.5, 3.74), (3.9, -8.16), (7.39, -2.4), (-4.21, 0.38)]
        proxies = torch.tensor([*places, (-0.51, 4.12)], dtype=torch.float64)
        return Landscape(proxies[0], proxies[1:], WarpPotential(2.67, 0.74, 3.3))
    generator = torch.Generator().manual_seed(int(name.split()[-1]))
    r = torch.rand(4, generator=generator, dtype=torch.float64).tolist()
    proxies = 4 * torch.randn(3 + int(6 * r[0]), 2, generator=generator, dtype=torch.float64)
    alpha = 0.02 if name.startswith("tiny") else 20 * r[1]
    return Landscape(proxies[0], proxies[1:], WarpPotential(alpha, 0.05 + 0.9 * r[2], 1.03 + 3 * r[3]))


@pytest.mark.parametrize("name", ["two in a window", "tiny 51", "a wandering search 90"])
def test_no_place_of_a_dense_net_is_lower(name: str) -> None:
    # Each was once found wrong.
    landscape = several_basins(name)
    assert isinstance(landscape.f1, WarpPotential)
    turn = torch.linspace(0, 2 * math.pi, 721, dtype=torch.float64)
    radii = landscape.f1.alpha * torch.linspace(0, 1.25, 51, dtype=torch.float64)  # α is one of them
    circle = torch.stack((turn.cos(), turn.sin()), 1)
    net = landscape.target + (radii.reshape(-1, 1, 1) * circle).flatten(0, 1)
    place = torch.tensor([find_minimum(landscape).place], dtype=torch.float64)
    assert landscape.logits(place).item() <= landscape.logits(net).min() + 1e-9


@pytest.mark.parametrize("loss", ["euclidean", "powers"])
@pytest.mark.parametrize("dim", [3, 16])
def test_a_plane_of_many_dimensions_is_exact(loss: str, dim: int) -> None:
    proxies = random(9, dim, seed=dim)
    made = (
        EuclideanSoftmaxLoss(9, dim, temperature=0.8)
        if loss == "euclidean"
        else WarpedSoftmaxLoss(9, dim, f1=Power(1.5), f2=torch.log1p, temperature=0.8)
    ).double()
    made.proxies.data.copy_(proxies.unsqueeze(1))
    landscape = landscape_of(made, 4)
    order = (proxies - proxies[4]).norm(dim=1).argsort()
    first, second = (proxies[index] - proxies[4] for index in order[1:3])
    x = first / first.norm()
    y = second - (second @ x) * x
    y = y / y.norm()
    points = 3 * random(20, 2, seed=1)
    places, label = proxies[4] + points @ torch.stack((x, y)), torch.tensor([4])
    expected = [made(place.unsqueeze(0), label).item() for place in places]
    assert landscape(points).tolist() == pytest.approx(expected, rel=1e-9)
    assert landscape.spacing == pytest.approx(first.norm().item())
    shown = torch.stack((torch.stack((first.norm(), torch.zeros(()))), torch.stack((second @ x, second @ y))))
    torch.testing.assert_close(landscape.in_plane, shown)


def test_two_dimensions_keep_their_places_and_two_classes_have_a_plane() -> None:
    loss = EuclideanSoftmaxLoss(4, 2)
    landscape = landscape_of(loss, 2)
    torch.testing.assert_close(landscape.target, loss.proxies[2, 0].detach().double())
    assert len(landscape.in_plane) == 3
    two = landscape_of(WarpedSoftmaxLoss(2, 6, alpha=1.0, k1=0.5, k2=2.0), 1)
    assert find_minimum(two).distance == pytest.approx(1.0, abs=1e-4)


def test_proxies_on_a_line_have_a_plane() -> None:
    proxies = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [-2.0, 0.0, 0.0], [0.0, 3.0, 4.0]])
    loss = EuclideanSoftmaxLoss(4, 3, init=placed(proxies))
    landscape = landscape_of(loss, 0)
    torch.testing.assert_close(landscape.others[:2], torch.tensor([[1.0, 0.0], [-2.0, 0.0]]).double())
    assert landscape.others[2].norm() < 5.0
    assert landscape.heights is not None
    assert torch.hypot(landscape.others[2].norm(), landscape.heights[2]).item() == pytest.approx(5.0)
    points = torch.tensor([[0.5, 0.0], [-4.0, 0.0], [3.0, 0.0]])
    expected = [loss(torch.cat((point, torch.zeros(1))).unsqueeze(0), torch.tensor([0])).item() for point in points]
    assert landscape(points).tolist() == pytest.approx(expected)
    expected = loss(proxies[:1], torch.tensor([0])).item()
    assert landscape(torch.zeros(1, 2)).item() == pytest.approx(expected, rel=1e-6)


def test_a_search_that_is_cut_short_returns_the_lowest_place_it_saw(monkeypatch: pytest.MonkeyPatch) -> None:
    landscape = Landscape(*pair((0.0, 0.0), 4.0, 0.3), WARP)
    found = find_minimum(landscape)
    monkeypatch.setattr("proxemic.analysis.landscape._ROUNDS", 2)
    short = find_minimum(landscape)
    assert found.value <= short.value < found.value + 0.01
    assert math.dist(short.place, found.place) < 0.1


def test_polygons_and_names() -> None:
    for corners in (2, 3, 4, 7):
        places = polygon(corners, 2.5)
        assert places[0].tolist() == [0.0, 0.0]
        assert (places[1:, 0] > 0).all()
        assert (places - places.roll(1, 0)).norm(dim=1).tolist() == pytest.approx([2.5] * corners)
    t = torch.tensor([0.5, 2.0])
    for name, expected in {
        "identity": (t, t),
        "square": (t**2, t**2),
        "square-root": (t**0.5, t**0.5),
        "power-1.5": (t**1.5, t**1.5),
        "times-0.5": (0.5 * t, t),
        "warp": (0.65 * t, t),
    }.items():
        _, f1, f2 = named_functions(name)
        torch.testing.assert_close((f1(t), f2(t)), expected)


def test_what_is_refused() -> None:
    own, others = pair((0.0, 0.0), 4.0, 0.0)
    for arguments, words in (
        ((-0.1, 0.5, 2.0), "alpha is -0.1"),
        ((1.0, 0.5, 0.9), "k2 is 0.9"),
    ):
        with pytest.raises(ValueError, match=words):
            WarpPotential(*arguments)
    refused = {
        "lies on the target": lambda: Landscape(own, torch.stack((others[0], own))),
        "others hold no proxy": lambda: Landscape(own, others[:0]),
        "temperature is 0": lambda: Landscape(own, others, temperature=0.0),
        "3 dimensions": lambda: find_minimum(Landscape(torch.zeros(3), torch.ones(1, 3))),
        "radius is -1": lambda: find_minimum(Landscape(own, others), radius=-1.0),
        "half_width is 0": lambda: plot_landscape(Landscape(own, others), 0.0),
    }
    for words, call in refused.items():
        with pytest.raises(ValueError, match=words):
            call()
    for of_one in (landscape_of, pushes_off_proxies):
        with pytest.raises(ValueError, match="2 proxies per class"):
            of_one(EuclideanSoftmaxLoss(3, 2, proxies_per_class=2))
    with pytest.raises(ValueError, match="label is 3, but num_classes=3"):
        landscape_of(EuclideanSoftmaxLoss(3, 2), 3)
    with pytest.raises(ValueError, match="embedding_size 1"):
        landscape_of(EuclideanSoftmaxLoss(3, 1))
    for name in ("cube", "power-x"):
        with pytest.raises(ValueError, match=f"functions is {name}, but"):
            named_functions(name)


@given(st.integers(0, 1000), st.integers(2, 6), st.integers(2, 5), st.sampled_from([0.5, 1.0, 4.0]))
def test_pushes_off_proxies_are_those_of_the_formula(seed: int, classes: int, dim: int, temperature: float) -> None:
    places = torch.randn(classes, dim, generator=torch.Generator().manual_seed(seed))

    def fill(proxies: Tensor) -> None:
        proxies.copy_(places.unsqueeze(1))

    slopes: list[tuple[Function, Callable[[float], float]]] = [
        (torch.positive, lambda _: 1.0),
        (torch.square, lambda t: 2 * t),
    ]
    for f2, slope in slopes:
        loss = WarpedSoftmaxLoss(classes, dim, f1=torch.positive, f2=f2, temperature=temperature, init=fill)
        for own, found in enumerate(pushes_off_proxies(loss)):
            away = [places[own].double() - places[j].double() for j in range(classes) if j != own]
            weights = [math.exp(-temperature * float(f2(a.norm()))) for a in away]
            total = sum(
                (w / sum(weights) * slope(float(a.norm())) * a / a.norm() for w, a in zip(weights, away, strict=True)),
                torch.zeros(dim).double(),
            )
            assert found.item() == pytest.approx(float(total.norm()), abs=1e-9)


def test_the_minimum_leaves_the_proxy_where_the_push_is_above_k1() -> None:
    """Between two other classes they cancel; with both on one side they do not."""
    for others, leaves in (([[4.0, 0.0], [-4.0, 0.1]], False), ([[4.0, 0.0], [4.0, 0.5]], True)):
        places = torch.tensor([[0.0, 0.0], *others])
        loss = WarpedSoftmaxLoss(3, 2, alpha=2.0, k1=0.6, k2=1.5, init=lambda w, p=places: w.copy_(p.unsqueeze(1)))
        assert (pushes_off_proxies(loss)[0] > 0.6) == leaves
        assert (find_minimum(landscape_of(loss, 0)).distance > 1e-3) == leaves


def test_plots(tmp_path: Path) -> None:
    landscape = Landscape(torch.tensor([1.0, -1.0]), torch.tensor([[5.0, -1.0]]), WarpPotential(3.0, 0.65, 1.5))
    x, y, values = landscape_grid(landscape, 6.0, points=5)
    assert (x[0], x[-1], y[0], y[-1]) == (-5, 7, -7, 5)
    assert values[1, 3] == landscape(torch.tensor([[4.0, -4.0]]))[0]
    found = find_minimum(landscape)
    axes = plot_landscape(landscape, 6.0, minimum=found, title="$")
    assert axes.get_legend_handles_labels()[1] == ["distance α", "target proxy", "other proxy", "minimum"]
    constant = Landscape(torch.zeros(2), torch.tensor([[4.0, 0.0]]), torch.zeros_like, torch.zeros_like)
    assert plot_landscape(constant, 6.0).get_xlim() == (-6, 6)
    away = {"away": paper_landscapes()["functions"]["f = t²"]}
    minima = {title: find_minimum(item) for title, item in away.items()}
    written = [
        write_figure(draw_landscapes(away, minima, 6.0), tmp_path / name, [], []) for name in ("first", "second")
    ]
    assert [path.read_bytes() for path in written[0]] == [path.read_bytes() for path in written[1]]
    assert b"minimum at infinity" in written[0][1].read_bytes()
    three = dict(list(paper_landscapes()["classes"].items())[:3])
    figure = draw_landscapes(three, {title: find_minimum(item) for title, item in three.items()}, 6.0)
    assert [axes.get_title() for axes in figure.axes if axes.get_visible() and axes.get_title()] == [*three]
    assert [text.get_text() for text in figure.legends[0].get_texts()].count("target proxy") == 1
