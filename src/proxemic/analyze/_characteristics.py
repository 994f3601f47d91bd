"""Report what the gradient of each proxy loss depends on."""

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from proxemic.analysis import Characteristics, every_proxy_loss
from proxemic.analysis import characteristics as measure
from proxemic.analyze.results import Analysis, PathLike
from proxemic.errors import UserError
from proxemic.files import write_csv, write_json
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
    "The largest change of a gradient, relative to its size. batch: of a sample's, as other samples change; shift: of "
    "any, as all scores fall; P-P: of a positive's, as positives of its class (in) or of others (out) fall; N-N: of a "
    "negative's, as others fall; P-N: of one sign's, as the other falls; beyond: of an embedding's, as others change."
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

    Stability: other samples do not change a sample's gradient. Manifold: several proxies per class. Similarity: how
    large scores are counts, not their differences alone. P-P, N-N, P-N: the gradient of a positive (negative) score
    depends on other positives (negatives), on scores of the other kind. (yes): only where the batch holds two samples
    of a class.

    Args:
        proxies_per_class: K of all losses; None takes each loss's default.
        seed: Seed of the random scores.
        numbers: Show also how much gradients changed.
        csv: A file for answers and measurements as a table.
        json: A file for the same as JSON.

    Returns:
        The characteristics by the name of the loss.
    """
    if csv is not None and csv == json:
        raise UserError(f"--csv and --json are both {csv}: give two files.")
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
    note = "* Samples also change each other's gradients through embeddings, beside the scores."
    notes = [note] if any(row.beyond_scores for row in losses.values()) else []
    summary = [Table([*answers[0]], [[*row.values()] for row in answers], "", notes, "l" * 7)]
    if numbers:
        cells = [[name, *(_number(getattr(row, key)) for key in CHANGES)] for name, row in starred.items()]
        summary.append(Table(["loss", *CHANGES.values()], cells, LEGEND))
    return Analysis(summary=summary, written=[Path(path) for path in (csv, json) if path is not None], figures=losses)


def _number(value: float) -> str:
    return f"{value:.2f}" if value >= 0.01 else f"{value:.0e}" if value else "0"
