"""From nothing, or from archives, to a data set that is read and counted."""

from pathlib import PurePosixPath
from urllib.parse import urlsplit

from torchvision.datasets.utils import check_integrity

from proxemic.data.benchmarks.archives import unpack
from proxemic.data.benchmarks.benchmark import AbsentError, Benchmark, Official, OriginalFile
from proxemic.data.benchmarks.downloads import download


def prepare(source: Benchmark, url: str | None = None) -> Official:
    """Unpack the original archives, fetching those that are not there, and check the whole of the data set.

    Args:
        source: The data set, with the folder to make it in.
        url: A mirror: the folder that holds the files under their original names, or the file itself if there is one.

    Returns:
        The official splits.

    Raises:
        ValueError: If a file must be fetched by hand (it says where), cannot be fetched, or is damaged, or the data set
            is not whole.
    """
    _unpack(source)
    try:
        official = source.read()
    except AbsentError:
        if url is None and source.facts.by_hand:
            raise
        for file in source.facts.files:
            if source.locate(file) is None:
                download(_address(file, url), source.folder / file.name, file.md5)
        _unpack(source)
        official = source.read()
    source.judge(official)
    return official


def _unpack(source: Benchmark) -> None:
    for file in source.files:
        archive = source.locate(file)
        if archive is None or file.tree is None or (archive.parent / file.tree).exists():
            continue
        if not check_integrity(archive, file.md5):
            raise ValueError(
                f"{archive} is damaged, cut short or not the original, by its MD5: delete it and run {source.command}."
            )
        unpack(archive, file.tree)


def _address(file: OriginalFile, url: str | None) -> str:
    if url is None:
        assert file.url is not None  # or it would be fetched by hand
        return file.url
    name = PurePosixPath(file.name).name
    return url if PurePosixPath(urlsplit(url).path).name == name else f"{url.rstrip('/')}/{file.name}"
