"""The table of a reality check."""

from proxemic.studies.reality_check.tables import ResultRow, markdown, result_rows


def test_the_table_has_intervals_and_never_fills_a_cell() -> None:
    def kinds(value: float) -> dict[str, dict[str, float]]:
        metrics = {"map@r": value, "r_precision": value, "recall@1": value}
        return {"separated": metrics, "concatenated": metrics, "complete": metrics}

    assert result_rows({"one": {3: kinds(0.25)}})[0] == ResultRow("one", 3, "separated", "map@r", 0.25)
    text = markdown({"one": {0: kinds(0.25), 1: kinds(0.35)}, "two": {}}, expected=2)
    # t(0.975, 1 degree) · 0.0707 / √2 = 12.706 · 0.05
    assert text.splitlines()[2].count("30.00 ± 63.53") == 9
    assert text.splitlines()[3] == "| `two` |" + " – |" * 9
    assert "Unfinished: two 0." in text


def test_unnormalized_columns_appear_where_a_recipe_has_them() -> None:
    values = {"map@r": 0.25, "r_precision": 0.25, "recall@1": 0.25}
    plain = {"separated": values, "concatenated": values, "complete": values}
    text = markdown({"cosine": {0: plain}, "euclidean": {0: plain | {"concatenated unnormalized": values}}}, expected=1)
    assert "| concatenated unnormalized P@1 |" in text.splitlines()[0]
    assert [line.count("25.00") for line in text.splitlines()[2:4]] == [9, 12]
