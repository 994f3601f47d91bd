"""Predicts the memory and traffic that a loss needs on each process of a training run.

It covers a step of `proxemic.losses.ProxyLoss` with float32 cosines, without the network, its activations, and the own
parameters of regularisers and HIST.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from proxemic.losses.scores.plan import Plan
from proxemic.losses.scores.sampling import num_sampled
from proxemic.losses.scores.scoring import Scoring
from proxemic.ranges import check_fields
from proxemic.training.config import require

FLOAT, LABEL = 4, 8

# Tensors of a parameter's size that an optimiser keeps, and those that a step on a CPU makes, with weight decay.
OPTIMIZERS = {
    "sgd": (0, 1),
    "sgd-momentum": (1, 1),
    "adagrad": (1, 2),
    "rmsprop": (1, 2),
    "adam": (2, 2),
    "adamw": (2, 2),
}
FUSED = ("sgd", "sgd-momentum", "adam", "adamw")
"""Those that runs on a GPU step in one kernel, see `proxemic.training.parameter_groups.fuse`."""


@dataclass(frozen=True)
class Setting:
    """A loss in a training run, with the arguments of `plan`; if ``sharded``, each process holds some classes."""

    classes: int
    dim: int
    proxies: int = 1
    batch: int = 128
    processes: int = 1
    sharded: bool = False
    sample_rate: float = 1.0
    optimizer: str = "adamw"
    class_wise: bool = False
    gpu: int | None = None

    def __post_init__(self) -> None:
        counts = dict.fromkeys(("dim", "proxies", "batch", "processes"), "[1, inf)")
        check_fields(self, classes="[2, inf)", sample_rate="(0, 1]", **counts)
        allowed = ", ".join(OPTIMIZERS)
        require(self.optimizer in OPTIMIZERS, f"optimizer is {self.optimizer}, but is planned for {allowed}.")

    @property
    def held(self) -> int:
        """The largest number of classes whose proxies one process holds."""
        return -(-self.classes // self.processes) if self.sharded else self.classes

    @property
    def sampled(self) -> int:
        """The number of held classes that have gradients in a step."""
        return num_sampled(self.held, self.batch, self.sample_rate)

    @property
    def local(self) -> int:
        """The number of sampled classes for which one process computes scores."""
        return self.sampled if self.sharded else -(-self.sampled // self.processes)


@dataclass(frozen=True)
class Needs:
    """Bytes on the process that has most: held, received in a step, and the peak within a step.

    In a ring, a process sends as much as it receives. The peak is less than all of ``held``, which is not held at once.
    """

    held: dict[str, int]
    moved: dict[str, int]
    peak: int

    @classmethod
    def of(cls, setting: Setting) -> "Needs":
        """Compute the needs of a setting."""
        held = _held(setting)
        gradient, local = held["gradient of the proxies"], held["gradient of its own classes"]
        around = held["embeddings"] + held["sampled proxies"]
        walk, gathering = around + held["scores"] + (local or gradient), around + local + gradient
        most = max(walk, gathering, gradient + held["optimiser's step"])
        return cls(held, _moved(setting), held["proxies"] + held["optimiser state"] + most)

    @classmethod
    def of_dense(cls, setting: Setting) -> "Needs":
        """Compute the needs of replicated proxies if each process holds all scores of its samples and their gradients.

        For a class-wise loss, each process holds the scores of all samples.
        """
        state, made = OPTIMIZERS[setting.optimizer]
        proxies = FLOAT * setting.classes * setting.proxies * setting.dim
        samples = setting.batch if setting.class_wise else -(-setting.batch // setting.processes)
        scores = 2 * FLOAT * samples * setting.classes * setting.proxies
        embeddings = 2 * FLOAT * samples * setting.dim
        held = {
            "proxies": proxies,
            "optimiser state": state * proxies,
            "gradient of the proxies": proxies,
            "embeddings": embeddings,
            "scores": scores,
            "optimiser's step": made * proxies,
        }
        moved = {"gradient of the proxies": 2 * proxies * (setting.processes - 1) // setting.processes}
        if setting.class_wise:
            moved |= {name: size for name, size in _moved(setting).items() if "embeddings" in name}
        peak = (2 + state) * proxies + max(scores + embeddings, made * proxies)
        return cls(held, moved, peak)


def alternatives(setting: Setting) -> list[Setting]:
    """Return settings that need less: sharded, sampled, with less optimiser state, or on more processes."""
    optimizer, rate, sharded = setting.optimizer, setting.sample_rate, setting.sharded
    optimizers = (optimizer, "sgd-momentum" if OPTIMIZERS[optimizer][0] > 1 else optimizer)
    changes = product(optimizers, (rate, min(rate, 0.1)), (sharded, sharded or setting.processes > 1))
    settings = [replace(setting, optimizer=o, sample_rate=r, sharded=s) for o, r, s in changes]
    settings += [replace(setting, sharded=True, processes=times * setting.processes) for times in (2, 4, 8)]
    return list(dict.fromkeys(settings))


@dataclass(frozen=True)
class MemoryPlan:
    """What each layout of the proxies needs, and which settings fit into the memory.

    ``setting`` is that of the first layout. ``needs`` also has an implementation that holds ``all scores at once``.
    ``fitting`` has the peak of each setting in bytes, and whether it fits.
    """

    setting: Setting
    needs: dict[str, Needs]
    fitting: list[tuple[Setting, int, bool]]


def plan(
    classes: int,
    dim: int,
    *,
    batch: int,
    proxies: int = 1,
    processes: int = 1,
    sample_rate: float = 1.0,
    optimizer: str = "adamw",
    class_wise: bool = False,
    layouts: Sequence[Literal["replicated", "sharded"]] | None = None,
    memory: int | None = None,
    gpu: int | None = None,
) -> MemoryPlan:
    """Predict the memory that each process needs for the loss of a training run.

    Args:
        classes: C ≥ 2.
        dim: D ≥ 1.
        batch: B ≥ 1, the samples of all processes together.
        proxies: K ≥ 1 per class.
        processes: W ≥ 1.
        sample_rate: r in (0, 1], of `proxemic.losses.ProxyLoss`.
        optimizer: sgd, sgd-momentum, adagrad, rmsprop, adam or adamw.
        class_wise: Whether the loss sums negatives over the samples for each class, as Proxy-Anchor does.
        layouts: Layouts of the proxies to compare; None takes both, or ``replicated`` for one process.
        memory: Memory of each process in bytes, to look for settings that fit; None does not look for any.
        gpu: Free bytes on the GPU of each process; None for a CPU.

    Raises:
        ValueError: If an argument is not allowed.

    >>> plan(1_000_000, 512, batch=1024, processes=8).needs["sharded"].held["proxies"]
    256000000
    """
    if layouts is None:
        layouts = ("replicated", "sharded") if processes > 1 else ("replicated",)
    sharded = layouts[0] == "sharded"
    first = Setting(classes, dim, proxies, batch, processes, sharded, sample_rate, optimizer, class_wise, gpu)
    needs = {layout: Needs.of(replace(first, sharded=layout == "sharded")) for layout in layouts}
    peaks = [] if memory is None else [(other, Needs.of(other).peak, memory) for other in alternatives(first)]
    fitting = [(other, peak, peak <= most) for other, peak, most in peaks]
    return MemoryPlan(first, needs | {"all scores at once": Needs.of_dense(first)}, fitting)


def _held(setting: Setting) -> dict[str, int]:
    row = FLOAT * setting.proxies * setting.dim
    is_sampled = setting.sampled < setting.held
    state, made = OPTIMIZERS[setting.optimizer]
    if setting.gpu is not None and setting.optimizer in FUSED and not is_sampled:
        made = 0  # the step is one kernel
    alone = setting.processes == 1
    # Unit vectors, their gradient and the embeddings' own; of several processes also what is gathered and scattered.
    copies = 3 * setting.batch if alone else 4 * setting.batch + 2 * -(-setting.batch // setting.processes)
    return {
        "proxies": setting.held * row,
        "optimiser state": state * setting.held * row,
        "gradient of the proxies": setting.sampled * row,
        "gradient of its own classes": 0 if setting.sharded or alone else setting.local * row,
        "sampled proxies": setting.sampled * row if is_sampled else 0,
        "embeddings": FLOAT * setting.dim * copies + LABEL * setting.batch,
        "scores": _scores(setting),
        "optimiser's step": (made + (1 + state) * is_sampled) * setting.sampled * row,
    }


def _scores(setting: Setting) -> int:
    """Return the bytes of the similarities of a chunk of classes, of values derived from them, and of all if kept."""
    scoring = Scoring(scale=1.0, class_reduction=abs if setting.class_wise else None)
    plan = Plan.of(scoring, setting.batch, setting.local, setting.proxies, setting.dim, setting.gpu)
    chunk = min(plan.chunk, setting.local) * setting.proxies * setting.batch
    if plan.dense:  # with a normalised copy of the proxies; benchmarks/plan.py counts the scores kept by autograd
        return round(FLOAT * (5.4 * chunk + setting.local * setting.proxies * setting.dim))
    # Similarities and the scaled scores, and of several proxies their gradient.
    buffers = 2 + (setting.proxies > 1)
    return FLOAT * (buffers * chunk + (setting.local * setting.proxies * setting.batch if plan.keep else 0))


def _moved(setting: Setting) -> dict[str, int]:
    world, row = setting.processes, FLOAT * setting.proxies * setting.dim
    samples = -(-setting.batch // world)
    embeddings = FLOAT * samples * setting.dim * (world - 1)
    # Per sample a maximum and two sums, and one float of regularisers; of class-wise losses one per sample, and two.
    floats = setting.batch + 2 if setting.class_wise else 3 * setting.batch + 1
    chosen = setting.sampled if setting.sampled < setting.held and not setting.sharded and world > 1 else 0
    return {
        "sizes and labels": LABEL * (1 + samples) * (world - 1),
        "embeddings": embeddings,
        "gradient of the embeddings": embeddings,
        "scores": 2 * FLOAT * floats * (world - 1) // world,
        "gradient of the proxies": 0 if setting.sharded else setting.local * row * (world - 1),
        "choice of classes": LABEL * chosen,
    }
