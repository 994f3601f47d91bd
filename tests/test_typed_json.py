"""JSON files with a schema."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Required, TypedDict

import pytest

from proxemic.errors import UserError
from proxemic.typed_json import read_typed


@dataclass(frozen=True)
class Part:
    name: str


@dataclass(frozen=True)
class Whole:
    number: float
    kind: Literal["one", "two"]
    parts: tuple[Part, ...] = ()
    more: dict[str, int | None] = field(default_factory=dict)
    any: Any = None


class Loose(TypedDict, total=False):
    epoch: Required[int]
    test: dict[str, float]


SOUND = {"number": 3, "kind": "one", "parts": [{"name": "a"}], "more": {"x": None, "y": 2}, "any": [1]}


def read(content: Any, form: Any, folder: Path) -> Any:
    (folder / "a.json").write_text(json.dumps(content))
    return read_typed(folder / "a.json", form)


def test_content_becomes_what_the_schema_says(tmp_path: Path) -> None:
    assert read(SOUND, Whole, tmp_path) == Whole(3.0, "one", (Part("a"),), {"x": None, "y": 2}, [1])
    loose = {"epoch": 1, "test": {"map@r": float("nan")}, "unknown": "x"}
    assert read(loose, Loose, tmp_path)["unknown"] == "x"


@pytest.mark.parametrize(
    ("form", "content", "words"),
    [
        (Whole, SOUND | {"number": "3"}, "number is '3'"),
        (Whole, SOUND | {"number": True}, "number is 'True'"),
        (Whole, SOUND | {"number": 10**400}, "number is '1000"),
        (Whole, SOUND | {"kind": "three"}, "kind is 'three'"),
        (Whole, SOUND | {"parts": [{"nam": "a"}]}, "the key nam is unknown"),
        (Whole, SOUND | {"parts": {}}, "parts is '{}'"),
        (Whole, SOUND | {"more": {"x": 1.5}}, r"more x is '1\.5'"),
        (Whole, {"kind": "one"}, "number is missing"),
        (Loose, {}, "epoch is missing"),
        (Loose, {"epoch": None}, "epoch is 'None'"),
    ],
)
def test_damage_is_one_sentence(form: Any, content: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"a\.json is damaged \({words}.*\): put the file back from a copy"):
        read(content, form, tmp_path)
