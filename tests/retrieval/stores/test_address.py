import sys

import pytest

from proxemic.retrieval.stores import open_store


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
