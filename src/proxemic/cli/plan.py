"""``proxemic plan``."""

import argparse
import re
from collections.abc import Mapping

from proxemic.errors import UserError

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_GPU = 80 * 10**9  # bytes, where --memory says nothing
_OF_A_LOSS = {
    "batch": None,
    "proxies": 1,
    "processes": 1,
    "sample_rate": 1.0,
    "optimizer": "adamw",
    "layout": "both",
    "class_wise": False,
    "gpu": False,
}
UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "plan",
        help="what a loss with many classes, or a gallery of many pictures, will take",
        description="With --classes, what each process will hold at most and receive in a step for a loss with "
        "proxies; the network and its activations come on top (docs/distributed.md). With --gallery, the memory, disk, "
        "machines, time to build and queries a second of a gallery in each store (docs/retrieval.md).",
        allow_abbrev=False,
    )
    planned = parser.add_mutually_exclusive_group(required=True)
    planned.add_argument("--classes", type=int, metavar="C", help="of a loss")
    planned.add_argument(
        "--gallery", type=int, metavar="N", help="rows of a gallery; --dim and --memory alone go with it"
    )
    parser.add_argument("--dim", type=int, required=True, metavar="D", help="size of the embeddings")
    parser.add_argument("--proxies", type=int, default=1, metavar="K", help="a class; 1 if left out")
    parser.add_argument(
        "--batch", type=int, metavar="B", help="samples of all processes together; needed with --classes"
    )
    parser.add_argument("--processes", type=int, default=1, metavar="W", help="1 if left out")
    parser.add_argument("--sample-rate", type=float, default=1.0, metavar="R", help="1 if left out")
    parser.add_argument(
        "--optimizer", default="adamw", help="sgd, sgd-momentum, adagrad, rmsprop, adam or adamw (adamw)"
    )
    parser.add_argument("--layout", choices=["replicated", "sharded", "both"], default="both", help="of the proxies")
    parser.add_argument("--class-wise", action="store_true", help="a loss as Proxy-Anchor or MPA, not a softmax")
    parser.add_argument("--gpu", action="store_true", help="on GPUs: larger chunks, and the optimiser's fused step")
    parser.add_argument(
        "--memory",
        metavar="SIZE",
        help="say which settings fit into it on each process, as 80GB; of a gallery, of each machine (64GB)",
    )
    parser.set_defaults(run=run, takes_flags=False)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Print what the setting needs, and which fit."""
    memory = None if arguments.memory is None else _bytes(arguments.memory)
    if arguments.gallery is not None:
        given = next((name for name, unset in _OF_A_LOSS.items() if getattr(arguments, name) != unset), None)
        if given is not None:
            raise UserError(f"--{given.replace('_', '-')} is of a loss, but --gallery plans a gallery: leave it out.")
        _plan_gallery(arguments.gallery, arguments.dim, memory or 64 * 10**9)
        return
    if arguments.batch is None:
        raise UserError("--classes needs --batch, the samples of all processes together: give it, as --batch 128.")
    from proxemic.tables import Table
    from proxemic.training.memory import plan

    planned = plan(
        arguments.classes,
        arguments.dim,
        batch=arguments.batch,
        proxies=arguments.proxies,
        processes=arguments.processes,
        sample_rate=arguments.sample_rate,
        optimizer=arguments.optimizer,
        class_wise=arguments.class_wise,
        layouts=None if arguments.layout == "both" else [arguments.layout],
        memory=memory,
        gpu=(memory or _GPU) if arguments.gpu else None,
    )
    setting, kind = planned.setting, "class-wise" if arguments.class_wise else "data-wise"
    processes = "1 process" if setting.processes == 1 else f"{setting.processes} processes"
    proxies = "1 proxy" if setting.proxies == 1 else f"{setting.proxies} proxies"
    print(
        f"{setting.classes:,} classes with {proxies} of {setting.dim}, {kind}, "
        f"a batch of {setting.batch:,} on {processes}, sample_rate {setting.sample_rate:g}, {setting.optimizer}"
    )
    held = {name: {**needs.held, "at most at once": needs.peak} for name, needs in planned.needs.items()}
    print(_table("held by each process", held))
    if arguments.processes > 1:
        moved = {name: {**needs.moved, "in all": sum(needs.moved.values())} for name, needs in planned.needs.items()}
        print(_table("received by each process in a step", moved))
    print("The network, its activations and its own gradients come on top.")
    if memory is None:
        return
    rows = []
    for setting, peak, fits in planned.fitting:
        layout, answer = "sharded" if setting.sharded else "replicated", "yes" if fits else "no"
        rate = f"{setting.sample_rate:g}"
        rows.append([layout, rate, setting.optimizer, setting.processes, _size(peak), answer])
    print(Table(["proxies", "sample_rate", "optimizer", "processes", "at most at once", "fits"], rows).text())
    if not any(fits for *_, fits in planned.fitting):
        print(f"None of these fits into {_size(memory)}: take more processes, fewer proxies a class or a smaller dim.")


def _plan_gallery(rows: int, dim: int, memory: int) -> None:
    from proxemic.retrieval.planning import QUANTITIES, plan_gallery
    from proxemic.tables import MISSING, Table

    planned = plan_gallery(rows, dim, machine_memory=memory)
    print(f"{rows:,} rows of {dim} numbers; machines of {_size(memory)}, of which four fifths are used")
    columns = ["store", "index", "memory", "machines", "disk", "build", "queries/s", "recall"]
    table = [
        [
            needs.store,
            needs.index,
            _size(round(needs.memory)),
            f"{needs.machines:,}",
            _size(round(needs.disk)),
            duration(needs.build),
            f"{1 / needs.query:,.0f}" if needs.query < 0.01 else f"{1 / needs.query:.2g}",
            f"{needs.recall:.2f}",
        ]
        for needs in planned
    ]
    print(Table(columns, table).text())
    print(
        "Queries a second are those of one core, for the ten nearest; the recall is that of the largest gallery that "
        "was measured. More machines than one need a store that divides the rows: Milvus does."
    )
    print("The laws were fitted to 100,000, 300,000 and 1,000,000 rows. What they say of more, over what it took:")
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
    """In the unit in which it has one to three digits before the point.

    >>> duration(0.00123), duration(90), duration(3e6)
    ('1.2 ms', '90 s', '35 days')
    """
    for size, unit in ((86_400, "days"), (3600, "h"), (1, "s")):
        if seconds >= 2 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds * 1000:.2g} ms"


def _table(title: str, columns: Mapping[str, Mapping[str, int]]) -> str:
    from proxemic.tables import Table

    names = dict.fromkeys(name for sizes in columns.values() for name, size in sizes.items() if size)
    total = [*next(iter(columns.values()))][-1]
    rows = [[name, *(_size(sizes.get(name, 0)) for sizes in columns.values())] for name in names if name != total]
    return Table([title, *columns], [*rows, [total, *(_size(sizes[total]) for sizes in columns.values())]]).text()


def _bytes(text: str) -> int:
    size = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]i?B|B)", text)
    if size is None or float(size[1]) == 0:
        raise UserError(f"--memory is {text}, but must be a number with a unit, as 80GB or 24GiB.")
    return int(float(size[1]) * UNITS[size[2]])


def _size(size: int) -> str:
    """In the unit in which it has one to three digits before the point; nothing is a dash."""
    if size == 0:
        return "–"
    unit = next(unit for unit in ("TB", "GB", "MB", "KB", "B") if size >= UNITS[unit])
    value = size / UNITS[unit]
    return f"{value:.3g} {unit}" if value < 999.5 else f"{value:.0f} {unit}"
