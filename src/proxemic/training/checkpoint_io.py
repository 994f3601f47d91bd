"""Checkpoints that are whole or not there."""

import io
import os
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from lightning.fabric.plugins import TorchCheckpointIO

from proxemic.errors import UserError
from proxemic.files import write_atomically

__all__ = ["AtomicCheckpointIO"]


class AtomicCheckpointIO(TorchCheckpointIO):
    """Lightning's checkpoints, written to a temporary name and then renamed, read without unpickling code."""

    def save_checkpoint(
        self, checkpoint: Mapping[str, Any], path: str | os.PathLike[str], storage_options: Any | None = None
    ) -> None:
        # Serialised before it is written: torch.save hides the reason why a write to a file fails.
        content = io.BytesIO()
        torch.save(dict(checkpoint), content)
        with write_atomically(Path(path)) as temporary:
            temporary.write_bytes(content.getbuffer())

    def load_checkpoint(
        self, path: str | os.PathLike[str], map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        try:
            return torch.load(path, map_location=map_location or "cpu", weights_only=True)
        except (RuntimeError, EOFError, UnpicklingError) as error:
            reason = " ".join(str(error).split()).split(". ")[0] or type(error).__name__
            raise UserError(
                f"{path} is no whole checkpoint of tensors ({reason}): put a copy in its place, or begin anew with "
                "another --out."
            ) from error
