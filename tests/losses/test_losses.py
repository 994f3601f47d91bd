"""Every loss against its float64 oracle, its dense definition, its laws and awkward inputs."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from losses import oracles
from proxemic.losses import (
    AllPairMultiProxyAnchorLoss,
    EuclideanSoftmaxLoss,
    MeanProxyNorm,
    NormalizedSoftmaxLoss,
    ProxyAnchorLoss,
    ProxyLoss,
    WarpedSoftmaxLoss,
)
from proxemic.losses.streaming import default_chunk_size, dense_scores, streamed_scores

WARP = {"alpha": 3.0, "k1": 0.6, "k2": 1.5, "delta_scale": 1.2, "temperature": 1.3}
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


def _euclidean(x: Tensor, w: Tensor, y: list[int]) -> Tensor:
    return oracles.euclidean_softmax(x, w, y, 1.5)


def _warped(x: Tensor, w: Tensor, y: list[int]) -> Tensor:
    return oracles.warped_softmax(x, w, y, **WARP)


CASES: dict[str, tuple[type[ProxyLoss], dict[str, Any], Callable[..., Tensor], bool]] = {
    # loss, keywords, oracle, several proxies in the oracle
    "softmax": (NormalizedSoftmaxLoss, {}, oracles.normalized_softmax, True),
    "mean-proxy": (NormalizedSoftmaxLoss, {"regularizers": (MeanProxyNorm(0.5),)}, _mean_proxy, True),
    "proxy-anchor": (ProxyAnchorLoss, {}, oracles.proxy_anchor, True),
    "mpa-ap": (AllPairMultiProxyAnchorLoss, {}, oracles.all_pair, True),
    "euclidean": (EuclideanSoftmaxLoss, {"temperature": 1.5}, _euclidean, False),
    "warped": (WarpedSoftmaxLoss, WARP, _warped, False),
    "warped-functions": (WarpedSoftmaxLoss, WARP_FUNCTION, _warp_function, False),
}
BATCHES = {
    "absent classes": [3, 0, 3, 1],
    "one class": [2, 2, 2],
    "batch of one": [4],
    "every class": [0, 1, 2, 3, 4],
}
each_case = pytest.mark.parametrize("case", CASES)


def make(case: str, classes: int = 5, dim: int = 7, proxies: int = 1, **keywords: Any) -> ProxyLoss:
    loss, settings_, _, _ = CASES[case]
    return loss(classes, dim, proxies_per_class=proxies, **settings_, **keywords)


def gradients(value: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(value, inputs)


@pytest.mark.parametrize(
    ("case", "proxies"),
    # Several proxies only where the paper defines the loss for them.
    [(case, proxies) for case, (*_, several) in CASES.items() for proxies in ((1, 3) if several else (1,))],
)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("chunk", [1, 2, None])
def test_value_and_gradients_equal_the_oracle(case: str, proxies: int, batch: str, chunk: int | None) -> None:
    _, _, oracle, _ = CASES[case]
    torch.manual_seed(0)
    y = BATCHES[batch]
    loss = make(case, proxies=proxies, chunk_size=chunk, init=torch.nn.init.normal_)
    x = (2 * torch.randn(len(y), 7)).requires_grad_()
    x64, w64 = x.detach().double().requires_grad_(), loss.proxies.detach().double().requires_grad_()

    value, expected = loss(x, torch.tensor(y)), oracle(x64, w64, y)

    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    for got, want in zip(gradients(value, x, loss.proxies), gradients(expected, x64, w64), strict=True):
        error = (got.double() - want).norm() / want.norm()
        assert error <= 1e-5


@each_case
@pytest.mark.parametrize("proxies", [1, 3])
def test_gradcheck(case: str, proxies: int) -> None:
    torch.manual_seed(1)
    if case == "warped":
        # Δ is a value without gradient, so that finite differences see another function: f1 by its slopes alone.
        loss: ProxyLoss = WarpedSoftmaxLoss(
            4, 3, f1=lambda t: torch.where(t < 2, 0.6 * t, 1.5 * t - 1.8), proxies_per_class=proxies, chunk_size=2
        )
    else:
        loss = make(case, 4, 3, proxies, chunk_size=2)
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    w = torch.randn(4, proxies, 3, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 3, 3, 1, 0])

    def call(x: Tensor, w: Tensor) -> Tensor:
        return torch.func.functional_call(loss, {"proxies": w}, (x, y))

    assert torch.autograd.gradcheck(call, (x, w))


@given(
    case=st.sampled_from(list(CASES)),
    batch=st.integers(1, 9),
    classes=st.integers(2, 12),
    proxies=st.integers(1, 4),
    chunk=st.integers(1, 13),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=120, deadline=None)
def test_streamed_scores_equal_the_dense_definition_for_any_chunk(
    case: str, batch: int, classes: int, proxies: int, chunk: int, seed: int
) -> None:
    rng = torch.Generator().manual_seed(seed)
    scoring = make(case).scoring
    x = torch.randn(batch, 6, generator=rng, dtype=torch.float64, requires_grad=True)
    w = torch.randn(classes, proxies, 6, generator=rng, dtype=torch.float64, requires_grad=True)
    y = torch.randint(classes, (batch,), generator=rng)
    streamed = streamed_scores(x, w, y, scoring, chunk)
    dense = dense_scores(x, w, y, scoring)
    for got, want in zip(streamed, dense, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    # An arbitrary objective of both; infinite sums, of nothing, are left out.
    weights = [torch.randn(part.shape, generator=rng, dtype=torch.float64) for part in dense]
    results = []
    for positive, negative in (streamed, dense):
        value = (weights[0] * positive).sum() + (weights[1] * negative).masked_fill(negative == -torch.inf, 0).sum()
        results.append(gradients(value, x, w))
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
        other.proxies[renamed] = loss.proxies
    torch.testing.assert_close(other(x, renamed[y]), value)


@pytest.mark.parametrize("case", ["softmax", "mean-proxy", "proxy-anchor", "mpa-ap"])
def test_cosine_losses_do_not_depend_on_lengths(case: str) -> None:
    torch.manual_seed(3)
    loss = make(case, proxies=2)
    x, y = torch.randn(4, 7), torch.tensor([0, 1, 2, 2])
    value = loss(x, y)
    with torch.no_grad():
        loss.proxies.mul_(torch.rand(5, 2, 1) + 0.5)
    torch.testing.assert_close(loss(x * torch.tensor([[0.1], [1.0], [7.0], [1e4]]), y), value)


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


@each_case
@pytest.mark.parametrize("proxies", [1, 2])
@pytest.mark.parametrize(
    "name", ["identical proxies", "zero proxies", "on the proxy", "zero embeddings", "long embeddings"]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_awkward_inputs_stay_finite(case: str, proxies: int, name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    loss = make(case, proxies=proxies)
    x = awkward(name, loss).to(dtype).requires_grad_()
    before = {key: tensor.clone() for key, tensor in loss.state_dict().items()}
    for autocast in (False, True):
        loss.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            value = loss(x, torch.tensor([0, 1, 1, 4]))
            value.backward()
        assert value.dtype == torch.float32
        assert value.isfinite()
        assert loss.proxies.grad is not None
        assert loss.proxies.grad.isfinite().all()
        assert x.grad is not None
        assert x.grad.isfinite().all()
    for key, tensor in loss.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, before[key])


@pytest.mark.parametrize("case", ["softmax", "proxy-anchor", "mpa-ap", "euclidean"])
def test_a_scale_of_a_thousand_stays_finite(case: str) -> None:
    loss: Any = CASES[case][0]
    name = {"softmax": "scale", "euclidean": "temperature"}.get(case, "alpha")
    value = loss(5, 7, **{name: 1e3})
    x = torch.randn(4, 7, requires_grad=True)
    result = value(x, torch.tensor([0, 1, 1, 4]))
    assert result.isfinite()
    assert all(grad.isfinite().all() for grad in gradients(result, x, value.proxies))


def test_half_precision_is_computed_in_float32() -> None:
    loss = NormalizedSoftmaxLoss(50, 64)
    x, y = torch.randn(8, 64).bfloat16(), torch.arange(8)
    assert torch.equal(loss(x, y), loss(x.float(), y))


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
@pytest.mark.parametrize("frozen", ["embeddings", "proxies"])
def test_what_needs_no_gradient_gets_none(case: str, frozen: str) -> None:
    loss = make(case)
    x, y = torch.randn(3, 7, requires_grad=frozen != "embeddings"), torch.tensor([0, 1, 2])
    loss.proxies.requires_grad_(frozen != "proxies")
    loss(x, y).backward()
    assert (x.grad is None) == (frozen == "embeddings")
    assert (loss.proxies.grad is None) == (frozen == "proxies")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda loss: loss(torch.randn(2, 8), torch.tensor([0, 1])), ["embeddings", "[2, 8]", "[batch, 7]"]),
        (lambda loss: loss(torch.ones(2, 7, dtype=torch.long), torch.tensor([0, 1])), ["embeddings", "floating"]),
        (lambda loss: loss(torch.randn(0, 7), torch.tensor([], dtype=torch.long)), ["embeddings", "empty"]),
        (lambda loss: loss(torch.randn(2, 7), torch.tensor([0])), ["labels", "[1]", "2 embeddings"]),
        (lambda loss: loss(torch.randn(2, 7), torch.tensor([0.0, 1.0])), ["labels", "float32", ".long()"]),
        (lambda loss: loss(torch.randn(2, 7), torch.tensor([0, 5])), ["labels", "5", "0 to 4"]),
        (lambda loss: loss(torch.randn(2, 7), torch.tensor([-1, 4])), ["labels", "-1", "0 to 4"]),
    ],
)
def test_bad_calls_name_the_argument(call: Callable[[ProxyLoss], Tensor], words: list[str]) -> None:
    with pytest.raises(ValueError, match=words[0]) as error:
        call(NormalizedSoftmaxLoss(5, 7))
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    ("make_loss", "name"),
    [
        (lambda: NormalizedSoftmaxLoss(1, 7), "num_classes"),
        (lambda: NormalizedSoftmaxLoss(5, 0), "embedding_size"),
        (lambda: NormalizedSoftmaxLoss(5, 7, proxies_per_class=0), "proxies_per_class"),
        (lambda: NormalizedSoftmaxLoss(5, 7, scale=-1.0), "scale"),
        (lambda: NormalizedSoftmaxLoss(5, 7, chunk_size=0), "chunk_size"),
        (lambda: ProxyAnchorLoss(5, 7, alpha=0.0), "alpha"),
        (lambda: AllPairMultiProxyAnchorLoss(5, 7, gamma=0.0), "gamma"),
        (lambda: AllPairMultiProxyAnchorLoss(5, 7, center_weight=-0.2), "weight"),
        (lambda: EuclideanSoftmaxLoss(5, 7, temperature=float("nan")), "temperature"),
        (lambda: WarpedSoftmaxLoss(5, 7, alpha=1.0), "k1"),
        (lambda: WarpedSoftmaxLoss(5, 7, alpha=1.0, k1=1.0, k2=2.0), "k1"),
        (lambda: WarpedSoftmaxLoss(5, 7, alpha=1.0, k1=0.5, k2=1.0), "k2"),
        (lambda: WarpedSoftmaxLoss(5, 7, alpha=-1.0, k1=0.5, k2=2.0), "alpha"),
        (lambda: WarpedSoftmaxLoss(5, 7, alpha=1.0, k1=0.5, k2=2.0, delta_scale=0.5), "delta_scale"),
        (lambda: WarpedSoftmaxLoss(5, 7, alpha=1.0, k1=0.5, k2=2.0, f1=torch.sqrt), "f1"),
        (lambda: WarpedSoftmaxLoss(5, 7, f2=torch.sqrt), "alpha"),
        (lambda: WarpedSoftmaxLoss(5, 7, alpha=1.0, k1=0.5, k2=2.0, f2=torch.sqrt), "f2"),
    ],
)
def test_bad_hyper_parameters_name_the_argument(make_loss: Callable[[], ProxyLoss], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        make_loss()


def test_the_warp_changes_the_gradient_and_not_the_value() -> None:
    torch.manual_seed(5)
    plain = EuclideanSoftmaxLoss(5, 7)
    warped = WarpedSoftmaxLoss(5, 7, alpha=1e6, k1=0.5, k2=2.0)
    warped.load_state_dict(plain.state_dict())
    x, y = torch.randn(4, 7, requires_grad=True), torch.tensor([0, 1, 2, 2])
    first, second = plain(x, y), warped(x, y)
    torch.testing.assert_close(first, second)
    first_grad, second_grad = gradients(first, x)[0], gradients(second, x)[0]
    assert not torch.allclose(first_grad, second_grad)


def test_an_embedding_near_its_proxy_keeps_its_distance_exact() -> None:
    # ‖x‖² + ‖w‖² − 2x·w has no digits left here in float32.
    loss = EuclideanSoftmaxLoss(3, 4, init=torch.nn.init.zeros_)
    with torch.no_grad():
        loss.proxies[:, 0] = 1e3 * torch.eye(3, 4)
    x = loss.proxies[1].detach() + torch.tensor([[0.0, 0.0, 0.0, 1e-2]])
    positive, _ = streamed_scores(x, loss.proxies, torch.tensor([1]), loss.scoring)
    assert -positive.item() == pytest.approx(1e-2, rel=1e-5)


def test_chunks_fit_the_problem() -> None:
    assert default_chunk_size(180, 100, 10, 512) == 100  # few scores: one chunk, which is kept
    assert default_chunk_size(32, 11_318, 1, 512) < 11_318
    assert default_chunk_size(1024, 200_000, 4, 128) * 1024 * 4 <= 2**21
    assert default_chunk_size(10**7, 10**6, 100, 512) >= 1
