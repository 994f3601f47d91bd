"""Plots of a search that tells nothing; those of others are drawn in test_worker.py and tests/cli/test_tune.py."""

from pathlib import Path

import optuna
import pytest
from matplotlib.figure import Figure

from proxemic.protocols.tuning import plots
from proxemic.protocols.tuning.study import importances, open_study


def test_trials_that_are_too_few_for_importances(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_few(_: optuna.Study) -> dict[str, float]:
        raise ValueError("Cannot evaluate parameter importances with only a single trial.")

    monkeypatch.setattr(optuna.importance, "get_param_importances", too_few)  # as Optuna 4.9 has it
    study = open_study(f"sqlite:///{tmp_path / 'study.db'}", "s")
    assert importances(study) == {}
    drawn: list[Figure] = []
    monkeypatch.setattr(plots, "save_figure", lambda figure, _: drawn.append(figure))
    plots.draw_importance([study, study], tmp_path)
    texts = [[text.get_text() for text in axes.texts] for axes in drawn[0].axes]
    assert texts == [["too few trials that differ"]] * 2
