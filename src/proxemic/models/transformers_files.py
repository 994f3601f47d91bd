"""The files of a network of transformers, in a local folder or on the hub: JSON and safetensors."""

import json
import re
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from proxemic.errors import UserError
from proxemic.extras import optional_dependency
from proxemic.models.config import TRANSFORMERS

CONFIG, _PROCESSOR = "config.json", "preprocessor_config.json"
_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_LARGEST_FILE = 2**20  # bytes of JSON; published ones have a few thousand


class ExpectedImages(NamedTuple):
    """What a network was trained with, as far as its folder says so: the side, and mean and std per colour, 0 to 1."""

    size: int | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None


def expected_images(folder: Path) -> ExpectedImages:
    """Read `preprocessor_config.json`; what it lacks, or says in another way, is None."""
    said = read_json(folder / _PROCESSOR) if (folder / _PROCESSOR).is_file() else {}
    size = said.get("crop_size") if said.get("do_center_crop") else said.get("size")
    sides = [*size.values()] if isinstance(size, dict) else [size]
    side = sides[0] if sides and isinstance(sides[0], int) else None
    if said.get("do_normalize") is False:
        return ExpectedImages(side, (0.0,) * 3, (1.0,) * 3)
    return ExpectedImages(side, _colours(said.get("image_mean")), _colours(said.get("image_std")))


def _colours(values: Any) -> tuple[float, ...] | None:
    whole = isinstance(values, list) and len(values) == 3 and all(isinstance(value, int | float) for value in values)
    return tuple(values) if whole else None


def find_folder(backbone: str, *, weights: bool) -> Path:
    """Find the folder of the network `hf:FOLDER`, or of the hub's files of `hf:NAME`, fetched if need be."""
    name = backbone.removeprefix(TRANSFORMERS)
    folder = Path(name).expanduser()
    if folder.is_dir():
        if not (folder / CONFIG).is_file():
            raise ValueError(f"backbone {backbone!r}: {folder} has no {CONFIG}; give a folder of save_pretrained")
        return folder
    if not _HUB_NAME.fullmatch(name):
        raise ValueError(
            f"backbone is {backbone!r}, but there is no such folder; give one that save_pretrained wrote, or a name on "
            "the Hugging Face hub, as hf:facebook/dinov2-small"
        )
    with optional_dependency("transformers"):
        import huggingface_hub
    wanted = [CONFIG, _PROCESSOR, *(["model*.safetensors", "model.safetensors.index.json"] if weights else [])]
    with suppress(Exception):  # not there
        cached = Path(huggingface_hub.snapshot_download(name, allow_patterns=wanted, local_files_only=True))
        if (cached / CONFIG).is_file() and (not weights or any(cached.glob("*.safetensors"))):
            return cached
    url = huggingface_hub.hf_hub_url(name, CONFIG)
    try:
        # The download itself retries for most of a minute; this asks once.
        huggingface_hub.get_hf_file_metadata(url, timeout=5)
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=wanted))
    except Exception as error:  # whatever kept the files away, the remedy is the same
        cache = Path(huggingface_hub.constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
        files = f"{CONFIG}, {_PROCESSOR}" + (" and model.safetensors" if weights else "")
        raise UserError(
            f"backbone {backbone!r} is not in the cache and cannot be downloaded: fetch {files} from "
            f"{url.partition('/resolve/')[0]} elsewhere and give their folder as hf:FOLDER, or copy the folder {cache} "
            "from a machine that has it"
        ) from error


def read_json(file: Path) -> dict[str, Any]:
    """Read a small file of names and values, or raise `ValueError`."""
    try:
        if (size := file.stat().st_size) > _LARGEST_FILE:
            raise ValueError(f"it has {size:,} bytes, but may have {_LARGEST_FILE:,}")
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it maps no names to values")
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    return content
