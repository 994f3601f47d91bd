"""Runs and commands without pictures, which take longer than epochs of few images."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from proxemic.cli import runs
from proxemic.training import plots, results

savefig, print_report = Figure.savefig, runs.print_report


def no_picture(_: object, drawn: object, path: Path, **__: object) -> None:
    if getattr(drawn, "kind", None) != "vectors":
        path.touch()


def no_report(write: Any, command: str) -> None:
    """Skip the pictures at the end of a training; other commands still write their pages."""
    run = command.removeprefix("proxemic report ")
    if run == command:
        return print_report(write, command)
    page = Path(run) / "report.html"
    page.touch()
    return print(f"Report: {page}")


def draw_no_pictures(patch: pytest.MonkeyPatch) -> None:
    """Write curves, galleries and reports of runs as empty files."""
    for name in ("draw_curves", "draw_gallery"):
        patch.setattr(results, name, no_picture)
    patch.setattr(runs, "print_report", no_report)


def draw_pictures(patch: pytest.MonkeyPatch) -> None:
    """Draw pictures as for a user."""
    for function in (plots.draw_curves, plots.draw_gallery):
        patch.setattr(results, function.__name__, function)
    patch.setattr(runs, "print_report", print_report)


def save_without_layout(figure: Figure, file: Any, **options: Any) -> None:
    """Layouts take most of a command that draws."""
    figure.set_layout_engine("none")
    savefig(figure, file, **options)


def save_vectors_alone(patch: pytest.MonkeyPatch) -> None:
    """Write each PNG as an empty file, and no figure with a layout."""

    def save(figure: Figure, file: Any, **options: Any) -> None:
        if isinstance(file, Path) and options["format"] == "png":
            file.touch()
        else:
            save_without_layout(figure, file, **options)

    patch.setattr(Figure, "savefig", save)
