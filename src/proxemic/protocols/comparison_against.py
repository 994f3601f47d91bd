"""Ours beside what the papers print, with what differs in protocol. Neither side fills the other's gaps."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from proxemic.protocols.comparison_directory import Comparison, Result, computed_metrics
from proxemic.protocols.comparison_entries import Entry, data_key
from proxemic.protocols.comparison_statistics import mean
from proxemic.protocols.comparison_tables import format_estimate, format_rows
from proxemic.protocols.published import PublishedFigure, PublishedProtocol, published_figures, published_protocol
from proxemic.recipes.second_phase import merge

__all__ = ["against_paper"]

MEAN_PROXY = "mean proxy regulariser"
FOUR_MODELS = ("separated", "concatenated")
MULTI_PROXY = (
    "SoftTripleLoss",
    "MultiProxyAnchorLoss",
    "DataWiseMultiProxyAnchorLoss",
    "AllPairMultiProxyAnchorLoss",
)
SAME = {"precision@1": "recall@1"}
"""Two names of one number: whether the nearest image is of the query's class."""


def against_paper(comparison: Comparison) -> str:
    """Markdown: for every recipe the figures that papers print of the same data set and loss, beside ours.

    A figure is shown where its own settings, such as the number of proxies a class, are the recipe's. What else
    differs is said below the table, and what the paper does not state.
    """
    results = comparison.results()
    parts = [
        "# Ours and the papers'",
        "On the test classes, in percent. Ours: mean ± 95% interval over seeds, – is not measured; theirs as printed. "
        "Figures of several models together (*separated*, *concatenated*) are left to proxemic reality-check.",
    ]
    without = []
    for entry in comparison.entries:
        rows = _rows(entry)
        if rows:
            parts += [f"## {entry.title}", *_tables(entry, results[entry], rows)]
        else:
            without.append(f"`{entry.title}` ({entry.loss} on {data_key(entry.recipe)})")
    if without:
        parts.append(f"The papers print no figures of: {'; '.join(without)}.")
    return "\n\n".join(parts) + "\n"


def _rows(entry: Entry) -> list[list[PublishedFigure]]:
    """The rows of the papers' tables that are of the recipe's data set and loss, as lists of their figures."""
    loss = _last_loss(entry.recipe)
    name = loss["class_path"].rpartition(".")[2]
    rows: dict[tuple[object, ...], list[PublishedFigure]] = {}
    for figure in published_figures(dataset=data_key(entry.recipe), loss=name):
        if figure.variant not in FOUR_MODELS and _agrees(figure, loss.get("init_args", {})):
            key = (figure.paper, figure.table, figure.method, figure.variant, figure.settings, figure.backbone)
            rows.setdefault((*key, figure.embedding_size, figure.quoted), []).append(figure)
    return list(rows.values())


def _last_loss(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    """The loss at the end of the training: of the second phase where there is one."""
    return merge(recipe["loss"], (recipe.get("second_phase") or {}).get("loss") or {})


def _agrees(figure: PublishedFigure, arguments: Mapping[str, Any]) -> bool:
    """Whether the loss has the row's own settings, and the regulariser just where the row has it."""
    regularizers = {_class(each): each.get("init_args", {}) for each in arguments.get("regularizers") or ()}
    if (figure.variant == MEAN_PROXY) != ("MeanProxyNorm" in regularizers):
        return False
    functions = {name: arguments.get(name) for name in ("f1", "f2")}
    if any(functions.values()) != ("f1=" in figure.settings):
        return False  # the other rows are of the warp itself
    inner = arguments.get("loss")
    ours = {**arguments, "loss": _class(inner) if isinstance(inner, Mapping) else ""}
    ours |= {name: _formula(given) for name, given in functions.items()}
    if figure.variant == MEAN_PROXY:
        ours |= regularizers["MeanProxyNorm"]
    return all(
        _same(ours.get(key), value) for key, _, value in (each.partition("=") for each in figure.settings.split())
    )


def _formula(given: Any) -> str | None:
    """A function of the distance t as the paper prints it; None for one that it does not have."""
    if given is None:
        return "t"
    if isinstance(given, str):
        return {"torch.square": "t^2", "torch.sqrt": "sqrt(t)", "torch.positive": "t"}.get(given)
    arguments = given.get("init_args", {})
    is_line = _class(given) == "AffineTransform" and arguments.get("loc") == 0
    return f"{float(arguments['scale'])}t" if is_line else None


def _same(ours: object, theirs: str) -> bool:
    if isinstance(ours, int | float):
        return re.fullmatch(r"[\d.e-]+", theirs) is not None and float(theirs) == float(ours)
    return ours == theirs


def _tables(entry: Entry, results: Mapping[int, Result], rows: list[list[PublishedFigure]]) -> Iterator[str]:
    lines, notes = [], []
    for number, row in enumerate(rows, start=1):
        for figure in row:
            ours = mean(results, figure.metric) or mean(results, SAME.get(figure.metric, ""))
            text = format_estimate(ours) + (f" (n = {ours.n})" if ours else "")
            place = f"{figure.paper}, table {figure.table}, {_row_name(figure)}"
            lines.append([figure.metric, text, _printed(figure), place, f"[{number}]"])
        notes.append(f"[{number}] {_note(entry, results, row[0])}")
    yield format_rows(["metric", "ours", "theirs", "printed in", "protocol"], lines, "lrrll")
    yield "\n".join(f"- {note}" for note in notes)
    absent = sorted({figure.metric for row in rows for figure in row} - _computed(entry))
    if absent:
        yield f"Not among what this recipe computes: {', '.join(absent)}."


def _computed(entry: Entry) -> set[str]:
    computed = set(computed_metrics(entry))
    return computed | {metric for metric, ours in SAME.items() if ours in computed}


def _row_name(figure: PublishedFigure) -> str:
    details = ", ".join(each for each in (figure.variant, figure.settings) if each)
    quoted = ", quoted from another paper" if figure.quoted else ""
    return f"{figure.method}{f' ({details})' if details else ''}{quoted}"


def _printed(figure: PublishedFigure) -> str:
    return figure.printed + (f" ± {figure.spread:g} ({figure.spread_kind})" if figure.spread is not None else "")


def _note(entry: Entry, results: Mapping[int, Result], figure: PublishedFigure) -> str:
    theirs = published_protocol(figure)
    ours = _protocol(entry, len(results))
    stated = {name: value for name, value in _stated(figure, theirs).items() if value not in ("", None, "unstated")}
    differs = [
        f"{name}: ours {ours[name]}, theirs {value}" for name, value in stated.items() if not _equal(ours[name], value)
    ]
    unstated = [name for name in ours if name not in stated]
    held_out = entry.recipe["data"]["init_args"].get("validation_fraction")
    if held_out and entry.selected_on == "validation":
        differs.append(f"training classes ours without the {held_out:.0%} that choose the epoch, theirs as said there")
    if entry.recipe["data"]["init_args"].get("check_counts") is False:
        differs.append("images ours not checked to be all of the data set's")
    text = f"Differs: {'; '.join(differs)}." if differs else "Nothing differs of what is compared."
    text += " Rates, schedule, pooling, sampling and augmentation are not compared."
    if unstated:
        text += f" Not stated: {', '.join(unstated)}."
    said = "; ".join(each for each in (theirs.hyperparameters, theirs.note, figure.note) if each)
    return f"{text} Theirs: {said}." if said else text


def _protocol(entry: Entry, seeds: int) -> dict[str, object]:
    recipe = entry.recipe
    model, optimizer = recipe["model"], recipe["optim"]["optimizer"]
    return {
        "backbone": model["backbone"],
        "embedding size": model["embedding_size"],
        "image size": recipe["images"]["size"],
        "batch size": recipe["batches"]["size"],
        "epochs": recipe["training"]["epochs"],
        "optimizer": _class(optimizer),
        "chosen on": entry.selected_on,
        "seeds": seeds,
        "pretrained": "imagenet" if model["pretrained"] or model["weights"] else "no",
        "proxies a class": _last_loss(recipe)["init_args"].get("proxies_per_class", 1),
    }


def _stated(figure: PublishedFigure, protocol: PublishedProtocol) -> dict[str, object]:
    return {
        "backbone": figure.backbone or protocol.backbone,
        "embedding size": figure.embedding_size or protocol.embedding_size,
        "image size": figure.image_size or protocol.image_size,
        "batch size": protocol.batch_size,
        "epochs": protocol.epochs,
        "optimizer": protocol.optimizer,
        "chosen on": protocol.selected_on,
        "seeds": protocol.seeds,
        "pretrained": protocol.pretrained,
        "proxies a class": _proxies(figure),
    }


def _proxies(figure: PublishedFigure) -> int | None:
    """Of a row that states no number, 1 where the loss knows of no other."""
    stated = re.search(r"\bproxies_per_class=(\d+)", figure.settings)
    if stated:
        return int(stated[1])
    return None if figure.loss in MULTI_PROXY else 1


def _equal(ours: object, theirs: object) -> bool:
    """As names are spelt in either place: ``resnet50.tv_in1k`` is ``ResNet-50``, ``SGD, momentum 0.9`` is ``SGD``."""
    if not isinstance(ours, str):
        return ours == theirs
    first, second = (re.sub(r"[^a-z0-9]", "", re.split(r"[.,]", str(each))[0].lower()) for each in (ours, theirs))
    return first == second


def _class(thing: Mapping[str, Any]) -> str:
    return thing["class_path"].rpartition(".")[2]
