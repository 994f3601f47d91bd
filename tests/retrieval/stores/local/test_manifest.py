"""Manifests that somebody else wrote."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from galleries import random_vectors, some_items
from proxemic.errors import UserError
from proxemic.retrieval.stores import GalleryInfo
from proxemic.retrieval.stores.local import LocalStore
from proxemic.retrieval.stores.local.manifest import Manifest


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = LocalStore.create(str(tmp_path / "gallery"), GalleryInfo(4))
    store.add(random_vectors(300, 4), some_items(300))
    store.build_index("hnsw")
    store.remove({"path": "/3.jpg"})
    return store.folder


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest, and give it the checksum that it would have."""
    content = json.loads((folder / "manifest.json").read_text())
    del content["sha256"]
    change(content)
    content["sha256"] = hashlib.sha256(json.dumps(content).encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(content, indent=1) + "\n")


def test_what_is_written_is_read(folder: Path) -> None:
    manifest = Manifest.read(folder)
    assert (manifest.rows, manifest.next_id, manifest.generation, manifest.removed_rows) == (299, 300, 3, 1)
    manifest.write(folder)
    assert Manifest.read(folder) == manifest
    rewrite(folder, lambda _: None)
    assert Manifest.read(folder) == manifest


def at(*keys: str | int, value: object) -> Callable[[dict[str, Any]], object]:
    def change(content: Any) -> None:
        for key in keys[:-1]:
            content = content[key]
        content[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        at("shards", 0, "vectors", "name", value="../../etc/passwd"),
        at("shards", 0, "vectors", "name", value="/etc/passwd"),
        at("shards", 0, "vectors", "name", value="vectors-000001-0.safetensors/../x"),
        at("shards", 0, "vectors", "name", value="vectors-000001-0.safetensors\n"),
        at("shards", 0, "vectors", "name", value=["vectors-000001-0.safetensors"]),
        at("index", "file", "name", value="index-000002-0.safetensors/../../x"),
        at("removed", "name", value="removed-000003.npy"),
        at("shards", 0, "vectors", "bytes", value=-1),
        at("shards", 0, "vectors", "bytes", value=1e300),
        at("shards", 0, "items", "sha256", value="x"),
        at("shards", 0, "rows", value=10**40),
        at("shards", 0, "rows", value=True),
        at("shards", 0, "last", value=2**63),
        at("shards", 0, "first", value=5),
        at("shards", value={}),
        at("shards", value=[3]),
        at("next_id", value=5),
        at("next_id", value="300"),
        at("generation", value=-1),
        at("generation", value=float("nan")),
        at("removed_rows", value=0),
        at("columns", value=["path"]),
        at("columns", value=["path", "label", "path"]),
        at("columns", value=["path", "label", 3]),
        at("info", "dim", value=0),
        at("info", "dim", value=5),
        at("info", "distance", value="manhattan"),
        at("info", "format", value=2),
        at("info", "more", value=2),
        at("info", value=None),
        at("index", "kind", value="os.system"),
        at("index", "recall", value=float("nan")),
        at("index", "settings", value={"m": "16"}),
        at("index", "rows", value=-1),
        at("more", value=1),
        lambda content: content.pop("shards"),
    ],
)
def test_a_hostile_manifest_is_refused_in_one_sentence(
    folder: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    rewrite(folder, change)
    with pytest.raises(
        UserError, match=rf"{folder}/[\w.-]+ is damaged \(.+\): put the folder back from a copy"
    ) as said:
        LocalStore.open(str(folder))
    assert "\n" not in str(said.value)
    assert len(str(said.value)) < 500


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "3", "[" * 100_000, '{"shards": ' + "9" * 5000 + "}", "\xff", '{"a": 1e999}']
)
def test_what_is_no_manifest(folder: Path, text: str) -> None:
    (folder / "manifest.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(UserError, match=r"manifest.json is damaged \("):
        LocalStore.open(str(folder))


def test_a_manifest_of_many_bytes_is_not_read(folder: Path) -> None:
    with (folder / "manifest.json").open("wb") as file:
        file.truncate(2**40)
    with pytest.raises(UserError, match="it has 1,099,511,627,776 bytes, more than any gallery's"):
        LocalStore.open(str(folder))
