"""Compare our figures with published ones, for the rows of the papers' tables that a recipe reproduces."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from proxemic.published import PublishedFigure, PublishedRow, published_protocol
from proxemic.recipes.flags import merge
from proxemic.studies.recipe_content import class_name, data_key
from proxemic.tables import Table

SAME = {"precision@1": "recall@1", "average_distance_to_proxy": "avg_dtp"}
"""Metrics of the papers under our names: precision@1 is recall@1, since both only look at the nearest image."""

Command = Literal["compare", "reality-check", "analyze robustness", "verify"]
SHOWN_BY: dict[Command, str] = {
    "compare": "a single model on clean images",
    "reality-check": "four models together",
    "analyze robustness": "corrupted images",
    "verify": "face verification",
}
"""The commands with ``--against paper``, and the kind of figures that only this command shows."""


@dataclass(frozen=True)
class PaperRow:
    """A table row that a recipe names, and the figures in it; none if flags changed the recipe's data or loss."""

    named: PublishedRow
    figures: tuple[PublishedFigure, ...]


def paper_rows(recipe: Mapping[str, Any]) -> list[PaperRow]:
    """Return the rows of the papers' tables that a full recipe reproduces."""
    return [
        PaperRow(named, tuple(figure for figure in named.figures(data_key(recipe)) if _is_its_loss(figure, recipe)))
        for named in (PublishedRow(**name) for name in recipe.get("published") or ())
    ]


def shown_by(figure: PublishedFigure) -> tuple[Command, ...]:
    """Return the commands that compare a figure with ours."""
    single: tuple[Command, ...] = ("compare",)
    if figure.metric == "accuracy":
        return ("verify",)
    if figure.settings.startswith("corruption="):
        return (*single * (figure.settings == "corruption=none"), "analyze robustness")
    if figure.variant in ("complete", "separated", "concatenated"):
        return (*single * (figure.variant == "complete"), "reality-check")
    return single


def page(
    introduction: str,
    recipes: Mapping[str, Mapping[str, Any]],
    command: Command,
    ours: Callable[[str, PublishedRow, PublishedFigure], tuple[str, str]],
    seeds: Callable[[str], int],
    *,
    flags: Sequence[str] = (),
    evaluated: Callable[[str, PublishedFigure], Mapping[str, Any]] | None = None,
    remark: Callable[[str, Collection[str]], str] = lambda *_: "",
) -> str:
    """Write Markdown with a section for each recipe that reproduces table rows, and a list of the other recipes.

    Args:
        introduction: Describes the values.
        recipes: The recipes in full, by title.
        command: The command that prints the page; the page names the commands that show other figures.
        ours: Returns the label of a figure, and our value as text.
        seeds: Returns the number of runs over which our values are averaged.
        flags: Flags of all recipes.
        evaluated: Returns the recipe of our value, if it is not the one in ``recipes``.
        remark: Returns a sentence about the metrics of a table, to put below it.
    """
    written = ["# Ours and the papers'", introduction]
    written += [f"Ours with the flags `{' '.join(flags)}`."] if flags else []
    without: dict[str, list[str]] = {}
    for title, recipe in recipes.items():
        rows = paper_rows(recipe)
        if not any(row.figures for row in rows):
            why = (
                "no longer match their table rows, because flags gave them other data or another loss"
                if rows
                else "name no row of the papers' tables"
            )
            without.setdefault(why, []).append(f"`{title}`")
            continue
        written.append(f"## {title}")
        shown = [(row.named, figure) for row in rows for figure in row.figures if command in shown_by(figure)]
        if shown:
            lines, notes = [], dict[str, int]()
            for row, figure in shown:
                note = _note(figure, evaluated(title, figure) if evaluated else recipe, seeds(title))
                number = notes.setdefault(note, len(notes) + 1)
                lines.append([*ours(title, row, figure), *_theirs(figure), f"[{number}]"])
            table = Table(["metric", "ours", "theirs", "printed in", "protocol"], lines, align="lrrll")
            written.append(table.text("markdown"))
            written.append("\n".join(f"- [{number}] {note}" for note, number in notes.items()))
            written += filter(None, [remark(title, {figure.metric for _, figure in shown})])
        hidden = [figure for row in rows for figure in row.figures if command not in shown_by(figure)]
        for other, what in SHOWN_BY.items():
            if tables := dict.fromkeys(figure.table for figure in hidden if shown_by(figure)[0] == other):
                written.append(f"Figures of {what}, table {', '.join(tables)}: proxemic {other} --against paper.")
    written += [f"These {why}: {', '.join(titles)}." for why, titles in without.items()]
    return "\n\n".join(written) + "\n"


def _theirs(figure: PublishedFigure) -> tuple[str, str]:
    """Return a figure as printed, and where it is printed."""
    spread = "" if figure.spread is None else f" ± {figure.spread:g} ({figure.spread_kind})"
    details = ", ".join(filter(None, (figure.variant, figure.settings)))
    place = f"{figure.paper}, table {figure.table}, {figure.method}{f' ({details})' if details else ''}"
    return figure.printed + spread, place + (", quoted from another paper" if figure.quoted else "")


def _is_its_loss(figure: PublishedFigure, recipe: Mapping[str, Any]) -> bool:
    """Return whether loss, inner pair loss and regularizers are the figure's; any loss fits an untrained network."""
    loss = _last_loss(recipe)
    given = loss.get("init_args", {})
    inside = [given["loss"]] if isinstance(given.get("loss"), Mapping) else []
    ours = {class_name(regularizer) for regularizer in (loss, *inside, *(given.get("regularizers") or ()))}
    theirs = {figure.loss, *re.findall(r"\bloss=(\w+)", figure.settings)}
    theirs |= {"MeanProxyNorm"} if figure.variant == "mean proxy regulariser" else set()
    return not figure.loss or ours == theirs


def _last_loss(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the loss at the end of the training: that of the second phase if there is one."""
    return merge(recipe["loss"], (recipe.get("second_phase") or {}).get("loss") or {})


def _note(figure: PublishedFigure, recipe: Mapping[str, Any], seeds: int) -> str:
    """Describe how the protocol differs from a figure's, what the paper does not state, and its remarks."""
    theirs, model, arguments = published_protocol(figure), recipe["model"], _last_loss(recipe).get("init_args", {})
    stated = re.search(r"\bproxies_per_class=(\d+)", figure.settings)
    has_several = figure.loss == "SoftTripleLoss" or figure.loss.endswith("MultiProxyAnchorLoss")
    proxies = int(stated[1]) if stated else None if has_several else 1
    compared: dict[str, tuple[object, object]] = {
        "backbone": (model["backbone"], figure.backbone or theirs.backbone),
        "embedding size": (model["embedding_size"], figure.embedding_size or theirs.embedding_size),
        "image size": (recipe["images"]["size"], figure.image_size or theirs.image_size),
        "batch size": (recipe["batches"]["size"], theirs.batch_size),
        "epochs": (recipe["training"]["epochs"], theirs.epochs),
        "optimizer": (class_name(recipe["optim"]["optimizer"]), theirs.optimizer),
        "selected on": (recipe["evaluation"]["select_on"], theirs.selected_on),
        "seeds": (seeds, theirs.seeds),
        "pretrained": ("imagenet" if model["pretrained"] or model["weights"] else "no", theirs.pretrained),
        "proxies per class": (arguments.get("proxies_per_class", 1), proxies),
    }
    unstated = [name for name, (_, value) in compared.items() if value in ("", None, "unstated")]
    differs = [
        f"{name}: ours {our_value}, theirs {value}"
        for name, (our_value, value) in compared.items()
        if name not in unstated and not _equal(our_value, value)
    ]
    for key, value in re.findall(r"\b(\w+)=([\d.]+)(?!\S)", figure.settings):  # which flags may have changed
        given = arguments.get(key)
        if key != "proxies_per_class" and isinstance(given, int | float) and given != float(value):
            differs.append(f"{key}: ours {given:g}, theirs {float(value):g}")
    data = recipe["data"].get("init_args", {})
    held_out = data.get("validation_fraction")
    if held_out and recipe["evaluation"]["select_on"] == "validation":
        differs.append(f"training classes: ours without the {held_out:.0%} held out for validation")
    if data.get("check_counts") is False:
        differs.append("images: ours may be a subset of the data set")
    text = f"Differs: {'; '.join(differs)}." if differs else "Everything that is compared is the same."
    text += " Rates, schedule, pooling, sampling and augmentation are not compared."
    text += f" Not stated: {', '.join(unstated)}."
    remarks = "; ".join(filter(None, (theirs.hyperparameters, theirs.note, figure.note)))
    return f"{text} Theirs: {remarks}." if remarks else text


def _equal(ours: object, theirs: object) -> bool:
    """Compare values; for names, ``resnet50.tv_in1k`` equals ``ResNet-50`` and ``SGD, momentum 0.9`` equals ``SGD``."""
    if not isinstance(ours, str):
        return ours == theirs
    first, second = (re.sub(r"[^a-z0-9]", "", re.split(r"[.,]", str(value))[0].lower()) for value in (ours, theirs))
    return first == second
