"""YAML files that would take too much memory or time are refused."""

import os
from pathlib import Path

import pytest

from proxemic.errors import UserError
from proxemic.recipes.reader import read_recipe
from proxemic.recipes.yaml_files import MAX_BYTES, parse_yaml

BOMB = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
HOSTILE = {
    "aliases of aliases": (BOMB, "more than 100,000 values"),
    "merged aliases": (BOMB.replace("[", "{a: ").replace(", *", ", b: *").replace("]", "}"), "readable YAML"),
    "an alias of itself": ("loss: &it [*it]", "an alias contains itself"),
    "depth": ("loss: " + "[" * 5000, "nested more than 50 deep"),
    "depth of mappings": ("loss: " + "{a: " * 5000, "nested more than 50 deep"),
    "a bomb in a text": ("extends: glyphs-small\nseed: |\n  " + BOMB.replace("\n", "\n  "), "values"),
    "size": (f"# {'x' * MAX_BYTES}", "1,000,00"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_a_file_that_stands_for_too_much(case: str, tmp_path: Path) -> None:
    text, words = HOSTILE[case]
    path = tmp_path / "hostile.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=words) as refused:
        read_recipe(path)
    assert len(str(refused.value)) < 400


def test_aliases_as_people_use_them() -> None:
    assert parse_yaml("a: &a [1, 2]\nb: [*a, *a]\nc: {d: *a}") == {"a": [1, 2], "b": [[1, 2]] * 2, "c": {"d": [1, 2]}}


def test_a_pipe_and_a_device_are_not_read(tmp_path: Path) -> None:
    pipe, device = tmp_path / "pipe.yaml", tmp_path / "device.yaml"
    os.mkfifo(pipe)
    device.symlink_to("/dev/zero")
    for path in (pipe, device, tmp_path):
        with pytest.raises(UserError, match=f"{path} is not a readable YAML file: not a file"):
            read_recipe(path)
