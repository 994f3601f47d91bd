"""How a gallery's folder is deleted."""

from contextlib import suppress
from pathlib import Path

from proxemic.files import write_errors
from proxemic.retrieval.stores.local.manifest import MANIFEST, NAME, Manifest
from proxemic.retrieval.stores.local.writing import LOCK, WRITER, only_writer

_GONE = f".{MANIFEST}.deleted"  # the manifest of a gallery that is being deleted


def delete_folder(folder: Path) -> None:
    """Delete the files of a gallery, and the folder if it then is empty; `UserError` where it holds no gallery."""
    if finish_deleting(folder):
        return
    Manifest.read(folder)  # of another program's manifest.json, it says so
    with only_writer(folder), write_errors(folder):
        # From here on there is no gallery; whoever is killed now has left what `finish_deleting` removes.
        (folder / MANIFEST).rename(folder / _GONE)
    finish_deleting(folder)


def finish_deleting(folder: Path) -> bool:
    """Remove the rest of a gallery that was being deleted; False where there is none."""
    if not (folder / _GONE).is_file():
        return False
    with only_writer(folder), write_errors(folder):
        for path in folder.iterdir():
            if NAME.fullmatch(path.name) or path.name == WRITER:
                path.unlink(missing_ok=True)
        (folder / _GONE).unlink(missing_ok=True)
    with suppress(OSError):  # it has other files, or is where another file system begins
        (folder / LOCK).unlink(missing_ok=True)
        folder.rmdir()
    return True
