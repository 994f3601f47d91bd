"""What the server's engine answers, also where there is no model."""

import asyncio
import io
import math
import re
import shutil
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from images import tiled
from proxemic.allocator import give_back_freed_memory
from proxemic.errors import UserError
from proxemic.retrieval import Calibration, Embedder, Gallery
from proxemic.serve import pictures
from proxemic.serve.engine import Engine
from proxemic.serve.limits import Limits, Refused

Ask = Callable[..., list[Any]]


@contextmanager
def opened(*arguments: Any, **settings: Any) -> Iterator[tuple[Engine, Ask]]:
    """An engine, and a function that awaits several answers of it at once."""
    engine = Engine(*arguments, **settings)

    def ask(*questions: Awaitable[Any]) -> list[Any]:
        async def gather() -> list[Any]:
            return await asyncio.gather(*questions, return_exceptions=True)

        return asyncio.run(gather())

    yield engine, ask
    engine.close()


def test_every_question_has_its_own_answer(shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    address = str(tmp_path / "shop")
    Gallery.create(address, shelf / "model", shelf / "photos").close()
    contents = [path.read_bytes() for path in sorted((shelf / "photos").rglob("*.png"))]
    monkeypatch.setattr("proxemic.serve.engine._AT_ONCE", 5)
    with opened(address, threshold=1e-4) as (engine, ask):
        about = engine.about()
        assert (about["name"], about["rows"], about["label_count"], about["notes"]) == ("shop", 28, 7, [])
        # Each answer is that of its own question, whatever else is in its batch.
        wheres: list[dict[str, Any]] = [{}, {"label": ["class 02", "class 05"]}, {"label": [None]}]
        searches = [engine.query(content, 2 + place % 3, wheres[place % 3]) for place, content in enumerate(contents)]
        answers = ask(*searches, *map(engine.query, contents))
        for place, answer in enumerate(answers[:28]):
            assert answer["recognition"]["label"] == f"class {place // 4:02}"
            assert len(answer["hits"]) == (2 + place % 3 if place % 3 < 2 else 0)
            if place % 3 == 0:
                assert answer["hits"][0]["id"] == place
                assert answer["hits"][0]["distance"] == pytest.approx(0, abs=1e-5)
            if place % 3 == 1:
                assert {hit["label"] for hit in answer["hits"]} <= {"class 02", "class 05"}
        gallery = Gallery.open(address)
        vectors, _ = gallery.store.rows(np.arange(28))
        embedded = np.array([answer["vector"] for answer in answers[28:]])
        np.testing.assert_allclose(embedded / np.linalg.norm(embedded, axis=1)[:, None], vectors, atol=1e-5)
        found, refused, row, picture, small = ask(
            engine.show(engine.browse, 3, 2, wheres[1]),
            engine.show(engine.browse, 0, 9, {"price": ["1"]}),
            *(engine.show(method, 9) for method in (engine.item, engine.original, engine.thumbnail)),
        )
        assert ([item["id"] for item in found["items"]], found["more"]) == ([8, 9], True)
        assert (refused.status_code, "no column 'price'" in refused.detail) == (422, True)
        assert row == {"id": 9, "name": "1.png", "label": "class 02", "columns": {}}
        assert picture == ("image/png", contents[9])
        assert small[0] == "image/jpeg"
        near = engine.near(9, 30, {})
        assert 9 not in [hit["id"] for hit in near["hits"]]
        assert len(near["hits"]) == 27
        gallery.remove({"label": "class 02"})
        (gone,) = ask(engine.show(engine.item, 9))
        assert gone.status_code == 404
        assert engine.about()["rows"] == 24
        gallery.close()


def test_vectors_alone_are_searched_by_rows(tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "vectors", dim=2, roots=["/"])
    gallery.add_vectors([[1, 0], [0, 1], [1, 0.1]], ["/etc/passwd", "../hat.jpg", "s3:nowhere"], ["shoe", None, "shoe"])
    with opened(str(tmp_path / "vectors")) as (engine, ask):
        about, found = engine.about(), engine.near(0, 5, {})
        refused, secret = ask(engine.query(b"", 5), engine.show(engine.original, 0))
    assert not about["takes_pictures"]
    assert about["threshold"] is None
    assert "only its own photos can be queries" in about["notes"][0]
    assert about["notes"][1].startswith("No threshold was learnt, so photos are not named")
    assert [hit["id"] for hit in found["hits"]] == [2, 1]
    assert (refused.status_code, "Give the id of a photo." in refused.detail) == (422, True)
    assert secret.status_code == 404, "a file that is no picture"


def test_only_pictures_that_the_gallery_was_given_are_opened(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, outside = shelf / "photos" / "class 00" / "0.png", shelf / "photos" / "class 01" / "0.png"
    (tmp_path / "link").symlink_to(outside.parent)
    names = [str(inside), str(outside), f"{tmp_path}/link/0.png", "http://127.0.0.1/", f"file://{outside}"]
    gallery = Gallery.create(tmp_path / "vectors", dim=2, roots=[inside.parent, tmp_path])
    gallery.add_vectors([[1.0, row] for row in range(len(names))], names)
    fetched: list[str] = []
    monkeypatch.setattr("proxemic.serve.pictures.read_address", fetched.append)
    with opened(str(tmp_path / "vectors")) as (engine, ask):
        assert engine.original(0) == ("image/png", inside.read_bytes())
        refused = ask(*(engine.show(show, row) for row in range(1, 5) for show in (engine.original, engine.thumbnail)))
        assert [(item.status_code, "not an image" in item.detail) for item in refused] == [(404, True)] * 8
        assert fetched == []
        # A running server sees what is given later.
        gallery.store.add_roots([str(outside.parent)])
        assert engine.original(1) == ("image/png", outside.read_bytes())


def test_clients_are_not_told_where_things_lie(shelf: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def fail() -> None:
        raise UserError(f"{shelf} cannot be reached.")

    with opened(str(shelf / "shop")) as (engine, ask):
        assert str(shelf) in engine.messages[0], "the terminal is told"
        assert str(shelf) not in str(engine.about())
        (refused,) = ask(engine.show(fail))
    assert (refused.status_code, str(shelf) in refused.detail) == (503, False)
    assert f"{shelf} cannot be reached." in capfd.readouterr().err


def test_requests_that_wait_too_long_or_are_too_many(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = (shelf / "photos/class 00/0.png").read_bytes()
    hangs = threading.Event()
    with opened(str(shelf / "shop"), limits=Limits(seconds=1, queue=4)) as (engine, ask):
        prepare = engine.gallery.embedder.prepare
        monkeypatch.setattr(engine.gallery.embedder, "prepare", lambda content: hangs.wait() and prepare(content))
        *late, refused, row, health = ask(
            *(engine.query(content, 1) for _ in range(5)), engine.show(engine.item, 0), engine.check_health()
        )
        assert [item.status_code for item in late] == [504] * 4
        assert (refused.status_code, refused.headers) == (503, {"Retry-After": "1"})
        assert "4 requests are waiting already" in refused.detail
        assert row["id"] == 0, "which needs no model"
        assert isinstance(health, Refused), "a decoder hangs"
        hangs.set()
        found, health = ask(engine.query(content, 1), engine.check_health())
        assert found["hits"][0]["id"] == 0
        assert health is None


def test_a_query_that_fails_fails_alone(shelf: Path) -> None:
    content = (shelf / "photos/class 00/0.png").read_bytes()
    with opened(str(shelf / "shop")) as (engine, ask):
        found, refused, vector = ask(
            engine.query(content, 1), engine.query(content, 1, {"price": ["1"]}), engine.query(content)
        )
    assert found["hits"][0]["id"] == 0
    assert refused.status_code == 422
    assert len(vector["vector"]) == 6


def jpeg_of_many_scans(image: Image.Image) -> bytes:
    """A progressive JPEG file of 200 scans, each of which takes a pass over the whole picture."""
    file = io.BytesIO()
    image.convert("RGB").save(file, "JPEG", progressive=True)
    *first, last = (content := file.getvalue().removesuffix(b"\xff\xd9")).split(b"\xff\xda")
    return content + (b"\xff\xda" + last) * (200 - len(first)) + b"\xff\xd9"


def worst_pictures(side: int) -> dict[str, bytes]:
    """Pictures that take the most memory or time for their pixels."""
    turned = Image.Exif()
    turned[274] = 6
    encoded = {"scans": jpeg_of_many_scans(Image.new("L", (side, side), 100))}
    for mode, kind in (("I;16", "PNG"), ("RGBA", "PNG"), ("LA", "PNG"), ("RGBA", "WEBP"), ("CMYK", "TIFF")):
        file = io.BytesIO()
        Image.new(mode, (side, side), 9000 if mode == "I;16" else 9).save(
            file, kind, exif=turned, compression="tiff_deflate"
        )
        encoded[f"{mode} {kind}"] = file.getvalue()
    return encoded


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
def test_the_worst_picture_takes_bounded_memory(shelf: Path) -> None:
    def memory(name: str) -> int:
        return 1024 * int(re.findall(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[0])

    side = 2000
    pictures = worst_pictures(side)
    with opened(str(shelf / "shop"), limits=Limits(pixels=side * side, bytes=400_000)) as (engine, ask):
        for kind, content in pictures.items():
            assert len(content) < 400_000
            give_back_freed_memory()
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
            before = memory("VmRSS")
            (answer,) = ask(engine.query(content))
            assert "vector" in answer, (kind, answer)
            assert memory("VmHWM") - before < 40 * side * side, kind


def test_a_threshold_that_is_asked_for_must_be_there(shelf: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no threshold"):
        Engine(str(shelf / "shop"), rate=0.1)
    with pytest.raises(UserError, match="holds no gallery"):
        Engine(str(tmp_path))


def test_a_threshold_from_few_classes_is_doubted(shelf: Path, tmp_path: Path) -> None:
    for name in ("model", "shop"):
        shutil.copytree(shelf / name, tmp_path / name)
    model = Embedder.load(tmp_path / "model")
    few = Calibration(model.checksum, "cosine", "faces", 5, 50, 50, 0.1, 0.25, 0.1, math.nan, math.nan, 0.9, 0.3)
    few.write(tmp_path / "model")
    paths = str(tmp_path / "shop"), str(tmp_path / "model")
    with opened(*paths) as (engine, _):
        about = engine.about()
        assert (about["threshold"], about["rate"]) == (0.25, 0.1)
        assert "learnt from 5 classes, and with fewer than 20" in about["notes"][0]
        assert "proxemic calibrate" in engine.messages[1], "the terminal is told what to do"
    replace(few, classes=40, images=400, low=0.05, high=0.2).write(tmp_path / "model")
    with opened(*paths) as (engine, _):
        assert engine.about()["notes"] == engine.messages == []
    with pytest.raises(UserError, match=r"rate of 0.1, not 0.2"):
        Engine(*paths, rate=0.2)


def test_a_part_of_a_picture_is_that_part_alone(shelf: Path, tmp_path: Path) -> None:
    table = tmp_path / "boxes.csv"
    whole = shelf / "photos" / "class 00" / "0.png"
    table.write_text(f"path,x_1,y_1,x_2,y_2\n{whole},2,3,12,9\n")
    Gallery.create(tmp_path / "boxes", shelf / "model", table)
    with opened(str(tmp_path / "boxes")) as (engine, _):
        row, (kind, content), (_, small) = engine.item(0), engine.original(0), engine.thumbnail(0)
    assert row["name"] == "0.png (2, 3, 12, 9)"
    assert kind == "image/jpeg"
    assert [Image.open(io.BytesIO(value)).size for value in (content, small)] == [(10, 6), (256, 154)]


def test_pictures_are_decoded_within_one_budget_of_pixels(
    shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queries and thumbnails together; a picture above the budget is decoded alone, and does not wait for ever."""
    sides = [10, 10, 40, 10, 60, 10, 10]
    (tmp_path / "photos").mkdir()
    for number, side in enumerate(sides):
        Image.new("RGB", (side, side)).save(tmp_path / "photos" / f"{number}.png")
    Gallery.create(tmp_path / "shop", shelf / "model", tmp_path / "photos").close()
    lock, now, seen = threading.Lock(), [0], list[int]()

    def slowly(decode: Callable[..., Any]) -> Callable[..., Any]:
        def work(content: bytes, *arguments: Any) -> Any:
            with Image.open(io.BytesIO(content)) as image:
                pixels = image.width * image.height
            with lock:
                now[0] += pixels
                seen.append(now[0])
            time.sleep(0.05)
            try:
                return decode(content, *arguments)
            finally:
                with lock:
                    now[0] -= pixels

        return work

    monkeypatch.setattr("proxemic.serve.pictures.read_small", slowly(pictures.read_small))
    with opened(str(tmp_path / "shop"), limits=Limits(pixels=1700)) as (engine, ask):
        monkeypatch.setattr(engine.gallery.embedder, "prepare", slowly(engine.gallery.embedder.prepare))
        query = (tmp_path / "photos" / "2.png").read_bytes()
        answers = ask(
            *(engine.show(engine.thumbnail, row) for row in range(len(sides))),
            *(engine.query(query, 1) for _ in range(3)),
        )
    assert [type(answer) for answer in answers] == [tuple] * len(sides) + [dict] * 3
    assert max(total for total in seen if total != 3600) <= 1700
    assert 200 in seen, "two at once"


def test_a_query_with_a_huge_tile_is_refused(shelf: Path) -> None:
    with opened(str(shelf / "shop")) as (engine, ask):
        (refused,) = ask(engine.query(tiled(16, 40960), 1))
    assert (refused.status_code, "1,677,721,600" in refused.detail) == (413, True)
