"""Run docs/tutorials/*.py and make notebooks and pages: ``python docs/make_notebooks.py FOLDER [NAME ...]``.

A tutorial is a script in cells (``# %%``, and ``# %% [markdown]`` for text): ``python docs/tutorials/NAME.py`` runs it.
``FOLDER/NAME.ipynb`` and ``FOLDER/NAME.md`` hold the text, the code, what each cell prints, and the picture of a cell
that ends in one, described by the comment behind it. With ``--without-results`` nothing is run.

A hook of mkdocs runs this file as a process of its own, as tutorials change torch's generator and the like:
``subprocess.run([sys.executable, "docs/make_notebooks.py", folder], check=True)``. Then it adds all files of the folder
to those of the site, under ``tutorials/``: a page's links lead to its notebook and pictures beside it, and to pages of
docs/ as ``../NAME.md``. `TUTORIALS` are the scripts in reading order.
"""

import argparse
import ast
import base64
import contextlib
import io
import re
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from PIL import Image

SCRIPTS = Path(__file__).parent / "tutorials"
TUTORIALS = [
    SCRIPTS / f"{name}.py" for name in ("own_pictures", "pretrained", "own_loop", "known_or_unknown", "two_runs")
]


def run_cell(source: str, names: dict[str, Any], file: str) -> tuple[str, bytes | None]:
    """Run a cell as a notebook does; return its output, and the picture of its last line as PNG."""
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
    return printed.getvalue(), picture


def make(script: Path, folder: Path, *, results: bool = True) -> None:
    """Write a tutorial's notebook, page and pictures, with what its cells show unless ``results`` is False."""
    notebook = jupytext.reads(script.read_text(encoding="utf-8"), fmt="py:percent")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    found: list[tuple[str, bytes | None]] = [("", None)] * len(code)
    if results:
        names: dict[str, Any] = {"__name__": "__main__"}
        with tempfile.TemporaryDirectory() as empty, contextlib.chdir(empty):
            found = [run_cell(cell.source, names, str(script)) for cell in code]
    folder.mkdir(parents=True, exist_ok=True)
    page: list[str] = []
    number = 0
    for place, cell in enumerate(notebook.cells):
        cell.id = f"{script.stem.replace('_', '-')}-{place}"  # not a random one each time
        if cell.cell_type == "markdown":
            page.append(cell.source)
            continue
        (printed, picture), name = found[number], f"{script.stem}-{(number := number + 1)}.png"
        page.append(f"```python\n{cell.source}\n```")
        if printed:
            cell.outputs.append(nbformat.v4.new_output("stream", text=printed))
            page.append(f"```text\n{printed.rstrip()}\n```")
        if picture is not None:
            data = {"image/png": base64.b64encode(picture).decode()}
            cell.outputs.append(nbformat.v4.new_output("display_data", data))
            (folder / name).write_bytes(picture)
            page.append(f"![{described(cell.source)}]({name})")
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    title, _, rest = "\n\n".join(page).partition("\n")
    beside = f"*`python docs/tutorials/{script.name}` runs this page; here it is [as a notebook]({script.stem}.ipynb).*"
    (folder / f"{script.stem}.md").write_text(f"{title}\n\n{beside}\n{rest}\n", encoding="utf-8")
    (folder / f"{script.stem}.ipynb").write_text(nbformat.writes(notebook) + "\n", encoding="utf-8")


def described(source: str) -> str:
    """Return the comment after the last line of a cell, which describes its picture."""
    comment = re.search(r"  # (.+)$", source)
    assert comment, f"a cell ends in a picture without a comment: {source}"
    return comment[1]


def main(words: Sequence[str] | None = None) -> None:
    """Make the tutorials that the command names, or all."""
    parser = argparse.ArgumentParser(description="Make notebooks and pages of the tutorials.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", choices=[[], *(script.stem for script in TUTORIALS)], metavar="NAME")
    parser.add_argument("--without-results", action="store_true", help="run nothing")
    given = parser.parse_args(words)
    for script in TUTORIALS:
        if not given.names or script.stem in given.names:
            make(script, given.folder, results=not given.without_results)


if __name__ == "__main__":
    sys.exit(main())
