"""Published figures beside ours: those of the rows that a recipe stands for, and what differs in protocol."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from proxemic.published import PublishedFigure, PublishedProtocol, PublishedRow, published_protocol
from proxemic.recipes.flags import merge
from proxemic.studies.recipe_content import class_name, data_key
from proxemic.tables import Table

SAME = {"precision@1": "recall@1", "average_distance_to_proxy": "avg_dtp"}
"""Metrics of the papers under our names: precision@1 is recall@1, as both ask for the nearest image alone."""

Command = Literal["compare", "reality-check", "analyze robustness", "verify"]
SHOWN_BY: dict[Command, str] = {
    "compare": "a single model on clean pictures",
    "reality-check": "four models together",
    "analyze robustness": "corrupted pictures",
    "verify": "face verification",
}
"""The commands with ``--against paper``, and what the figures are of that only this one shows."""


@dataclass(frozen=True)
class PaperRow:
    """A row that a recipe names, with its figures; none where flags gave the recipe other data or another loss."""

    named: PublishedRow
    figures: tuple[PublishedFigure, ...]

    def of(self, command: Command) -> "PaperRow":
        """Return the row with the figures that one command shows."""
        figures = tuple(each for each in self.figures if command in shown_by(each))
        return replace(self, figures=figures)


def paper_rows(recipe: Mapping[str, Any]) -> list[PaperRow]:
    """Return the rows of the papers' tables that a recipe, given in full, stands for."""
    return [
        PaperRow(named, tuple(each for each in named.figures(data_key(recipe)) if _is_its_loss(each, recipe)))
        for named in (PublishedRow(**each) for each in recipe.get("published") or ())
    ]


def shown_by(figure: PublishedFigure) -> tuple[Command, ...]:
    """Return the commands that show a figure beside ours."""
    if figure.metric == "accuracy":
        return ("verify",)
    if figure.settings.startswith("corruption="):
        return ("compare", "analyze robustness") if figure.settings == "corruption=none" else ("analyze robustness",)
    if figure.variant in ("complete", "separated", "concatenated"):
        return ("compare", "reality-check") if figure.variant == "complete" else ("reality-check",)
    return ("compare",)


def page(
    introduction: Sequence[str],
    recipes: Mapping[str, Mapping[str, Any]],
    parts: Callable[[str, Sequence[PaperRow]], Iterable[str]],
    command: Command,
) -> str:
    """Markdown: a section for each recipe that stands for rows, and a list of those that do not.

    ``parts`` writes the section of a title in ``recipes`` from the figures that ``command`` shows; for those that other
    commands show, the page names the command.
    """
    written = ["# Ours and the papers'", *introduction]
    without: dict[str, list[str]] = {}
    for title, recipe in recipes.items():
        rows = paper_rows(recipe)
        if not any(row.figures for row in rows):
            why = (
                "stand for their rows no longer, as they were given other data or another loss"
                if rows
                else "name no row of the papers' tables that they stand for"
            )
            without.setdefault(why, []).append(f"`{title}`")
            continue
        shown = [row for each in rows if (row := each.of(command)).figures]
        written += [f"## {title}", *(parts(title, shown) if shown else ()), *_elsewhere(rows, command)]
    written += [f"These {why}: {', '.join(titles)}." for why, titles in without.items()]
    return "\n\n".join(written) + "\n"


def _elsewhere(rows: Sequence[PaperRow], command: Command) -> Iterator[str]:
    """Name every other command that shows figures of the rows, in a sentence each."""
    hidden = [figure for row in rows for figure in row.figures if command not in shown_by(figure)]
    for other, what in SHOWN_BY.items():
        tables = dict.fromkeys(figure.table for figure in hidden if shown_by(figure)[0] == other)
        if tables:
            yield f"Figures of {what}, table {', '.join(tables)}: proxemic {other} --against paper."


def tables_beside(
    rows: Sequence[PaperRow],
    ours: Callable[[PaperRow, PublishedFigure], tuple[str, str]],
    protocol: Callable[[PublishedFigure], tuple[Mapping[str, Any], int]],
) -> Iterator[str]:
    """Markdown: a line for each figure, with a note for each protocol.

    ``ours`` gives what to call a figure and our value as text, ``protocol`` the recipe of our value and how many seeds.
    """
    lines, notes = [], dict[str, int]()
    for row in rows:
        for figure in row.figures:
            number = notes.setdefault(_note(figure, *protocol(figure)), len(notes) + 1)
            theirs = figure.printed
            if figure.spread is not None:
                theirs += f" ± {figure.spread:g} ({figure.spread_kind})"
            details = ", ".join(filter(None, (figure.variant, figure.settings)))
            place = f"{figure.paper}, table {figure.table}, {figure.method}{f' ({details})' if details else ''}"
            quoted = ", quoted from another paper" if figure.quoted else ""
            lines.append([*ours(row, figure), theirs, place + quoted, f"[{number}]"])
    yield Table(["metric", "ours", "theirs", "printed in", "protocol"], lines, align="lrrll").text("markdown")
    yield "\n".join(f"- [{number}] {note}" for note, number in notes.items())


def _is_its_loss(figure: PublishedFigure, recipe: Mapping[str, Any]) -> bool:
    """Whether loss, pair loss in it and regularizers are those of the figure; that of an untrained network has none."""
    loss = _last_loss(recipe)
    given = loss.get("init_args", {})
    inside = [given["loss"]] if isinstance(given.get("loss"), Mapping) else []
    ours = {class_name(each) for each in (loss, *inside, *(given.get("regularizers") or ()))}
    theirs = {figure.loss, *re.findall(r"\bloss=(\w+)", figure.settings)}
    if figure.variant == "mean proxy regulariser":
        theirs.add("MeanProxyNorm")
    return not figure.loss or ours == theirs


def _last_loss(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the loss at the end of the training: that of the second phase if there is one."""
    return merge(recipe["loss"], (recipe.get("second_phase") or {}).get("loss") or {})


def _note(figure: PublishedFigure, recipe: Mapping[str, Any], seeds: int) -> str:
    theirs = published_protocol(figure)
    differs, unstated = [], []
    for name, (our_value, value) in _compared(figure, theirs, recipe, seeds).items():
        if value in ("", None, "unstated"):
            unstated.append(name)
        elif not _equal(our_value, value):
            differs.append(f"{name}: ours {our_value}, theirs {value}")
    differs += _settings_that_differ(figure, _last_loss(recipe).get("init_args", {}))
    data = recipe["data"].get("init_args", {})
    held_out = data.get("validation_fraction")
    if held_out and recipe["evaluation"]["select_on"] == "validation":
        differs.append(f"training classes ours without the {held_out:.0%} that choose the epoch, theirs as said there")
    if data.get("check_counts") is False:
        differs.append("images ours not checked to be all of the data set's")
    text = f"Differs: {'; '.join(differs)}." if differs else "Nothing differs of what is compared."
    text += " Rates, schedule, pooling, sampling and augmentation are not compared."
    text += f" Not stated: {', '.join(unstated)}."
    remarks = "; ".join(filter(None, (theirs.hyperparameters, theirs.note, figure.note)))
    return f"{text} Theirs: {remarks}." if remarks else text


def _compared(
    figure: PublishedFigure, theirs: PublishedProtocol, recipe: Mapping[str, Any], seeds: int
) -> dict[str, tuple[object, object]]:
    model = recipe["model"]
    pretrained = "imagenet" if model["pretrained"] or model["weights"] else "no"
    proxies = _last_loss(recipe)["init_args"].get("proxies_per_class", 1)
    return {
        "backbone": (model["backbone"], figure.backbone or theirs.backbone),
        "embedding size": (model["embedding_size"], figure.embedding_size or theirs.embedding_size),
        "image size": (recipe["images"]["size"], figure.image_size or theirs.image_size),
        "batch size": (recipe["batches"]["size"], theirs.batch_size),
        "epochs": (recipe["training"]["epochs"], theirs.epochs),
        "optimizer": (class_name(recipe["optim"]["optimizer"]), theirs.optimizer),
        "chosen on": (recipe["evaluation"]["select_on"], theirs.selected_on),
        "seeds": (seeds, theirs.seeds),
        "pretrained": (pretrained, theirs.pretrained),
        "proxies per class": (proxies, _proxies(figure)),
    }


def _settings_that_differ(figure: PublishedFigure, ours: Mapping[str, Any]) -> Iterator[str]:
    """List the row's own numbers that flags have changed; `_compared` has the number of proxies."""
    for key, value in re.findall(r"\b(\w+)=([\d.]+)(?!\S)", figure.settings):
        given = ours.get(key)
        if key != "proxies_per_class" and isinstance(given, int | float) and given != float(value):
            yield f"{key}: ours {given:g}, theirs {float(value):g}"


def _proxies(figure: PublishedFigure) -> int | None:
    stated = re.search(r"\bproxies_per_class=(\d+)", figure.settings)
    if stated:
        return int(stated[1])
    return None if figure.loss == "SoftTripleLoss" or figure.loss.endswith("MultiProxyAnchorLoss") else 1


def _equal(ours: object, theirs: object) -> bool:
    """Compare names of either spelling: ``resnet50.tv_in1k`` is ``ResNet-50``, ``SGD, momentum 0.9`` is ``SGD``."""
    if not isinstance(ours, str):
        return ours == theirs
    first, second = (re.sub(r"[^a-z0-9]", "", re.split(r"[.,]", str(each))[0].lower()) for each in (ours, theirs))
    return first == second
