import hashlib
import random
import resource
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest

from data.benchmarks.site import Site, serve
from proxemic.data.benchmarks import downloads
from proxemic.data.benchmarks.downloads import download

CONTENT = random.Random(0).randbytes(300_000)
MD5 = hashlib.md5(CONTENT).hexdigest()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(downloads, "_PAUSE", 0.001)
    with serve(Site({"a.zip": CONTENT})) as site:
        yield site


def left(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_file_arrives_once(site: Site, tmp_path: Path) -> None:
    target = tmp_path / "new" / "place" / "a.zip"
    for _ in range(2):
        download(f"{site.url}/a.zip", target, MD5)
        assert target.read_bytes() == CONTENT
    assert left(target.parent) == ["a.zip"]
    assert site.asked == [None]
    assert {str(agent).partition("/")[0] for agent in site.agents} == {"proxemic"}


@pytest.mark.parametrize("md5", [MD5, None], ids=["checked", "unchecked"])
def test_a_broken_connection_goes_on(site: Site, tmp_path: Path, md5: str | None) -> None:
    site.breaks = [
        100_000,
        0,
        50_000,
        0,
        0,
        0,
    ]  # four in a row without a byte are forgiven after three that brought some
    download(f"{site.url}/a.zip", tmp_path / "a.zip", md5)
    assert (tmp_path / "a.zip").read_bytes() == CONTENT
    assert site.asked == [None, *["bytes=100000-"] * 2, *["bytes=150000-"] * 4]
    assert sum(site.sent) == len(CONTENT)


def test_it_gives_up_and_keeps_what_arrived(site: Site, tmp_path: Path) -> None:
    site.breaks = [100_000, *[0] * 5]
    with pytest.raises(ValueError, match=r"broke after 100,000 of 300,000 bytes.*goes on from what has arrived"):
        download(f"{site.url}/a.zip", tmp_path / "a.zip", MD5)
    assert left(tmp_path) == ["a.zip.part"]
    site.sent.clear()
    download(f"{site.url}/a.zip", tmp_path / "a.zip", MD5)
    assert site.sent == [200_000]
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def broken_off(site: Site, target: Path, size: int, md5: str | None) -> None:
    """Leave `size` bytes of an unfinished download."""
    site.breaks = [size, *[0] * 5]
    with pytest.raises(ValueError, match="broke after"):
        download(f"{site.url}/{target.name}", target, md5)
    site.breaks.clear()
    site.asked.clear()
    site.sent.clear()


def test_a_server_that_ignores_ranges_starts_over(site: Site, tmp_path: Path) -> None:
    broken_off(site, tmp_path / "a.zip", 100_000, MD5)
    site.ranges = False
    download(f"{site.url}/a.zip", tmp_path / "a.zip", MD5)
    assert (site.asked, site.sent) == (["bytes=100000-"], [len(CONTENT)])
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_another_part_than_the_rest_is_refused(site: Site, tmp_path: Path) -> None:
    broken_off(site, tmp_path / "a.zip", 100_000, MD5)
    site.ahead = 10
    with pytest.raises(ValueError, match=r"sent another part than it was asked for\): try again"):
        download(f"{site.url}/a.zip", tmp_path / "a.zip", MD5)
    site.ahead = 0
    download(f"{site.url}/a.zip", tmp_path / "a.zip", MD5)
    assert site.sent[-1] == len(CONTENT) - 100_000
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_a_file_that_changed_meanwhile_is_told_by_its_checksum(site: Site, tmp_path: Path) -> None:
    broken_off(site, tmp_path / "a.zip", 100_000, MD5)
    site.files["a.zip"] = CONTENT[::-1]
    with pytest.raises(ValueError, match="what came is corrupted or another file"):
        download(f"{site.url}/a.zip", tmp_path / "a.zip", MD5)
    assert left(tmp_path) == []


def test_all_had_arrived_but_the_name(site: Site, tmp_path: Path) -> None:
    broken_off(site, tmp_path / "a.zip", 100_000, MD5)
    (tmp_path / "a.zip.part").write_bytes(CONTENT)
    download(f"{site.url}/a.zip", tmp_path / "a.zip", MD5)
    assert (tmp_path / "a.zip").read_bytes() == CONTENT
    assert site.sent == [0]


def test_more_had_arrived_than_there_is(site: Site, tmp_path: Path) -> None:
    broken_off(site, tmp_path / "a.zip", 100_000, MD5)
    (tmp_path / "a.zip.part").write_bytes(CONTENT + b"more")
    with pytest.raises(ValueError, match="was removed"):
        download(f"{site.url}/a.zip", tmp_path / "a.zip", MD5)
    download(f"{site.url}/a.zip", tmp_path / "a.zip", MD5)
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_a_wrong_checksum_leaves_nothing(site: Site, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"with MD5 {MD5} instead of 000.*was removed"):
        download(f"{site.url}/a.zip", tmp_path / "a.zip", "0" * 32)
    assert left(tmp_path) == []


def test_what_is_not_worth_another_attempt(site: Site, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"could not be downloaded .*404"):
        download(f"{site.url}/b.zip", tmp_path / "b.zip")
    site.kind = "text/html; charset=utf-8"
    with pytest.raises(ValueError, match="the server sent a web page"):
        download(f"{site.url}/a.zip", tmp_path / "a.zip")
    with pytest.raises(ValueError, match="refused"):
        download("http://127.0.0.1:9/a.zip", tmp_path / "a.zip")
    assert len(site.asked) == 2
    assert left(tmp_path) == []


def test_a_server_that_is_busy_for_a_moment(site: Site, tmp_path: Path) -> None:
    site.breaks, site.status = [100_000], [200, 503, 429]
    download(f"{site.url}/a.zip", tmp_path / "a.zip", MD5)
    assert (tmp_path / "a.zip").read_bytes() == CONTENT
    assert site.asked == [None, *["bytes=100000-"] * 3]


def test_a_full_disk_is_told_before_and_when_it_happens(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(ValueError, match=r"could not be downloaded .*File too large.*try again"):
            download(f"{site.url}/a.zip", tmp_path / "a.zip", MD5)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    monkeypatch.setattr(downloads.shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    with pytest.raises(ValueError, match=r"are to come, but 0\.0 GB are free"):
        download(f"{site.url}/a.zip", tmp_path / "a.zip", MD5)
    assert not (tmp_path / "a.zip").exists()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_killed_process_leaves_the_rest_to_the_next(site: Site, tmp_path: Path) -> None:
    site.breaks, site.stalled = [200_000], Event()
    part = tmp_path / "a.zip.part"
    # A fork, as another interpreter takes seconds to import all this.
    process = get_context("fork").Process(target=download, args=(f"{site.url}/a.zip", tmp_path / "a.zip", MD5))
    process.start()
    deadline = time.monotonic() + 300
    while not (part.exists() and part.stat().st_size > 100_000):
        assert process.is_alive()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.join()
    site.stalled.set()
    assert not (tmp_path / "a.zip").exists()
    arrived = part.stat().st_size
    download(f"{site.url}/a.zip", tmp_path / "a.zip", MD5)
    assert site.asked == [None, f"bytes={arrived}-"]
    assert site.sent[-1] == len(CONTENT) - arrived
    assert (tmp_path / "a.zip").read_bytes() == CONTENT
