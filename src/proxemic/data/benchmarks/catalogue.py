"""List, count and fetch the published data sets by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from proxemic.data.benchmarks.archives import unpack
from proxemic.data.benchmarks.benchmark import AbsentError, Benchmark, Facts, Official, OriginalFile
from proxemic.data.benchmarks.cars import Cars196
from proxemic.data.benchmarks.cub import CUB200
from proxemic.data.benchmarks.downloads import download
from proxemic.data.benchmarks.fashion_mnist import FashionMNIST
from proxemic.data.benchmarks.in_shop import InShop
from proxemic.data.benchmarks.omniglot import OmniglotFull, OmniglotSmall
from proxemic.data.benchmarks.sop import StanfordOnlineProducts
from proxemic.data.pixels import FilePixels
from proxemic.data.sources.listing import examine_images, list_files
from proxemic.files import has_md5

BENCHMARKS: Mapping[str, type[Benchmark]] = {
    source.facts.key: source
    for source in (CUB200, Cars196, StanfordOnlineProducts, InShop, FashionMNIST, OmniglotSmall, OmniglotFull)
}
"""The data sets by name."""


@dataclass(frozen=True)
class BenchmarkStatus:
    """A published data set, and whether a folder holds it.

    Args:
        facts: Its name, size and origin.
        state: `whole`; `not whole: see datasets check`; `files, not prepared` if there are only archives; `-` if there
            is nothing; None if no folder was searched.
    """

    facts: Facts
    state: str | None


@dataclass(frozen=True)
class BenchmarkReport:
    """The contents of a folder compared with a published data set.

    Args:
        expected: Number of classes and images of each split in the official data set.
        found: The same numbers in the folder.
        flaws: Missing or different parts, half a sentence each.
        unreadable: Images that cannot be decoded, with reasons; empty if no image was opened.
        problem: One sentence about the problem and its solution; None if there is no problem.
    """

    expected: Mapping[str, int]
    found: Mapping[str, int]
    flaws: tuple[str, ...]
    unreadable: Mapping[str, str]
    problem: str | None

    def as_dict(self) -> dict[str, Any]:
        """Convert the counts, flaws and unreadable images to plain data for JSON."""
        return {name: value for name, value in vars(self).items() if name != "problem"}


def list_benchmarks(root: Path | None = None) -> list[BenchmarkStatus]:
    """List the published data sets.

    Args:
        root: Folder to search for each data set, also in its subfolder of the data set's name; None does not search.

    >>> [status.facts.key for status in list_benchmarks()]
    ['cub', 'cars', 'sop', 'in-shop', 'fashion-mnist', 'omniglot', 'omniglot-full']
    """
    return [
        BenchmarkStatus(benchmark.facts, None if root is None else _state(benchmark, root))
        for benchmark in BENCHMARKS.values()
    ]


def _state(benchmark: type[Benchmark], root: Path) -> str:
    for folder in (root, root / benchmark.facts.key):
        source = benchmark(folder)
        try:
            source.check(source.read())
        except AbsentError:
            if any(source.locate(file) for file in source.files):
                return "files, not prepared"
        except ValueError:
            return "not whole: see datasets check"
        else:
            return "whole"
    return "-"


def check_benchmark(source: Benchmark, *, decode: bool = False) -> BenchmarkReport:
    """Count the classes and images of a published data set, and compare the counts with the official ones.

    Args:
        source: The data set, with its folder.
        decode: Also open every image.

    Raises:
        ValueError: If the data set is missing, or its annotations contradict themselves.
    """
    official = source.read()
    # Images of other kinds were already decoded while reading.
    stores = [part.pixels for part in (official.train, official.test) if isinstance(part.pixels, FilePixels)]
    paths = [path for pixels in stores for path in pixels.paths] if decode else []
    unreadable = examine_images(list_files(paths))[0].unreadable
    try:
        source.check(official)
        problem = None
    except ValueError as error:
        problem = str(error)
    if unreadable and problem is None:
        path, reason = next(iter(unreadable.items()))
        problem = (
            f"{source.root} has {len(unreadable):,} images that cannot be read, such as {path} ({reason}): delete what "
            f"is damaged and run {source.command}."
        )
    return BenchmarkReport(source.facts.counts, official.counts, official.flaws, unreadable, problem)


def prepare(source: Benchmark, url: str | None = None) -> Official:
    """Fetch missing archives of a published data set, unpack all archives, and check the data set.

    Args:
        source: The data set, with the folder to write it to.
        url: A mirror: the folder that holds the files under their original names, or the file itself if there is one.

    Returns:
        The official splits.

    Raises:
        ValueError: If a file must be fetched by hand (the message says where), cannot be fetched or is damaged, or the
            data set is incomplete.
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
    source.check(official)
    return official


def _unpack(source: Benchmark) -> None:
    for file in source.files:
        archive = source.locate(file)
        if archive is None or file.tree is None or (archive.parent / file.tree).exists():
            continue
        if not has_md5(archive, file.md5):
            raise ValueError(
                f"{archive} is damaged, cut short or not the original, by its MD5: delete it and run {source.command}."
            )
        unpack(archive, file.tree)


def _address(file: OriginalFile, url: str | None) -> str:
    if url is None:
        assert file.url is not None  # the others must be downloaded by hand
        return file.url
    name = PurePosixPath(file.name).name
    return url if PurePosixPath(urlsplit(url).path).name == name else f"{url.rstrip('/')}/{file.name}"
