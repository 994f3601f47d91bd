"""The figures of the rows that a recipe stands for, beside ours, with what differs in protocol.

Neither side fills the other's gaps. A figure belongs to the command that measures its like: `SHOWN_BY`.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from proxemic.protocols.recipe_content import class_name, data_key
from proxemic.published import PublishedFigure, PublishedProtocol, PublishedRow, published_protocol
from proxemic.tables import Table

SAME = {"precision@1": "recall@1", "average_distance_to_proxy": "avg_dtp"}
"""Two names of one number: precision@1 is whether the nearest image is of the query's class, too."""

Command = Literal["compare", "reality-check", "analyze robustness", "verify"]
SHOWN_BY: dict[Command, str] = {
    "compare": "a single model on clean pictures",
    "reality-check": "four models together",
    "analyze robustness": "corrupted pictures",
    "verify": "face verification",
}
"""Commands with ``--against paper``, and what the figures are of that each alone shows."""

MULTI_PROXY = (
    "SoftTripleLoss",
    "MultiProxyAnchorLoss",
    "DataWiseMultiProxyAnchorLoss",
    "AllPairMultiProxyAnchorLoss",
)


@dataclass(frozen=True)
class PaperRow:
    """A row that a recipe names, with its figures of the recipe's data set.

    Args:
        named: As the recipe names it.
        figures: Empty where the recipe was given other data, or another loss.
    """

    named: PublishedRow
    figures: tuple[PublishedFigure, ...]

    def of(self, command: Command) -> "PaperRow":
        """The row with what one command shows, which is beside what it alone shows that of clean pictures."""
        figures = tuple(each for each in self.figures if command in shown_by(each))
        return replace(self, figures=figures)


def paper_rows(recipe: Mapping[str, Any]) -> list[PaperRow]:
    """The rows of the papers' tables that a recipe stands for; none where it names none.

    Args:
        recipe: Its values in full. A flag may have given it other data, or another loss: it then no longer stands for
            the row, which has no figures.
    """
    return [
        PaperRow(named, tuple(each for each in named.figures(data_key(recipe)) if _is_its_loss(each, recipe)))
        for named in (PublishedRow(**each) for each in recipe.get("published") or ())
    ]


def shown_by(figure: PublishedFigure) -> tuple[Command, ...]:
    """The commands that show a figure beside ours."""
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
    """Markdown: a section for each recipe that stands for rows, and which do not.

    Args:
        introduction: What ours is.
        recipes: Their values in full, by what to call them.
        parts: Writes the section of a recipe, of its rows with the figures that ``command`` shows.
        command: Who shows it; figures of others are referred to.
    """
    written = ["# Ours and the papers'", *introduction]
    without: dict[str, list[str]] = {}
    for title, recipe in recipes.items():
        rows = paper_rows(recipe)
        if not any(row.figures for row in rows):
            why = "stand for their rows no longer, as they were given other data or another loss" if rows else _NO_ROW
            without.setdefault(why, []).append(f"`{title}`")
            continue
        shown = [row for each in rows if (row := each.of(command)).figures]
        written += [f"## {title}", *(parts(title, shown) if shown else ()), *_elsewhere(rows, command)]
    written += [f"These {why}: {', '.join(titles)}." for why, titles in without.items()]
    return "\n\n".join(written) + "\n"


_NO_ROW = "name no row of the papers' tables that they stand for"


def _elsewhere(rows: Sequence[PaperRow], command: Command) -> Iterator[str]:
    """A sentence for every other command that shows figures of the rows."""
    for other, what in SHOWN_BY.items():
        hidden = [
            row
            for row in rows
            if any(shown_by(each)[0] == other for each in {*row.figures} - {*row.of(command).figures})
        ]
        tables = dict.fromkeys(row.named.table for row in hidden)
        if tables:
            yield f"Figures of {what}, table {', '.join(tables)}: proxemic {other} --against paper."


def tables_beside(
    rows: Sequence[PaperRow],
    ours: Callable[[PaperRow, PublishedFigure], tuple[str, str]],
    protocol: Callable[[PublishedFigure], tuple[Mapping[str, Any], int]],
) -> Iterator[str]:
    """Markdown: a line for each figure, with a note for each protocol.

    Args:
        rows: With the figures to show.
        ours: What to call a figure, and our value as text.
        protocol: The recipe that our value is of, and how many seeds.
    """
    lines, notes = [], []
    for row in rows:
        for figure in row.figures:
            note = _note(figure, *protocol(figure))
            if note not in notes:
                notes.append(note)
            place = f"{figure.paper}, table {figure.table}, {_row_name(figure)}"
            lines.append([*ours(row, figure), _printed(figure), place, f"[{notes.index(note) + 1}]"])
    yield Table(["metric", "ours", "theirs", "printed in", "protocol"], lines, align="lrrll").text("markdown")
    yield "\n".join(f"- [{number}] {note}" for number, note in enumerate(notes, start=1))


def _is_its_loss(figure: PublishedFigure, recipe: Mapping[str, Any]) -> bool:
    """Whether class, pair loss inside and regularisers are the row's; the untrained network has none."""
    loss = _last_loss(recipe)
    given = loss.get("init_args", {})
    inside = [given["loss"]] if isinstance(given.get("loss"), Mapping) else []
    ours = {class_name(each) for each in (loss, *inside, *(given.get("regularizers") or ()))}
    theirs = {figure.loss, *re.findall(r"\bloss=(\w+)", figure.settings)}
    if figure.variant == "mean proxy regulariser":
        theirs.add("MeanProxyNorm")
    return not figure.loss or ours == theirs


def _last_loss(recipe: Mapping[str, Any]) -> Mapping[str, Any]:
    """The loss at the end of the training: of the second phase where there is one."""
    from proxemic.recipes.flags import merge  # imports torch

    return merge(recipe["loss"], (recipe.get("second_phase") or {}).get("loss") or {})


def _row_name(figure: PublishedFigure) -> str:
    details = ", ".join(each for each in (figure.variant, figure.settings) if each)
    quoted = ", quoted from another paper" if figure.quoted else ""
    return f"{figure.method}{f' ({details})' if details else ''}{quoted}"


def _printed(figure: PublishedFigure) -> str:
    return figure.printed + (f" ± {figure.spread:g} ({figure.spread_kind})" if figure.spread is not None else "")


def _note(figure: PublishedFigure, recipe: Mapping[str, Any], seeds: int) -> str:
    theirs = published_protocol(figure)
    ours = _protocol(recipe, seeds)
    stated = {name: value for name, value in _stated(figure, theirs).items() if value not in ("", None, "unstated")}
    differs = [
        f"{name}: ours {ours[name]}, theirs {value}" for name, value in stated.items() if not _equal(ours[name], value)
    ]
    differs += _settings_that_differ(figure, _last_loss(recipe).get("init_args", {}))
    unstated = [name for name in ours if name not in stated]
    data = recipe["data"].get("init_args", {})
    held_out = data.get("validation_fraction")
    if held_out and recipe["evaluation"]["select_on"] == "validation":
        differs.append(f"training classes ours without the {held_out:.0%} that choose the epoch, theirs as said there")
    if data.get("check_counts") is False:
        differs.append("images ours not checked to be all of the data set's")
    text = f"Differs: {'; '.join(differs)}." if differs else "Nothing differs of what is compared."
    text += " Rates, schedule, pooling, sampling and augmentation are not compared."
    if unstated:
        text += f" Not stated: {', '.join(unstated)}."
    remarks = "; ".join(each for each in (theirs.hyperparameters, theirs.note, figure.note) if each)
    return f"{text} Theirs: {remarks}." if remarks else text


def _protocol(recipe: Mapping[str, Any], seeds: int) -> dict[str, object]:
    model, optimizer = recipe["model"], recipe["optim"]["optimizer"]
    return {
        "backbone": model["backbone"],
        "embedding size": model["embedding_size"],
        "image size": recipe["images"]["size"],
        "batch size": recipe["batches"]["size"],
        "epochs": recipe["training"]["epochs"],
        "optimizer": class_name(optimizer),
        "chosen on": recipe["evaluation"]["select_on"],
        "seeds": seeds,
        "pretrained": "imagenet" if model["pretrained"] or model["weights"] else "no",
        "proxies per class": _last_loss(recipe)["init_args"].get("proxies_per_class", 1),
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
        "proxies per class": _proxies(figure),
    }


def _settings_that_differ(figure: PublishedFigure, ours: Mapping[str, Any]) -> Iterator[str]:
    """The row's own numbers that flags have changed; the number of proxies is among the rest of the protocol."""
    for key, value in re.findall(r"\b(\w+)=([\d.]+)(?!\S)", figure.settings):
        given = ours.get(key)
        if key != "proxies_per_class" and isinstance(given, int | float) and given != float(value):
            yield f"{key}: ours {given:g}, theirs {float(value):g}"


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
