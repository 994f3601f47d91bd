from pathlib import Path

import pytest
import torch
from PIL import Image

from proxemic.data.rows import Rows
from proxemic.data.sources import join_query_gallery, load_query_gallery


def some(start: int, names: str, paths: str | None = None) -> Rows:
    """Make rows that count up from start, with one letter each as class and perhaps as path."""
    rows = Rows.of(torch.arange(start, start + len(names))[:, None].float(), label=[*names])
    return rows if paths is None else rows.with_texts(path=[*paths])


def numbers(rows: Rows) -> list[float]:
    assert rows.embeddings is not None
    return rows.embeddings.flatten().tolist()


def table(path: Path, rows: dict[str, str]) -> Path:
    for name in rows:
        Image.new("L", (4, 4)).save(path.parent / name)
    path.write_text("path,label\n" + "".join(f"{name},{label}\n" for name, label in rows.items()))
    return path


def test_classes_go_by_text() -> None:
    found = join_query_gallery(some(0, "zb"), some(2, "abz"))
    assert numbers(found) == [0, 1, 2, 3, 4]
    assert found.labels == ["z", "b", "a", "b", "z"]
    assert not found.has("path")
    assert found.truths("is_query").tolist() == [1, 1, 0, 0, 0]
    assert found.truths("is_gallery").tolist() == [0, 0, 1, 1, 1]


def test_a_row_of_both_is_one() -> None:
    found = join_query_gallery(some(0, "xyx", "pqr"), some(3, "yxz", "qst"))
    assert numbers(found) == [0, 1, 2, 4, 5]
    assert found.names == ["p", "q", "r", "s", "t"]
    assert found.truths("is_query").tolist() == [1, 1, 1, 0, 0]
    assert found.truths("is_gallery").tolist() == [0, 1, 0, 1, 1]


def test_paths_of_one_alone_say_nothing() -> None:
    assert len(join_query_gallery(some(0, "xy", "pp"), some(2, "xy"))) == 4


@pytest.mark.parametrize(
    ("query", "gallery", "words"),
    [
        (("xy", "pq"), ("xyy", "rqq"), "rows 2 and 3 of the gallery have the path q"),
        (("yy", "qq"), ("xy", "rq"), "rows 1 and 2 of the queries have the path q"),
        (("xy", "pq"), ("xx", "rq"), "q is 'y' among the queries but 'x' in the gallery: give it one label"),
    ],
)
def test_rows_of_both_that_are_not_one(query: tuple[str, str], gallery: tuple[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        join_query_gallery(some(0, *query), some(0, *gallery))
    assert "\n" not in str(caught.value)


def test_embeddings_that_do_not_fit() -> None:
    plain = Rows.of(torch.zeros(2, 1))
    for pair, words in (((plain, some(0, "x")), "the queries have no"), ((some(0, "x"), plain), "the gallery have no")):
        with pytest.raises(ValueError, match=words):
            join_query_gallery(*pair)
    with pytest.raises(ValueError, match="the queries have 2 dimensions but the gallery 1"):
        join_query_gallery(Rows.of(torch.zeros(2, 2)), plain)


def test_images_of_two_tables(tmp_path: Path) -> None:
    query = table(tmp_path / "q.csv", {"1.png": "owl", "2.png": "jay"})
    gallery = table(tmp_path / "g.csv", {"3.png": "ant", "2.png": "jay", "4.png": "jay"})
    images, _ = load_query_gallery(query, gallery)
    assert images.class_names == ("ant", "jay", "owl")
    assert images.labels.tolist() == [2, 1, 0, 1]
    assert images.is_query is not None
    assert images.is_gallery is not None
    assert images.is_query.tolist() == [True, True, False, False]
    assert images.is_gallery.tolist() == [False, True, True, True]
    with pytest.raises(ValueError, match=r"No image of .* has another one of its class"):
        load_query_gallery(query, table(tmp_path / "g.csv", {"3.png": "ant", "2.png": "jay"}))
