"""Face verification beside what the warping paper prints of the row that a run's recipe stands for (Table V)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from proxemic.protocols.beside_paper import PaperRow, page, tables_beside
from proxemic.published import PublishedFigure
from proxemic.tables import MISSING

__all__ = ["verification_against_paper"]


def verification_against_paper(title: str, recipe: Mapping[str, Any], accuracies: Mapping[str, float]) -> str:
    """Markdown: the accuracies of one run beside those of the row that its recipe stands for.

    Args:
        title: What to call the run.
        recipe: Its values in full.
        accuracies: In [0, 1], by the key of the set in `proxemic.data.VERIFICATION_SETS`.
    """
    ours = {name.replace("_", "-"): f"{100 * value:.2f}" for name, value in accuracies.items()}

    def parts(title: str, rows: Sequence[PaperRow]) -> Iterator[str]:
        def named(row: PaperRow, figure: PublishedFigure) -> tuple[str, str]:
            return f"{figure.dataset} {figure.metric}", ours.get(figure.dataset, MISSING)

        return tables_beside(rows, named, lambda _: (recipe, 1))

    introduction = "In percent, over ten folds. Ours of one run, – is not measured; theirs as printed."
    return page([introduction], {title: recipe}, parts, "verify")
