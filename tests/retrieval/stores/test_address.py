import sys
from pathlib import Path

import pytest

from proxemic.errors import UserError
from proxemic.retrieval.stores import GalleryInfo, create_store, delete_store, open_store


@pytest.mark.parametrize(
    ("address", "module", "package", "extra"),
    [
        ("postgresql://host/db/shop", "psycopg", "postgres", "postgres"),
        ("milvus://host/shop", "pymilvus", "milvus", "milvus"),
        ("milvus-lite:shop", "pymilvus", "milvus", "milvus"),
    ],
)
def test_a_missing_extra_is_one_sentence(
    address: str, module: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith((f"proxemic.retrieval.stores.{package}", module))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=rf"^{module} is not installed: install it with .*\[{extra}\]'\.$"):
        open_store(address)


@pytest.mark.parametrize("address", ["", "s3://bucket/shop", "FILE:///shop", "postgres:/db/shop", "milvus:host/shop"])
def test_what_is_no_address_of_a_gallery_is_one_sentence(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for act in (open_store, delete_store, lambda address: create_store(address, GalleryInfo(2))):
        with pytest.raises(UserError, match="no address of a gallery"):
            act(address)
    assert not [*tmp_path.iterdir()]


def test_a_folder_may_have_a_colon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    create_store("Photos:2024", GalleryInfo(2))
    assert [path.name for path in tmp_path.iterdir()] == ["Photos:2024"]
