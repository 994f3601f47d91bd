"""Sampled classes: which are chosen, how many classes each stands for, and which sums are unbiased."""

import math
from collections import Counter
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from losses.test_losses import CASES, make
from proxemic.losses import CenterRegularizer, MeanProxyNorm, NormalizedSoftmaxLoss, ProxyLoss
from proxemic.losses.scores.sampling import SampledClasses, choose_classes, num_sampled
from proxemic.losses.scores.streaming import streamed_scores
from proxemic.optim import step_rows

CLASSES, DIM = 11, 7
LABELS = [1, 4, 4, 9]
PRESENT = [1, 4, 9]
OTHERS = [c for c in range(CLASSES) if c not in PRESENT]
each_case = pytest.mark.parametrize("case", CASES)


def choose(monkeypatch: pytest.MonkeyPatch, others: list[int] | tuple[int, ...]) -> list[int]:
    """Let the next steps sample the classes of the batch and these others."""
    index = sorted([*PRESENT, *others])
    monkeypatch.setattr("proxemic.losses.scores.sampling.choose_classes", lambda *_: torch.tensor(index))
    return index


def gradients(loss: ProxyLoss, x: Tensor, y: list[int] | None = None) -> tuple[Tensor, list[Tensor]]:
    x = x.clone().requires_grad_()
    value = loss(x, torch.tensor(LABELS if y is None else y))
    found = torch.autograd.grad(value, [x, *loss.parameters()])
    return value.detach(), [item.to_dense() for item in found]


@each_case
@pytest.mark.parametrize("proxies", [1, 3])
def test_a_rate_of_one_is_the_full_loss_bit_for_bit(case: str, proxies: int) -> None:
    torch.manual_seed(0)
    full, one = make(case, CLASSES, DIM, proxies), make(case, CLASSES, DIM, proxies, sample_rate=1.0)
    # 11 samples leave no other class to choose from: below a rate of 1 the same, though its parameters are of rows.
    below = make(case, CLASSES, DIM, proxies, sample_rate=0.1)
    x, y = torch.randn(11, DIM), [*range(9), 0, 0]
    results = []
    for loss in (full, one, below):
        loss.load_state_dict(full.state_dict())
        results.append(gradients(loss, x, y))
    for value, grads in results[1:]:
        assert torch.equal(value, results[0][0])
        assert all(map(torch.equal, grads, results[0][1]))


@each_case
def test_a_sampled_class_counts_for_all_that_are_drawn_alike(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """By definition of the weights, a sampled loss equals the full loss with that many equal classes."""
    for proxies, others, chunk in ((1, (2, 8), 2), (1, (0, 3, 6, 10), None), (3, (2, 8), None), (3, (0, 3, 6, 10), 2)):
        with monkeypatch.context() as patch:
            check_weights_of_equal_classes(patch, case, proxies, others, chunk)


def check_weights_of_equal_classes(
    monkeypatch: pytest.MonkeyPatch, case: str, proxies: int, others: tuple[int, ...], chunk: int | None
) -> None:
    torch.manual_seed(0)
    full = make(case, CLASSES, DIM, proxies, chunk_size=chunk).double()
    full.regularizers.extend([MeanProxyNorm(0.7), CenterRegularizer(0.3)])
    stands = {c: c for c in (*PRESENT, *others)}
    left = [c for c in OTHERS if c not in others]
    stands |= {c: others[number % len(others)] for number, c in enumerate(left)}
    equal = torch.tensor([stands[c] for c in range(CLASSES)])
    rows = [len(parameter) == CLASSES for parameter in full.parameters()]
    with torch.no_grad():
        for parameter, by_row in zip(full.parameters(), rows, strict=True):
            parameter.copy_(parameter[equal] if by_row else parameter)
    sampled = make(case, CLASSES, DIM, proxies, chunk_size=chunk, sample_rate=0.1).double()
    sampled.regularizers.extend([MeanProxyNorm(0.7), CenterRegularizer(0.3)])
    sampled.load_state_dict(full.state_dict())
    index = choose(monkeypatch, others)
    x = CASES[case].length * torch.randn(len(LABELS), DIM, dtype=torch.float64)
    (value, found), (expected, wanted) = gradients(sampled, x), gradients(full, x)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(found[0], wanted[0], rtol=1e-9, atol=1e-12)
    for got, want, by_row in zip(found[1:], wanted[1:], rows, strict=True):
        if by_row:  # the row of one that stands for several has the gradients of all
            want = torch.zeros_like(want).index_add(0, equal, want)
            assert not got[[c for c in range(CLASSES) if c not in index]].any()
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("count", [1, 3, 7])
@pytest.mark.parametrize("case", ["proxy-anchor", "mpa"])
@pytest.mark.parametrize("proxies", [1, 2])
def test_class_wise_losses_and_their_gradients_are_unbiased(
    monkeypatch: pytest.MonkeyPatch, case: str, proxies: int, count: int
) -> None:
    """The mean over all possible choices is the full loss."""
    torch.manual_seed(0)
    full, sampled = (make(case, CLASSES, DIM, proxies, sample_rate=rate).double() for rate in (1.0, 0.1))
    sampled.load_state_dict(full.state_dict())
    x = torch.randn(len(LABELS), DIM, dtype=torch.float64)
    expected, wanted = gradients(full, x)
    choices = list(combinations(OTHERS, count))
    total, sums = torch.zeros_like(expected), [torch.zeros_like(item) for item in wanted]
    for others in choices:
        choose(monkeypatch, others)
        value, found = gradients(sampled, x)
        total += value
        for mean, item in zip(sums, found, strict=True):
            mean += item
    torch.testing.assert_close(total / len(choices), expected, rtol=1e-10, atol=0)
    for mean, want in zip(sums, wanted, strict=True):
        torch.testing.assert_close(mean / len(choices), want, rtol=1e-8, atol=1e-12)


def test_of_data_wise_losses_the_sum_inside_is_unbiased_and_the_loss_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    full, sampled = (NormalizedSoftmaxLoss(CLASSES, DIM, sample_rate=rate).double() for rate in (1.0, 0.1))
    sampled.load_state_dict(full.state_dict())
    x, y = torch.randn(len(LABELS), DIM, dtype=torch.float64), torch.tensor(LABELS)
    values, sums = [], []
    for others in combinations(OTHERS, 3):
        choose(monkeypatch, others)
        values.append(sampled(x, y))
        classes = SampledClasses.of(y, CLASSES, 0.1, None, torch.float64)
        rows = classes.rows(sampled.proxies)
        _, negative, _ = streamed_scores(x, rows, classes.labels, sampled.scoring, sampling=classes.sampling)
        sums.append(negative.exp())
    _, negative, _ = streamed_scores(x, full.proxies, y, full.scoring)
    torch.testing.assert_close(torch.stack(sums).mean(0), negative.exp(), rtol=1e-10, atol=0)
    assert torch.stack(values).mean() < full(x, y)


@given(
    labels=st.lists(st.integers(-5, 45), min_size=1, max_size=20),
    classes=st.integers(1, 40),
    rate=st.floats(0.001, 0.999),
    seed=st.integers(0, 99),
)
def test_the_classes_of_the_batch_are_always_among_those_chosen(
    labels: list[int], classes: int, rate: float, seed: int
) -> None:
    torch.manual_seed(seed)
    chosen = choose_classes(torch.tensor(labels), classes, rate)
    count = num_sampled(classes, len(labels), rate)
    if count == classes:
        assert chosen is None
        return
    assert chosen is not None
    index = chosen.tolist()
    assert index == sorted(set(index))
    assert len(index) == count >= math.ceil(rate * classes)
    assert {label for label in labels if 0 <= label < classes} <= set(index) <= set(range(classes))


@given(labels=st.lists(st.integers(0, 39), min_size=1, max_size=20), rate=st.floats(0.001, 0.999))
def test_the_weights_sum_to_all_classes(labels: list[int], rate: float) -> None:
    y = torch.tensor(labels)
    classes = SampledClasses.of(y, 40, rate, None, torch.float64)
    weights = classes.sampling.weights
    if classes.index is None:
        assert weights is None
        return
    assert weights is not None
    assert weights.sum().item() == pytest.approx(40)
    assert torch.equal(classes.index[classes.labels], y)
    assert (weights[classes.labels] == 1).all()
    assert (weights >= 1).all()


@pytest.mark.parametrize(
    ("labels", "classes", "rate", "combinations", "limit"),
    [  # χ² of 9 and of 34 degrees of freedom, which one draw in a thousand exceeds
        ([1, 4], 7, 0.4, math.comb(5, 2), 27.9),
        ([-3, 1, 4, 12], 9, 0.1, math.comb(7, 3), 65.2),  # two are of other processes, whose rows are drawn as any
    ],
)
def test_every_choice_is_as_likely(
    labels: list[int], classes: int, rate: float, combinations: int, limit: float
) -> None:
    torch.manual_seed(0)
    draws = 3000
    drawn = [choose_classes(torch.tensor(labels), classes, rate) for _ in range(draws)]
    counts = Counter(tuple(index.tolist()) for index in drawn if index is not None)
    assert len(counts) == combinations
    expected = draws / len(counts)
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < limit


@each_case
def test_gradients_are_of_the_rows_looked_at_and_add_up(case: str) -> None:
    loss = make(case, 200, DIM, proxies=2, sample_rate=0.05)
    step_rows(torch.optim.SGD(loss.parameters(), lr=0.1))
    x, y = torch.randn(3, DIM), torch.tensor([0, 7, 199])
    found = []
    for _ in range(2):
        loss(x, y).backward()
        for parameter in loss.parameters():
            if len(parameter) == 200:
                assert parameter.grad is not None
                assert parameter.grad.is_sparse
                assert parameter.grad.shape == parameter.shape
        assert loss.proxies.grad is not None
        found.append(loss.proxies.grad.coalesce())
    first, both = (set(item.indices()[0].tolist()) for item in found)
    assert len(first) == num_sampled(200, 3, 0.05) == 13
    assert {0, 7, 199} <= first < both
    assert len(both) <= 2 * 13


def test_each_step_chooses_anew_by_torchs_generator() -> None:
    loss = NormalizedSoftmaxLoss(100, DIM, sample_rate=0.1)
    x, y = torch.randn(3, DIM), torch.tensor([0, 7, 99])
    torch.manual_seed(1)
    first, second = loss(x, y), loss(x, y)
    assert first != second
    torch.manual_seed(1)
    assert loss(x, y) == first


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.1, math.nan])
def test_a_rate_is_a_share(rate: float) -> None:
    with pytest.raises(ValueError, match=f"sample_rate is {rate}"):
        NormalizedSoftmaxLoss(5, DIM, sample_rate=rate)


def test_a_regularizer_of_all_proxies_at_once_is_refused() -> None:
    with pytest.raises(ValueError, match="sample_rate is below 1, but the regulariser Flatten needs all proxies"):
        NormalizedSoftmaxLoss(5, DIM, sample_rate=0.5, regularizers=[nn.Flatten()])
