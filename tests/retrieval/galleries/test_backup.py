"""`proxemic.retrieval.galleries.backup`: from each store to a file, and from the file to each store."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import warm
from command_line import Here, assert_refused
from galleries import random_vectors
from proxemic.data.embeddings import read_embeddings
from proxemic.data.rows import Rows
from proxemic.errors import UserError
from proxemic.retrieval import Gallery, calibrate, export_gallery, import_gallery
from proxemic.retrieval.galleries.items import make_items
from proxemic.retrieval.galleries.stores import GalleryInfo, Store, create_store, open_store

DIM, ROWS = 8, 30
pytestmark = pytest.mark.cpu


def fill(gallery: Gallery) -> None:
    names = [f"/photos/{row}.jpg" for row in range(ROWS)]
    labels = [None if row % 5 == 4 else f"class {row % 3}" for row in range(ROWS)]
    features = random_vectors(ROWS, 3, seed=3, distance="euclidean")
    first = make_items(Rows.of(path=names[:10], label=labels[:10]))
    second = make_items(Rows.of(path=names[10:], label=labels[10:], **{"it's": ["x", None] * 10}))
    gallery.store.add_roots(["/photos"])
    gallery.store.add(random_vectors(10, DIM), first, features[:10])
    gallery.store.add(random_vectors(20, DIM, seed=1), second, features[10:])
    gallery.remove({"path": names[3]})


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    gallery = Gallery(create_store(str(folder / "shop"), GalleryInfo(DIM, features=3)))
    fill(gallery)
    gallery.build_index("hnsw", m=8)
    calibrate(gallery=gallery, rate=0.2)
    assert export_gallery(gallery, folder / "shop.parquet") == ROWS - 1
    return folder


def test_from_a_folder_to_each_store_and_back(exported: Path, address: str, tmp_path: Path) -> None:
    first, second = Gallery.open(exported / "shop"), import_gallery(address, exported / "shop.parquet")
    assert second.store.info == first.store.info
    assert (second.store.columns, second.store.roots) == (first.store.columns, ("/photos",))
    assert second.store.index["kind"] == "hnsw"
    assert str(second.read_calibration()) == str(first.read_calibration())  # NaN is not equal to itself
    queries = random_vectors(5, DIM, seed=2)
    facts = [
        [
            [(hit.path, hit.label, hit.distance, hit.columns) for hit in hits]
            for hits in value.search_vectors(queries, 9)
        ]
        for value in (first, second)
    ]
    assert facts[0] == facts[1]
    assert second.verify() == []
    export_gallery(second, tmp_path / "again.parquet")
    kept = [pyarrow.parquet.read_table(path) for path in (exported / "shop.parquet", tmp_path / "again.parquet")]
    assert kept[0].equals(kept[1], check_metadata=True)
    second.close()


def test_what_fails_leaves_nothing(exported: Path, address: str, tmp_path: Path) -> None:
    change(exported, tmp_path / "bad.parquet", lambda table: pa.concat_tables([table, table]))
    with pytest.raises(UserError, match=r"bad\.parquet names a photo twice"):
        import_gallery(address, tmp_path / "bad.parquet")
    with pytest.raises(UserError, match=r"no gallery|does not exist"):
        open_store(address)


def test_no_gallery_is_written_over(exported: Path, store: Store) -> None:
    with pytest.raises(UserError, match=r"gallery|not a new or empty folder"):
        import_gallery(store.address, exported / "shop.parquet")
    assert len(store) == 0


def test_the_file_is_one_of_embeddings_too(exported: Path) -> None:
    found = read_embeddings(exported / "shop.parquet")
    assert found.embeddings is not None
    assert found.embeddings.shape == (ROWS - 1, DIM)
    assert found.names[3] == "/photos/4.jpg"


def change(exported: Path, path: Path, by: Callable[[pa.Table], pa.Table]) -> Path:
    pyarrow.parquet.write_table(by(pyarrow.parquet.read_table(exported / "shop.parquet")), path)
    return path


def facts_of(table: pa.Table) -> dict[str, Any]:
    return json.loads(table.schema.metadata[b"proxemic_gallery"])


def with_facts(**changes: Any) -> Callable[[pa.Table], pa.Table]:
    return lambda table: table.replace_schema_metadata({"proxemic_gallery": json.dumps({**facts_of(table), **changes})})


def with_vectors(by: Callable[[np.ndarray], np.ndarray]) -> Callable[[pa.Table], pa.Table]:
    def replaced(table: pa.Table) -> pa.Table:
        numbers = table["embedding"].combine_chunks().flatten().to_numpy().copy()
        column = pa.FixedSizeListArray.from_arrays(by(numbers), DIM)
        return table.set_column(table.num_columns - 2, "embedding", column)

    return replaced


def with_first(value: float) -> Callable[[np.ndarray], np.ndarray]:
    return lambda numbers: np.concatenate([[np.float32(value)], numbers[1:]]).astype(np.float32)


@pytest.mark.parametrize(
    ("by", "said"),
    [
        (lambda table: table.replace_schema_metadata(None), "does not hold a gallery"),
        (lambda table: table.replace_schema_metadata({"proxemic_gallery": b"\xff"}), "does not hold a gallery"),
        (lambda table: table.replace_schema_metadata({"proxemic_gallery": "[" * 100_000}), "does not hold a gallery"),
        (with_facts(info={"format": 9}), r"bad.parquet was written by a newer version of proxemic: update"),
        (
            with_facts(info={"format": 1}),
            r"was written by an older version of proxemic \(format 1\): create",
        ),
        (with_facts(info=3), "does not hold a gallery"),
        (with_facts(roots=[3]), "does not hold a gallery"),
        (with_facts(calibration={"thresholds": 3}), "not a calibration that this version can read"),
        (lambda table: table.drop_columns(["label"]), "has other columns"),
        (lambda table: table.append_column("id", table["path"]), "has other columns"),
        (lambda table: table.set_column(2, "label", table["path"]), "has other columns"),
        (lambda table: table.set_column(1, "label", pa.array([b"x"] * len(table))), "has other columns"),
        (lambda table: table.set_column(0, "path", pa.nulls(len(table), pa.string())), "lacks a path"),
        (with_vectors(with_first(np.nan)), "has vectors that no gallery has"),
        (with_vectors(with_first(3.0)), "has vectors that no gallery has"),
    ],
)
def test_other_files_are_refused(exported: Path, tmp_path: Path, by: Callable[[pa.Table], pa.Table], said: str) -> None:
    file = change(exported, tmp_path / "bad.parquet", by)
    with pytest.raises(UserError, match=said):
        import_gallery(tmp_path / "shop", file)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.parquet"]


def rows_of(gallery: Gallery) -> list[tuple[str, str, bytes]]:
    items = [(table, vectors) for vectors, table in gallery.store.iterate()]
    return [
        (row["path"], row["label"], vector.tobytes())
        for table, vectors in items
        for row, vector in zip(table.to_pylist(), vectors, strict=True)
    ]


def test_broken_files_are_refused(exported: Path, tmp_path: Path) -> None:
    content, rng = (exported / "shop.parquet").read_bytes(), np.random.default_rng(0)
    for place in [*rng.integers(len(content), size=60).tolist(), None]:
        broken = bytearray(content)
        if place is None:
            broken = broken[: len(broken) // 2]
        else:
            broken[place] ^= 1 << int(rng.integers(8))
        (tmp_path / "bad.parquet").write_bytes(broken)
        try:
            found = import_gallery(tmp_path / f"{place}", tmp_path / "bad.parquet")
        except UserError:
            continue
        # Bytes without a checksum do not matter.
        assert rows_of(found) == rows_of(Gallery.open(exported / "shop"))


def test_on_the_command_line(exported: Path, tmp_path: Path, here: Here) -> None:
    said = here("gallery", "export", exported / "shop", tmp_path / "shop.parquet")
    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith(f"{ROWS - 1} photos in {tmp_path / 'shop.parquet'}")
    said = here("gallery", "import", tmp_path / "copy", tmp_path / "shop.parquet")
    assert said.stdout == f"{ROWS - 1} in {tmp_path / 'copy'}\n"
    assert_refused(here("gallery", "import", tmp_path / "copy", tmp_path / "shop.parquet"), ["is not a new or empty"])
    assert_refused(here("gallery", "import", tmp_path / "other", tmp_path / "no.parquet"), ["no.parquet is not a file"])
    assert_refused(here("gallery", "export", exported / "shop", tmp_path / "shop.csv"), ["must end in .parquet"])


KILLED = """
import os, signal, sys
from proxemic.retrieval import import_gallery
from proxemic.retrieval.galleries.stores.local import LocalStore

LocalStore.add = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
import_gallery(*sys.argv[1:])
"""


def test_killed_in_the_middle_it_leaves_no_gallery(exported: Path, tmp_path: Path) -> None:
    words = tmp_path / "copy", exported / "shop.parquet"
    assert warm.run("-c", KILLED, *words).returncode == -signal.SIGKILL
    assert not (tmp_path / "copy").exists()
    assert import_gallery(*words).verify() == []
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]
