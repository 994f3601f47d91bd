import hashlib
import random
import resource
import time
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from threading import Event

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
    site.breaks = [100_000, 0, 50_000, 0, 0, 0]  # four in a row without a byte are forgiven
    download(f"{site.url}/a.zip", tmp_path / "a.zip", md5)
    assert (tmp_path / "a.zip").read_bytes() == CONTENT
    assert site.asked == [None, *["bytes=100000-"] * 2, *["bytes=150000-"] * 4]
    assert sum(site.sent) == len(CONTENT)


def test_what_was_broken_off_goes_on_or_starts_over(site: Site, tmp_path: Path) -> None:
    target, part = tmp_path / "a.zip", tmp_path / "a.zip.part"

    def break_off() -> None:
        target.unlink(missing_ok=True)
        site.breaks, site.ranges, site.ahead = [100_000, *[0] * 5], True, 0
        with pytest.raises(ValueError, match=r"broke after 100,000 of 300,000 bytes.*continues the download"):
            download(f"{site.url}/a.zip", target, MD5)
        assert left(tmp_path) == ["a.zip.part"]
        site.breaks.clear()
        site.sent.clear()

    break_off()
    download(f"{site.url}/a.zip", target, MD5)
    assert (site.sent, target.read_bytes()) == ([200_000], CONTENT)
    break_off()
    site.ranges = False  # a server may ignore them
    download(f"{site.url}/a.zip", target, MD5)
    assert (site.sent, target.read_bytes()) == ([len(CONTENT)], CONTENT)
    break_off()
    site.ahead = 10
    with pytest.raises(ValueError, match=r"sent another part than it was asked for\): try again"):
        download(f"{site.url}/a.zip", target, MD5)
    site.ahead = 0
    part.write_bytes(CONTENT)  # all had arrived but the name
    download(f"{site.url}/a.zip", target, MD5)
    assert target.read_bytes() == CONTENT
    break_off()
    site.files["a.zip"] = CONTENT[::-1]
    with pytest.raises(ValueError, match=rf"corrupted or another file, with MD5 \w+ instead of {MD5}, and was removed"):
        download(f"{site.url}/a.zip", target, MD5)
    assert left(tmp_path) == []


def test_what_is_not_worth_another_attempt(site: Site, tmp_path: Path) -> None:
    for url, words in ((f"{site.url}/b.zip", "404"), ("http://127.0.0.1:9/a.zip", "refused"), ("ftp://a/b", "not an")):
        with pytest.raises(ValueError, match=words):
            download(url, tmp_path / "a.zip")
    assert left(tmp_path) == []


def test_a_full_disk_is_said(site: Site, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(ValueError, match=r"could not be downloaded .*\(File too large\): try again, which"):
            download(f"{site.url}/a.zip", tmp_path / "a.zip", MD5)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_server_that_is_busy_for_a_moment(site: Site, tmp_path: Path) -> None:
    site.breaks, site.status = [100_000], [200, 503, 429]
    download(f"{site.url}/a.zip", tmp_path / "a.zip", MD5)
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


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
    assert (tmp_path / "a.zip").read_bytes() == CONTENT
