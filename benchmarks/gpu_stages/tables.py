"""The rows of all stages as the tables of the documentation."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Found = dict[str, dict[str, Any]]


def tables(folder: Path) -> str:
    """All tables of which there are rows, in Markdown."""
    found: dict[str, Found] = {}
    lines: list[str] = []
    for path in sorted(folder.glob("*.json")):
        content = json.loads(path.read_text())
        found[path.stem] = content["rows"]
        said = ", ".join(f"{name} {value}" for name, value in content["machine"].items())
        failed = [name for name, row in content["rows"].items() if "failed" in row]
        lines.append(f"{path.stem}: {said}; {len(content['rows'])} rows, failed: {', '.join(failed) or 'none'}")
    parts = [
        _ceilings(found),
        _errors(found.get("correctness", {})),
        _steps(found.get("matrix", {})),
        _others(found.get("matrix", {})),
        _chunks(found.get("tuning", {})),
        _spread(found.get("tuning", {})),
        _training(found.get("training", {})),
    ]
    return "\n\n".join(["\n".join(lines), *filter(None, parts)])


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose first column is of names; nothing without rows."""
    rows = list(rows)
    if not rows:
        return ""
    divider = "|".join(["---", *["---:"] * (len(head) - 1)])
    return "\n".join([f"| {' | '.join(head)} |", f"|{divider}|", *(f"| {' | '.join(row)} |" for row in rows)])


def number(row: dict[str, Any], name: str) -> str:
    """One figure of a row, or why there is none."""
    if name in row:
        return f"{row[name]:,.0f}" if abs(row[name]) >= 100 else f"{row[name]:.3g}"
    return "does not fit" if "does not fit" in row else "failed" if "failed" in row else "–"


def _ceilings(found: dict[str, Found]) -> str:
    rows = {name: rows["ceilings"] for name, rows in found.items() if "ceilings" in rows}
    names = ["float32", "tf32", "half", "bfloat16", "copy GB/s"]
    return table(["TFLOP/s", *names], ([stage, *(number(row, name) for name in names)] for stage, row in rows.items()))


def _errors(rows: Found) -> str:
    precisions = ["float32", "split", "tf32", "half"]
    lines = []
    for name, row in rows.items():
        if name.startswith("errors"):
            errors = row.get("errors", {})
            missing = "–" if errors else "failed"
            cells = [f"{errors[each][0]:.1e}" if each in errors else missing for each in precisions]
            lines.append([name.removeprefix("errors: "), *cells, ", ".join(row.get("beyond the bounds", [])) or "–"])
    return table(["largest error", *precisions, "beyond the bound"], lines)


def _steps(rows: Found) -> str:
    names = ["ms", "over the roofline", "kernels", "peak MB"]
    steps = {name: row for name, row in rows.items() if ": " in name and ("ms" in row or "does not fit" in row)}
    lines = ([name, *(number(row, each) for each in names)] for name, row in steps.items() if _is_case(name))
    return table(["step", *names], lines)


def _is_case(name: str) -> bool:
    return not name.startswith(("optimiser", "sampling"))


def _others(rows: Found) -> str:
    lines = [[name, number(row, "ms"), "", ""] for name, row in rows.items() if name.startswith("optimiser")]
    lines += [
        [name, *(number(row, each) for each in ("full ms", "sampled ms", "ratio"))]
        for name, row in rows.items()
        if name.startswith("sampling")
    ]
    return table(["step", "ms", "sampled", "ratio"], lines)


def _chunks(rows: Found) -> str:
    return table(
        ["chunks", "ms", "over the roofline", "peak MB"],
        (
            [name, *(number(row, each) for each in ("ms", "over the roofline", "peak MB"))]
            for name, row in rows.items()
            if name.startswith(("share", "at least", "cache"))
        ),
    )


def _spread(rows: Found) -> str:
    lines = []
    for name, first in rows.items():
        second = rows.get(name.replace("run 1", "run 2"), {})
        if name.startswith("run 1") and "ms" in first and "ms" in second:
            ratio = second["ms"] / first["ms"]
            lines.append([name.removeprefix("run 1: "), number(first, "ms"), number(second, "ms"), f"{ratio:.2f}"])
    return table(["step", "first ms", "second ms", "ratio"], lines)


def _training(rows: Found) -> str:
    return table(
        ["training", "figure"],
        (
            [f"{name}: {what}", number(row, what)]
            for name, row in rows.items()
            if name != "state"
            for what, value in row.items()
            if isinstance(value, float | int) and what != "taken"
        ),
    )
