"""Write the advice and the measurements into docs/losses: ``python docs/make_losses.py``.

The advice comes from docs/losses/advice.yaml alone, the measurements from docs/experiments/kept. A test compares the
pages with what this script writes.
"""

import functools
import re
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS / "experiments"))
import centres  # noqa: E402
from _experiments import KEPT, SEARCHES, Kept, interval, paired  # noqa: E402
from claims import Page, Sample  # noqa: E402

from proxemic.tables import Table  # noqa: E402

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

    def runs(self, search: str, metric: str = "") -> Mapping[int, float]:
        """Return the values of a search by seed; empty if it was not measured here."""
        return Kept(KEPT, self.dataset).runs(self._kept_name(search), self.condition)[metric or self.metric]

    def gain(self, search: str, metric: str = "") -> list[float]:
        """Return the differences from the softmax, paired by seed."""
        return paired(self.runs(search, metric), self.runs(BASE, metric))

    def gain_with_searches(self, search: str, metric: str = "") -> tuple[float, float, float]:
        """Return the gain over the softmax and its 95% interval, over seeds and over searches of both losses."""
        values, metric = self.gain(search, metric), metric or self.metric
        variance, freedom = _page().between_searches(self.dataset, metric)
        of_seeds, of_searches = statistics.variance(values) / len(values), 2 * variance
        total = of_seeds + of_searches
        combined = total**2 / (of_seeds**2 / (len(values) - 1) + of_searches**2 / freedom)
        mean = statistics.fmean(values)
        return mean, *Sample(mean, total**0.5, combined, len(values)).interval(0.95)

    def preferred(self) -> str:
        """Return the search, of those measured here, with the best trial on validation classes, but not the softmax."""
        return max((name for name in self.ranking() if name != BASE), key=self._validation)

    def start(self) -> str:
        """Return the preferred search if the interval of its gain is above 0, and otherwise the softmax."""
        return preferred if self.gain_with_searches(preferred := self.preferred())[1] > 0 else BASE

    def _validation(self, search: str) -> float:
        trials = Kept(KEPT, self.dataset).trials(self._kept_name(search))
        return max(row["value"] for row in trials if row["value"] is not None)

    def _kept_name(self, search: str) -> str:
        has_norm = search.startswith(("euclidean", "warp"))  # in its own recipe
        return f"{search}-with-norm" if self.with_norm and not has_norm else search

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
        "heads, fraction of pairs accepted", "heads.md#verification-of-pairs", "cars-features", "verification"
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
        for item in started()
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
                rank = f"{order.index(search) + 1} of {len(order)}"
                form_cell = [form] if len(searches) > 1 else []
                mean = interval(setting.runs(search).values())
                rows.append(
                    [f"[{setting.title}]({_link(setting.page)})", *form_cell, mean, rank, _gain(setting, search)]
                )
    form_column = ["form"] if len(searches) > 1 else []
    table = _table(["setting", *form_column, "MAP@R", "rank", "gain over softmax"], rows, texts=1 + len(form_column))
    return (
        "Percentages on test classes, with 95% intervals over seeds. Every loss was tuned with the same budget.\n"
        "*Rank*: among all tuned variants in this setting, the best first.\n\n" + table
    )


def situations(_: str) -> str:
    """Tabulate the recommended loss by situation."""
    rows = []
    for item in started():
        start = f"[`{item['start']}`]({item['start']}.md)" + (f", {item['how']}" if "how" in item else "")
        link = "cost" if item["page"].startswith("..") else "results"
        rows.append([item["when"].rstrip("."), start, item["gain"], item["recall"], f"[{link}]({_link(item['page'])})"])
    columns = [
        "situation",
        "start with",
        "best other loss in validation, with its gain in MAP@R over the softmax",
        "its gain in Recall@1",
        "measured",
    ]
    return _table(columns, rows, texts=5)


def started() -> list[dict[str, str]]:
    """Return the situations, each with the loss to start with, how to use it, and its gain."""
    return [_started(item) for item in ADVICE["situations"]]


def _started(item: Mapping[str, Any]) -> dict[str, str]:
    shown = {"when": item["when"], "page": item["page"], "recall": "–"}
    if "centres" in item:
        (loss, k, start), gain = _preferred_cell(item["centres"])
        how = f"K = {k}" + (f", proxies started at {start.replace('-', ' ')}" if start != "drawn" else "")
        gain = f"{_shown(loss)}: {gain} over `{_class_of(loss)}` with one proxy per class"
        return shown | {"start": _class_of(loss), "how": how, "gain": gain}
    if (setting := setting_of(item)) is None:
        how = {"how": item["use"]} if "use" in item else {}
        return shown | {"start": item["start"], "gain": item["gain"], **how}
    start, preferred = setting.start(), setting.preferred()
    how = item.get("how", {})
    unit = " in the true accept rate of pairs" if setting.metric == "tar" else ""
    shown["recall"] = _range(setting.gain_with_searches(preferred, "recall@1"))
    gain = f"{_shown(preferred)}: {_range(setting.gain_with_searches(preferred))}{unit}"
    return shown | {"start": _class_of(start), "gain": gain} | ({"how": how[start]} if start in how else {})


def _shown(search: str) -> str:
    """Name the loss of a search, and the search if the loss has several."""
    loss = _class_of(search)
    return f"`{loss}`" + (f" (variant `{search}`)" if len(ADVICE["losses"][loss]["searches"]) > 1 else "")


def _class_of(search: str) -> str:
    return next(name for name, advice in ADVICE["losses"].items() if search in advice["searches"])


def _preferred_cell(data: str) -> tuple[centres.Cell, str]:
    """Return the loss, K and start that validation preferred, and its gain in MAP@R over one proxy."""
    cells = centres.read_cells(Kept(KEPT, data))
    best = max(cells, key=lambda cell: statistics.fmean(centres.column(cells[cell], "validation").values()))
    one = centres.column(cells[best[0], 1, "drawn"], "map@r")
    return best, _signed(interval(paired(centres.column(cells[best], "map@r"), one)))


@functools.cache
def _page() -> Page:
    return Page(KEPT)


def _range(gain: tuple[float, float, float]) -> str:
    """Format a gain with its interval, in percent."""
    mean, low, high = (100 * value for value in gain)
    return f"{mean:+.2f} ({low:.2f} to {high:.2f})"


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
    if "dataset" not in situation:
        return None
    return Setting(
        "", situation["page"], situation["dataset"], situation.get("condition", ""), situation.get("layer_norm", False)
    )


def _gain(setting: Setting, search: str) -> str:
    if search == BASE:
        return "0"
    return _signed(interval(values)) if (values := setting.gain(search)) else "–"


def _signed(shown: str) -> str:
    return shown if shown.startswith(("-", "–")) else f"+{shown}"


def _table(columns: list[str], rows: list[list[str]], *, texts: int) -> str:
    """Format a table whose first columns are texts, which are left-aligned."""
    text = Table(columns, rows).text("markdown") + "\n"
    return text.replace("--:", "---", texts - 1)


def _link(page: str) -> str:
    return page if page.startswith("..") else f"../results/{page}"


if __name__ == "__main__":
    main()
