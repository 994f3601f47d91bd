"""Sections about a run: its training, data, recipe and environment."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from proxemic.data import ImageSet
from proxemic.errors import UserError
from proxemic.pages import Section, chart, table
from proxemic.runs.directory import RunDirectory
from proxemic.studies.finished import FinishedRun
from proxemic.tables import Table

_NO_METRIC = {"epoch", "step", "loss", "seconds", "phase"}


def curves(run: FinishedRun) -> Section | None:
    """Plot the loss and the validation metrics by epoch, and mark the selected epoch."""
    history = run.history
    if not history:
        return None
    chosen = (run.metrics or {}).get("epoch", 0)
    measured = [name for name in (run.metrics or {}).get("measured", {}) if name in history[0]]  # by callbacks
    names = [name for name in history[0] if name not in {*_NO_METRIC, *measured}]
    history = [{**row, **{name: 100 * row[name] for name in names}} for row in history]
    shown = _lines(history, ["loss"], "loss", chosen, "The mean loss of each epoch.")
    best = f"epoch {chosen} was selected" if chosen else "the network before training was kept"
    if names:
        shown += _lines(history, names, "percent", chosen, f"Validation metrics by epoch; {best}.")
    if measured:
        shown += _lines(history, measured, "measured", chosen, "What callbacks measured.")
    rows = [
        [
            int(row["epoch"]),
            *(f"{row[name]:.4f}" for name in ("loss", *measured)),
            *(f"{row[name]:.2f}" for name in names),
        ]
        for row in history
    ]
    title = "Every epoch; validation metrics in percent"
    numbers = table(Table(["epoch", "loss", *measured, *names], rows, title))
    return Section("Training", shown + _folded("Every epoch", numbers))


def data(run: FinishedRun) -> Section | None:
    """Describe the data that the run was trained, validated and tested on."""
    directory = RunDirectory(run.path)
    classes, recorded = directory.read_classes(), run.metrics or {}
    try:
        parts = {name: getattr(run.splits, name) for name in ("train", "validation", "test")}
    except (UserError, ValueError):  # the images may have moved since
        parts = {}
    if parts:
        columns = ["split", "classes", parts["train"].kind, "fewest of a class", "median", "most"]
        rows = [[name, *_sizes(images)] for name, images in parts.items() if images is not None]
    elif classes is not None:
        columns = ["split", "classes"]
        named = {"train": classes.train, "validation": classes.validation, "test": classes.test}
        rows = [[name, f"{len(item):,}"] for name, item in named.items() if item]
    else:
        return None
    facts = {"from": classes.root if classes else None, "split": recorded.get("split")}
    shown = table(Table(columns, rows), description="Splits")
    return Section("Data", shown + _facts({name: str(value) for name, value in facts.items() if value}, "Data"))


def recipe(run: FinishedRun) -> Section:
    """List every value of the recipe."""
    content, text = run.content, RunDirectory(run.path).recipe.read_text(encoding="utf-8")
    model, training = content["model"], content["training"]
    facts = {
        "loss": content["loss"]["class_path"].rpartition(".")[2],
        "backbone": f"{model['backbone']}, {model['embedding_size']} dimensions",
        "epochs": str(training["epochs"]),
        "seed": str(run.seed),
    }
    listing = Markup('<div class="scroll" tabindex="0" role="group" aria-label="recipe.yaml"><pre>{}</pre></div>')
    return Section("Recipe", _facts(facts, "Recipe") + _folded("Every value (recipe.yaml)", listing.format(text)))


def environment(run: FinishedRun) -> Section:
    """List the machine, the libraries and the command."""
    found = RunDirectory(run.path).read_environment()
    facts = {name: found.get(name) for name in ("command", "python", "platform", "processors", "threads")}
    facts |= {"accelerator": found.get("accelerator") or "none", "processes": found.get("processes")}
    facts |= {f"package {name}": version for name, version in dict(found.get("packages") or {}).items()}
    if history := run.history:
        facts["seconds per epoch"] = f"{sum(row['seconds'] for row in history) / len(history):.1f}"
    texts = {
        name: " ".join(map(str, value)) if isinstance(value, list) else str(value)
        for name, value in facts.items()
        if value
    }
    return Section("Environment", _facts(texts, "Environment"))


def _lines(history: Sequence[Mapping[str, float]], names: Sequence[str], title: str, chosen: int, said: str) -> Markup:
    values = [
        {"epoch": int(row["epoch"]), "name": name, "value": row[name]}
        for row in history
        for name in names
        if row[name] == row[name]  # not NaN
    ]
    x = {"field": "epoch", "type": "quantitative", "axis": {"tickMinStep": 1, "format": "d"}}
    # There may be more metrics than colours, so that lines differ in dashes, too. One legend shows both if both name
    # their domain.
    legend = {"symbolType": "stroke", "symbolSize": 600, "symbolStrokeWidth": 2}
    colour = {"field": "name", "type": "nominal", "title": None, "scale": {"domain": [*names]}, "legend": legend}
    line: dict[str, Any] = {
        "data": {"values": values},
        "mark": {"type": "line", "point": len(history) < 50, "tooltip": True},
        "encoding": {
            "x": x,
            "y": {"field": "value", "type": "quantitative", "title": title, "scale": {"zero": False}},
            **({"color": colour, "strokeDash": colour} if len(names) > 1 else {}),
        },
    }
    rule = {
        "data": {"values": [{"epoch": chosen}]},
        "mark": {"type": "rule", "strokeDash": [4, 3], "opacity": 0.6},
        "encoding": {"x": x},
    }
    return chart({"height": 220, "layer": [rule, line] if chosen else [line]}, said)


def _sizes(images: ImageSet) -> list[str]:
    sizes = images.labels.bincount().sort().values
    numbers = (len(sizes), len(images), *(int(sizes[place]) for place in (0, len(sizes) // 2, -1)))
    return [f"{number:,}" for number in numbers]


def _facts(facts: Mapping[str, str], description: str) -> Markup:
    return table(Table(["fact", "value"], [*map(list, facts.items())], align="ll"), description=description)


def _folded(title: str, content: Markup) -> Markup:
    return Markup("<details><summary>{}</summary>{}</details>").format(title, content)
