"""Streaming: the plan, the memory that it needs, and the precision of products."""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from proxemic.losses import (
    ArcFaceLoss,
    CurricularFaceLoss,
    EuclideanSoftmaxLoss,
    HISTLoss,
    MeanProxyNorm,
    MultiProxyAnchorLoss,
    NormalizedSoftmaxLoss,
    ProxyAnchorLoss,
    ProxyLoss,
    SoftTripleLoss,
)
from proxemic.losses.scores import plan as module
from proxemic.losses.scores.plan import Plan
from proxemic.losses.scores.scoring import dense_scores
from proxemic.losses.scores.streaming import streamed_scores

_SPEC = importlib.util.spec_from_file_location("measure", Path(__file__).parents[3] / "benchmarks" / "measure.py")
assert _SPEC is not None
assert _SPEC.loader is not None
measure = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(measure)


def held(loss: ProxyLoss, x: Tensor, y: Tensor) -> int:
    """Measure the peak bytes of a forward and backward, beyond embeddings, proxies and their gradients."""
    with measure.Held(x, y, *loss.parameters()) as mode:
        grads = torch.autograd.grad(loss(x, y), (x, loss.proxies))
    return mode.most - sum(grad.nbytes for grad in grads)


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("loss", "proxies"),
    [
        (NormalizedSoftmaxLoss, 1),
        (ArcFaceLoss, 1),
        (CurricularFaceLoss, 1),
        (ProxyAnchorLoss, 1),
        (EuclideanSoftmaxLoss, 1),
        (SoftTripleLoss, 4),
        (MultiProxyAnchorLoss, 4),
    ],
)
def test_memory_does_not_grow_with_classes_times_batch(loss: Callable[..., ProxyLoss], proxies: int) -> None:
    batch, dim, classes, chunk = 64, 16, 4_000, 50
    module_ = loss(classes, dim, proxies_per_class=proxies, chunk_size=chunk)
    x, y = torch.randn(batch, dim, requires_grad=True), torch.randint(classes, (batch,))
    buffer = 4 * batch * chunk * proxies
    most = held(module_, x, y)
    # Two chunk buffers and 8 (B + CK) numbers; the batch itself, normalised and its own proxies, comes to a few B K D.
    chunks = 8 if loss is CurricularFaceLoss else 2  # six for what it makes of the scores, by autograd
    assert most <= chunks * buffer + 8 * 4 * (batch + classes * proxies) + 8 * 4 * batch * proxies * dim
    assert most < 4 * batch * classes * proxies / 2  # half of what the dense scores alone would take


@given(
    batch=st.integers(1, 4096),
    classes=st.integers(2, 10**6),
    proxies=st.integers(1, 16),
    dim=st.integers(1, 2048),
    loss=st.sampled_from([NormalizedSoftmaxLoss, ProxyAnchorLoss, EuclideanSoftmaxLoss]),
)
def test_a_plan_bounds_its_memory_at_any_size(
    batch: int, classes: int, proxies: int, dim: int, loss: Callable[..., ProxyLoss]
) -> None:
    scoring = loss(2, 2).scoring
    plan = Plan.of(scoring, batch, classes, proxies, dim)
    assert 1 <= plan.chunk <= classes
    assert not plan.dense or plan.chunk == classes
    assert not plan.dense or batch * classes * proxies <= 2**18
    if plan.keep:
        assert 4 * batch * classes * proxies <= 128 * 2**20
    assert batch * plan.chunk * proxies <= max(2**21, 256 * batch, batch * proxies)


def test_plans_change_where_they_were_measured_to() -> None:
    data_wise, class_wise = NormalizedSoftmaxLoss(2, 2).scoring, ProxyAnchorLoss(2, 2).scoring
    assert Plan.of(data_wise, 180, 256, 1, 512).dense
    assert not Plan.of(data_wise, 180, 257, 1, 512).dense
    assert not Plan.of(data_wise, 2048, 129, 1, 512).dense
    distances = EuclideanSoftmaxLoss(2, 2).scoring
    assert Plan.of(distances, 32, 128, 1, 128).dense
    assert not Plan.of(distances, 32, 129, 1, 128).dense
    assert not Plan.of(HISTLoss(2, 2).scoring, 2, 2, 1, 2).dense
    assert Plan.of(data_wise, 180, 100, 10, 512) == Plan(100, keep=True, keep_weights=True)
    assert Plan.of(data_wise, 128, 2**11, 1, 512) == Plan(2048, keep=True)  # one chunk
    assert Plan.of(data_wise, 32, 11_318, 1, 512) == Plan(4096, keep=True)  # kept, made and used a chunk at a time
    assert Plan.of(class_wise, 32, 11_318, 1, 512) == Plan(4096, keep=False)  # one pass needs none
    assert Plan.of(data_wise, 128, 2**18, 1, 512) == Plan(4096, keep=True)  # 128 MiB of scores
    assert Plan.of(data_wise, 128, 2**18 + 1, 1, 512) == Plan(4096, keep=False)  # more are made again
    assert Plan.of(data_wise, 128, 2**16, 2, 512) == Plan(2048, keep=True, keep_weights=True)  # both 128 MiB
    assert Plan.of(data_wise, 128, 2**16 + 1, 2, 512) == Plan(2048, keep=True)
    assert Plan.of(data_wise, 1024, 200_000, 4, 128) == Plan(512, keep=False)
    assert Plan.of(data_wise, 10**7, 10**6, 100, 512).chunk == 2


@pytest.mark.parametrize("loss", [NormalizedSoftmaxLoss, SoftTripleLoss, ProxyAnchorLoss, EuclideanSoftmaxLoss])
@pytest.mark.parametrize("kept", [0, 2**25])
def test_every_plan_gives_the_same_at_a_real_size(
    loss: Callable[..., ProxyLoss], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(module, "_KEPT", kept)
    scoring = loss(3_000, 96).scoring
    x = torch.randn(50, 96, requires_grad=True)
    w = torch.randn(3_000, 2, 96, requires_grad=True)
    y = torch.randint(3_000, (50,))
    results = []
    for scores in (streamed_scores, dense_scores):
        positive, negative, _ = scores(x, w, y, scoring)
        results.append((positive, negative, *torch.autograd.grad(positive.sum() + negative.sum(), (x, w))))
    for got, want in zip(*results, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@contextmanager
def matmul_precision(value: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(value)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize("loss", [EuclideanSoftmaxLoss, HISTLoss])
@pytest.mark.parametrize("chunk", [100, None])
def test_distances_are_in_full_precision_whatever_the_process_allows(
    loss: Callable[..., ProxyLoss], chunk: int | None
) -> None:
    # "medium" lets products of float32 run in bfloat16: ‖x‖² + ‖w‖² − 2x·w would lose all digits of near distances.
    torch.manual_seed(0)
    module_ = loss(300, 64, chunk_size=chunk)
    x = (module_.proxies[:32, 0] + 1e-2 * torch.randn(32, 64)).detach().requires_grad_()
    y = torch.arange(32)
    results = []
    for precision in ("highest", "medium"):
        with matmul_precision(precision):
            positive, negative, _ = streamed_scores(x, module_.centers(module_.proxies), y, module_.scoring, chunk)
            grad = torch.autograd.grad(positive.sum() + negative.sum(), x)[0]
            results.append((positive, negative, grad))
            assert torch.get_float32_matmul_precision() == precision
    for got, want in zip(*results, strict=True):
        assert torch.equal(got, want)


@pytest.mark.parametrize("loss", [NormalizedSoftmaxLoss, ProxyAnchorLoss, EuclideanSoftmaxLoss])
@pytest.mark.parametrize("chunk", [7, None])
def test_precision_may_be_set_for_one_backend_alone(loss: Callable[..., ProxyLoss], chunk: int | None) -> None:
    backend = torch.backends.cuda.matmul
    before = backend.fp32_precision
    try:
        backend.fp32_precision = "tf32"
        module_ = loss(60, 16, chunk_size=chunk)
        module_(torch.randn(9, 16), torch.arange(9)).backward()
        assert backend.fp32_precision == "tf32"
    finally:
        backend.fp32_precision = before


@pytest.mark.parametrize("chunk_size", [7, 50, None])  # in a single pass; of kept similarities; and kept weights
@pytest.mark.parametrize("kind", [MultiProxyAnchorLoss, SoftTripleLoss])
def test_a_second_backward_of_a_retained_graph_repeats_the_first_bit_for_bit(
    kind: type[MultiProxyAnchorLoss | SoftTripleLoss], chunk_size: int | None
) -> None:
    torch.manual_seed(0)
    loss = kind(50, 900, proxies_per_class=3, chunk_size=chunk_size, regularizers=(MeanProxyNorm(0.1),))
    x, y = torch.randn(9, 900, requires_grad=True), torch.randint(50, (9,))
    value = loss(x, y)
    first = torch.autograd.grad(3 * value, (x, loss.proxies), retain_graph=True)
    second = torch.autograd.grad(3 * value, (x, loss.proxies))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
