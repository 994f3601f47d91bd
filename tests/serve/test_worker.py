"""What the worker process answers, here in this one: on every store, and where there is no model."""

import io
import math
import multiprocessing
import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from proxemic.errors import UserError
from proxemic.retrieval import CalibratedThreshold, Calibration, Embedder, Gallery
from proxemic.serve.messages import (
    About,
    Asked,
    Browse,
    Embed,
    Item,
    Original,
    Question,
    Refused,
    Search,
    Settings,
    Thumbnail,
)
from proxemic.serve.worker import Worker, _refused
from servers import Postgres

STORES = ("local", "postgres", "milvus")


@contextmanager
def working(settings: Settings) -> Iterator[Any]:
    """A function that asks a worker, each question of several at once."""
    ours, others = multiprocessing.Pipe()
    worker = Worker(others, settings)

    def run() -> None:
        with suppress(EOFError, OSError):
            worker.run()

    thread = threading.Thread(target=run)
    thread.start()

    def ask(*questions: Question, seconds: float = 60) -> list[Any]:
        for number, question in enumerate(questions):
            ours.send(Asked(number, question, time.monotonic() + seconds))
        answers = {each.number: each.answer for each in (ours.recv() for _ in questions)}
        return [answers[number] for number in range(len(questions))]

    yield ask
    ours.send(None)
    thread.join()
    worker.close()


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    server = Postgres()
    yield server
    server.stop()


@pytest.fixture(params=STORES)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "postgres":
            return request.getfixturevalue("postgres").address("shop")
        case "milvus":
            pytest.importorskip("milvus_lite", reason="Milvus Lite has no Windows")
            return f"milvus-lite:{tmp_path / 'shop'}"
    return str(tmp_path / "shop")


def test_a_gallery_in_any_store(address: str, shelf: Path) -> None:
    Gallery.create(address, shelf / "model", shelf / "photos").close()
    contents = [path.read_bytes() for path in sorted((shelf / "photos").rglob("*.png"))]
    with working(Settings(address, threshold=1e-4, at_once=5)) as ask:
        (about,) = ask(About())
        assert (about["name"], about["rows"], about["label_count"], about["notes"]) == ("shop", 28, 7, [])
        # Each answer is that of its own question, whatever else is in its batch.
        wheres = [(), (("label", ("class 02", "class 05")),), (("label", (None,)),)]
        questions = [Search(content, 2 + place % 3, wheres[place % 3]) for place, content in enumerate(contents)]
        answers = ask(*questions, *map(Embed, contents))
        for place, (question, answer) in enumerate(zip(questions, answers, strict=False)):
            assert answer["recognition"]["label"] == f"class {place // 4:02}"
            assert len(answer["hits"]) == (question.k if place % 3 < 2 else 0)
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
            Browse(3, 2, wheres[1]), Browse(0, 9, (("price", ("1",)),)), Item(9), Original(9), Thumbnail(9)
        )
        assert ([each["id"] for each in found["items"]], found["more"]) == ([8, 9], True)
        assert (refused.status, "no column 'price'" in refused.why) == (422, True)
        assert row == {"id": 9, "name": "1.png", "label": "class 02", "columns": {}}
        assert picture == ("image/png", contents[9])
        assert small[0] == "image/jpeg"
        (near,) = ask(Search(9, 30, ()))
        assert 9 not in [hit["id"] for hit in near["hits"]]
        assert len(near["hits"]) == 27
        gallery.remove({"label": "class 02"})
        (gone, about) = ask(Item(9), About())
        assert gone.status == 404
        assert about["rows"] == 24
        gallery.close()


def test_vectors_alone_are_searched_by_rows(tmp_path: Path) -> None:
    gallery = Gallery.create(tmp_path / "vectors", dim=2, roots=["/"])
    gallery.add_vectors([[1, 0], [0, 1], [1, 0.1]], ["/etc/passwd", "../hat.jpg", "s3:nowhere"], ["shoe", None, "shoe"])
    with working(Settings(str(tmp_path / "vectors"))) as ask:
        about, found, refused, secret = ask(About(), Search(0, 5, ()), Search(b"", 5, ()), Original(0))
    assert not about["takes_pictures"]
    assert about["threshold"] is None
    assert "only its own rows can be searched for" in about["notes"][0]
    assert about["notes"][1] == "Nothing is named or called unknown: there is no threshold."
    assert [hit["id"] for hit in found["hits"]] == [2, 1]
    assert (refused.status, "Give the id of one" in refused.why) == (422, True)
    assert secret.status == 404, "a file that is no picture"


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
    with working(Settings(str(tmp_path / "vectors"))) as ask:
        shown, *refused = ask(Original(0), *(show(row) for row in range(1, 5) for show in (Original, Thumbnail)))
        assert shown == ("image/png", inside.read_bytes())
        assert [(each.status, "no picture" in each.why) for each in refused] == [(404, True)] * 8
        assert fetched == []
        # A running server sees what is given later.
        gallery.store.add_roots([str(outside.parent)])
        assert ask(Original(1)) == [("image/png", outside.read_bytes())]


def test_clients_are_not_told_where_things_lie(shelf: Path, capfd: pytest.CaptureFixture[str]) -> None:
    here, _ = multiprocessing.Pipe()
    worker = Worker(here, Settings(str(shelf / "shop")))
    assert str(shelf) in worker.said[0], "the terminal is told"
    assert str(shelf) not in str(worker.about())
    refused = _refused(UserError(f"{shelf} cannot be reached."))
    assert (refused.status, str(shelf) in refused.why) == (503, False)
    assert f"{shelf} cannot be reached." in capfd.readouterr().err
    worker.close()


def test_a_late_question_is_not_worked_on(shelf: Path) -> None:
    with working(Settings(str(shelf / "shop"))) as ask:
        (late,) = ask(Search((shelf / "photos/class 00/0.png").read_bytes(), 1, ()), seconds=-1)
    assert (late.status, type(late)) == (504, Refused)


def test_a_threshold_that_is_asked_for_must_be_there(shelf: Path, tmp_path: Path) -> None:
    here, _ = multiprocessing.Pipe()
    with pytest.raises(UserError, match="has no thresholds"):
        Worker(here, Settings(str(shelf / "shop"), rate=0.1))
    with pytest.raises(UserError, match="holds no gallery"):
        Worker(here, Settings(str(tmp_path)))


def test_a_threshold_from_few_classes_is_doubted(shelf: Path, tmp_path: Path) -> None:
    for name in ("model", "shop"):
        shutil.copytree(shelf / name, tmp_path / name)
    model = Embedder.load(tmp_path / "model")
    learnt = CalibratedThreshold(0.1, 0.25, *[math.nan] * 8)
    few = Calibration(model.checksum, "cosine", "faces", 5, 50, 50, 0.95, (learnt,), 0.3)
    few.write(tmp_path / "model")
    here, _ = multiprocessing.Pipe()
    settings = Settings(str(tmp_path / "shop"), str(tmp_path / "model"))
    worker = Worker(here, settings)
    about = worker.about()
    assert (about["threshold"], about["rate"]) == (0.25, 0.1), "the smallest rate that was learnt"
    assert "the threshold for 0.1 is used" in about["notes"][0]
    assert "learnt from 5 classes, and with fewer than 20" in about["notes"][1]
    assert "proxemic calibrate" in worker.said[2], "the terminal is told what to do"
    worker.close()
    replace(few, classes=40, thresholds=(replace(learnt, rate=0.01),)).write(tmp_path / "model")
    worker = Worker(here, settings)
    assert worker.about()["notes"] == worker.said == []
    worker.close()
    with pytest.raises(UserError, match=r"rate of 0.2, only for 0.01"):
        Worker(here, replace(settings, rate=0.2))


def test_a_part_of_a_picture_is_that_part_alone(shelf: Path, tmp_path: Path) -> None:
    table = tmp_path / "boxes.csv"
    whole = shelf / "photos" / "class 00" / "0.png"
    table.write_text(f"path,x_1,y_1,x_2,y_2\n{whole},2,3,12,9\n")
    Gallery.create(tmp_path / "boxes", shelf / "model", table)
    with working(Settings(str(tmp_path / "boxes"))) as ask:
        row, (kind, content), (_, small) = ask(Item(0), Original(0), Thumbnail(0))
    assert row["name"] == "0.png (2, 3, 12, 9)"
    assert kind == "image/jpeg"
    assert [Image.open(io.BytesIO(each)).size for each in (content, small)] == [(10, 6), (256, 154)]
