"""Check the files that ``evaluate`` and ``verify`` read and write, before slow imports."""

from collections.abc import Sequence
from pathlib import Path

from proxemic.addresses import is_pretrained_name
from proxemic.errors import UserError


def target_path(target: str | Path) -> Path:
    """Return the path of a target; a pretrained network is first written to the user's cache folder."""
    if not is_pretrained_name(target):
        return Path(target)
    from proxemic.runs.pretrained import model_path  # imports torch

    return model_path(target)


def check_target(path: Path, kinds: Sequence[str]) -> None:
    """Raise `UserError` unless the path is a file, a finished run or a model; the error lists the allowed ``kinds``."""
    if not path.exists():
        raise UserError(f"{path} does not exist: give {', '.join(kinds[:-1])} or {kinds[-1]}.")
    if not path.is_dir() or (path / "model.safetensors").exists():
        return
    if is_run(path):
        raise UserError(f"{path} has no model yet: finish it with proxemic train --resume {path}.")
    raise UserError(
        f"{path} holds neither a run nor a model (it has no recipe.yaml and no model.safetensors): give a directory "
        "that proxemic train or save_model made."
    )


def is_run(path: Path) -> bool:
    """Return whether a target is a run directory."""
    return (path / "recipe.yaml").is_file()


def check_outputs(written: Sequence[Path | None], read: Sequence[Path | None]) -> None:
    """Raise `UserError` if a file would overwrite another file of this call, or a file of a run."""
    from proxemic.training import RunDirectory  # imports torch

    taken = {file.resolve() for path in read if path is not None for file in (path, *RunDirectory(path).files())}
    for path in written:
        if path is not None and path.resolve() in taken:
            raise UserError(f"{path} is read by this command, or written by it twice: choose another name.")
        if path is not None:
            taken.add(path.resolve())
