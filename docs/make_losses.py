"""Write the advice and the measurements into docs/losses: ``python docs/make_losses.py``.

The advice comes from docs/losses/advice.yaml alone, the measurements from docs/experiments/kept. A test compares the
pages with what this script writes.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from experiments._experiments import SEARCHES, Kept, interval, paired

from proxemic.tables import Table

DOCS = Path(__file__).parent
FOLDER = DOCS / "losses"
ADVICE: dict[str, Any] = yaml.safe_load((FOLDER / "advice.yaml").read_text(encoding="utf-8"))
BLOCK = re.compile(r"(<!-- (\w+), written by docs/make_losses\.py -->\n).*?(<!-- end -->)", re.DOTALL)
BASE = "softmax"


class Setting(NamedTuple):
    """A setting in which losses were measured, with its title and page."""

    title: str
    page: str
    dataset: str
    condition: str = ""
    with_norm: bool = False

    @property
    def metric(self) -> str:
        """The metric that is shown."""
        return "tar" if self.condition == "verification" else "map@r"

    def runs(self, search: str) -> Mapping[int, float]:
        """Return the values of a search by seed; empty if it was not measured here."""
        if self.with_norm and not search.startswith(("euclidean", "warp")):  # whose own recipes have the norm
            search += "-with-norm"
        return Kept(DOCS / "experiments" / "kept" / self.dataset).runs(search, self.condition)[self.metric]

    def gain(self, search: str) -> list[float]:
        """Return the differences from the softmax, paired by seed."""
        return paired(self.runs(search), self.runs(BASE))

    def ranking(self) -> list[str]:
        """Return the searches that were measured here, the best first."""
        measured = {name: [*runs.values()] for name in SEARCHES if (runs := self.runs(name))}
        return sorted(measured, key=lambda name: -sum(measured[name]) / len(measured[name]))


SETTINGS = [
    Setting("photographs, heads on features", "heads.md", "cars-features"),
    Setting("photographs, fine-tuned", "fine-tuned.md", "cars-pretrained"),
    Setting("characters", "characters.md", "glyphs-small"),
    Setting("characters, every loss with a layer norm", "characters.md#layer-norm", "glyphs-small", with_norm=True),
    Setting("Omniglot", "omniglot.md", "omniglot"),
    Setting("Omniglot, every loss with a layer norm", "omniglot.md#layer-norm", "omniglot", with_norm=True),
    Setting("characters, 40% of the labels wrong", "characters.md#wrong-labels", "glyphs-small", "40% wrong"),
    Setting(
        "characters, 40% of the labels wrong, every loss with a layer norm",
        *("characters.md#wrong-labels", "glyphs-small", "40% wrong"),
        with_norm=True,
    ),
    Setting("heads, 40% of the labels wrong", "heads.md#wrong-labels", "cars-features", "40% wrong"),
    Setting("heads, 3 images per class", "heads.md#few-images", "cars-features", "3 images"),
    Setting("heads, batches of 16", "heads.md#small-batches", "cars-features", "batches of 16"),
    Setting(
        "heads, share of pairs accepted", "heads.md#verification-of-pairs", "cars-features", "verification"
    ),
]  # fmt: skip


def main() -> None:
    """Rewrite all pages."""
    for path in [FOLDER / "README.md", *(FOLDER / f"{name}.md" for name in ADVICE["losses"])]:
        path.write_text(written(path), encoding="utf-8")


def written(path: Path) -> str:
    """Return the text of a page with its blocks replaced."""
    makers = {"use": use, "measured": measured, "situations": situations, "losses": losses}
    text = path.read_text(encoding="utf-8")
    return BLOCK.sub(lambda found: f"{found[1]}\n{makers[found[2]](path.stem)}\n{found[3]}", text)


def use(loss: str) -> str:
    """Say when to use a loss and when another."""
    advice = ADVICE["losses"][loss]
    starts = [
        f"* {item['when']} **Start with this loss**{', ' + item['how'] if 'how' in item else ''}"
        f" ([{'cost' if item['page'].startswith('..') else 'results'}]({_link(item['page'])}))."
        for item in ADVICE["situations"]
        if item["start"] == loss
    ]
    sentence = advice["use"][0].upper() + advice["use"][1:]
    characteristics = "[Characteristics](../characteristics.md) lists what its gradient depends on."
    more = "" if loss == "PairwiseLoss" else f" {characteristics}"
    start = "\n".join([*(start.replace("](#", "](README.md#") for start in starts), f"* {sentence}"])
    return f"{start}\n\n**Use another loss** when {advice['avoid'].strip()}{more}\n"


def measured(loss: str) -> str:
    """Tabulate the measurements of a loss."""
    searches: dict[str, str] = ADVICE["losses"][loss]["searches"]
    rows = []
    for setting in SETTINGS:
        order = setting.ranking()
        for search, form in searches.items():
            if search in order:
                place = f"{order.index(search) + 1} of {len(order)}"
                form_cell = [form] if len(searches) > 1 else []
                mean = interval(setting.runs(search).values())
                rows.append(
                    [f"[{setting.title}]({_link(setting.page)})", *form_cell, mean, place, _gain(setting, search)]
                )
    form_column = ["form"] if len(searches) > 1 else []
    table = _table(["setting", *form_column, "MAP@R", "place", "gain over softmax"], rows, texts=1 + len(form_column))
    return (
        "Percentages on test classes with 95% intervals over seeds; every loss was searched with the same budget.\n"
        "*Place* counts the searches of the setting, the best first.\n\n" + table
    )


def situations(_: str) -> str:
    """Tabulate the recommended loss by situation."""
    rows = []
    for item in ADVICE["situations"]:
        start = f"[`{item['start']}`]({item['start']}.md)" + (f", {item['how']}" if "how" in item else "")
        link = "cost" if item["page"].startswith("..") else "results"
        rows.append([item["when"].rstrip("."), start, _situation_gain(item), f"[{link}]({_link(item['page'])})"])
    return _table(["situation", "start with", "MAP@R over softmax", "measured"], rows, texts=4)


def losses(_: str) -> str:
    """Tabulate all losses."""
    rows = [
        [
            f"[{name}]({name}.md)" + (f" ({item['short']})" if "short" in item else ""),
            item["does"],
            item["use"].strip().rstrip(".").replace("](#", f"]({name}.md#"),
        ]
        for name, item in ADVICE["losses"].items()
    ]
    return _table(["loss", "what it does", "use it when"], rows, texts=3)


def setting_of(situation: Mapping[str, Any]) -> Setting | None:
    """Return the setting that measured a situation, if one did."""
    if "search" not in situation:
        return None
    return Setting(
        "", situation["page"], situation["dataset"], situation.get("condition", ""), situation.get("layer_norm", False)
    )


def _situation_gain(situation: Mapping[str, Any]) -> str:
    setting = setting_of(situation)
    if setting is None:
        return situation["gain"]
    best = next(name for name in setting.ranking() if name != BASE)
    ahead = "" if situation["search"] != BASE else f"; the best other, {best}: {_gain(setting, best)}"
    unit = " of the pairs" if setting.metric == "tar" else ""
    return f"{_gain(setting, situation['search'])}{ahead}{unit}"


def _gain(setting: Setting, search: str) -> str:
    if search == BASE:
        return "0"
    shown = interval(values) if (values := setting.gain(search)) else "–"
    return shown if shown.startswith(("-", "–")) else f"+{shown}"


def _table(columns: list[str], rows: list[list[str]], *, texts: int) -> str:
    """Format a table whose first columns are texts, which are left-aligned."""
    text = Table(columns, rows).text("markdown") + "\n"
    return text.replace("--:", "---", texts - 1)


def _link(page: str) -> str:
    return page if page.startswith("..") else f"../results/{page}"


if __name__ == "__main__":
    main()
