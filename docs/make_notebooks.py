"""Runs docs/tutorials/*.py and makes notebooks and pages of them: ``python docs/make_notebooks.py FOLDER [NAME ...]``.

A tutorial is a script in cells (``# %%``, and ``# %% [markdown]`` for text): ``python docs/tutorials/NAME.py`` runs it.
``FOLDER/NAME.ipynb`` and ``FOLDER/NAME.md`` hold the text, the code, what each cell prints, and the picture of a cell
that ends in one, described by the comment behind it. With ``--without-results`` nothing is run.

A hook of mkdocs runs this file as a process of its own, as tutorials change torch's generator and the like:
``subprocess.run([sys.executable, "docs/make_notebooks.py", folder], check=True)``. Then it adds all files of the folder
to those of the site, under ``tutorials/``: a page's links lead to its notebook and pictures beside it, and to pages of
docs/ as ``../NAME.md``. `TUTORIALS` are the scripts in the order in which they are to be read.
"""

import argparse
import ast
import base64
import contextlib
import io
import os
import re
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from PIL import Image

from proxemic.files import write_atomically

SCRIPTS = Path(__file__).parent / "tutorials"
TUTORIALS = [
    SCRIPTS / f"{name}.py" for name in ("own_pictures", "pretrained", "own_loop", "known_or_unknown", "two_runs")
]


@dataclass(frozen=True)
class Results:
    """What a cell printed, and the PNG of the picture that it ends in."""

    printed: str = ""
    picture: bytes | None = None


def run_cell(source: str, names: dict[str, Any], file: str) -> Results:
    """Run a cell as a notebook does: the value of an expression at its end is shown."""
    *statements, last = ast.parse(source, file).body
    printed, shown = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        if isinstance(last, ast.Expr):
            exec(compile(ast.Module(statements, []), file, "exec"), names)
            shown = eval(compile(ast.Expression(last.value), file, "eval"), names)
        else:
            exec(compile(source, file, "exec"), names)
        picture = shown._repr_png_() if isinstance(shown, Image.Image) else None
        if shown is not None and picture is None:
            print(repr(shown))
    return Results(printed.getvalue(), picture)


def run_cells(sources: Sequence[str], file: str) -> list[Results]:
    """Run the cells one after another, in an empty folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            return [run_cell(source, names, file) for source in sources]
        finally:
            os.chdir(before)


def make(script: Path, folder: Path, *, results: bool = True) -> None:
    """Write a tutorial's notebook, page and pictures, with what its cells show unless ``results`` is False."""
    notebook = jupytext.reads(script.read_text(encoding="utf-8"), fmt="py:percent")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    found = run_cells([cell.source for cell in code], str(script)) if results else [Results()] * len(code)
    page: list[str] = []
    number = 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            page.append(cell.source)
            continue
        shown, name = found[number], f"{script.stem}-{(number := number + 1)}.png"
        page.append(f"```python\n{cell.source}\n```")
        if shown.printed:
            cell.outputs.append(nbformat.v4.new_output("stream", text=shown.printed))
            page.append(f"```text\n{shown.printed.rstrip()}\n```")
        if shown.picture is not None:
            data = {"image/png": base64.b64encode(shown.picture).decode()}
            cell.outputs.append(nbformat.v4.new_output("display_data", data))
            write_bytes(folder / name, shown.picture)
            page.append(f"![{described(cell.source)}]({name})")
    for place, cell in enumerate(notebook.cells):
        cell.id = f"{script.stem.replace('_', '-')}-{place}"  # not drawn anew each time
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    title, _, rest = "\n\n".join(page).partition("\n")
    beside = f"*`python docs/tutorials/{script.name}` runs this page; here it is [as a notebook]({script.stem}.ipynb).*"
    write_bytes(folder / f"{script.stem}.md", f"{title}\n\n{beside}\n{rest}\n".encode())
    write_bytes(folder / f"{script.stem}.ipynb", (nbformat.writes(notebook) + "\n").encode())


def described(source: str) -> str:
    """The comment behind the last line of a cell, which says what its picture shows."""
    comment = re.search(r"  # (.+)$", source)
    assert comment, f"a cell ends in a picture without a comment: {source}"
    return comment[1]


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all."""
    with write_atomically(path) as temporary:
        temporary.write_bytes(content)


def main(words: Sequence[str] | None = None) -> None:
    """Read the words behind the command."""
    parser = argparse.ArgumentParser(description="Make notebooks and pages of the tutorials.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", choices=[[], *(script.stem for script in TUTORIALS)], metavar="NAME")
    parser.add_argument("--without-results", action="store_true", help="run nothing")
    given = parser.parse_args(words)
    given.folder.mkdir(parents=True, exist_ok=True)
    for script in TUTORIALS:
        if not given.names or script.stem in given.names:
            make(script, given.folder, results=not given.without_results)


if __name__ == "__main__":
    sys.exit(main())
