"""The directory of a comparison, of tuning or of a reality check; the same command continues the runs in it."""

import re
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from proxemic.errors import Interrupted, UserError
from proxemic.files import remove_stale_temporaries, write_json, write_text
from proxemic.locks import exclusive_lock
from proxemic.recipes.flags import read_flags
from proxemic.studies.recipe_content import same_recipe
from proxemic.typed_json import read_typed

Settings = TypeVar("Settings")


@dataclass(frozen=True)
class StudyDirectory(Generic[Settings]):
    """A directory with many runs of one command, and a JSON file with the settings of the command.

    ``file`` is the name of the JSON file, ``kind`` names the content of the directory, such as ``comparison``, and
    ``form`` is the dataclass of the settings.
    """

    path: Path
    file: str
    kind: str
    command: str
    form: type[Settings]

    @property
    def resume(self) -> str:
        """The command that continues the work."""
        return f"proxemic {self.command} --resume {self.path}"

    def is_begun(self, leftovers: Collection[str] = ()) -> bool:
        """Return whether the directory has settings; False if it is new or empty.

        Hidden files, temporary files and ``leftovers`` do not count; a process that is killed before it writes the
        settings leaves these. Any other file raises `UserError`.
        """
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"{self.path} is a file, but --out needs a folder: choose another name.")
        if (self.path / self.file).exists():
            return True
        names = [file.name for file in self.path.iterdir()] if self.path.exists() else []
        if any(not (name in leftovers or name.startswith(".") or name.endswith(".tmp")) for name in names):
            raise UserError(
                f"{self.path} holds other files than those of a {self.kind}: choose a new or empty folder for --out."
            )
        return False

    def read(self) -> Settings:
        """Read the settings; `UserError` if they are missing or damaged."""
        if not (self.path / self.file).exists():
            raise UserError(
                f"{self.path} does not hold a {self.kind} (it has no {self.file}): give a directory that "
                f"proxemic {self.command} made."
            )
        return read_typed(self.path / self.file, self.form)

    def write(self, settings: Settings) -> None:
        """Write the settings; `read` returns them."""
        write_json(self.path / self.file, asdict(settings))  # pyright: ignore[reportArgumentType]

    def begin(self, settings: Settings, recipes: Mapping[Path, str]) -> None:
        """Write settings and recipes; `UserError` if it already has others; the spelling of flags may differ."""
        different: list[str] = []
        if (self.path / self.file).exists():
            begun, given = _comparable(self.read()), _comparable(settings)
            different = [name for name in given if begun[name] != given[name]]
            for file, yaml in recipes.items():
                if file.exists() and not same_recipe(file.read_text(encoding="utf-8"), yaml):
                    different.append(f"recipe than {file.relative_to(self.path)}")
        if different:
            raise UserError(
                f"{self.path} holds a {self.kind} with another {', '.join(different)}: choose another --out, or "
                f"continue that one with {self.resume}"
            )
        for file, yaml in recipes.items():
            write_text(file, yaml)
        self.write(settings)

    @contextmanager
    def at_work(self, *, alone: bool) -> Iterator[None]:
        """Remove stale temporary files, and let errors in the block name the command that continues all runs.

        With ``alone``, hold the lock of the directory: a second process gets a `UserError`.
        """
        try:
            with exclusive_lock(self.path) if alone else nullcontext():
                remove_stale_temporaries(self.path)
                yield
        except (Interrupted, KeyboardInterrupt):
            raise Interrupted(f"Stopped; everything saved is kept: continue with {self.resume}") from None
        except UserError as error:
            sentence = re.sub(r"proxemic train --resume \S+(?=\.$)|the same command", lambda _: self.resume, str(error))
            raise UserError(sentence) from error


def _comparable(settings: Any) -> Mapping[str, Any]:
    values = asdict(settings)
    return values | {"flags": dict(read_flags(values["flags"]))}


def format_seconds(seconds: float) -> str:
    """Format a duration for people.

    >>> format_seconds(7.4), format_seconds(190), format_seconds(9000)
    ('7 s', '3 min', '2.5 h')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def time_left(began: float, done: float, left: float) -> str:
    """Estimate the time that the rest of some work takes; ``began`` is its start by `time.monotonic`."""
    return format_seconds((time.monotonic() - began) / done * left)
