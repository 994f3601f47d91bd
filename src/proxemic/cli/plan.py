"""``proxemic plan``."""

import argparse
import re
from collections.abc import Mapping

from proxemic.errors import UserError

UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "plan",
        help="what each process will hold and send for the loss, before a run of many classes starts",
        description="What each process will hold at most and receive in a step for a loss with proxies; the network "
        "and its activations come on top. See docs/distributed.md.",
        allow_abbrev=False,
    )
    parser.add_argument("--classes", type=int, required=True, metavar="C")
    parser.add_argument("--dim", type=int, required=True, metavar="D", help="size of the embeddings")
    parser.add_argument("--proxies", type=int, default=1, metavar="K", help="a class; 1 if left out")
    parser.add_argument("--batch", type=int, required=True, metavar="B", help="samples of all processes together")
    parser.add_argument("--processes", type=int, default=1, metavar="W", help="1 if left out")
    parser.add_argument("--sample-rate", type=float, default=1.0, metavar="R", help="1 if left out")
    parser.add_argument(
        "--optimizer", default="adamw", help="sgd, sgd-momentum, adagrad, rmsprop, adam or adamw (adamw)"
    )
    parser.add_argument("--layout", choices=["replicated", "sharded", "both"], default="both", help="of the proxies")
    parser.add_argument("--class-wise", action="store_true", help="a loss as Proxy-Anchor or MPA, not a softmax")
    parser.add_argument("--memory", metavar="SIZE", help="say which settings fit into it on each process, as 80GB")
    parser.set_defaults(run=run, takes_flags=False)


def run(arguments: argparse.Namespace, flags: list[str]) -> None:
    """Print what the setting needs, and which fit."""
    from proxemic.tables import Table
    from proxemic.training.memory import plan

    memory = None if arguments.memory is None else _bytes(arguments.memory)
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
