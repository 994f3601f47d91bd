"""Report on what the gradient of each proxy loss depends."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from proxemic.analysis import Characteristics, every_proxy_loss
from proxemic.analysis import characteristics as measure
from proxemic.analyze.results import Analysis, PathLike
from proxemic.errors import UserError
from proxemic.files import write_csv, write_json
from proxemic.outputs import check_output, has_columns, has_keys
from proxemic.tables import Table

CHANGES = {
    "other_samples": "batch",
    "shift": "shift",
    "same_class": "P-P in",
    "other_classes": "P-P out",
    "negatives": "N-N",
    "opposite": "P-N",
    "other_embeddings": "beyond",
}
LEGEND = (
    "The largest relative change of a gradient. batch: of a sample, when other samples change; shift: of any score, "
    "when all scores fall; P-P: of a positive score, when positives of its class (in) or of other classes (out) fall; "
    "N-N: of a negative score, when other negatives fall; P-N: of one kind, when the other kind falls; beyond: of an "
    "embedding, when other embeddings change."
)


def characteristics(
    *,
    proxies_per_class: int | None = None,
    seed: int = 0,
    numbers: bool = False,
    csv: PathLike | None = None,
    json: PathLike | None = None,
) -> Analysis[Mapping[str, Characteristics]]:
    """Measure the six characteristics of Table 1 of the multi-proxy anchor paper for each proxy loss.

    Stability: a sample's gradient does not depend on other samples. Manifold: several proxies per class. Similarity:
    the gradient depends on scores, not only on their differences. P-P (N-N): the gradient of a positive (negative)
    score depends on other positive (negative) scores. P-N: it depends on scores of the other kind. (yes): only if the
    batch holds two samples of a class.

    Args:
        proxies_per_class: Number of proxies per class of all losses; None takes each loss's default.
        seed: Seed of the random scores.
        numbers: Also show how much gradients changed.
        csv: CSV file for answers and measurements.
        json: JSON file for answers and measurements.

    Returns:
        The characteristics by the name of the loss.
    """
    if csv is not None and csv == json:
        raise UserError(f"--csv and --json are both {csv}: give two files.")
    check_output(csv, has_columns(("loss",)), given_as="--csv")
    check_output(json, has_keys("ProxyAnchorLoss"), given_as="--json")
    losses = {name: measure(loss, seed=seed) for name, loss in every_proxy_loss(proxies_per_class, seed=seed).items()}
    rows: dict[str, dict[str, Any]] = {
        name: {**row.answers(), "beyond_scores": row.beyond_scores, **asdict(row)} for name, row in losses.items()
    }
    if csv is not None:
        header = ["loss", *next(iter(rows.values()))]
        write_csv(Path(csv), header, [[name, *row.values()] for name, row in rows.items()])
    if json is not None:
        write_json(Path(json), rows)
    starred = {f"{name}*" if row.beyond_scores else name: row for name, row in losses.items()}
    answers = [{"loss": name, **row.answers()} for name, row in starred.items()]
    note = "* Samples also change each other's gradients through their embeddings, not only through the scores."
    notes = [note] if any(row.beyond_scores for row in losses.values()) else []
    summary = [Table([*answers[0]], [[*row.values()] for row in answers], "", notes, "l" * 7)]
    if numbers:
        cells = [[name, *(_number(getattr(row, key)) for key in CHANGES)] for name, row in starred.items()]
        summary.append(Table(["loss", *CHANGES.values()], cells, LEGEND))
    return Analysis(summary=summary, written=[Path(path) for path in (csv, json) if path is not None], figures=losses)


def _number(value: float) -> str:
    return f"{value:.2f}" if value >= 0.01 else f"{value:.0e}" if value else "0"
