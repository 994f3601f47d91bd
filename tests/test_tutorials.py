"""The tutorials: each runs from top to bottom as it stands, and is made into a notebook and a page."""

import base64
import re
from pathlib import Path

import nbformat
import pytest

import warm

DOCS = Path(__file__).parents[1] / "docs"
NAMES = sorted(path.stem for path in (DOCS / "tutorials").glob("*.py"))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("made")


@pytest.mark.parametrize("name", NAMES)
def test_it_runs_and_becomes_a_notebook_and_a_page(name: str, made: Path) -> None:
    ran = warm.run(DOCS / "make_notebooks.py", made, name)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")

    notebook = nbformat.read(made / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    printed = "".join(output.text for cell in code for output in cell.outputs if output.output_type == "stream")
    drawn = [
        output.data["image/png"] for cell in code for output in cell.outputs if output.output_type == "display_data"
    ]
    assert drawn, "a tutorial shows a picture"
    assert "kept epoch 0" not in printed, "what it trains is better than what it starts from"

    page = (made / f"{name}.md").read_text()
    assert page.startswith("# ")
    assert page.count("```python\n") == len(code)
    assert all(line in page for line in printed.rstrip().splitlines())
    pictures = re.findall(r"!\[.+\]\((.+\.png)\)", page)
    assert [base64.b64decode(item) for item in drawn] == [(made / picture).read_bytes() for picture in pictures]
    links = set(re.findall(r"\]\(([\w./-]+)\)", page)) - {*pictures, f"{name}.ipynb"}
    assert links
    for link in links:
        assert (DOCS / "tutorials" / link).with_suffix(Path(link).suffix).exists(), link


def test_all_of_them_are_made(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    import make_notebooks

    assert sorted(script.stem for script in make_notebooks.TUTORIALS) == NAMES
    listed = re.findall(r"^\| [`\[]+(\w+)(?:\.py)?[`\]]", (DOCS / "tutorials" / "README.md").read_text(), re.MULTILINE)
    assert listed == [script.stem for script in make_notebooks.TUTORIALS]
    make_notebooks.main([str(made / "text"), "--without-results"])
    assert {path.name for path in (made / "text").iterdir()} == {
        f"{name}.{end}" for name in NAMES for end in ("md", "ipynb")
    }
    notebook = nbformat.read(made / "text" / f"{NAMES[0]}.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)


def test_a_cell_that_fails_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(DOCS)
    from make_notebooks import make

    script = tmp_path / "wrong.py"
    script.write_text("# %% [markdown]\n# # Wrong\n\n# %%\nprint(1)\n\n# %%\n1 / 0\n")
    with pytest.raises(ZeroDivisionError):
        make(script, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    script.write_text("# %% [markdown]\n# # Right\n\n# %%\nprint(1)\n\n# %%\n1 / 2\n")
    make(script, tmp_path / "out")
    assert "```text\n1\n```" in (tmp_path / "out" / "wrong.md").read_text()
    assert "```text\n0.5\n```" in (tmp_path / "out" / "wrong.md").read_text()
