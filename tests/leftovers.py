"""What killed processes leave."""

import os
from pathlib import Path

from proxemic import files


def killed_at(path: Path, ending: str = "tmp") -> Path:
    """The temporary file of a process that was killed while it wrote a path; of a folder (work), only the path."""
    own = files._temporary(path, ending)
    left = own.with_name(own.name.replace(f".{os.getpid()}.{ending}", f".999999999.{ending}"))
    if ending == "tmp":
        left.touch()
    return left
