"""Measure losses, correctness, training and metrics on a GPU, row by row, in two starts of some minutes.

    python benchmarks/gpu.py --out gpu.json --part losses      # 400 s: a step of the losses in every way
    python benchmarks/gpu.py --out gpu.json --part rest        # 350 s: errors, tests, training, metrics
    python benchmarks/gpu.py --table docs/measured/*.json      # Markdown, as docs/benchmarks.md shows it
    python benchmarks/gpu.py --out rehearsed.json --device cpu --smoke

Every row has its own time limit and is written to the file as soon as it is measured. A second start measures missing
and failed rows. A machine without a network needs no environment: ``make gpu-packages`` on another machine puts the
missing packages into .cache/gpu, and then

    PYTHONPATH=src:.cache/gpu python3 benchmarks/gpu.py --out gpu.json --part losses
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from gpu_rows import correctness, steps, timing, training
from gpu_rows.rows import Rows, describe
from measure import command

PARTS: dict[str, tuple[float, Sequence[Callable[..., None]]]] = {
    "losses": (400, [steps.add]),
    "rest": (350, [training.add, correctness.add]),
}
"""Parts with their time limits in seconds, and the functions that add their rows, the most important first."""


def measure(path: Path, part: str, device: torch.device, seconds: float | None, *, smoke: bool) -> None:
    """Add the rows of a part to the file."""
    limit, adders = PARTS[part]
    rows = Rows(path, describe(device) | ({"smoke": True} if smoke else {}), limit if seconds is None else seconds)
    rows.add("ceilings", partial(timing.ceilings, device, 128 if smoke else timing.SIDE))
    for add in adders:
        add(rows, device, smoke=smoke)
    print(f"{part}: left out: {', '.join(rows.left_out)}" if rows.left_out else f"{part}: complete", flush=True)


def tables(paths: Iterable[Path]) -> str:
    """Return the tables of the files in Markdown."""
    return "\n\n".join(part for path in paths for part in _tables(json.loads(path.read_text())))


def _tables(content: dict[str, Any]) -> Iterator[str]:
    rows: dict[str, dict[str, Any]] = content["rows"]
    machine = ", ".join(f"{name} {value}" for name, value in content["machine"].items() if name != "device")
    failed = ", ".join(name for name, row in rows.items() if "failed" in row)
    yield f"### {content['machine']['device']}, {content['date']}"
    yield f"{machine}. {len(rows)} rows; failed: {failed or 'none'}."
    ceilings = rows.get("ceilings", {})
    yield _table(["TFLOP/s", *list(ceilings)[:4]], [["of products", *map(_cell, list(ceilings.values())[:4])]])
    cases = [name for name in steps.CASES | steps.SMOKE if f"{name}: ours" in rows]
    ways = dict.fromkeys(name.partition(": ")[2] for name in rows if name.partition(": ")[0] in cases)
    yield _table(
        ["ms (× roofline; kernels; MB)", *cases],
        ([way, *(_step(rows.get(f"{case}: {way}", {})) for case in cases)] for way in ways),
    )
    precisions = list(correctness.BOUNDS)
    errors = {name: row for name, row in rows.items() if name.startswith("errors")}
    yield _table(
        ["largest error", *precisions],
        (
            [
                name.removeprefix("errors: "),
                *(f"{found[precision][0]:.1e}" if precision in found else "–" for precision in precisions),
            ]
            for name, row in errors.items()
            if (found := row.get("errors"))
        ),
    )
    left = {name: row for name, row in rows.items() if name.partition(": ")[0] not in cases and name not in errors}
    del left["ceilings"]
    yield _table(["row", "figures"], ([name, _figures(row)] for name, row in left.items()))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|".join(["|---", *["---:"] * (len(head) - 1), ""])]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def _cell(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _step(row: dict[str, Any]) -> str:
    if "ms" not in row:
        return "fails" if "failed" in row else "does not fit" if "does not fit" in row else "–"
    more = (row["over the roofline"], row["kernels"], row["peak MB"])
    return f"{_cell(row['ms'])} ({'; '.join(map(_cell, more))})"


def _figures(row: dict[str, Any]) -> str:
    skipped = ("taken", "warnings")
    shown = {name: _cell(item) if isinstance(item, float) else item for name, item in row.items()}
    return ", ".join(f"{name} {value}" for name, value in shown.items() if name not in skipped)


def main(
    *,
    part: Sequence[str] = tuple(PARTS),
    out: Path = Path("gpu.json"),
    device: Literal["cuda", "cpu"] = "cuda",
    seconds: float | None = None,
    smoke: bool = False,
    table: Sequence[Path] = (),
) -> None:
    """Measure the parts, in which no row starts after ``seconds``, or print the tables of files."""
    if table:
        print(tables(table))
        return
    if smoke:
        torch.set_num_threads(1)
        torch.compile = lambda function, **_: function  # type: ignore[assignment]
    for name in part:
        measure(out, name, torch.device(device), seconds, smoke=smoke)


if __name__ == "__main__":
    command(main)
