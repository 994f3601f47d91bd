"""Time a whole step (forward, backward, optimiser) with sampled classes, relative to a step with all classes.

    python benchmarks/sampling.py            # 200,000 classes, a few minutes on two cores
    python benchmarks/sampling.py --more     # also two proxies a class, with the regulariser
    python benchmarks/sampling.py --smoke    # small sizes, seconds

Ratios compare median times of the same rounds.
"""

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch.optim import SGD, AdamW, Optimizer

from measure import command, medians, print_header, print_row
from proxemic.losses import MultiProxyAnchorLoss, NormalizedSoftmaxLoss, ProxyAnchorLoss, ProxyLoss, SoftTripleLoss
from proxemic.optim import step_rows

BATCH, RATE = 128, 0.1
LOSSES: dict[str, tuple[type[ProxyLoss], int]] = {
    "data-wise": (NormalizedSoftmaxLoss, 1),
    "class-wise": (ProxyAnchorLoss, 1),
    "data-wise, K=2": (SoftTripleLoss, 2),
    "class-wise, K=2": (MultiProxyAnchorLoss, 2),
}
OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "SGD": lambda parameters: SGD(parameters, lr=0.1, momentum=0.9),
    "AdamW": lambda parameters: AdamW(parameters, lr=0.01),
}


def compare(kind: str, optimizer: str, classes: int, dim: int, rounds: int, device: str) -> tuple[float, float]:
    """Return the median milliseconds of a full and a sampled step."""
    torch.manual_seed(0)
    make, proxies = LOSSES[kind]
    x = torch.randn(BATCH, dim, device=device, requires_grad=True)
    y = torch.randint(classes, (BATCH,), device=device)

    def step(rate: float) -> Callable[[], None]:
        loss = make(classes, dim, proxies_per_class=proxies, sample_rate=rate).to(device)  # type: ignore[call-arg]
        steps = step_rows(OPTIMIZERS[optimizer](loss.parameters()))

        def call() -> None:
            steps.zero_grad()
            x.grad = None
            loss(x, y).backward()
            steps.step()

        return call

    seconds = medians({"full": step(1.0), "sampled": step(RATE)}, rounds, cuda=device == "cuda")
    return 1e3 * seconds["full"], 1e3 * seconds["sampled"]


def main(*, more: bool = False, rounds: int = 7, device: Literal["cpu", "cuda"] = "cpu", smoke: bool = False) -> None:
    """Print a row for each size, loss and optimiser."""
    classes, dims, rounds = (2_000, (16,), 2) if smoke else (200_000, (128, 512), rounds)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {device}; B={BATCH}, C={classes}, r={RATE}")
    print_header("loss", "optimiser", "D", "full ms", "r ms", "r/full")
    for dim in dims:
        for kind in [*LOSSES][: 4 if more else 2]:
            for optimizer in OPTIMIZERS:
                full, sampled = compare(kind, optimizer, classes, dim, rounds, device)
                print_row(kind, optimizer, dim, f"{full:.1f}", f"{sampled:.1f}", f"{sampled / full:.3f}")


if __name__ == "__main__":
    command(main)
