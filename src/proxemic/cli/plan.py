"""``proxemic plan``."""

import re
from collections.abc import Mapping
from typing import Any, Literal

from proxemic.cli.derive import options_of
from proxemic.errors import UserError
from proxemic.tables import MISSING, UNITS, Table, size_text

_GPU = 80 * 10**9  # bytes, without --memory
_UNITS = UNITS | {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


@options_of("proxemic:plan", but=["batch", "layouts", "gpu"])
def plan(
    *,
    classes: int | None = None,
    gallery: int | None = None,
    dim: int,
    batch: int | None = None,
    layout: Literal["replicated", "sharded", "both"] = "both",
    gpu: bool = False,
    memory: str | None = None,
    **options: Any,
) -> None:
    """Predict the needs of a loss with many classes, or of a gallery of many pictures.

    With --classes, print the memory that each process needs at most for a loss with proxies, and the bytes that it
    receives in a step; the network and its activations come on top (docs/distributed.md). With --gallery, print the
    memory, disk, machines, time to build and queries per second of a gallery in each store (docs/retrieval.md).

    Args:
        classes (C): Classes of a loss.
        gallery (N): Rows of a gallery; only --dim and --memory go with it.
        dim (D): Size of the embeddings.
        proxies (K): Proxies of a class.
        batch (B): Samples of all processes together; needed with --classes.
        processes (W): Processes of the training.
        sample_rate (R): Share of the classes in each step.
        optimizer (NAME): sgd, sgd-momentum, adagrad, rmsprop, adam or adamw.
        layout: Layout of the proxies.
        class_wise: A loss such as Proxy-Anchor or MPA, not a softmax.
        gpu: Plan for GPUs: larger chunks, and the optimiser's fused step.
        memory (SIZE): Show which settings fit into this memory of each process, such as 80GB; for a gallery, of each
            machine (default: 64GB).
    """
    size = None if memory is None else _bytes(memory)
    if (classes is None) == (gallery is None):
        raise UserError("plan needs --classes, for a loss, or --gallery, for a gallery: give one of them.")
    if gallery is not None:
        given = {"batch": batch, "layout": layout != "both", "gpu": gpu, **options}
        if name := next((name for name, value in given.items() if value), None):
            raise UserError(
                f"--{name.replace('_', '-')} belongs to a loss, but --gallery plans a gallery: leave it out."
            )
        _plan_gallery(gallery, dim, size or 64 * 10**9)
    else:
        assert classes is not None
        if batch is None:
            raise UserError("--classes needs --batch, the samples of all processes together: give it, as --batch 128.")
        options |= {"layouts": None if layout == "both" else [layout], "gpu": (size or _GPU) if gpu else None}
        _plan_loss(classes, dim, memory=size, batch=batch, **options)


def _plan_loss(classes: int, dim: int, *, memory: int | None, **options: Any) -> None:
    from proxemic import plan

    planned = plan(classes, dim, memory=memory, **options)
    setting, kind = planned.setting, "class-wise" if options.get("class_wise") else "data-wise"
    processes = "1 process" if setting.processes == 1 else f"{setting.processes} processes"
    proxies = "1 proxy" if setting.proxies == 1 else f"{setting.proxies} proxies"
    print(
        f"{setting.classes:,} classes with {proxies} of {setting.dim}, {kind}, "
        f"a batch of {setting.batch:,} on {processes}, sample_rate {setting.sample_rate:g}, {setting.optimizer}"
    )
    held = {name: {**needs.held, "at most at once": needs.peak} for name, needs in planned.needs.items()}
    print(_table("held by each process", held))
    if setting.processes > 1:
        moved = {name: {**needs.moved, "in all": sum(needs.moved.values())} for name, needs in planned.needs.items()}
        print(_table("received by each process in a step", moved))
    print("The network, its activations and its own gradients come on top.")
    if memory is None:
        return
    rows = []
    for setting, peak, fits in planned.fitting:
        layout, answer = "sharded" if setting.sharded else "replicated", "yes" if fits else "no"
        rate = f"{setting.sample_rate:g}"
        rows.append([layout, rate, setting.optimizer, setting.processes, size_text(peak), answer])
    print(Table(["proxies", "sample_rate", "optimizer", "processes", "at most at once", "fits"], rows).text())
    if not any(fits for *_, fits in planned.fitting):
        print(
            f"None of these fits into {size_text(memory)}: take more processes, fewer proxies a class or a smaller dim."
        )


def _plan_gallery(rows: int, dim: int, memory: int) -> None:
    from proxemic.retrieval.planning import QUANTITIES, plan_gallery

    planned = plan_gallery(rows, dim, machine_memory=memory)
    print(f"{rows:,} rows of {dim} numbers; machines of {size_text(memory)}; four fifths of it are used")
    columns = ["store", "index", "memory", "machines", "disk", "build", "queries/s", "recall"]
    table = [
        [
            needs.store,
            needs.index,
            size_text(round(needs.memory)),
            f"{needs.machines:,}",
            size_text(round(needs.disk)),
            duration(needs.build),
            _two_digits(1 / needs.query),
            f"{needs.recall:.2f}",
        ]
        for needs in planned
    ]
    print(Table(columns, table).text())
    print(
        "Queries per second are for one core and the ten nearest rows; the recall is that of the largest measured "
        "gallery. More than one machine needs a store that divides the rows, such as Milvus."
    )
    print("The laws were fitted to 100,000, 300,000 and 1,000,000 rows. Predicted over measured values of more rows:")
    checks = [
        [
            needs.store,
            needs.index,
            f"{needs.checked_at:,}" if needs.checked_at else MISSING,
            *(f"{needs.errors[name]:.2f}" if needs.errors else MISSING for name in QUANTITIES),
        ]
        for needs in planned
    ]
    print(Table(["store", "index", "rows", "memory", "disk", "build", "query"], checks).text())


def duration(seconds: float) -> str:
    """Format a time in a unit that leaves at most three digits before the point.

    >>> duration(0.00123), duration(90), duration(1500), duration(3e6)
    ('1.2 ms', '90 s', '25 min', '35 days')
    """
    units = ((86_400, "days"), (3600, "h"), (60, "min"), (1, "s"), (0.001, "ms"))
    size, unit = next((size, unit) for size, unit in units if seconds >= 2 * size or unit == "ms")
    return f"{_two_digits(seconds / size)} {unit}"


def _two_digits(value: float) -> str:
    """Format a number with at least two significant digits, and all digits before the point."""
    return f"{value:,.0f}" if value >= 9.95 else f"{value:.2g}"


def _table(title: str, columns: Mapping[str, Mapping[str, int]]) -> str:
    names = dict.fromkeys(name for sizes in columns.values() for name, size in sizes.items() if size)
    total = [*next(iter(columns.values()))][-1]
    rows = [[name, *(size_text(sizes.get(name, 0)) for sizes in columns.values())] for name in names if name != total]
    return Table([title, *columns], [*rows, [total, *(size_text(sizes[total]) for sizes in columns.values())]]).text()


def _bytes(text: str) -> int:
    size = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]i?B|B)", text)
    if size is None or float(size[1]) == 0:
        raise UserError(f"--memory is {text}, but must be a number with a unit, as 80GB or 24GiB.")
    return int(float(size[1]) * _UNITS[size[2]])
