"""Arrays from .npy files, without unpickling."""

from pathlib import Path

import numpy as np


def read_npy(path: Path) -> np.ndarray:
    """Map the array of a .npy file into memory, of any shape and any type but objects.

    Raises:
        ValueError: If it is empty, cut short, of objects, or no such file.
    """
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty.")
    try:
        # Mapped, a header that promises more than the file holds is refused before any memory is asked for.
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    # What a broken header raises is up to numpy and its parser of literals: ValueError, TypeError, TokenError, ...
    except Exception as error:
        why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
        if "object" in why or "pickle" in why:
            why = "it seems to hold objects, that is a pickle, and opening one may run code"
        raise ValueError(f"{path} is no .npy file of numbers ({why}): save it anew with numpy.save.") from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise ValueError(f"{path} is an archive of arrays (.npz): save one of them with numpy.save.")
    return array
