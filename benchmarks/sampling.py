"""A whole step, forward, backward and optimiser, that looks at a part of the classes beside one that looks at all.

    python benchmarks/sampling.py            # 200,000 classes, a few minutes on two cores
    python benchmarks/sampling.py --smoke    # small sizes, seconds

A ratio is of the median times of the same rounds.
"""

import argparse
from collections.abc import Callable, Sequence

import torch
from torch.optim import SGD, AdamW, Optimizer

from measure import medians
from proxemic.losses import MultiProxyAnchorLoss, NormalizedSoftmaxLoss, ProxyAnchorLoss, ProxyLoss, SoftTripleLoss
from proxemic.optim import step_rows

BATCH, RATE = 128, 0.1
LOSSES: dict[str, tuple[type[ProxyLoss], int]] = {
    "data-wise": (NormalizedSoftmaxLoss, 1),
    "class-wise": (ProxyAnchorLoss, 1),
}
MORE: dict[str, tuple[type[ProxyLoss], int]] = {
    "data-wise, K=2": (SoftTripleLoss, 2),
    "class-wise, K=2": (MultiProxyAnchorLoss, 2),
}
OPTIMIZERS: dict[str, Callable[[ProxyLoss], Optimizer]] = {
    "SGD": lambda loss: SGD(loss.parameters(), lr=0.1, momentum=0.9),
    "AdamW": lambda loss: AdamW(loss.parameters(), lr=0.01),
}


def step(loss: ProxyLoss, optimizer: Optimizer, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """One step."""

    def call() -> None:
        optimizer.zero_grad()
        x.grad = None
        loss(x, y).backward()
        optimizer.step()

    return call


def compare(kind: str, optimizer: str, classes: int, dim: int, rounds: int, device: str) -> dict[str, float]:
    """Median seconds of a full and of a sampled step."""
    torch.manual_seed(0)
    make, proxies = (LOSSES | MORE)[kind]
    x = torch.randn(BATCH, dim, device=device, requires_grad=True)
    y = torch.randint(classes, (BATCH,), device=device)
    calls = {}
    for name, rate in (("full", 1.0), ("sampled", RATE)):
        loss = make(classes, dim, proxies_per_class=proxies, sample_rate=rate).to(device)  # type: ignore[call-arg]
        calls[name] = step(loss, step_rows(OPTIMIZERS[optimizer](loss)), x, y)
    return medians(calls, rounds, cuda=device == "cuda")


def main(argv: Sequence[str] | None = None) -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="small sizes and few rounds: does it run?")
    parser.add_argument("--more", action="store_true", help="also two proxies a class, with the regulariser")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    args = parser.parse_args(argv)
    classes, dims, rounds = (2_000, (16,), 2) if args.smoke else (200_000, (128, 512), args.rounds)
    print(
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {args.device}; B={BATCH}, C={classes}, r={RATE}"
    )
    print(f"{'loss':18} {'optimiser':10} {'D':>4} {'full ms':>9} {'r ms':>9} {'r/full':>7}")
    for dim in dims:
        for kind in LOSSES | MORE if args.more else LOSSES:
            for optimizer in OPTIMIZERS:
                seconds = compare(kind, optimizer, classes, dim, rounds, args.device)
                full, sampled = 1e3 * seconds["full"], 1e3 * seconds["sampled"]
                print(f"{kind:18} {optimizer:10} {dim:4} {full:9.1f} {sampled:9.1f} {sampled / full:7.3f}", flush=True)


if __name__ == "__main__":
    main()
