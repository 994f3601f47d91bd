"""Writers of one gallery at the same time."""

import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest

import warm
from galleries import random_vectors
from proxemic.errors import UserError
from proxemic.retrieval import Gallery
from proxemic.retrieval.improving.improved_gallery import relabel
from servers import Postgres
from shelves import EACH

ROOT = Path(__file__).parents[4]


def labels_of(gallery: Gallery) -> dict[str, str | None]:
    rows = [row for _, items in gallery.store.iterate() for row in items.to_pylist()]
    assert len({row["path"] for row in rows}) == len(rows)
    return {Path(row["path"]).name: row["label"] for row in rows}


def while_embedding(gallery: Gallery, change: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `change` happen once the gallery has embedded pictures, before it stores them."""
    embed = gallery.embedder.embed_readable

    def embed_readable(*arguments: Any, **options: Any) -> Any:
        parts = [*embed(*arguments, **options)]
        change()
        return iter(parts)

    monkeypatch.setattr(gallery.embedder, "embed_readable", embed_readable)


def test_what_another_adds_meanwhile_is_known(
    shelf: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = shelf / "photos" / "class 01"
    gallery, other = Gallery.create(address, shelf / "model"), Gallery.open(address)
    while_embedding(gallery, lambda: other.add([photos / "0.png", photos / "1.png"]), monkeypatch)
    added = gallery.add(photos)
    assert (added.rows, added.known) == (EACH - 2, 2)
    assert len(gallery) == EACH
    assert labels_of(gallery)["0.png"] is None, "that of the first who wrote it"
    assert gallery.verify() == []
    gallery.close()
    other.close()


def test_an_update_keeps_what_another_changes_meanwhile(
    shelf: Path, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = shutil.copytree(shelf / "photos" / "class 01", tmp_path / "photos")
    gallery, other = Gallery.create(address, shelf / "model", photos), Gallery.open(address)
    for name in ("0.png", "1.png"):
        shutil.copy(shelf / "photos" / "class 05" / "3.png", photos / name)
    table = tmp_path / "labels.csv"
    table.write_text("path,label\nphotos/0.png,new\n")

    def change() -> None:
        relabel(other, table)
        other.remove({"path": str(photos / "1.png")})

    while_embedding(gallery, change, monkeypatch)
    added = gallery.add(photos, labels=False, update=True)
    assert (added.updated, added.rows, added.known, added.changed) == (1, 1, EACH - 2, 0)
    assert labels_of(gallery)["0.png"] == "new"
    assert len(gallery) == EACH
    assert gallery.verify() == []
    gallery.close()
    other.close()


def test_a_relabelling_does_not_bring_removed_rows_back(postgres: Postgres, tmp_path: Path) -> None:
    gallery = Gallery.create(postgres.address("relabelled"), dim=4)
    gallery.add_vectors(random_vectors(3, 4), [f"{tmp_path}/{n}.jpg" for n in range(3)], ["old"] * 3)
    number = gallery.store._number  # pyright: ignore[reportAttributeAccessIssue]
    table = tmp_path / "labels.csv"
    table.write_text("path,label\n0.jpg,new\n1.jpg,new\n2.jpg,new\n")
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted"
    with ThreadPoolExecutor(1) as pool:
        with psycopg.connect(f"postgresql://postgres@/postgres?host={postgres.socket}") as other:
            # As a removal does, which is not committed before the other has begun.
            other.execute("SELECT FROM proxemic_galleries WHERE number = %s FOR UPDATE", (number,))
            other.execute(f"DELETE FROM proxemic_gallery_{number} WHERE label = 'old'")  # pyright: ignore
            writing = pool.submit(relabel, gallery, table)
            while postgres.execute(waiting) == [(0,)]:
                time.sleep(0.01)
        with pytest.raises(UserError, match="add it first"):
            writing.result()
    assert len(gallery) == 0
    gallery.close()


@pytest.mark.parametrize("place", ["folder", "postgresql"])
def test_rounds_of_two_writers(place: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    folder = place == "folder"
    address = str(tmp_path / "rounds") if folder else request.getfixturevalue("postgres").address("rounds")
    done = warm.run(ROOT / "benchmarks" / "writers.py", address, "--rounds", "5")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "300 of 300 added rows" in done.stdout
    assert done.stdout.endswith("it is sound\n")
