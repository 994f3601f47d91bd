"""What features depend on, as a name under which they are found again."""

import hashlib
import inspect
import json
import re
from dataclasses import asdict, is_dataclass
from pathlib import Path

import safetensors.torch

from proxemic.data.cache import key_of
from proxemic.data.formats.shards import ShardPixels
from proxemic.data.pixels import CachedPixels, FilePixels, Pixels
from proxemic.models import EmbeddingModel

_VERSION = 1  # of what is done to an image before its features are written


def image_keys(pixels: Pixels) -> list[bytes]:
    """What each image is known by: its file, as long as that stays as it is, or else its pixels."""
    if isinstance(pixels, CachedPixels):  # the name of the cache stands for the files
        name = pixels.file.path.name
        return [repr((name, *cut)).encode() for cut in zip(pixels.paths, pixels.boxes, strict=True)]
    if isinstance(pixels, FilePixels):
        return [key_of((Path(path), box)) for path, box in zip(pixels.paths, pixels.boxes, strict=True)]
    if isinstance(pixels, ShardPixels):
        shards = [key_of((path, None)) for path in pixels.shards]
        places = zip(pixels.shard.tolist(), pixels.offsets.tolist(), strict=True)
        return [b"%s %d" % (shards[shard], offset) for shard, offset in places]
    images = (pixels[index] for index in range(len(pixels)))
    return [hashlib.sha256(f"{image.mode} {image.size} ".encode() + image.tobytes()).digest() for image in images]


def fingerprint(*parts: object) -> str:
    """A hash of what is given: plain data, dataclasses, and objects of the user's own by their class and its text."""
    return hashlib.sha256(json.dumps([_VERSION, *parts], default=_describe).encode()).hexdigest()[:16]


def network_key(model: EmbeddingModel) -> str:
    """A hash of a backbone, its pooling and their weights."""
    config = model.config
    settings = (config.backbone_name, config.backbone_args, config.pooling, config.image_size, config.in_channels)
    state = {name: value for name, value in model.state_dict().items() if not name.startswith("head.")}
    weights = {name: hashlib.sha256(safetensors.torch.save({"": value.contiguous()})) for name, value in state.items()}
    described = getattr(model.backbone, "description", dict)()  # what a file of the network's own says
    digests = {name: each.hexdigest() for name, each in weights.items()}
    return fingerprint(settings, described, _describe(config.custom_backbone), digests)


def _describe(thing: object) -> object:
    if thing is None:
        return None
    if is_dataclass(thing) and not isinstance(thing, type):
        return asdict(thing)
    kind = thing if hasattr(thing, "__qualname__") else type(thing)
    try:
        source = inspect.getsource(kind)  # pyright: ignore[reportArgumentType]
    except (OSError, TypeError):  # of no file, as typed in a shell, or not Python
        source = ""
    return [re.sub(r" at 0x[0-9a-f]+", "", repr(thing)), source]
