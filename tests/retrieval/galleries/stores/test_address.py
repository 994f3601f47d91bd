import sys
from pathlib import Path

import pytest

from ports import free_port
from proxemic.errors import UserError
from proxemic.retrieval.galleries.stores import GalleryInfo, create_store, delete_store, open_store


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
    for name in [
        name for name in sys.modules if name.startswith((f"proxemic.retrieval.galleries.stores.{package}", module))
    ]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=rf"^{module} is not installed: install it with .*\[{extra}\]'\.$"):
        open_store(address)


SECRET = "s3cr3t"


@pytest.mark.parametrize(
    "address",
    [
        f"postgresql://me:{SECRET}@host/shop",
        f"postgresql://me:{SECRET}@host/a/b/c",
        f"postgresql://me:{SECRET}/x@host/db/shop",
        f"POSTGRES://me:1/{SECRET}@host/shop",
        f"postgresql:/me:{SECRET}@host/shop",
        f"postgresql://host:{SECRET}/db/shop",
        f"postgresql://me:{SECRET}#x@host/db/shop",
        f"postgresql://me:{SECRET}?x@host/db/shop",
        f"postgresql://me:{SECRET}@host/db/shop?colour=red",
        f"postgresql://me:{SECRET}%zz@host/db/shop",
        f"milvus://me:{SECRET}@host/a/b/c",
        f"milvus://me:{SECRET}/x@host/shop",
        f"MILVUS://me:1/{SECRET}@host/shop",
        f"milvus:me:{SECRET}@host/shop",
        f"milvus://host/shop?token={SECRET}",
        f"milvus://me:{SECRET}?x@host/shop",
        f"milvus://me:{SECRET}@host:port/shop",
        f"milvus://me:{SECRET}@127.0.0.1:PORT/shop",
        "milvus://host:99999/shop",
        "milvus://host/2shops",
        "milvus://host/shop'; drop",
        "milvus://host/proxemic_galleries",
        "milvus-lite:",
        "milvus-lite:nowhere/at/all",
    ],
)
def test_a_bad_address_is_one_sentence_without_the_password(address: str) -> None:
    address = address.replace("PORT", str(free_port()))  # here, as all workers of pytest must name their tests alike
    for call in (open_store, lambda address: create_store(address, GalleryInfo(2))):
        with pytest.raises(UserError) as raised:
            call(address)
        assert SECRET not in str(raised.value)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("address", ["", "s3://bucket/shop", "FILE:///shop", "postgres:/db/shop", "milvus:host/shop"])
def test_what_is_no_address_of_a_gallery_is_one_sentence(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for act in (open_store, delete_store, lambda address: create_store(address, GalleryInfo(2))):
        with pytest.raises(UserError, match="not the address of a gallery"):
            act(address)
    assert not [*tmp_path.iterdir()]


def test_a_folder_may_have_a_colon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    create_store("Photos:2024", GalleryInfo(2))
    assert [path.name for path in tmp_path.iterdir()] == ["Photos:2024"]
