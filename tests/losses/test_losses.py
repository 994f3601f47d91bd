"""Every loss against its float64 oracle, its dense definition, its laws and awkward inputs."""

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import signature
from itertools import product
from typing import Any, Unpack

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from losses import oracles
from proxemic.losses import (
    AdaFaceLoss,
    AllPairMultiProxyAnchorLoss,
    ArcFaceLoss,
    CenterRegularizer,
    CosFaceLoss,
    CurricularFaceLoss,
    DataWiseMultiProxyAnchorLoss,
    ElasticFaceLoss,
    EuclideanSoftmaxLoss,
    HISTLoss,
    MagFaceLoss,
    MaxPooling,
    MeanPooling,
    MeanProxyNorm,
    MultiProxyAnchorLoss,
    NormalizedSoftmaxLoss,
    ProxyAnchorLoss,
    ProxyLoss,
    ProxyNCALoss,
    ProxyNCAPlusPlusLoss,
    ProxyOptions,
    SoftTripleLoss,
    SphereFaceLoss,
    WarpedSoftmaxLoss,
    angular_margin,
)
from proxemic.losses.scores.scoring import dense_scores
from proxemic.losses.scores.streaming import streamed_scores

WARP: dict[str, Any] = {"alpha": 3.0, "k1": 0.6, "k2": 1.5, "delta_scale": 1.2, "temperature": 1.3}
WARP_FUNCTION = {"f1": lambda t: t.square(), "f2": lambda t: t**1.5, "temperature": 0.5}


def _mean_proxy(x: Tensor, w: Tensor, y: list[int]) -> Tensor:
    return oracles.normalized_softmax(x, w, y) + 0.5 * oracles.mean_proxy_norm(w)


def _warp_function(x: Tensor, w: Tensor, y: list[int]) -> Tensor:
    t = oracles.distances(x, w)
    terms = [
        oracles.log1p_sum_exp([0.5 * (t[i, own] ** 2 - t[i, c] ** 1.5) for c in range(len(w)) if c != own])
        for i, own in enumerate(y)
    ]
    return torch.stack(terms).mean()


def _softmax(scale: float, margin: Callable[..., Tensor], score: Any = oracles.class_score) -> Callable[..., Tensor]:
    """Make an oracle with a margin on the angle."""
    return lambda x, w, y: oracles.margin_softmax(x, w, y, scale, lambda theta, *_: margin(theta), score)


@dataclass
class Case:
    loss: Callable[..., ProxyLoss]
    oracle: Callable[[Tensor, Tensor, list[int]], Tensor] | None
    keywords: dict[str, Any] = field(default_factory=dict)
    length: float = 2.0  # of the embeddings, times √D
    state: dict[str, float] = field(default_factory=dict)  # moving averages


CASES = {
    "softmax": Case(NormalizedSoftmaxLoss, oracles.normalized_softmax),
    "mean-proxy": Case(NormalizedSoftmaxLoss, _mean_proxy, {"regularizers": (MeanProxyNorm(0.5),)}),
    "sphere-face": Case(SphereFaceLoss, _softmax(20.0, lambda theta: oracles.sphere(theta, 3)), {"margin": 3}),
    "cos-face": Case(CosFaceLoss, _softmax(64.0, lambda theta: theta.cos() - 0.35)),
    "arc-face": Case(ArcFaceLoss, _softmax(64.0, lambda theta: oracles.arc(theta, 0.5))),
    "easy-arc-face": Case(
        ArcFaceLoss, _softmax(64.0, lambda theta: oracles.easy_arc(theta, 0.5)), {"easy_margin": True}
    ),
    "mag-face": Case(MagFaceLoss, oracles.mag_face, length=20.0),
    "ada-face": Case(
        AdaFaceLoss,
        partial(oracles.ada_face, mean=30.0, std=5.0),
        length=12.0,
        state={"norm_mean": 30.0, "norm_std": 5.0},
    ),
    "curricular-face": Case(CurricularFaceLoss, partial(oracles.curricular_face, t=0.3), state={"t": 0.3}),
    "elastic-face": Case(ElasticFaceLoss, _softmax(64.0, lambda theta: oracles.arc(theta, 0.5))),
    "elastic-cos": Case(
        ElasticFaceLoss, _softmax(64.0, lambda theta: theta.cos() - 0.35), {"form": "cos", "margin": 0.35}
    ),
    "sub-center": Case(
        ArcFaceLoss,
        _softmax(30.0, lambda theta: oracles.arc(theta, 0.3), oracles.nearest_score),
        {"pooling": MaxPooling(), "scale": 30.0, "margin": 0.3},
    ),
    "mean-pooled": Case(
        CosFaceLoss,
        _softmax(30.0, lambda theta: theta.cos() - 0.35, oracles.mean_score),
        {"pooling": MeanPooling(), "scale": 30.0},
    ),
    "proxy-nca": Case(ProxyNCALoss, partial(oracles.proxy_nca, scale=8.0), {"scale": 8.0}),
    "proxy-nca++": Case(ProxyNCAPlusPlusLoss, oracles.proxy_nca_plus_plus),
    "proxy-anchor": Case(ProxyAnchorLoss, oracles.proxy_anchor),
    "soft-triple": Case(SoftTripleLoss, oracles.soft_triple),
    "mpa": Case(MultiProxyAnchorLoss, oracles.multi_proxy_anchor),
    "mpa-dw": Case(DataWiseMultiProxyAnchorLoss, oracles.data_wise),
    "mpa-ap": Case(AllPairMultiProxyAnchorLoss, oracles.all_pair),
    "euclidean": Case(EuclideanSoftmaxLoss, partial(oracles.euclidean_softmax, temperature=1.5), {"temperature": 1.5}),
    "warped": Case(WarpedSoftmaxLoss, partial(oracles.warped_softmax, **WARP), WARP),
    "warped-functions": Case(WarpedSoftmaxLoss, _warp_function, WARP_FUNCTION),
    "smoothed": Case(
        CurricularFaceLoss, partial(oracles.smoothed_curricular_face, t=0.3), {"label_smoothing": 0.1}, state={"t": 0.3}
    ),
    "hist": Case(HISTLoss, None, {"hidden": 6}),  # its oracle takes more than proxies: tests/losses/test_hist.py
}
BATCHES = {
    "absent classes": [3, 0, 3, 1],
    "one class": [2, 2, 2],
    "batch of one": [4],
    "every class": [0, 1, 2, 3, 4],
}
each_case = pytest.mark.parametrize("case", CASES)


def make(case: str, classes: int = 5, dim: int = 7, proxies: int = 1, **keywords: Any) -> ProxyLoss:
    """Make a loss in evaluation mode, without random margins; test_adaptive_margins.py tests training mode."""
    loss = CASES[case].loss(classes, dim, proxies_per_class=proxies, **CASES[case].keywords, **keywords)
    loss.load_state_dict({name: torch.tensor(value) for name, value in CASES[case].state.items()}, strict=False)
    return loss.eval()


def gradients(value: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, inputs)


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if case.oracle])
def test_value_and_gradients_equal_the_oracle(case: str) -> None:
    oracle = CASES[case].oracle
    assert oracle is not None
    for proxies, (name, y) in product((1, 3), BATCHES.items()):
        torch.manual_seed(0)
        loss = make(case, proxies=proxies, init=torch.nn.init.normal_)
        x = (CASES[case].length * torch.randn(len(y), 7)).requires_grad_()
        x64, w64 = x.detach().double().requires_grad_(), loss.proxies.detach().double().requires_grad_()
        expected = oracle(x64, w64, y)
        wanted = gradients(expected, x64, w64)
        # One class at a time and two, which stream; all, whose scores are kept; None, ordinary autograd when so small.
        for chunk in (1, 2, 5, None):
            loss.chunk_size = chunk
            value = loss(x, torch.tensor(y))
            assert value.dtype == torch.float32
            assert value.item() == pytest.approx(expected.item(), rel=1e-5), (proxies, name, chunk)
            for got, want in zip(gradients(value, x, loss.proxies), wanted, strict=True):
                assert (got.double() - want).norm() <= 1e-5 * want.norm(), (proxies, name, chunk)


@each_case
@pytest.mark.usefixtures("unchecked")
def test_gradcheck(case: str) -> None:
    for proxies, chunk in product((1, 3), (2, 4, None)):
        torch.manual_seed(1)
        if case == "warped":
            # Δ is a value without gradient, so that finite differences see another function: f1 by its slopes alone.
            loss: ProxyLoss = WarpedSoftmaxLoss(
                4,
                3,
                f1=lambda t: torch.where(t < 2, 0.6 * t, 1.5 * t - 1.8),
                proxies_per_class=proxies,
                chunk_size=chunk,
            )
        else:
            loss = make(case, 4, 3, proxies, chunk_size=chunk)
        if isinstance(loss, AdaFaceLoss):
            loss.concentration = 1e9  # ẑ, which has no gradient either, is 1 or −1
        x = (CASES[case].length * torch.randn(5, 3, dtype=torch.float64)).requires_grad_()
        w = torch.randn(4, proxies, 3, dtype=torch.float64, requires_grad=True)
        y = torch.tensor([0, 3, 3, 1, 0])

        def call(x: Tensor, w: Tensor, loss: ProxyLoss = loss, y: Tensor = y) -> Tensor:
            return torch.func.functional_call(loss, {"proxies": w}, (x, y))

        assert torch.autograd.gradcheck(call, (x, w), fast_mode=True)


@given(
    case=st.sampled_from(list(CASES)),
    batch=st.integers(1, 9),
    classes=st.integers(2, 12),
    proxies=st.integers(1, 4),
    chunk=st.integers(1, 13),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=80, deadline=None)
def test_streamed_scores_equal_the_dense_definition_for_any_chunk(
    case: str, batch: int, classes: int, proxies: int, chunk: int, seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, 6, generator=rng, dtype=torch.float64, requires_grad=True)
    cosines = 2 * torch.rand(batch, generator=rng, dtype=torch.float64) - 1
    scoring = make(case).step_scoring(lambda: cosines, x.detach())
    w = torch.randn(classes, proxies, 6, generator=rng, dtype=torch.float64, requires_grad=True)
    y = torch.randint(classes, (batch,), generator=rng)
    if case == "hist":
        loss = make(case, classes, 6, proxies)
        w = loss.centers(w).detach().requires_grad_()
    if scoring.class_reduction is not None and seed % 2:
        scoring = replace(scoring, class_reduction=torch.sin)  # any elementwise function, −∞ aside
        assume(len(set(y.tolist())) > 1 or chunk >= classes)
        assume(all(any(label != c for label in y.tolist()) for c in range(classes)))
    terms = (CenterRegularizer(0.3),)
    streamed = streamed_scores(x, w, y, scoring, chunk, terms)
    dense = dense_scores(x, w, y, scoring, terms)
    for got, want in zip(streamed, dense, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    # An arbitrary objective of both; infinite sums, of nothing, are left out.
    weights = [torch.randn(part.shape, generator=rng, dtype=torch.float64) for part in dense]
    for _ in range(2):  # a retained graph gives the same gradient again
        results = []
        for positive, negative, term in (streamed, dense):
            value = (weights[0] * positive).sum() + (weights[1] * negative).masked_fill(negative == -torch.inf, 0).sum()
            value = value + weights[2] * term
            results.append(torch.autograd.grad(value, (x, w), retain_graph=True))
        for got, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8)


@each_case
def test_the_loss_does_not_depend_on_the_order_of_samples_or_classes(case: str) -> None:
    torch.manual_seed(2)
    loss = make(case, proxies=2)
    x, y = torch.randn(6, 7), torch.tensor([0, 0, 1, 3, 4, 3])
    value = loss(x, y)
    order = torch.randperm(6)
    torch.testing.assert_close(loss(x[order], y[order]), value)
    renamed = torch.tensor([3, 1, 4, 0, 2])
    other = copy.deepcopy(loss)
    with torch.no_grad():
        for new, old in zip(other.parameters(), loss.parameters(), strict=True):
            if len(old) == loss.num_classes:
                new[renamed] = old
    torch.testing.assert_close(other(x, renamed[y]), value)


def awkward(name: str, loss: ProxyLoss) -> Tensor:
    x = torch.randn(4, loss.embedding_size)
    with torch.no_grad():
        if name == "identical proxies":
            loss.proxies[:] = loss.proxies[0, 0]
        elif name == "zero proxies":
            loss.proxies.zero_()
    match name:
        case "on the proxy":
            return loss.proxies[torch.tensor([0, 1, 1, 4]), 0].detach().clone()
        case "zero embeddings":
            return torch.zeros_like(x)
        case "long embeddings":
            return 1e4 * x
    return x


AWKWARD = ("identical proxies", "zero proxies", "on the proxy", "zero embeddings", "long embeddings")
PRECISIONS = ((torch.float32, False), (torch.float32, True), (torch.bfloat16, False), (torch.float16, True))


@each_case
@pytest.mark.usefixtures("unchecked")
def test_awkward_inputs_stay_finite(case: str) -> None:
    y = torch.tensor([0, 1, 1, 4])
    for proxies, chunk, name in product((1, 2), (2, None), AWKWARD):
        torch.manual_seed(4)
        loss = make(case, proxies=proxies, chunk_size=chunk)
        inputs = awkward(name, loss)
        before = {key: tensor.clone() for key, tensor in loss.state_dict().items()}
        for dtype, autocast in PRECISIONS:
            x = inputs.to(dtype).requires_grad_()
            with torch.autocast(x.device.type, dtype=torch.bfloat16, enabled=autocast):
                value = loss(x, y)
                grads = gradients(value, x, loss.proxies)
            assert value.dtype == torch.float32
            assert all(grad.isfinite().all() for grad in (value, *grads)), (proxies, chunk, name, dtype)
        for key, tensor in loss.state_dict().items():
            assert tensor.dtype == torch.float32
            assert torch.equal(tensor, before[key])


@each_case
def test_a_scale_of_a_thousand_stays_finite(case: str) -> None:
    loss = CASES[case].loss
    names = [name for name in ("scale", "alpha", "tau", "temperature") if name in signature(loss).parameters]
    name = "temperature" if "temperature" in names else "tau" if "tau" in names else names[0]
    keywords = CASES[case].keywords | {name: 1e-3 if loss is ProxyNCAPlusPlusLoss else 1e3}
    for chunk in (2, None):
        module = loss(5, 7, chunk_size=chunk, **keywords)
        x = torch.randn(4, 7, requires_grad=True)
        result = module(x, torch.tensor([0, 1, 1, 4]))
        assert result.isfinite()
        assert all(grad.isfinite().all() for grad in gradients(result, x, module.proxies))


@each_case
def test_without_gradients_the_value_is_the_same(case: str) -> None:
    for chunk in (2, None):
        loss = make(case, proxies=2, chunk_size=chunk)
        x, y = torch.randn(4, 7), torch.tensor([0, 1, 1, 4])
        expected = loss(x, y).detach()
        with torch.no_grad():
            assert torch.equal(loss(x, y), expected)
        with torch.inference_mode():
            assert torch.equal(loss(x, y), expected)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32])
def test_labels_of_a_narrow_type_are_taken(dtype: torch.dtype) -> None:
    loss = ProxyAnchorLoss(1000, 7)
    x, y = torch.randn(3, 7), torch.tensor([0, 50, 127])
    assert torch.equal(loss(x, y.to(dtype)), loss(x, y))


@pytest.mark.usefixtures("unchecked")
def test_sizes_may_be_numpys() -> None:
    assert ArcFaceLoss(np.int64(5), 7).num_classes == 5  # type: ignore[arg-type]


@pytest.mark.parametrize("chunk", [7, 60])
@pytest.mark.parametrize("nearness", [1e-2, 1e-3])
def test_gradients_of_distances_keep_their_digits_near_the_proxy(chunk: int, nearness: float) -> None:
    torch.manual_seed(0)
    loss = EuclideanSoftmaxLoss(60, 64, chunk_size=chunk, init=torch.nn.init.normal_)
    y = torch.arange(20)
    x = (loss.proxies[y, 0] + nearness * torch.randn(20, 64) / 8).detach().requires_grad_()
    exact = copy.deepcopy(loss).double()
    exact.chunk_size = None
    x64 = x.detach().double().requires_grad_()
    wanted = gradients(exact(x64, y), x64, exact.proxies)
    for got, want in zip(gradients(loss(x, y), x, loss.proxies), wanted, strict=True):
        assert (got.double() - want).norm() <= 1e-5 * want.norm()


@pytest.mark.parametrize("chunk", [2, None])
def test_functions_with_an_infinite_slope_at_0_have_finite_gradients(chunk: int | None) -> None:
    loss = WarpedSoftmaxLoss(5, 7, f1=torch.sqrt, f2=torch.sqrt, chunk_size=chunk)
    x = loss.proxies[:3, 0].detach().clone().requires_grad_()
    value = loss(x, torch.tensor([0, 1, 3]))
    assert all(grad.isfinite().all() for grad in gradients(value, x, loss.proxies))


@each_case
def test_class_scores_and_prediction(case: str) -> None:
    loss = make(case, proxies=2)
    with torch.no_grad():
        loss.proxies[:, 1] = loss.proxies[:, 0]
    x = loss.proxies[:, 0].detach().flip(0)
    assert loss.predict(x).tolist() == [4, 3, 2, 1, 0]
    scores = loss.class_scores(x)
    assert scores.shape == (5, 5)
    assert scores.argmax(1).tolist() == [4, 3, 2, 1, 0]


@each_case
def test_state_dict_round_trip(case: str) -> None:
    first, second = make(case, proxies=2), make(case, proxies=2)
    x, y = torch.randn(3, 7), torch.tensor([0, 1, 2])
    assert first(x, y) != second(x, y)
    second.load_state_dict(first.state_dict())
    assert torch.equal(first(x, y), second(x, y))


@each_case
def test_what_needs_no_gradient_gets_none(case: str) -> None:
    for frozen, chunk in product(("embeddings", "proxies"), (2, 5, None)):
        loss = make(case, chunk_size=chunk)
        x, y = torch.randn(3, 7, requires_grad=frozen != "embeddings"), torch.tensor([0, 1, 2])
        loss.requires_grad_(frozen != "proxies")
        loss(x, y).backward()
        assert (x.grad is None) == (frozen == "embeddings")
        assert (loss.proxies.grad is None) == (frozen == "proxies")


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda loss: loss(torch.randn(2, 8), torch.tensor([0, 1])), ["embeddings", "[2, 8]", "[batch, 7]"]),
        (lambda loss: loss(torch.ones(2, 7, dtype=torch.long), torch.tensor([0, 1])), ["embeddings", "floating"]),
        (lambda loss: loss(torch.randn(0, 7), torch.tensor([], dtype=torch.long)), ["embeddings", "empty"]),
        (lambda loss: loss(torch.randn(2, 7), torch.tensor([0])), ["labels", "[1]", "2 embeddings"]),
        (lambda loss: loss(torch.randn(2, 7), torch.tensor([0, 5])), ["labels", "5", "0 to 4"]),
        (lambda loss: loss(torch.randn(2, 7), None), ["labels are None", "torch.as_tensor"]),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_calls_name_the_argument(call: Callable[[ProxyLoss], Tensor], words: list[str]) -> None:
    with pytest.raises(ValueError, match=words[0]) as error:
        call(NormalizedSoftmaxLoss(5, 7))
    assert all(word in str(error.value) for word in words)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make_loss", "name"),
    [
        (lambda: NormalizedSoftmaxLoss(1, 7), "num_classes"),
        (lambda: WarpedSoftmaxLoss(5, 7, f1=torch.sqrt, f2=torch.nn.PReLU()), "f2 has parameters"),
        (lambda: ArcFaceLoss(5, 7, margin=28.6), "margin is 28.6, but is an angle in radians.*degrees are 0.4992"),
        (lambda: CosFaceLoss(5, 7, margin=2.5), "margin"),
        (lambda: MagFaceLoss(5, 7, margin_range=(0.8, 0.45)), "margin_range"),
        (lambda: MagFaceLoss(5, 7, norm_range=(110.0, 10.0)), "norm_range"),
        (lambda: CurricularFaceLoss(5, 7, momentum=0.0), "momentum is 0.0, but must be a batch's weight"),
        (lambda: ElasticFaceLoss(5, 7, deviation=-0.1), "deviation"),
        (lambda: ElasticFaceLoss(5, 7, form="sphere"), 'form is \'sphere\', but must be "arc" or "cos"'),  # type: ignore[arg-type]
        (lambda: WarpedSoftmaxLoss(5, 7, alpha=1.0), "k1"),
        (lambda: WarpedSoftmaxLoss(5, 7, alpha=-1.0, k1=0.5, k2=2.0), "alpha"),
        (lambda: WarpedSoftmaxLoss(5, 7, alpha=1.0, k1=0.5, k2=2.0, f2=torch.sqrt), "f2"),
        (lambda: WarpedSoftmaxLoss(5, 7, f1=torch.sqrt, f2=1.0), "^f2 is 1.0, but must be a function"),  # type: ignore[arg-type]
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_hyper_parameters_name_the_argument(make_loss: Callable[[], ProxyLoss], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        make_loss()


WRONG: tuple[Any, ...] = (None, "2", [2], np.ones(2), torch.tensor(2), torch.ones(2), True, float("nan"))


@each_case
@pytest.mark.usefixtures("unchecked")
def test_arguments_of_a_wrong_type_are_refused_by_name(case: str) -> None:
    loss = CASES[case].loss
    for value in WRONG:
        names = {*signature(loss).parameters} - {"f1", "f2", "pooling", "gamma", "center_weight"}  # the last: below
        if value is True:
            names -= {"plus", "easy_margin"}
        if case == "warped-functions":
            names -= {"alpha", "k1", "k2", "delta_scale"}
        for name in names - ({"chunk_size", "products"} if value is None else set()):
            with pytest.raises(ValueError, match=rf"\b{name}\b") as error:
                loss(**{"num_classes": 5, "embedding_size": 7} | CASES[case].keywords | {name: value})
            assert "\n" not in str(error.value)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is:FutureWarning")
def test_scripting_a_loss_is_refused_in_one_sentence() -> None:
    class WithLoss(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.loss = ArcFaceLoss(5, 7)

    for module in (ArcFaceLoss(5, 7), WithLoss()):
        with pytest.raises(TypeError, match=r"^ArcFaceLoss cannot be scripted: .*\.$"):
            torch.jit.script(module)


@pytest.mark.parametrize("off", [{"alpha": 0.0}, {"k1": 1.0}, {"k2": 1.0}, {"alpha": 0.0, "k1": 1.0, "k2": 1.0}])
def test_a_warp_that_is_off_in_part_equals_the_oracle_in_float64(off: dict[str, Any]) -> None:
    """The start of the paper's figures 6 and 7; three embeddings are within α = 3 of their proxy, two beyond."""
    torch.manual_seed(5)
    warp, y = WARP | off, [0, 1, 2, 2, 4]
    loss = WarpedSoftmaxLoss(5, 7, **warp, init=torch.nn.init.normal_)
    w = loss.proxies.detach().double().requires_grad_()
    away = torch.tensor([0.1, 0.2, 0.3, 2.0, 3.0], dtype=torch.float64).unsqueeze(1)
    x = (w[y, 0].detach() + away * torch.randn(5, 7, dtype=torch.float64)).requires_grad_()
    expected = oracles.warped_softmax(x, w, y, **warp)
    wanted = gradients(expected, x, w)
    for chunk in (1, 2, 5, None):
        loss.chunk_size = chunk
        value = torch.func.functional_call(loss, {"proxies": w}, (x, torch.tensor(y)))
        torch.testing.assert_close(value, expected, check_dtype=False)
        for got, want in zip(gradients(value, x, w), wanted, strict=True):
            assert (got - want).norm() <= 1e-9 * want.norm()
    if off.get("alpha") == 0 and "k1" in off:
        plain = EuclideanSoftmaxLoss(5, 7, temperature=1.3)
        plain.load_state_dict(loss.state_dict())
        torch.testing.assert_close(loss(x.float(), torch.tensor(y)), plain(x.float(), torch.tensor(y)))
    on_proxy = loss.proxies[:3, 0].detach().requires_grad_()
    assert all(grad.isfinite().all() for grad in gradients(loss(on_proxy, torch.arange(3)), on_proxy, loss.proxies))


class Wrong(NormalizedSoftmaxLoss):
    values: Any = None

    def objective(self, positive: Tensor, negative: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        return self.values


@pytest.mark.usefixtures("unchecked")
def test_an_objective_of_the_wrong_shape_is_refused() -> None:
    x, y = torch.randn(4, 7), torch.tensor([0, 1, 1, 4])
    for class_wise, values, words in (
        (
            False,
            torch.ones(4, 5),
            "Wrong.objective returns a tensor of shape [4, 5], but must return one loss per sample, [4]",
        ),
        (False, 3.0, "returns 3.0, but must return one loss per sample"),
        (True, torch.ones(4), "a tensor of shape [4], but must return a scalar, as the loss sums per class"),
    ):
        loss = Wrong(5, 7)
        loss.values = values
        if class_wise:
            loss.scoring = replace(loss.scoring, class_reduction=torch.abs)
        with pytest.raises(ValueError, match=re.escape(words)) as error:
            loss(x, y)
        assert "\n" not in str(error.value)


def test_a_negative_angular_margin_narrows_the_angle() -> None:
    theta = torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64)
    margins = torch.tensor([-0.4, -0.1, -0.3], dtype=torch.float64)
    torch.testing.assert_close(angular_margin(theta.cos(), margins), (theta + margins).cos())
    torch.testing.assert_close(angular_margin(theta.cos(), -0.4), (theta - 0.4).cos())


class Sharper(CosFaceLoss):
    """A user's loss with another default number of proxies."""

    defaults = ProxyOptions(proxies_per_class=3)

    def __init__(
        self, num_classes: int, embedding_size: int, *, margin: float = 0.2, **options: Unpack[ProxyOptions]
    ) -> None:
        super().__init__(num_classes, embedding_size, margin=margin, **options)


def test_options_and_their_defaults_are_in_the_signature_of_every_loss() -> None:
    for case in CASES.values():
        found = signature(case.loss).parameters
        assert found.keys() > ProxyOptions.__annotations__.keys()
        assert not any(item.kind is item.VAR_KEYWORD for item in found.values())
    found = signature(Sharper).parameters
    assert found["margin"].default == 0.2
    assert found["proxies_per_class"].default == Sharper(5, 7).proxies_per_class == 3
    assert found["init"].default is signature(CosFaceLoss).parameters["init"].default
    assert Sharper(5, 7, proxies_per_class=2).proxies_per_class == 2
    assert CosFaceLoss(5, 7).proxies_per_class == 1
    with pytest.raises(TypeError, match="unexpected keyword argument 'proxy_count'"):
        Sharper(5, 7, proxy_count=3)  # type: ignore[call-arg]
