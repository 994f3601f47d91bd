"""Every data set's miniature through the command line: whole, cut short, with an image missing.

``pytest tests/cli/test_dataset_faults.py -s`` prints what a user reads in each case.
"""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from torchvision.datasets.utils import calculate_md5

from command_line import Here, assert_refused
from data.benchmarks.miniature import pack, write_cars, write_cub, write_fashion_mnist, write_in_shop, write_sop
from data.benchmarks.site import Site, serve
from proxemic.data.benchmarks import BENCHMARKS, Benchmark, downloads

WRITERS = {"cub": write_cub, "cars": write_cars, "sop": write_sop, "in-shop": write_in_shop}
FOLDERS = {"cub": "CUB_200_2011", "cars": "car_ims", "sop": "Stanford_Online_Products", "in-shop": "Img/img"}
Tell = Callable[..., subprocess.CompletedProcess[str]]
COUNTS = {"train classes": 4, "train images": 16, "test classes": 4, "test images": 16}


def originals(key: str, folder: Path) -> dict[str, bytes]:
    """The files as their authors offer them."""
    if key == "fashion-mnist":
        write_fashion_mnist(folder)
    else:
        WRITERS[key](folder)
        tree = folder / FOLDERS[key]
        pack(tree, folder / BENCHMARKS[key].facts.files[0].name)
        shutil.rmtree(tree)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(params=[*WRITERS, "fashion-mnist"])
def source(request: pytest.FixtureRequest) -> type[Benchmark]:
    return BENCHMARKS[request.param]


@pytest.fixture
def site(source: type[Benchmark], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A mirror of the miniature, whose counts and checksums are the right ones."""
    monkeypatch.setattr(downloads, "_PAUSE", 0.001)
    folder = tmp_path / "originals"
    contents = originals(source.facts.key, folder)
    counts = dict(COUNTS)
    if source.facts.key == "in-shop":
        counts |= {"query images": 8, "gallery images": 8}
    if source.facts.key == "fashion-mnist":
        counts = {"train classes": 10, "train images": 40, "test classes": 10, "test images": 40}
    files = tuple(replace(file, md5=file.md5 and calculate_md5(folder / file.name)) for file in source.facts.files)
    monkeypatch.setattr(source, "facts", replace(source.facts, counts=counts, files=files))
    with serve(Site(contents)) as site:
        yield site


@pytest.fixture
def tell(source: type[Benchmark], tmp_path: Path, here: Here) -> Iterator[Tell]:
    told: list[str] = []

    def one(what: str, *words: str | Path) -> subprocess.CompletedProcess[str]:
        result = here("datasets", *words)
        told.append(f"{source.facts.key}, {what}: exit {result.returncode}\n{result.stdout}{result.stderr}")
        return result

    yield one
    print("\n", "\n".join(told).replace(f"{tmp_path}/", ""))


def test_whole_cut_and_missing(source: type[Benchmark], site: Site, tmp_path: Path, tell: Tell) -> None:
    key, root = source.facts.key, tmp_path / "data"

    first = source.facts.files[0].name
    whole = site.files[first]
    site.files[first] = whole[: len(whole) // 2]
    cut = tell("cut short where it comes from", "prepare", key, "--root", root, "--url", site.url)
    if source.facts.files[0].md5 is None:  # nothing to compare it with before it is unpacked
        assert_refused(cut, [Path(first).name, "damaged or cut short", "delete it and"])
        (root / first).unlink()
    else:
        assert_refused(cut, [Path(first).name, "corrupted", str(root)])
        assert "goes on" not in cut.stderr  # nothing was kept
        assert not [path for path in root.rglob("*") if path.is_file()]
    site.files[first] = whole

    site.breaks = [len(whole) // 2, *[0] * 20]  # no longer answers anything
    broken = tell("a connection that breaks", "prepare", key, "--root", root, "--url", site.url)
    assert_refused(broken, [Path(first).name, "again"])
    site.breaks = []
    site.asked.clear()
    prepared = tell("gone on with", "prepare", key, "--root", root, "--url", site.url)
    assert prepared.returncode == 0, prepared.stderr
    assert "is whole" in prepared.stdout
    assert (site.asked[0] or "").startswith("bytes=")

    counted = tell("counted", "check", key, "--root", root, "--decode")
    assert counted.returncode == 0, counted.stderr
    for name, count in source.facts.counts.items():
        (row,) = (line for line in counted.stdout.splitlines() if f" {name} " in line)
        assert [cell.strip() for cell in row.split("│")[2:4]] == [str(count)] * 2

    if key == "fashion-mnist":  # no image has a file, and the labels no text
        labels = root / source.facts.files[1].name
        labels.write_bytes(whole)
        assert_refused(tell("another file", "check", key, "--root", root), [labels.name])
        return
    image = sorted(root.rglob("*.[jJ][pP][gG]"))[-1]
    image.unlink()
    missing = tell("an image missing", "check", key, "--root", root)
    assert_refused(missing, ["1 of 32 images missing", image.name, "instead of 16"])
