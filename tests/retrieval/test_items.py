import numpy as np
import pyarrow as pa
import pytest

from proxemic.data.rows import Rows
from proxemic.retrieval.items import check_columns, check_where, make_items, matching


def test_texts_and_nothing_are_kept() -> None:
    table = make_items(Rows.of(shop=["", None], path=["a", "Zo\udceb.jpg"], label=[None, "🐈"]))
    assert table.schema == pa.schema({name: pa.string() for name in ("path", "label", "shop")})
    assert table.to_pylist() == [
        {"path": "a", "label": None, "shop": ""},
        {"path": "Zo\\udceb.jpg", "label": "🐈", "shop": None},
    ]
    assert make_items(Rows.of(path=[])).num_rows == 0


@pytest.mark.parametrize("name", ["id", "distance", "file_stamp", ""])
def test_names_of_the_gallery_itself_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"named '{name}', but id, distance, file_stamp are taken"):
        check_columns(["path", name])


@pytest.mark.parametrize("path", ["", None])
def test_a_row_without_a_path_is_refused(path: str | None) -> None:
    with pytest.raises(ValueError, match="a path is empty"):
        make_items(Rows.of(path=["a", path]))


def test_conditions_are_checked() -> None:
    columns = ("id", "path", "label", "shop")
    assert check_where(None, columns) == {}
    where = {"label": None, "shop": ["x", None], "path": "a"}
    assert check_where(where, columns) == {"label": (None,), "shop": ("x", None), "path": ("a",)}
    with pytest.raises(ValueError, match="no column 'price': its columns are path, label, shop"):
        check_where({"price": "1"}, columns)
    with pytest.raises(ValueError, match="the condition on label allows no value"):
        check_where({"label": ()}, columns)


def test_all_conditions_must_hold() -> None:
    labels, shops = ["cat", "dog", None, "cat"], ["x", None, "x", "y"]
    table = make_items(Rows.of(path=[*"abcd"], label=labels, shop=shops))
    rng = np.random.default_rng(0)
    for _ in range(50):
        conditions = {
            name: tuple(rng.choice(np.array([*allowed], object), rng.integers(1, 4)).tolist())
            for name, allowed in (("label", ["cat", "dog", None, "cow"]), ("shop", ["x", "y", None]))
            if rng.random() < 0.7
        }
        right = [
            all({"label": label, "shop": shop}[name] in values for name, values in conditions.items())
            for label, shop in zip(labels, shops, strict=True)
        ]
        assert matching(table, conditions).tolist() == right
    assert matching(table, {"later": (None,)}).tolist() == [True] * 4
    assert matching(table, {"later": ("x",)}).tolist() == [False] * 4
