"""Check the papers' propositions, lemmas and theorems numerically."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from proxemic.analysis.landscape import PAPER_WARP
from proxemic.analysis.theorems import Statement, check_theorems, pair_bounds, plot_lemma, plot_proposition
from proxemic.analyze.results import Analysis, PathLike, Stem, file_stem, suffixed
from proxemic.errors import UserError
from proxemic.files import write_csv
from proxemic.losses import ProxyLoss
from proxemic.losses.scores.similarity import Cosine
from proxemic.losses.user_defined import loss_name
from proxemic.plots import write_figure
from proxemic.tables import Table


def theorems(
    runs: Sequence[PathLike] = (), *, draws: int = 100, seed: int = 0, out: Stem | None = None
) -> Analysis[Mapping[str, Sequence[Statement]]]:
    """Check every proposition, lemma and theorem of the mean-proxy and warping papers on examples.

    The table shows the case nearest to its bound. A statement that does not hold as printed is followed by a corrected
    one; Theorem 2, by the bound that its proof gives.

    Args:
        runs: Finished runs of losses of cosines, to check Propositions 1 and 2 on their training images. Without runs,
            all statements are checked on random cases, and figures 11 and 12 of the warping paper are drawn.
        draws: Number of random cases.
        seed: Seed of the cases.
        out: Prefix of the file names; ``RUN/theorems``, or ``theorems`` by default.

    Returns:
        The statements by run; without runs, by the empty name.
    """
    stem = file_stem(out, runs, "theorems")
    statements = _of_runs(runs, seed) if runs else {"": check_theorems(draws, seed=seed)}
    tables, rows = [], []
    for name, cases in statements.items():
        cells = [
            [case.name, case.claim, f"{case.observed:.4g}", f"{case.bound:.4g}", f"{case.holds} of {case.cases}"]
            for case in cases
        ]
        tables.append(Table(["statement", "claim", "observed", "bound", "holds in"], cells, name))
        rows += [[name, case.name, case.claim, case.observed, case.bound, case.holds, case.cases] for case in cases]
    written = [stem.with_name(f"{stem.name}.csv")]
    write_csv(written[0], ["run", "statement", "claim", "observed", "bound", "holds", "cases"], rows)
    if not runs:
        figure, lines = plot_lemma()
        written += write_figure(figure, suffixed(stem, "lemma"), ["angle", "growing", "falling"], lines)
        figure, lines = plot_proposition(PAPER_WARP)
        header = ["place", "f1 - f2", "slope of f1", "slope of f2"]
        written += write_figure(figure, suffixed(stem, "proposition"), header, lines)
    return Analysis(summary=tables, written=written, figures=statements)


def _of_runs(paths: Sequence[PathLike], seed: int) -> dict[str, list[Statement]]:
    from proxemic.studies.finished import find_runs

    statements = {}
    for run in find_runs([Path(path) for path in paths]):
        loss = run.loss
        if (
            not isinstance(loss, ProxyLoss)
            or loss.proxies_per_class > 1
            or not isinstance(loss.scoring.similarity, Cosine)
        ):
            raise UserError(
                f"{run.path} was trained with {loss_name(loss)}, but the propositions hold for cosines and one proxy "
                "per class: give a run of such a loss, as NormalizedSoftmaxLoss."
            )
        train = run.train
        statements[str(run.path)] = pair_bounds(run.embed(train), train.labels, loss.proxies[:, 0], seed=seed)
    return statements
