"""The user's own images in tar shards, as WebDataset writes them."""

import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa

from proxemic.data.formats.shards import index_shards
from proxemic.data.formats.tables import SPLITS
from proxemic.data.images import require_root
from proxemic.data.rows import Rows, first_few
from proxemic.data.sources.listing import files_below
from proxemic.data.sources.own_source import OwnSource
from proxemic.extras import optional_dependency
from proxemic.files import readable

_MOST_SHARDS = 2**20
_SHARD = re.compile(r"\.(tar(\.(gz|bz2|xz|zst))?|tgz)$")  # compressed ones are refused, rather than overlooked


@dataclass(frozen=True)
class WebDatasetShards(OwnSource):
    """Images in tar shards of WebDataset: neighbouring files such as `0001.jpg` and `0001.cls` are a sample.

    In a tar without compression, every image has a known position. One pass over the headers and labels finds these
    positions, and stores them as an index in the user's cache folder. Afterwards any image can be read by itself, so
    that batches, samplers and resuming work as for other sources; nothing is unpacked, and images are decoded when they
    are needed. The index takes 32 bytes of memory per image.

    If all shards lie in two or three folders called `train`, `validation` (or `val`) and `test`, these are the splits.
    Otherwise whole classes are held out, as by `OwnImages`.

    Args:
        root: A folder with shards at any depth, one shard, or a pattern in braces, as `shards/train-{000..146}.tar`,
            which needs the extra `webdataset`.
        image: Ending of the images' names after the first dot, such as `left.jpg`, needed only if samples have several
            images; None for the usual endings of JPEG, PNG, WebP, BMP, GIF and TIFF.
        label: Ending of the labels' names: `cls` or `txt`, which hold a number or a name; or `json.` and the key of
            the class, as `json.label`.
        strict: Refuse samples without an image or a label; otherwise they are left out and counted in the notes.
        test_fraction: As in `OwnImages`; the following, too.
        validation_fraction: Part of the remaining classes, or images, held out for validation.
        hold_out: Classes for an open set, images for a closed one.
        split_seed: Seed of the random split.

    Raises:
        ValueError: If a fraction is out of range, or (on load) shards are missing, compressed or damaged, or cannot be
            split.

    Source: https://github.com/webdataset/webdataset

    >>> import io, tarfile, tempfile
    >>> from PIL import Image
    >>> folder = Path(tempfile.mkdtemp())
    >>> with tarfile.open(folder / "000.tar", "w") as tar:
    ...     for number in range(8):
    ...         image = io.BytesIO()
    ...         Image.new("L", (8, 8)).save(image, "PNG")
    ...         for ending, content in (("png", image.getvalue()), ("cls", b"%d" % (number // 2))):
    ...             member = tarfile.TarInfo(f"{number:04}.{ending}")
    ...             member.size = len(content)
    ...             tar.addfile(member, io.BytesIO(content))
    >>> splits = WebDatasetShards(folder, test_fraction=0.5, validation_fraction=0.0).load()
    >>> len(splits.train), splits.train.num_classes, len(splits.test)
    (4, 2, 4)
    """

    image: str | None = None
    label: str = "cls"
    strict: bool = False

    def read_rows(self) -> Rows:
        shards = self._shards()
        index = index_shards(shards, self.image, self.label)
        notes: tuple[str, ...] = ()
        if index.without:
            examples = first_few([readable(key) for key in index.examples])
            lacking = f"{index.without:,} samples without an image or a label, {examples}"
            if self.strict:
                raise ValueError(f"{self.root} has {lacking}: mend them, or set strict to false.")
            notes = (f"Left out: {lacking}.",)
        if not len(index.labels):
            raise ValueError(
                f"{self.root} has no sample with an image and a label ending in {self.label}: name the ending of the "
                "labels, as --data.label txt or json.label. An ending begins at the first dot of a name: if samples "
                "are called with dots, write the files with these replaced."
            )
        columns = {"label": pa.DictionaryArray.from_arrays(index.labels, pa.array(index.class_names))}
        splits = [SPLITS.get(shard.absolute().parent.name.lower()) for shard in shards]
        if None not in splits and len({*splits}) > 1:  # folders of two splits or three
            columns["split"] = pa.DictionaryArray.from_arrays(index.pixels.shard, pa.array(splits))
        return Rows(pa.table(columns), index.pixels, notes=notes)

    def _shards(self) -> list[Path]:
        text = str(require_root(self.root, "a folder of shards, or a pattern"))
        if Path(text).is_dir():
            unreadable: dict[Path, str] = {}
            found = sorted(path for path in files_below(Path(text), unreadable) if _SHARD.search(path.name))
            for folder, why in unreadable.items():
                raise ValueError(f"{readable(folder)} cannot be listed ({why}): give permission to read it.")
        elif "{" in text and not Path(text).exists():
            with optional_dependency("webdataset"):
                from braceexpand import braceexpand
            try:
                found = [Path(name) for name in islice(braceexpand(text), _MOST_SHARDS)]
            except ValueError as error:
                raise ValueError(f"{text} is no pattern of shards: {error}.") from error
        else:
            found = [Path(text)]
        first: dict[Path, Path] = {}  # a shard listed twice, perhaps through a link, has the same images
        for path in found:
            first.setdefault(path.resolve(), path)
        found = [*first.values()]
        absent = [path for path in found if not path.is_file()]
        if absent or not found:
            lacking = f"{len(absent):,} of {len(found):,} shards are missing, as {absent[0]}" if absent else ""
            raise ValueError(
                f"{text}: {lacking or 'it has no .tar file'}: give a folder of .tar files on this machine, or a "
                "pattern such as shards/{000..146}.tar."
            )
        return found
