"""What ``proxemic evaluate`` and ``proxemic verify`` refuse before they import anything that takes seconds."""

from collections.abc import Sequence
from pathlib import Path

from proxemic.errors import UserError

__all__ = ["FORMATS", "check_names", "check_target", "is_run"]

FORMATS = {".json": "json", ".csv": "csv", ".md": "markdown"}


def check_names(out: Path | None, *tables: Path | None) -> None:
    """Raise `UserError` where a file is not named by a format that it can have."""
    if out is not None and out.suffix.lower() not in FORMATS:
        raise UserError(f"--out is {out}, but must end in .json, .csv or .md, which says its format.")
    for table in tables:
        if table is not None and table.suffix.lower() != ".csv":
            raise UserError(f"{table} is written as CSV: let its name end in .csv.")


def check_target(path: Path, kinds: Sequence[str]) -> None:
    """Raise `UserError` unless there is a file, a finished run, or a folder that `save_model` wrote.

    Args:
        path: What the user gave.
        kinds: What may be given, for the message.
    """
    if not path.exists():
        raise UserError(f"{path} does not exist: give {', '.join(kinds[:-1])} or {kinds[-1]}.")
    if not path.is_dir() or (path / "model.safetensors").exists():
        return
    if is_run(path):
        raise UserError(f"{path} has no model yet: finish it with proxemic train --resume {path}.")
    raise UserError(
        f"{path} holds no run and no model (there is neither a recipe.yaml nor a model.safetensors in it): give a "
        "directory that proxemic train or save_model made."
    )


def is_run(path: Path) -> bool:
    """Whether a target is a run directory."""
    return (path / "recipe.yaml").is_file()
