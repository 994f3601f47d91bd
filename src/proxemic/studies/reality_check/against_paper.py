"""A reality check beside the figures that the papers print in Tables VI to VIII."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from proxemic.published import PublishedFigure
from proxemic.studies.beside_paper import SAME, PaperRow, page, tables_beside
from proxemic.studies.reality_check.cross_validation import all_training_classes
from proxemic.studies.reality_check.directory import RealityCheck
from proxemic.studies.reality_check.tables import Repeats, cell


def reality_against_paper(
    check: RealityCheck, recipes: Mapping[str, Mapping[str, Any]], results: Mapping[str, Repeats]
) -> str:
    """Markdown that shows the results of a check, by recipe, beside the rows of the papers' tables."""

    def parts(recipe: str, rows: Sequence[PaperRow]) -> Iterator[str]:
        repeats = results[recipe]

        def ours(row: PaperRow, figure: PublishedFigure) -> tuple[str, str]:
            metric = SAME.get(figure.metric, figure.metric)
            return f"{figure.variant} {figure.metric}", cell(repeats, figure.variant, metric)

        return tables_beside(rows, ours, lambda figure: (_as_evaluated(check, recipes[recipe], figure), len(repeats)))

    introduction = [
        f"On the test classes, in percent. Ours: mean ± 95% interval over {check.repeats} repetitions, with the best "
        f"of {check.trials} trials; theirs as printed."
    ]
    if check.flags:
        introduction.append(f"Ours with the flags `{' '.join(check.flags)}`.")
    return page(introduction, recipes, parts, "reality-check")


def _as_evaluated(check: RealityCheck, recipe: Mapping[str, Any], figure: PublishedFigure) -> dict[str, Any]:
    """Return the recipe with the embedding size that is evaluated, and all training classes, which the folds share."""
    folds = 1 if figure.variant == "separated" else check.folds
    return {
        **recipe,
        "data": all_training_classes(recipe["data"]),
        "model": {**recipe["model"], "embedding_size": folds * check.embedding_size},
        "evaluation": {**recipe["evaluation"], "select_on": "validation"},
    }
