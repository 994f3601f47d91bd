"""Values and weights per sample against the oracle of one sample at a time."""

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from losses.test_losses import CASES, make
from proxemic.losses import MeanProxyNorm, NormalizedSoftmaxLoss, ProxyLoss, class_balanced_weights
from proxemic.losses.scores.scoring import Scoring
from proxemic.losses.user_defined import UserLoss

CLASS_WISE = ("proxy-anchor", "mpa")
WEIGHTS = torch.tensor([0.5, 0.0, 2.0, 3.0], dtype=torch.float64)
LABELS = [3, 0, 3, 1]


@pytest.mark.parametrize("case", [name for name, case in CASES.items() if case.oracle and name not in CLASS_WISE])
def test_values_weights_and_gradients_are_those_of_the_oracle_of_each_sample(case: str) -> None:
    torch.manual_seed(0)
    oracle, proxies = CASES[case].oracle, 2
    assert oracle is not None
    loss = make(case, proxies=proxies).double()
    x = (CASES[case].length * torch.randn(4, 7, dtype=torch.float64)).requires_grad_()
    w, y = loss.proxies, torch.tensor(LABELS)
    # A batch of one has the value of the sample, its share of the regularisers included.
    each = torch.stack([oracle(x[i : i + 1], w, [own]) for i, own in enumerate(LABELS)])
    expected = {
        (False, "none"): each,
        (True, "none"): WEIGHTS * each,
        (True, "mean"): (WEIGHTS * each).sum() / WEIGHTS.sum(),
    }
    for (weighed, reduction), want in expected.items():
        upstream = torch.randn(want.shape, dtype=torch.float64)
        wanted = torch.autograd.grad(want, (x, w), upstream, retain_graph=True)
        for chunk in (2, 5, None):  # streamed, streamed and kept, by ordinary autograd
            loss.chunk_size = chunk
            got = loss(x, y, weights=WEIGHTS if weighed else None, reduction=reduction)  # type: ignore[arg-type]
            torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-9)
            for gradient, right in zip(torch.autograd.grad(got, (x, w), upstream), wanted, strict=True):
                assert (gradient - right).norm() <= 1e-7 * right.norm()


@pytest.mark.parametrize("case", [name for name in CASES if name not in CLASS_WISE])
@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_the_values_make_the_loss_and_equal_weights_change_nothing(case: str, rate: float) -> None:
    torch.manual_seed(1)
    loss = make(case, classes=12, sample_rate=rate)
    x, y = CASES[case].length * torch.randn(6, 7), torch.tensor([0, 3, 3, 11, 7, 7])

    def call(**keywords: object) -> Tensor:
        torch.manual_seed(2)  # the same classes
        return loss(x, y, **keywords)

    weights = torch.rand(6)
    torch.testing.assert_close(call(reduction="none").mean(), call())
    torch.testing.assert_close(call(weights=[3] * 6), call())
    values = call(weights=weights, reduction="none")
    torch.testing.assert_close(values.sum() / weights.sum(), call(weights=weights))


class Batched(NormalizedSoftmaxLoss):
    def objective(self, positive: Tensor, negative: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
        return super().objective(positive, negative, labels, embeddings).mean()


def pairwise(*_: object) -> nn.Module:
    losses = pytest.importorskip("pytorch_metric_learning.losses")
    from proxemic.losses import PairwiseLoss

    return PairwiseLoss(5, 7, loss=losses.ContrastiveLoss())


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: make("proxy-anchor"), "ProxyAnchorLoss has no per-sample losses: it takes the logarithm of sums"),
        (lambda: make("mpa"), "MultiProxyAnchorLoss has no per-sample losses"),
        (lambda: Batched(5, 7), "Batched has no per-sample losses: its objective returns one value"),
        (lambda: UserLoss(5, 7, nn.CrossEntropyLoss()), "CrossEntropyLoss takes only embeddings and labels"),
        (pairwise, "PairwiseLoss has losses of pairs or triplets"),
    ],
)
@pytest.mark.parametrize("keywords", [{"weights": [1.0] * 4}, {"reduction": "none"}])
@pytest.mark.usefixtures("unchecked")
def test_losses_without_values_of_samples_say_why(
    made: Callable[[], nn.Module], words: str, keywords: dict[str, object]
) -> None:
    with pytest.raises(ValueError, match=re.escape(words)) as error:
        made()(torch.randn(4, 7), torch.tensor(LABELS), **keywords)
    assert "\n" not in str(error.value)


@pytest.mark.cpu
@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"reduction": "sum"}, "reduction is 'sum', but must be 'mean', or 'none'"),
        ({"weights": [1.0, 2.0]}, r"weights have shape \[2\], but each of the 4 embeddings"),
        ({"weights": [1.0, 2.0, -1.0, 0.0]}, "finite and 0 or more"),
        ({"weights": [1.0, 2.0, torch.nan, 0.0]}, "finite and 0 or more"),
        ({"weights": [0.0] * 4}, "at least one above 0"),
        ({"weights": "balanced"}, "weights is a str but must be a tensor"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_weights_are_refused(keywords: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make("softmax")(torch.randn(4, 7), torch.tensor(LABELS), **keywords)


def test_a_regularizer_is_not_weighed() -> None:
    class Nothing(ProxyLoss):
        def objective(self, positive: Tensor, negative: Tensor, labels: Tensor, embeddings: Tensor) -> Tensor:
            return 0 * positive

    term = MeanProxyNorm(2.0)
    loss = Nothing(5, 7, scoring=Scoring(1.0), regularizers=[term])
    value = loss(torch.randn(4, 7), torch.tensor(LABELS), weights=[1, 2, 3, 4])
    torch.testing.assert_close(value, term(loss.proxies))


@pytest.mark.usefixtures("unchecked")
def test_class_balanced_weights_are_the_inverse_of_the_effective_number() -> None:
    counts = [1, 3, 50, 4000]
    for beta in (0.5, 0.999, 0.999999):
        inverse = [1 / sum(beta**k for k in range(n)) for n in counts]  # (1 − β^n) / (1 − β), as a sum
        expected = torch.tensor(inverse) * len(counts) / sum(inverse)
        torch.testing.assert_close(class_balanced_weights(counts, beta), expected)
    assert class_balanced_weights(counts, 0.0).tolist() == [1.0] * 4
    balanced = class_balanced_weights(counts, 1.0) * torch.tensor(counts)
    torch.testing.assert_close(balanced, balanced[:1].expand(4))
    for wrong, words in (([1, 0], "0 for class 1"), ([[1]], r"shape \[1, 1\]"), ("ab", "counts is a str")):
        with pytest.raises(ValueError, match=words):
            class_balanced_weights(wrong)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="beta is 2, but must be from 0"):
        class_balanced_weights(counts, 2)
