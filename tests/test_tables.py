"""Tables for people and for programs."""

import json
import math
from pathlib import Path

import pytest

from proxemic.errors import UserError
from proxemic.tables import Format, Table

TABLE = Table(["class", "value"], [["a|b [red]", 0.5], ["c", math.nan], ["d", None]], "Of classes", ["A note."])


def test_every_form() -> None:
    assert TABLE.text("markdown").splitlines() == [
        "Of classes", "", "| class | value |", "| --- | --: |", "| a\\|b [red] | 0.5 |", "| c | – |", "| d | – |", "",
        "A note.",
    ]  # fmt: skip
    assert TABLE.text("csv") == "class,value\na|b [red],0.5\nc,\nd,"
    assert json.loads(TABLE.text("json"))[:2] == [{"class": "a|b [red]", "value": 0.5}, {"class": "c", "value": None}]
    first, *_, last = TABLE.text().splitlines()
    assert (first, last) == ("Of classes", "A note.")
    assert "│ a|b [red] │   0.5 │" in TABLE.text()
    assert Table.of_records(TABLE.records).rows == TABLE.rows


def test_files_have_the_format_of_their_name(tmp_path: Path) -> None:
    forms: dict[str, Format] = {"t.md": "markdown", "t.CSV": "csv", "t.json": "json"}
    for name, form in forms.items():
        TABLE.write(tmp_path / name)
        assert (tmp_path / name).read_text() == f"{TABLE.text(form)}\n"
    with pytest.raises(UserError, match=r"t\.txt, but must end in \.json, \.csv or \.md"):
        TABLE.write(tmp_path / "t.txt")
