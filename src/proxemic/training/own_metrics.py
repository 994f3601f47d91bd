"""Metrics that the user defines, beside those of retrieval."""

from collections.abc import Mapping
from numbers import Real

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from proxemic.errors import UserError
from proxemic.training.recipe import EvaluationConfig

_TAKEN = ("nmi", "nmi_geometric", "ami", "epoch", "step", "loss", "seconds", "phase")


@torch.no_grad()
def compute_own_metrics(
    config: EvaluationConfig, embeddings: Float[Tensor, "rows dim"], labels: Int64[Tensor, " rows"]
) -> dict[str, float]:
    """Compute all ``own_metrics``; random draws in them are always the same, and change no others."""
    computed: dict[str, float] = {}
    for metric in config.own_metrics or []:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            values = metric(embeddings, labels)
        name = getattr(metric, "__name__", type(metric).__name__)
        if not isinstance(values, Mapping):
            raise UserError(
                f"evaluation.own_metrics has {name}, which gives {type(values).__name__}, but must give a mapping of "
                "names to numbers."
            )
        for key, value in values.items():
            if not isinstance(key, str) or key in {*computed, *config.names, *_TAKEN}:
                raise UserError(
                    f"evaluation.own_metrics has {name}, which names a value {key!r}, but must give each a name that "
                    "no other metric has."
                )
            if not isinstance(value, Real) and not (isinstance(value, Tensor) and value.numel() == 1):
                raise UserError(f"evaluation.own_metrics has {name}, whose {key} is {value!r}, but must be a number.")
            computed[key] = float(value)
    return computed


def check_own_metrics(config: EvaluationConfig) -> None:
    """Compute all ``own_metrics`` of a few random embeddings, to refuse them now rather than after an epoch."""
    generator = torch.Generator().manual_seed(0)
    embeddings = torch.nn.functional.normalize(torch.randn(64, 16, generator=generator))
    names = [*config.names, *compute_own_metrics(config, embeddings, torch.arange(64) // 8)]
    if config.metric not in names:
        raise UserError(f"evaluation.metric is {config.metric!r}, but these are computed: {', '.join(names)}.")
